"""Weight pushes: an event each, with whether the barrier guarded it; what is no push is listed."""

from __future__ import annotations

import json
from pathlib import Path

import analysis
from analysis.sources.base import SourceKind
from slime_bridge._push_log import FILE_NAME, PushLog
from tests.analysis.sources.source_files import read, rows, whats, write_lines


def test_pushes_as_the_barrier_notes_them(tmp_path: Path) -> None:
    """What the bridge writes is read back as events, and no longer listed as unknown."""
    log = PushLog()
    log.note("http://127.0.0.1:8080", str(tmp_path / "polar"), guarded=True)
    log.note("http://127.0.0.1:8080", str(tmp_path / "polar"), guarded=False)
    run = analysis.load(tmp_path, progress=False)
    events = run.events()
    assert events["event"].tolist() == ["weight_push", "weight_push"]
    assert [json.loads(data)["guarded"] for data in events["data"]] == [True, False]
    assert events["at"].is_monotonic_increasing
    assert run.problems.empty
    assert run.skipped.empty


def test_lines_that_are_no_push(tmp_path: Path) -> None:
    """They are counted and named, and the others are there."""
    good = {"ts": 1000.5, "server": "http://polar", "guarded": True}
    bad = [{"server": "http://polar", "guarded": True}, {**good, "guarded": "yes"}]
    records = read(write_lines(tmp_path / FILE_NAME, good, *bad), SourceKind.WEIGHT_PUSHES)
    assert [row["at"].timestamp() for row in rows(records, "event")] == [1000.5]
    assert whats(records) == ["a line is no weight push"]


def test_found_by_content(tmp_path: Path) -> None:
    """A renamed file loads as well."""
    write_lines(tmp_path / "renamed.jsonl", {"ts": 1.5, "server": "http://polar", "guarded": False})
    assert analysis.load(tmp_path, progress=False).events()["kind"].tolist() == ["weight_push"]
