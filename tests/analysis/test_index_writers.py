"""Several processes load one folder at once: every one gets the run, and an index that counts is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis import store
from analysis.index import FOLDER
from analysis.lab.run_folder import RunFolder
from tests.analysis.test_index import reads  # noqa: F401
from tests.analysis.test_loading import same, write_session

ROOT = Path(__file__).resolve().parents[2]
_LOAD = """
import sys
import analysis
from analysis import store
store._INDEX_FROM_BYTES = 0
run = analysis.load(sys.argv[1], reward_key=sys.argv[2] or None)
print(len(run.sessions()), len(run.traces()), len(run.problems))
"""


@pytest.fixture(autouse=True)
def _any_size_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_INDEX_FROM_BYTES", 0)


def started(folder: Path, reward_key: str = "") -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", _LOAD, str(folder), reward_key]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True)


def generations(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).glob("index-*"))


def test_a_generation_that_is_about_to_count_is_not_swept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reads: list[str],  # noqa: F811
) -> None:
    """Another process writes its index between this one's two steps, and sweeps: neither loses its own."""
    write_session(tmp_path, "s1")
    real = Path.replace

    def meanwhile(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", real)
        with started(tmp_path) as other:
            assert other.wait() == 0
        assert len(generations(tmp_path)) == 2
        return real(path, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    analysis.load(tmp_path)
    reads.clear()
    assert len(analysis.load(tmp_path).sessions()) == 1
    assert reads == []


def test_old_generations_of_others_are_swept(tmp_path: Path) -> None:
    """What others left is removed by the next writer, once it cannot be about to count."""
    write_session(tmp_path, "s1")
    analysis.load(tmp_path)
    folder = tmp_path / FOLDER
    for name, age in (("index-1-aaaa", 3600), (f"index-{os.getppid():x}-bbbb", 3600), ("index-zz-c", 0)):
        (folder / name).mkdir()
        moment = (folder / name).stat().st_mtime - age
        os.utime(folder / name, (moment, moment))
    (folder / f"index-{os.getppid():x}-dddd").mkdir()
    write_session(tmp_path, "s2")
    analysis.load(tmp_path)
    left = generations(tmp_path)
    assert len(left) == 2
    assert f"index-{os.getppid():x}-dddd" in left


def test_a_folder_that_disappears_while_it_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody clears the caches in this very moment: the run is loaded all the same."""
    write_session(tmp_path, "s1")
    real = Path.iterdir

    def gone(path: Path) -> Any:
        if path.name == FOLDER:
            shutil.rmtree(path)
        return real(path)

    monkeypatch.setattr(Path, "iterdir", gone)
    assert len(analysis.load(tmp_path).sessions()) == 1


def test_processes_at_once(embedded: RunFolder, reads: list[str]) -> None:  # noqa: F811
    """Four loaders, two ways of reading: the same numbers for all, and the last index serves."""
    expected = analysis.load(embedded.root, index=False)
    said = f"{len(expected.sessions())} {len(expected.traces())} {len(expected.problems)}"
    loaders = [started(embedded.root, key) for key in ("", "score", "", "")]
    try:
        assert [loader.communicate()[0].strip() for loader in loaders] == [said] * 4
    finally:
        for loader in loaders:
            loader.kill()
    analysis.load(embedded.root)
    reads.clear()
    again = analysis.load(embedded.root)
    assert reads == []
    assert same(again, expected)
