"""The index makes the second load immediate and is never believed against the files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import analysis
from analysis import store
from analysis.index import FOLDER, Cached, fingerprint, index_folder, read_index, write_index
from analysis.lab.run_folder import RunFolder
from analysis.problems import Problem, Skipped
from analysis.records import Records
from analysis.sources.base import Position, ReadOptions
from tests.analysis.rows import records_of
from tests.analysis.test_loading import frames, same, write_session


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were really read, in order."""
    seen: list[str] = []
    real = store.chunked

    def spy(items: Any, size: Any, **options: Any) -> Any:
        seen.extend(os.path.basename(file.path) for file in items)
        return real(items, size, **options)

    monkeypatch.setattr(store, "chunked", spy)
    return seen


@pytest.fixture(autouse=True)
def _any_size_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_INDEX_FROM_BYTES", 0)


def test_second_load_reads_no_file_and_gives_the_same(embedded: RunFolder, reads: list[str]) -> None:
    """Frames, problems, what was skipped, and tokens."""
    (embedded.polar_results / "ses_torn.json").write_text('{"session_id": "x')
    first = analysis.load(embedded.root)
    assert len(reads) > 50
    reads.clear()
    second = analysis.load(embedded.root)
    assert reads == []
    assert same(first, second)
    assert second.problems.equals(first.problems)
    assert second.skipped.equals(first.skipped)
    assert len(second.problems) == 1
    one, other = first.token_arrays(), second.token_arrays()
    assert one.ids.tobytes() == other.ids.tobytes()
    assert same(analysis.load(embedded.root, index=False), second)


def test_only_what_changed_is_read(embedded: RunFolder, reads: list[str]) -> None:
    """A new, a changed and a removed file; the journal's tail; everything else from the index."""
    analysis.load(embedded.root)
    reads.clear()
    write_session(embedded.polar_results, "new", task="later")
    changed = next(embedded.polar_results.rglob("ses_*.json"))
    content = json.loads(changed.read_bytes())
    changed.write_text(json.dumps({**content, "node_id": "another"}))
    next(embedded.rollout_data.glob("eval_*.pt")).unlink()
    with (embedded.bridge / "journal.jsonl").open("a") as journal:
        journal.write('{"v":1,"seq":999,"ts":1.0,"event":"outage_over"}\n')
    run = analysis.load(embedded.root)
    assert sorted(reads) == sorted([changed.name, "ses_new.json", "journal.jsonl"])
    assert (run.sessions()["node_id"] == "another").sum() == 1
    assert same(run, analysis.load(embedded.root, index=False))
    reads.clear()
    analysis.load(embedded.root)
    assert reads == []


