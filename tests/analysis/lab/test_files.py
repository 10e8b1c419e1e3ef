"""Files of a run folder are whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from analysis.lab.files import append_json_line, atomic_path, sweep_partial_files, write_text


def test_nothing_is_visible_before_the_block_ends(tmp_path: Path) -> None:
    """A reader sees the old file until the new one is complete."""
    target = tmp_path / "deep" / "file.txt"
    write_text(target, "old")
    with atomic_path(target) as partial:
        partial.write_text("ne")
        assert target.read_text() == "old"
        partial.write_text("new")
    assert target.read_text() == "new"
    assert os.listdir(target.parent) == ["file.txt"]


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a write keeps the old file and removes the part."""
    target = tmp_path / "file.txt"
    write_text(target, "old")

    def interrupted_write() -> None:
        with atomic_path(target) as partial:
            partial.write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_write()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_private_files_become_readable(tmp_path: Path) -> None:
    """Writers that create files with mode 0600 must not lock out an engine that runs as another user."""
    with atomic_path(tmp_path / "weights") as partial:
        partial.touch(mode=0o600)
    assert (tmp_path / "weights").stat().st_mode & 0o044 == 0o044


def test_sweep_removes_own_leftovers_only(tmp_path: Path) -> None:
    """What this process left is removed, what another one is writing stays."""
    mine = tmp_path / "a" / f".x.pt.{os.getpid()}.partial"
    other = tmp_path / f".y.pt.{os.getpid() + 1}.partial"
    mine.parent.mkdir()
    mine.touch()
    other.touch()
    assert sweep_partial_files(tmp_path) == [mine]
    assert not mine.exists()
    assert other.exists()


def test_json_lines_are_strict_json(tmp_path: Path) -> None:
    """Unknown numbers are written as null, at any depth, one object per line."""
    path = tmp_path / "metrics.jsonl"
    append_json_line(
        path, {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}, "e": "x\ny"}
    )
    append_json_line(path, {"a": 1})
    first, second = path.read_text().splitlines()
    assert json.loads(first) == {"a": None, "b": [None, 1.5], "c": {"d": None}, "e": "x\ny"}
    assert json.loads(second) == {"a": 1}
