"""Whole files and lines: limits, kinds of errors, and what is torn told from what is foreign."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from analysis.errors import FileLimitError, ForeignFileError, IncompleteFileError, LoadError
from analysis.sources.base import Position, ReadOptions, SourceFile, SourceKind
from analysis.sources.files import EXPANSION, check_size, decode_json, lines_of, read_bytes
from tests.analysis.sources.source_files import read, whats


def source(path: Path, since: Position | None = None) -> SourceFile:
    return SourceFile(str(path), SourceKind.METRICS, since=since)


def test_whole_files(tmp_path: Path) -> None:
    """The content is the content; nothing, too much and no file are told apart."""
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1000)
    assert read_bytes(source(path), ReadOptions()) == b"x" * 1000
    with pytest.raises(FileLimitError, match="max_bytes"):
        read_bytes(source(path), ReadOptions(max_bytes=999 * EXPANSION))
    check_size(source(path), ReadOptions(max_bytes=1000 * EXPANSION))
    with pytest.raises(FileLimitError):
        check_size(source(path), ReadOptions(max_bytes=999 * EXPANSION))
    path.write_bytes(b"")
    with pytest.raises(IncompleteFileError):
        read_bytes(source(path), ReadOptions())
    with pytest.raises(ForeignFileError):
        read_bytes(source(tmp_path), ReadOptions())


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    """A pipe in the place of a file is refused at once, whole or by lines."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ForeignFileError):
        read_bytes(source(path), ReadOptions())
    with pytest.raises(ForeignFileError):
        list(lines_of(source(path), ReadOptions()))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"a": [1, 2', IncompleteFileError),
        (b'{"a": "x', IncompleteFileError),
        (b'{"a": {}', IncompleteFileError),
        (b" \n", IncompleteFileError),
        (b"\xef\xbb\xbf", IncompleteFileError),
        (b"\x00\x00\x00", IncompleteFileError),
        (b"<html>", ForeignFileError),
        (b"\x80\x02", ForeignFileError),
        (b'{"a" 1}', LoadError),
        (b'{"a": \xff\xfe}', LoadError),
        (b"[" * 100_000 + b"]" * 100_000, FileLimitError),
        (b'{"a": ' + b"9" * 10_000 + b"}", LoadError),
    ],
)
def test_damaged_json(data: bytes, error: type[LoadError]) -> None:
    """Torn, foreign, damaged and absurdly nested documents have errors of their own."""
    with pytest.raises(LoadError) as caught:
        decode_json(data)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "data", [b'{"a": NaN}', b'\xef\xbb\xbf{"a": 1}', b'{"a": "\\ud83d"}', b'{"a": 1e999}', b'{"a": 1}  \n']
)
def test_json_of_pythons_own_writers(data: bytes) -> None:
    """What Python writes by default is read, although it is no strict JSON."""
    assert "a" in decode_json(data)


def test_json_that_swells(tmp_path: Path) -> None:
    """A document of millions of empty lists is refused by its size, before it takes twenty times as much."""
    path = tmp_path / "bomb.json"
    path.write_text(json.dumps({"completion_id": "x", "response": []})[:-2] + "[]," * 1_000_000 + "[]]}")
    records = read(path, SourceKind.COMPLETION, max_bytes=64 << 20)
    assert whats(records) == ["is too large"]


def test_lines(tmp_path: Path) -> None:
    """Lines come with number and place; blank ones are left out, an unfinished one is given as it is."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n\n  \ntwo\r\nthree")
    found = [(line.number, line.offset, line.data) for line in lines_of(source(path), ReadOptions())]
    assert found == [(1, 0, b"one\n"), (4, 8, b"two\r\n"), (5, 13, b"three")]
    later = lines_of(source(path, Position(offset=8, line=4)), ReadOptions())
    assert [(line.number, line.data) for line in later] == [(4, b"two\r\n"), (5, b"three")]
    assert list(lines_of(source(path, Position(offset=999)), ReadOptions())) == []


def test_an_enormous_line(tmp_path: Path) -> None:
    """A line beyond the limit is refused before it is read whole."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(FileLimitError, match="line 1"):
        list(lines_of(source(path), ReadOptions(max_bytes=5000 * EXPANSION)))
