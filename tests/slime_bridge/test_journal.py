"""The journal: strict JSON, never in the way of training, one writer per file, torn lines survived."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slime_bridge.errors import JournalError
from slime_bridge.journal import (
    Journal,
    JournalProblem,
    NullJournal,
    open_journal,
    prompt_fields,
    read_journal,
)
from slime_bridge.journal.files import LineFile, encode_json
from slime_bridge.journal.schema import ENVELOPE, EVENTS


def _records(path: Path) -> list[dict[str, Any]]:
    return list(read_journal(path))


def test_every_line_is_strict_json_with_the_envelope(tmp_path: Path) -> None:
    """Whatever is recorded, each line parses with a parser that refuses NaN, and carries the envelope."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    journal = Journal(tmp_path, config={"polar_rollout_url": "http://x"}, versions={"slime": "0.3.0"})
    journal.record("verdict", group=1, accepted=False, reason="too_stale", numbers={"reward": float("nan")})
    journal.record("rollout_requested", rollout_id=3, wanted=float("inf"))
    journal.close()
    lines = [json.loads(line, parse_constant=refuse) for line in journal.path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        "journal_opened",
        "verdict",
        "rollout_requested",
        "journal_closed",
    ]
    assert [line["seq"] for line in lines] == [0, 1, 2, 3]
    assert all(set(ENVELOPE) <= set(line) and line["event"] in EVENTS for line in lines)
    assert lines[0]["config"] == {"polar_rollout_url": "http://x"}
    assert lines[0]["versions"]["slime"] == "0.3.0"
    assert lines[0]["versions"]["python"]
    assert lines[1]["numbers"] == {"reward": None}
    assert lines[2]["wanted"] is None


class _Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class _Outcome:
    reward: float
    status: _Colour
    detail: str | None = None


class _Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (-float("inf"), None),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.arange(3), [0, 1, 2]),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (_Outcome(float("nan"), _Colour.RED), {"reward": None, "status": "red", "detail": None}),
        ({_Colour.RED: 1, 2: "b"}, {"red": 1, "2": "b"}),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        ("lone \ud800 half", "lone \ufffd half"),
        ("pair \ud83d\ude00", "pair \U0001f600"),
        (
            {"\udc00": ["\ud800", float("nan"), np.float64(1.0), _Odd()]},
            {"\ufffd": ["\ufffd", None, 1.0, "odd"]},
        ),
        (_Outcome(1.0, _Colour.RED, "\ud800"), {"reward": 1.0, "status": "red", "detail": "\ufffd"}),
        (2**70, 2**70),
        (b"ab", "YWI="),
        ("line\nbreak", "line\nbreak"),
        (Path("a/b"), "a/b"),
        ([], []),
    ],
)
def test_encoding_is_strict_and_total(value: Any, expected: Any) -> None:
    """Numbers that JSON lacks become null, broken text stays readable, foreign objects become text."""
    line = encode_json(value)
    assert b"\n" not in line
    assert json.loads(line) == expected


def test_a_cycle_ends() -> None:
    """A container that holds itself is cut off instead of never ending."""
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    assert b"..." in encode_json(cycle)


def test_records_are_snapshots(tmp_path: Path) -> None:
    """What a caller changes after the call does not reach the file."""
    numbers = {"sessions": 8}
    journal = Journal(tmp_path)
    journal.record("verdict", group=1, accepted=True, reason=None, numbers=numbers)
    numbers["sessions"] = 0
    journal.close()
    assert _records(journal.path)[1]["numbers"] == {"sessions": 8}


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def test_an_unusable_value_costs_one_record_and_never_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that cannot be encoded is counted where it was lost, and warned about once."""
    journal = Journal(tmp_path)
    for group in range(3):
        journal.record("group_returned", group=group, extra=_Unprintable())
    journal.record("group_returned", group=3)
    journal.close()
    records = _records(journal.path)
    lost = [record for record in records if record["event"] == "records_dropped"]
    assert sum(record["count"] for record in lost) == journal.dropped == 3
    assert [record["group"] for record in records if record["event"] == "group_returned"] == [3]
    assert sum("could not be encoded" in message for message in caplog.messages) == 1


def test_envelope_fields_cannot_be_overwritten(tmp_path: Path) -> None:
    """A field that is named like the envelope loses against it."""
    journal = Journal(tmp_path)
    journal.record("outage", since=1.0, event="fake", seq=-1, v=99)
    journal.close()
    record = _records(journal.path)[1]
    assert (record["event"], record["seq"], record["v"]) == ("outage", 1, 1)


def _block_writes(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Hold the writer thread's writes until the second event is set; the first tells that one is held."""
    held, go = threading.Event(), threading.Event()
    original = LineFile.write

    def write(self: LineFile, data: bytes) -> None:
        if data and threading.current_thread().name == "polar-journal":
            held.set()
            assert go.wait(30)
        original(self, data)

    monkeypatch.setattr(LineFile, "write", write)
    return held, go