def test_the_same_size_at_another_time_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    """Size alone is no proof."""
    path = write_session(tmp_path, "s1", reward=1.0)
    analysis.load(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"reward": 1.0', b'"reward": 3.0'))
    os.utime(path, ns=(path.stat().st_mtime_ns + 1, path.stat().st_mtime_ns + 1))
    assert analysis.load(tmp_path).sessions()["reward"].tolist() == [3.0]


def test_a_moved_run_keeps_its_index(embedded: RunFolder, reads: list[str]) -> None:
    """Paths are relative: after a move nothing is read again, and frames name the new place."""
    analysis.load(embedded.root)
    moved = embedded.root.parent / "moved"
    shutil.move(embedded.root, moved)
    reads.clear()
    run = analysis.load(moved)
    assert reads == []
    assert run.sessions()["path"].str.startswith(str(moved)).all()
    assert run.names == ["moved"]
    assert len(run.token_arrays()) > 0


@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest", "pointer", "gone", "empty"])
def test_a_damaged_index_is_not_used_and_made_anew(tmp_path: Path, damage: str) -> None:
    """Torn tables, a broken manifest, a pointer to nowhere: all is read, the damage told and healed."""
    for number in range(3):
        write_session(tmp_path, f"s{number}")
    expected = frames(analysis.load(tmp_path))
    (generation,) = (tmp_path / FOLDER).glob("index-*")
    table = generation / "session.arrow"
    if damage == "truncate":
        table.write_bytes(table.read_bytes()[:-100])
    elif damage == "flip":
        data = bytearray(table.read_bytes())
        data[-20:] = bytes(20)
        table.write_bytes(data)
    elif damage == "manifest":
        (generation / "manifest.json").write_text('{"version": ')
    elif damage == "pointer":
        (tmp_path / FOLDER / "CURRENT").write_text("../../../etc\n")
    elif damage == "gone":
        shutil.rmtree(generation)
    else:
        (generation / "manifest.json").write_bytes(b"")
    run = analysis.load(tmp_path)
    for left, right in zip(frames(run), expected, strict=True):
        pd.testing.assert_frame_equal(left, right)
    told = run.problems["what"].tolist()
    assert told == ([] if damage in ("pointer", "gone") else ["the index is damaged and was not used"])
    assert analysis.load(tmp_path).problems.empty


def test_other_options_and_other_code_make_another_index(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index is of use only to the very same way of reading."""
    write_session(tmp_path, "s1")
    analysis.load(tmp_path)
    reads.clear()
    analysis.load(tmp_path, reward_key="other")
    assert reads == ["ses_s1.json"]
    assert fingerprint(ReadOptions()) != fingerprint(ReadOptions(trusted=True))
    before = fingerprint(ReadOptions())
    monkeypatch.setattr("analysis.index._code", lambda: "other code")
    assert fingerprint(ReadOptions()) != before


def test_an_index_of_another_format_is_no_damage(tmp_path: Path, reads: list[str]) -> None:
    """What an older or newer version of this package wrote is passed over without a word."""
    write_session(tmp_path, "s1")
    analysis.load(tmp_path)
    (generation,) = (tmp_path / FOLDER).glob("index-*")
    (generation / "manifest.json").write_text('{"version": 99, "fingerprint": "x", "else": []}')
    reads.clear()
    assert analysis.load(tmp_path).problems.empty
    assert reads == ["ses_s1.json"]


def test_small_runs_and_unwanted_indexes_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes are read faster than remembered; `index=False` writes nowhere."""
    write_session(tmp_path, "s1")
    analysis.load(tmp_path, index=False)
    assert not (tmp_path / FOLDER).exists()
    monkeypatch.setattr(store, "_INDEX_FROM_BYTES", 4 * 2**20)
    analysis.load(tmp_path)
    assert not (tmp_path / FOLDER).exists()


def test_a_chosen_folder_serves_several_runs(tmp_path: Path, reads: list[str]) -> None:
    """Two runs with one index folder do not mix, and nothing is written into the runs."""
    for name in "ab":
        write_session(tmp_path / name, f"s{name}")
        analysis.load(tmp_path / name, index=tmp_path / "cache")
    reads.clear()
    for name in "ab":
        run = analysis.load(tmp_path / name, index=tmp_path / "cache")
        assert run.sessions()["session_id"].tolist() == [f"s{name}"]
        assert not (tmp_path / name / FOLDER).exists()
    assert reads == []


def test_read_only_runs_are_remembered_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the run's folder cannot be written the index goes elsewhere, and loading does not fail."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = index_folder(tmp_path / "run", True)
    assert folder is not None
    assert folder.is_relative_to(tmp_path / "cache")
    write_session(tmp_path / "run", "s1")
    analysis.load(tmp_path / "run")
    assert (folder / "CURRENT").is_file()
    assert not (tmp_path / "run" / FOLDER).exists()


def test_an_index_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    """A file stands where the folder should be: the run loads."""
    write_session(tmp_path / "run", "s1")
    (tmp_path / "file").write_text("")
    run = analysis.load(tmp_path / "run", index=tmp_path / "file")
    assert len(run.sessions()) == 1
    assert run.problems["what"].tolist() in ([], ["the index is damaged and was not used"])
    problem = write_index(tmp_path / "file" / "x", tmp_path / "run", "made", Cached())
    assert problem is not None
    assert "index=False" in problem.fix


def test_generations_replace_each_other_and_rubbish_is_swept(tmp_path: Path) -> None:
    """One generation stays; what a killed writer left goes; version control is told to look away."""
    write_session(tmp_path, "s1")
    analysis.load(tmp_path)
    folder = tmp_path / FOLDER
    (folder / ".index-3fffff0-abcd").mkdir()
    (folder / ".CURRENT.3fffff0-abcd").write_text("x")
    write_session(tmp_path, "s2")
    analysis.load(tmp_path)
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if name.startswith(".")] == [".gitignore"]
    assert sum(name.startswith("index-") for name in names) == 1
    assert (folder / ".gitignore").read_text() == "*\n"


def test_an_open_generation_outlives_its_successor(tmp_path: Path) -> None:
    """A loaded run keeps its tables while another process writes a new index."""
    write_session(tmp_path, "s1")
    run = analysis.load(tmp_path)
    write_session(tmp_path, "s2")
    analysis.load(tmp_path)
    assert run.sessions()["session_id"].tolist() == ["s1"]
    assert len(run.tokens("s1")) == 5


def test_records_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    """Rows, problems with places, positions with their open groups, heads, joined tables."""
    root = tmp_path / "run"
    root.mkdir()
    rows = [
        ("session", {"session_id": "a", "reward": 0.1, "completed": True}),
        ("trace", {"session_id": "a"}),
    ]
    records = records_of(polar=rows).renamed(lambda path: str(root / path))
    path = str(root / "polar")
    position = Position(17, 3, 2, 5, {4: {"group_index": 7, "tasks": {"t": (1, 0, None)}}})
    records = Records(
        files=records.files,
        tables=records.tables,
        token_refs=records.token_refs,
        problems=(Problem(f"{path}:17", "what", "why", "fix"),),
        skipped=(Skipped(str(root / "x"), "reason"),),
        positions={path: position},
    )
    merged = {"session": pa.table({"path": pa.array([path, None]), "n": [1, 2], "nothing": pa.nulls(2)})}
    content = Cached(records, merged, "names", (Problem("p", "w"),), (Skipped("s", "r"),), {path: "abc"})
    assert write_index(tmp_path / "index", root, "made", content) is None
    assert read_index(tmp_path / "index", root, "otherwise") == (None, None)
    moved = tmp_path / "moved"
    found, problem = read_index(tmp_path / "index", moved, "made")
    assert problem is None
    assert found is not None
    new = str(moved / "polar")
    assert list(found.records.files) == [new]
    assert found.records.table("session").column("reward").to_pylist() == [0.1]
    assert found.records.table("session").column("path").to_pylist() == [new]
    assert found.records.problems == (Problem(f"{new}:17", "what", "why", "fix"),)
    back = found.records.positions[new]
    assert (back.offset, back.line, back.opening, back.rollout_id) == (17, 3, 2, 5)
    assert back.groups[4]["group_index"] == 7
    assert found.merged["session"].column("path").to_pylist() == [new, None]
    assert found.merged["session"].column_names == ["path", "n"]
    assert (found.merged_with, found.heads) == ("names", {new: "abc"})
    assert found.merge_problems == (Problem("p", "w"),)


def test_an_index_of_a_stranger_leads_nowhere_outside(tmp_path: Path, reads: list[str]) -> None:
    """A manifest that names files outside the run, or outside its own folder, is worth nothing."""
    write_session(tmp_path / "run", "s1")
    analysis.load(tmp_path / "run")
    (generation,) = (tmp_path / "run" / FOLDER).glob("index-*")
    manifest = json.loads((generation / "manifest.json").read_bytes())
    manifest["sizes"]["../../../secret"] = 1
    (tmp_path / "secret").write_text("x")
    (generation / "manifest.json").write_text(json.dumps(manifest))
    reads.clear()
    run = analysis.load(tmp_path / "run")
    assert reads == ["ses_s1.json"]
    assert len(run.sessions()) == 1
