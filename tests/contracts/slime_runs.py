"""How tests run code inside real Slime: in a child process, with the checkout that ``SLIME_DIR`` names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from tests.contracts.inside_slime.host import MARK

ROOT = Path(__file__).resolve().parents[2]


def slime_dir() -> Path | None:
    """The checkout, None where the environment names none that exists."""
    named = os.environ.get("SLIME_DIR")
    return Path(named) if named and (Path(named) / "slime" / "ray" / "rollout.py").is_file() else None


needs_slime = pytest.mark.skipif(
    slime_dir() is None, reason="SLIME_DIR does not name a checkout of THUDM's Slime (v0.3.0)"
)


def environment(**more: str) -> dict[str, str]:
    """The child's environment: both sources importable, nothing written into the checkout, one thread."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLIME_CONTRACT_")},
        "PYTHONPATH": f"{ROOT}{os.pathsep}{slime_dir()}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
        **more,
    }


@lru_cache(maxsize=16)
def report_of(module: str) -> dict[str, str | None]:
    """Run a module's checks once per test session; returns each check's traceback, or None."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.contracts.inside_slime.host", f"tests.contracts.inside_slime.{module}"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            report: dict[str, str | None] = json.loads(line.removeprefix(MARK))
            return report
    pytest.fail(f"the checks of {module} did not finish:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def assert_check_passes(module: str, check: str) -> None:
    """Fail with the child's traceback if a check failed there."""
    problem = report_of(module).get(check, "the check did not run")
    if problem is not None:
        pytest.fail(problem, pytrace=False)
