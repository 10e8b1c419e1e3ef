"""Watching a run elsewhere: its numbers, live, and not a byte of it changed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from analysis import live
from analysis.errors import LiveError, RunNotFoundError
from analysis.lab.run_folder import RunFolder
from slime_bridge.journal import Journal
from tests.analysis.live.support import eventually, live_threads


def state_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder with its size, its time and its mode."""
    return {
        str(path.relative_to(folder)): (s.st_size if path.is_file() else 0, s.st_mtime_ns, s.st_mode)
        for path in [folder, *folder.rglob("*")]
        if (s := path.stat())
    }


def test_a_run_by_the_real_writers(embedded: RunFolder) -> None:
    """Curves, sessions and groups of a run that has ended, from the folder that Slime saved to."""
    before = state_of(embedded.root)
    with live.watch(embedded.root, interval=60.0) as watched:
        watched.look()
        snapshot = watched.progress
        assert watched.state == "closed"
        assert [point.x for point in snapshot.curves["reward"]] == [0, 1, 2]
        assert snapshot.groups["accepted"] == 9
        assert "held-out reward" in snapshot.curves
        assert "mean reward" in watched._repr_html_()
        assert len(watched.run.rollouts()) == 4
    assert watched.state == "stopped"
    assert state_of(embedded.root) == before
    assert live_threads() == []


def test_a_run_that_goes_on_is_followed(tmp_path: Path) -> None:
    """Records appear as they are written; a torn line is not one yet."""
    journal = Journal(tmp_path / "polar")
    try:
        with live.watch(tmp_path, interval=0.01) as watched:
            journal.record("rollout_requested", rollout_id=3, wanted=1)
            eventually(lambda: watched.progress.rollout == 3, "the rollout")
            assert watched.state == "following"
            assert "rollout 3" in repr(watched)
            metrics = tmp_path / "metrics.jsonl"
            line = json.dumps({"kind": "rollout", "rollout_id": 0, "train/ppo_kl": 0.5}) + "\n"
            metrics.write_text(line[:20])
            watched.look()
            assert "KL" not in watched.progress.curves
            metrics.write_text(line)
            eventually(lambda: "KL" in watched.progress.curves, "the metric")
    finally:
        journal.close()


def test_a_rotated_journal_starts_anew(tmp_path: Path) -> None:
    """What a replaced file said is not counted twice."""
    path = tmp_path / "journal.jsonl"
    record = {"v": 1, "ts": 1.0, "event": "group_delivered", "group": 0}
    path.write_text(json.dumps(record) + "\n" + json.dumps({**record, "group": 1}) + "\n")
    with live.watch(tmp_path, interval=60.0) as watched:
        assert watched.look().progress.groups == {"accepted": 2}
        (tmp_path / "next").write_text(json.dumps(record) + "\n")
        os.replace(tmp_path / "next", path)
        assert watched.look().progress.groups == {"accepted": 1}


def test_files_that_cannot_be_read_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view says so, and goes on when they can be read again."""
    (tmp_path / "journal.jsonl").write_text('{"v": 1, "event": "rollout_requested", "rollout_id": 1}\n')
    with live.watch(tmp_path, interval=60.0) as watched:
        watched.look()
        real = Path.open

        def refuse(self: Path, *args: object, **options: object) -> object:
            if self.name == "journal.jsonl":
                raise PermissionError(13, "Permission denied")
            return real(self, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Path, "open", refuse)
        watched.look()
        assert "PermissionError" in watched._repr_html_()
        monkeypatch.undo()
        assert "PermissionError" not in watched.look()._repr_html_()


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, name: str) -> None:
    """With what was looked for."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunNotFoundError, match=name):
        live.watch(tmp_path / name)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), "1"])
def test_an_interval_is_a_time(tmp_path: Path, interval: Any) -> None:
    """One below zero would look without a pause."""
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(LiveError, match="interval"):
        live.watch(tmp_path, interval=interval)


def test_stopping_is_repeatable_and_wakes_who_waits(tmp_path: Path) -> None:
    """From another thread, too."""
    (tmp_path / "journal.jsonl").write_text("")
    watched = live.watch(tmp_path, interval=60.0)
    stopper = threading.Timer(0.05, watched.stop)
    stopper.start()
    assert watched.wait(20)
    watched.stop()
    stopper.join()
    assert watched.result(0.0) == watched.progress
    assert live_threads() == []
