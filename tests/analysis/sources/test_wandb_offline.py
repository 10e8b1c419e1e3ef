"""Metrics of W&B runs, as they lie on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.sources.base import SourceKind
from tests.analysis.sources.source_files import read, rows, whats
from tests.analysis.sources.test_wandb_log import history, log

WANDB = SourceKind.WANDB


def test_rows(tmp_path: Path) -> None:
    """Slime's step names give rollout and kind; W&B's own names are left out."""
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(
        log(
            history(0, {"rollout/step": 4, "polar/reward_mean": 0.5, "_timestamp": 10.5, "_runtime": 1}),
            history(1, {"eval/step": 4, "eval/aime": 0.25}),
        )
    )
    records = read(path, WANDB)
    assert records.problems == ()
    found = [
        (row["name"], row["value"], row["rollout_id"], row["evaluation"], row["step"])
        for row in rows(records, "metric")
    ]
    assert found == [
        ("rollout/step", 4.0, 4, False, 0),
        ("polar/reward_mean", 0.5, 4, False, 0),
        ("eval/step", 4.0, 4, True, 1),
        ("eval/aime", 0.25, 4, True, 1),
    ]
    first = rows(records, "metric")[0]
    assert (first["stream"], first["at"].timestamp()) == ("run-abc", 10.5)


def test_torn_and_damaged_files(tmp_path: Path) -> None:
    """A live run's file gives what is complete, and says that there is more to come."""
    path = tmp_path / "run-abc.wandb"
    whole = log(history(0, {"a": 1}), history(1, {"a": 2}))
    path.write_bytes(whole[:-3])
    records = read(path, WANDB)
    assert [row["value"] for row in rows(records, "metric")] == [1.0]
    assert whats(records) == ["ends too early"]
    path.write_bytes(b"nonsense")
    assert whats(read(path, WANDB)) == ["is no W&B log"]
    path.write_bytes(b"")
    assert whats(read(path, WANDB)) == ["is empty"]


_RUN = """
import wandb
run = wandb.init(project="p", mode="offline", settings=wandb.Settings(silent=True))
for step in range(3):
    wandb.log({"rollout/step": step, "polar/reward_mean": step / 2, "nested": {"a": step}})
run.finish()
"""


@pytest.mark.slow
def test_a_real_offline_run(tmp_path: Path) -> None:
    """A run of the real library, offline, loads without it."""
    pytest.importorskip("wandb")
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env |= {
        "WANDB_DIR": str(tmp_path),
        "WANDB_MODE": "offline",
        "WANDB_CONFIG_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"W&B does not run here: {done.stderr[-300:]}")
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = read(path, WANDB)
    assert records.problems == ()
    rewards = [row for row in rows(records, "metric") if row["name"] == "polar/reward_mean"]
    assert [(row["rollout_id"], row["value"]) for row in rewards] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert sum(row["name"] == "nested/a" for row in rows(records, "metric")) == 3
