"""Slime's own plug-in contract tests, run by pytest in a child process with our dotted paths."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.contracts.slime_runs import environment, needs_slime, slime_dir

pytestmark = [pytest.mark.slime, needs_slime, pytest.mark.timeout(200)]


def run_contract(file: str, select: str, **paths: str) -> None:
    """Run the selected tests of one contract file; none selected is a failure."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:timeout"),
            *("-p", "tests.contracts.inside_slime.missing_packages"),
            *(f"tests/plugin_contracts/{file}", "-k", select),
        ],
        cwd=slime_dir(),
        env=environment(**{f"SLIME_CONTRACT_{name}": path for name, path in paths.items()}),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"


def test_reward_post_process():
    """Exact parameter names; an empty args object, float rewards and no ids give two lists of two."""
    run_contract(
        "test_plugin_runtime_hook_contracts.py",
        "aligns and custom_reward_post_process",
        CUSTOM_REWARD_POST_PROCESS_PATH="slime_bridge.reward_post_process.post_process_rewards",
    )


def test_reward_function():
    """Awaited by Slime for one sample, it returns a number."""
    run_contract(
        "test_plugin_path_loading_contracts.py",
        "custom_rm_path",
        CUSTOM_RM_PATH="slime_bridge.reward.reward_func",
    )


@pytest.mark.skipif(
    importlib.util.find_spec("slime_bridge.data_source") is None,
    reason="slime_bridge.data_source is not there yet",
)
def test_data_source():
    """Built from args alone, it gives a list of groups."""
    run_contract(
        "test_plugin_path_loading_contracts.py",
        "aligns and data_source",
        DATA_SOURCE_PATH="slime_bridge.data_source.CeilEpochRolloutDataSourceWithBuffer",
    )
