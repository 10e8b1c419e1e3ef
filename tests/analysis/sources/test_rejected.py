"""Samples of rejected groups: rows like a dump's, with the verdict, never taken for accepted ones."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.sources.base import SourceKind
from slime_bridge.journal.schema import SCHEMA_VERSION
from tests.analysis.sources.source_files import read, rows, sample, whats, write_lines

REJECTED = SourceKind.REJECTED
LINE = {
    "v": 1, "ts": 1000.5, "group": 11, "rollout_id": 4, "reason": "too_stale",
    "numbers": {"staleness": 9, "max_staleness": 3}, "samples": [sample(14), sample(15)],
}  # fmt: skip


def test_rows_of_a_rejected_group(tmp_path: Path) -> None:
    """Traces, sessions and the group have their rows, marked as not accepted, with the reason."""
    records = read(write_lines(tmp_path / "rejected.jsonl", LINE), REJECTED)
    assert records.problems == ()
    traces = rows(records, "trace")
    assert [(row["sample_index"], row["accepted"], row["group"]) for row in traces] == [
        (14, False, 11),
        (15, False, 11),
    ]
    sessions = rows(records, "session")
    assert [(row["group_state"], row["reject_reason"]) for row in sessions] == [("rejected", "too_stale")] * 2
    (group,) = rows(records, "group")
    assert (group["state"], group["accepted"], group["samples_kept"], group["staleness"]) == (
        "rejected",
        False,
        True,
        9,
    )
    assert group["ended_at"].timestamp() == 1000.5


def test_token_places_name_the_line(tmp_path: Path) -> None:
    """The place of a sample's arrays is the line's first byte and the sample's place in it."""
    path = write_lines(tmp_path / "rejected.jsonl", LINE, {**LINE, "group": 12})
    refs = read(path, REJECTED).token_refs.to_pylist()
    assert [ref["item"] for ref in refs] == [0, 1, 0, 1]
    with path.open("rb") as stream:
        stream.seek(refs[2]["result"])
        assert json.loads(stream.readline())["group"] == 12


def test_reading_on(tmp_path: Path) -> None:
    """Only what was appended is read; a torn last line is read when it is complete."""
    text = json.dumps(LINE)
    path = tmp_path / "rejected.jsonl"
    path.write_text(text + "\n" + text[:500])
    first = read(path, REJECTED)
    assert whats(first) == ["an incomplete last line"]
    assert len(rows(first, "group")) == 1
    path.write_text(text + "\n" + text + "\n")
    second = read(path, REJECTED, since=first.positions[str(path)])
    assert second.problems == ()
    assert len(rows(second, "trace")) == 2


def test_foreign_and_newer_lines(tmp_path: Path) -> None:
    """Lines that are no rejected group, or of a newer schema, are told and passed over."""
    lines = [{"a": 1}, {**LINE, "v": SCHEMA_VERSION + 1}, {**LINE, "samples": 5}, LINE]
    records = read(write_lines(tmp_path / "rejected.jsonl", *lines), REJECTED)
    assert len(rows(records, "group")) == 1
    assert sorted(whats(records)) == ["a line is no rejected group", "written by a newer version"]