def test_a_stuck_disk_neither_blocks_nor_raises_and_the_gap_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the writer stuck, recording returns at once; what did not fit is counted where it is missing."""
    held, go = _block_writes(monkeypatch)
    journal = Journal(tmp_path, max_queue=10)
    journal.record("rollout_requested", rollout_id=0, wanted=1)
    assert held.wait(10)
    for group in range(25):
        journal.record("group_returned", group=group)
    assert journal.dropped == 15
    go.set()
    assert journal.flush(10)
    journal.record("group_returned", group=99)
    journal.close()
    records = _records(journal.path)
    names = [record["event"] for record in records]
    gap = names.index("records_dropped")
    assert [record["group"] for record in records[:gap] if record["event"] == "group_returned"] == list(
        range(10)
    )
    assert records[gap]["count"] == 15
    assert records[gap]["events"] == {"group_returned": 15}
    assert [r["group"] for r in records[gap:] if r["event"] == "group_returned"] == [99]
    seqs = [record["seq"] for record in records]
    assert seqs == sorted(set(seqs))
    assert records[gap]["seq"] - records[gap - 1]["seq"] == 16
    assert names[-1] == "journal_closed"


def test_close_gives_up_on_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing waits no longer than it was told to, and says that the journal stayed open."""
    held, go = _block_writes(monkeypatch)
    journal = Journal(tmp_path)
    journal.record("rollout_requested", rollout_id=0, wanted=1)
    assert held.wait(10)
    journal.close(timeout=0.05)
    assert any("does not answer" in message for message in caplog.messages)
    go.set()
    journal._thread.join(10)
    assert not journal._thread.is_alive()
    assert _records(journal.path)[-1]["event"] == "journal_closed"


