"""Files that others write to: torn lines, rotation, truncation, whatever happens between two looks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from analysis.live import followed_files
from analysis.live.followed_files import FollowedLines, FollowedRecords


def lines(file: FollowedLines) -> list[bytes]:
    return list(file.new_lines())


def test_lines_come_once_and_in_order(tmp_path: Path) -> None:
    """Each look yields what is new."""
    path = tmp_path / "a.jsonl"
    file = FollowedLines(path)
    assert lines(file) == []
    path.write_bytes(b"one\ntwo\n")
    assert lines(file) == [b"one", b"two"]
    assert lines(file) == []
    with path.open("ab") as out:
        out.write(b"three\n\n  \nfour\n")
    assert lines(file) == [b"three", b"four"]


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    """A line counts when its newline is there, however many writes it took."""
    path = tmp_path / "a.jsonl"
    file = FollowedLines(path)
    path.write_bytes(b"one\ntw")
    assert lines(file) == [b"one"]
    assert lines(file) == []
    with path.open("ab") as out:
        out.write(b"o\nthr")
    assert lines(file) == [b"two"]


def test_a_replaced_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Rotation by renaming, as logrotate and `os.replace` do."""
    path = tmp_path / "a.jsonl"
    file = FollowedLines(path)
    path.write_bytes(b"one\n")
    assert lines(file) == [b"one"]
    new = tmp_path / "new"
    new.write_bytes(b"fresh and longer than before\n")
    os.replace(new, path)
    assert lines(file) == [b"fresh and longer than before"]
    assert file.restarts == 1


def test_a_file_with_the_number_of_a_removed_one_is_new(tmp_path: Path) -> None:
    """File systems give the numbers of removed files to the next ones, and nobody looked in between."""
    path = tmp_path / "a.jsonl"
    file = FollowedLines(path)
    path.write_bytes(b"one\ntwo\n")
    assert lines(file) == [b"one", b"two"]
    path.write_bytes(b"other\nand\nmore\n")
    assert lines(file) == [b"other", b"and", b"more"]


def test_a_cut_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Rotation by copying and truncating."""
    path = tmp_path / "a.jsonl"
    file = FollowedLines(path)
    path.write_bytes(b"one\ntwo\n")
    assert len(lines(file)) == 2
    path.write_bytes(b"new\n")
    assert lines(file) == [b"new"]
    assert file.restarts == 1


def test_a_removed_file_is_no_error(tmp_path: Path) -> None:
    """It may come back."""
    path = tmp_path / "a.jsonl"
    file = FollowedLines(path)
    path.write_bytes(b"one\n")
    assert lines(file) == [b"one"]
    path.unlink()
    assert lines(file) == []
    path.write_bytes(b"again\n")
    assert lines(file) == [b"again"]


def test_reading_in_pieces_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that cross the borders of the pieces are whole."""
    monkeypatch.setattr(followed_files, "_CHUNK_BYTES", 7)
    path = tmp_path / "a.jsonl"
    content = [b"x" * length for length in (1, 6, 7, 8, 30, 2)]
    path.write_bytes(b"\n".join(content) + b"\n")
    assert lines(FollowedLines(path)) == content


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed over; what follows it is read."""
    monkeypatch.setattr(followed_files, "_CHUNK_BYTES", 16)
    monkeypatch.setattr(followed_files, "_MAX_LINE_BYTES", 64)
    path = tmp_path / "a.jsonl"
    file = FollowedLines(path)
    path.write_bytes(b"good\n" + b"x" * 500)
    assert lines(file) == [b"good"]
    with path.open("ab") as out:
        out.write(b"xxx\nafter\n")
    assert lines(file) == [b"after"]


def test_what_is_no_record_is_counted_and_passed_over(tmp_path: Path) -> None:
    """Damaged lines, foreign values, deep nesting."""
    (tmp_path / "journal.jsonl").write_bytes(
        b'{"a": 1}\nnot json\n[1]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"b": 2}\n'
    )
    records = FollowedRecords(tmp_path, ("journal*.jsonl",))
    assert [record for _, record in records.new_records()] == [{"a": 1}, {"b": 2}]
    assert records.unreadable == 4


def test_new_files_are_found(tmp_path: Path) -> None:
    """A second writer gets a file of its own; a folder may appear later."""
    records = FollowedRecords(tmp_path / "polar", ("journal*.jsonl",))
    assert list(records.new_records()) == []
    (tmp_path / "polar").mkdir()
    for name in ("journal.1.jsonl", "journal.jsonl", "journal.10.jsonl"):
        (tmp_path / "polar" / name).write_text(json.dumps({"file": name}) + "\n")
    names = [record["file"] for _, record in records.new_records()]
    assert names == ["journal.jsonl", "journal.1.jsonl", "journal.10.jsonl"]
    assert len(records.files) == 3