def test_a_full_disk_is_survived_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that the disk refuses half-way are counted, and later ones start on a fresh line."""
    journal = Journal(tmp_path)
    assert journal.flush()
    real, target = os.write, journal._events._descriptor
    answers = iter([20, OSError(28, "No space left on device")])

    def write(descriptor: int, data: Any) -> int:
        answer = next(answers, None) if descriptor == target else None
        if isinstance(answer, OSError):
            raise answer
        return real(descriptor, data if answer is None else bytes(data[:answer]))

    monkeypatch.setattr(os, "write", write)
    journal.record("group_returned", group=1)
    assert journal.flush()
    journal.record("group_returned", group=2)
    journal.close()
    problems: list[JournalProblem] = []
    records = list(read_journal(journal.path, problems=problems))
    assert [record["group"] for record in records if record["event"] == "group_returned"] == [2]
    gaps = [record["events"] for record in records if record["event"] == "records_dropped"]
    assert gaps == [{"group_returned": 1}]
    assert [problem.line for problem in problems] == [2]
    assert journal.dropped == 1
    assert sum("records are lost" in message for message in caplog.messages) == 1


def test_a_torn_last_line_is_continued_on_a_fresh_line(tmp_path: Path) -> None:
    """Reopening after a kill cuts nothing off and interleaves with nothing."""
    first = Journal(tmp_path)
    first.record("group_returned", group=1)
    first.close()
    with first.path.open("ab") as file:
        file.write(b'{"v":1,"seq":9,"ts":1.0,"event":"group_ret')
    second = Journal(tmp_path)
    second.record("group_returned", group=2)
    second.close()
    assert second.path == first.path
    problems: list[JournalProblem] = []
    records = list(read_journal(tmp_path, problems=problems))
    assert [record["group"] for record in records if record["event"] == "group_returned"] == [1, 2]
    assert [record["event"] for record in records].count("journal_opened") == 2
    assert [(problem.path, problem.line) for problem in problems] == [(first.path, 4)]


def test_a_second_writer_gets_its_own_file(tmp_path: Path) -> None:
    """Two writers of one folder never share a file; a freed file is used again."""
    first, second = Journal(tmp_path), Journal(tmp_path)
    assert [journal.path.name for journal in (first, second)] == ["journal.jsonl", "journal.1.jsonl"]
    second.rejected_group(group=1, rollout_id=0, reason="too_stale", numbers={}, samples=[{"tokens": [1]}])
    for journal in (first, second):
        journal.record("outage", since=0.0)
        journal.close()
    assert second.rejected_path.name == "rejected.1.jsonl"
    assert second.rejected_path.stat().st_size > 0
    assert [record["event"] for record in read_journal(tmp_path)].count("outage") == 2
    third = Journal(tmp_path)
    third.close()
    assert third.path == first.path


_OTHER_PROCESS = """
import sys
from slime_bridge.journal import Journal
journal = Journal(sys.argv[1])
journal.record("group_returned", group=5)
journal.flush()
print(journal.path.name, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_whole_lines_and_a_free_file(tmp_path: Path) -> None:
    """Another process keeps its own file; after a kill its records are there and the file is free again."""
    journal = Journal(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", _OTHER_PROCESS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "journal.1.jsonl"
        child.kill()
    journal.close()
    assert [r["event"] for r in _records(tmp_path / "journal.1.jsonl")] == [
        "journal_opened",
        "group_returned",
    ]
    reopened = [Journal(tmp_path), Journal(tmp_path)]
    assert [j.path.name for j in reopened] == ["journal.jsonl", "journal.1.jsonl"]
    for j in reopened:
        j.close()


def test_the_end_of_a_process_closes_the_journal(tmp_path: Path) -> None:
    """A script that forgets to close loses nothing."""
    script = (
        "import sys; from slime_bridge.journal import Journal; j = Journal(sys.argv[1]);"
        "[j.record('group_returned', group=g) for g in range(500)]"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, cwd=root, timeout=50)
    records = _records(tmp_path / "journal.jsonl")
    assert len(records) == 502
    assert records[-1]["event"] == "journal_closed"


def test_rejected_groups_keep_their_samples(tmp_path: Path) -> None:
    """Each rejected group is one line with its reason, its numbers and its samples as dicts."""

    class Sample:
        def to_dict(self) -> dict[str, Any]:
            return {"tokens": [1, 2], "rollout_log_probs": [float("nan")], "status": "completed"}

    journal = Journal(tmp_path)
    numbers = {"trainable": 0}
    for group in (1, 2):
        journal.rejected_group(
            group=group,
            rollout_id=4,
            reason="zero_trainable",
            numbers=numbers,
            samples=[Sample(), {"tokens": []}],
        )
    journal.rejected_group(group=3, rollout_id=None, reason="failed_task", numbers={}, samples=[])
    journal.close()
    groups = _records(journal.rejected_path)
    assert [(g["group"], g["rollout_id"], g["reason"]) for g in groups] == [
        (1, 4, "zero_trainable"),
        (2, 4, "zero_trainable"),
        (3, None, "failed_task"),
    ]
    assert groups[0]["numbers"] == {"trainable": 0}
    assert groups[0]["samples"] == [
        {"tokens": [1, 2], "rollout_log_probs": [None], "status": "completed"},
        {"tokens": []},
    ]
    assert groups[2]["samples"] == []


def test_a_broken_sample_loses_one_group_only(tmp_path: Path) -> None:
    """A rejected group whose samples cannot be encoded is counted; the writer goes on."""

    class Broken:
        def to_dict(self) -> dict[str, Any]:
            raise RuntimeError("gone")

    journal = Journal(tmp_path)
    journal.rejected_group(group=1, rollout_id=0, reason="x", numbers={}, samples=[Broken()])
    journal.rejected_group(group=2, rollout_id=0, reason="x", numbers={}, samples=[])
    journal.rejected_group(group=3, rollout_id=0, reason="x", numbers={"n": _Unprintable()}, samples=[])
    journal.close()
    assert [group["group"] for group in _records(journal.rejected_path)] == [2]
    gaps = [record for record in _records(journal.path) if record["event"] == "records_dropped"]
    assert sum(gap["events"]["rejected_samples"] for gap in gaps) == journal.dropped == 2


def test_rejected_groups_that_wait_for_the_disk_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Big sample lists cannot pile up in memory behind a slow disk."""
    held, go = _block_writes(monkeypatch)
    journal = Journal(tmp_path)
    journal.record("outage", since=0.0)
    assert held.wait(10)
    for group in range(100):
        journal.rejected_group(group=group, rollout_id=0, reason="x", numbers={}, samples=[])
    assert journal.dropped == 36
    go.set()
    journal.close()
    assert len(_records(journal.rejected_path)) == 64


def test_many_threads_may_record(tmp_path: Path) -> None:
    """Records of several threads keep their order per thread and their numbers are in file order."""
    journal = Journal(tmp_path)

    def work(thread: int) -> None:
        for step in range(200):
            journal.record("group_requeued", group=thread, reason="refused", detail=str(step))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    records = _records(journal.path)
    assert [record["seq"] for record in records] == list(range(802))
    for n in range(4):
        assert [r["detail"] for r in records if r.get("group") == n] == [str(step) for step in range(200)]


def test_nothing_is_written_after_close(tmp_path: Path) -> None:
    """A late record after close is ignored, closing twice is harmless, no thread is left."""
    journal = Journal(tmp_path)
    journal.close()
    journal.close()
    journal.record("outage", since=1.0)
    journal.rejected_group(group=1, rollout_id=0, reason="x", numbers={}, samples=[])
    assert journal.flush(0.1)
    assert [record["event"] for record in _records(journal.path)] == ["journal_opened", "journal_closed"]
    assert not [thread for thread in threading.enumerate() if thread.name == "polar-journal"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """A fork shares the file but has no writer: it must neither write nor wait."""
    journal = Journal(tmp_path)
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        journal.record("outage", since=1.0)
        journal.close()
        os._exit(0 if journal.flush(0.1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    journal.close()
    assert [record["event"] for record in _records(journal.path)] == ["journal_opened", "journal_closed"]


def test_an_unusable_folder_is_an_error_at_once(tmp_path: Path) -> None:
    """A path below a file cannot become a folder: the error names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="file/polar"):
        Journal(tmp_path / "file" / "polar")


def test_no_folder_means_no_journal(tmp_path: Path) -> None:
    """Without a run folder nothing is kept and every call works."""
    journal = open_journal(None)
    assert isinstance(journal, NullJournal)
    journal.record("outage", since=1.0)
    journal.rejected_group(group=1, rollout_id=0, reason="x", numbers={}, samples=[])
    assert journal.flush()
    journal.close()
    assert (journal.path, journal.dropped) == (None, 0)
    kept = open_journal(tmp_path / "deep" / "polar")
    kept.close()
    assert kept.path == tmp_path / "deep" / "polar" / "journal.jsonl"


def test_reading_passes_over_what_is_no_record(tmp_path: Path) -> None:
    """Torn, foreign, newer and blank lines do not stop the reader; each is named with its line."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(
        b'{"v":1,"seq":0,"ts":1.0,"event":"outage","since":NaN}\n'
        b"\n"
        b"[1, 2]\n"
        b'{"event":"outage"}\n'
        b'{"v":2,"seq":1,"ts":1.0,"event":"outage"}\n'
        b"\xff\xfe\n"
        b'{"v":1,"seq":2,"ts":1.0,"event":"outage_over"}\n'
        b'{"v":1,"se'
    )
    problems: list[JournalProblem] = []
    assert [record["event"] for record in read_journal(path, problems=problems)] == ["outage", "outage_over"]
    assert [problem.line for problem in problems] == [3, 4, 5, 6, 8]
    assert len(_records(path)) == 2


def test_a_missing_journal_is_an_error(tmp_path: Path) -> None:
    """A wrong path is told apart from an empty journal."""
    with pytest.raises(JournalError, match="no journal"):
        list(read_journal(tmp_path))
    with pytest.raises(JournalError, match="nowhere"):
        list(read_journal(tmp_path / "nowhere.jsonl"))


@pytest.mark.parametrize(
    "prompt", ["x" * 1000, [{"role": "user", "content": "y" * 1000}], "", "\ud800", None]
)
def test_prompt_fields_are_bounded_and_stable(prompt: Any) -> None:
    """A prompt is identified by a hash of all of it and shown by at most 200 characters."""
    fields = prompt_fields(prompt)
    assert fields == prompt_fields(prompt)
    assert len(fields["prompt_sha256"]) == 64
    assert len(fields["prompt_preview"]) <= 200
