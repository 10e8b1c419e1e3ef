"""The bridge's journal as rows: every group's life, every attempt, also those that never came back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.sources.base import SourceKind
from slime_bridge.journal import Journal
from slime_bridge.journal.schema import EVENTS, SCHEMA_VERSION
from tests.analysis.sources.source_files import frame, read, rows, sample, whats, write_lines

JOURNAL = SourceKind.JOURNAL


class Writer:
    """Records with sequence numbers and times a second apart."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def __call__(self, event: str, **fields: Any) -> None:
        number = len(self.records)
        self.records.append({"v": 1, "seq": number, "ts": 1000.0 + number, "event": event, **fields})


def outcome(position: int, session_id: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "position": position, "session_id": session_id, "node_id": "n", "status": "COMPLETED",
        "completed": True,
        "usable": True, "trainable_tokens": 5, "response_tokens": 8, "n_traces": 2, "dropped_traces": 1,
        "dropped_tokens": 9, "clipped_traces": 0, "masked_tokens": 2, "missing_rewards": 0, "reward": 1.0,
        "reason": None, "detail": None, "timing": {"run_ms": 7.0, "e2e_ms": 9.5}, "weight_versions": ["3",
        "4"],
        "policy_version": 3, "early_stopped": False, **changes,
    }  # fmt: skip


NUMBERS = {
    "sessions": 2, "completed": 1, "usable": 1, "complete_usable": 1, "required": 2, "early_stopped": 0,
    "traceless": 1, "trainable_tokens": 5, "response_tokens": 8, "reasons": {"timeout": 1},
}  # fmt: skip


def opened(write: Writer) -> None:
    write("journal_opened", versions={}, config={}, pid=1)


def drawn(write: Writer, group: int, group_index: int) -> None:
    indices = [2 * group_index, 2 * group_index + 1]
    write(
        "group_drawn",
        group=group,
        group_index=group_index,
        sample_indices=indices,
        prompt_sha256="ab",
        prompt_preview="hi",
    )


def submitted(write: Writer, group: int, task_id: str, *, attempt: int = 1, version: int = 3) -> None:
    write(
        "task_submitted",
        group=group,
        task_id=task_id,
        attempt=attempt,
        policy_version=version,
        rollout_id=version,
    )


def test_the_life_of_a_delivered_group(tmp_path: Path) -> None:
    """Draw, submission, result, verdict and delivery add up to one group row and one row per session."""
    write = Writer()
    opened(write)
    write("rollout_requested", rollout_id=4, wanted=1)
    drawn(write, 0, 7)
    submitted(write, 0, "t-1")
    late = outcome(
        1,
        "s-2",
        status="TIMEOUT",
        completed=False,
        usable=False,
        reward=None,
        reason="timeout",
        detail="late",
    )
    write(
        "task_result",
        group=0,
        task_id="t-1",
        attempt=1,
        via="callback",
        seconds=2.5,
        sessions=[outcome(0, "s-1"), late],
    )
    write("verdict", group=0, accepted=True, reason=None, numbers=NUMBERS)
    write(
        "group_delivered",
        group=0,
        rollout_id=4,
        policy_version=3,
        staleness=1,
        staleness_in_flight=1,
        staleness_in_queue=0,
    )
    write("rollout_summary", rollout_id=4, metrics={"polar/reward_mean": 1.0}, ledger={"drawn": 1})
    records = read(write_lines(tmp_path / "journal.jsonl", *write.records), JOURNAL)
    assert records.problems == ()
    (group,) = rows(records, "group")
    times = {name: group.pop(name).timestamp() - 1000 for name in list(group) if name.endswith("_at")}
    assert times == {"drawn_at": 2, "submitted_at": 3, "result_at": 4, "judged_at": 5, "ended_at": 6}
    assert json.loads(group.pop("verdict_numbers"))["required"] == 2
    del group["path"]
    assert group == {
        "rollout_id": 4, "evaluation": False, "worker": "journal#1", "group": 0, "group_index": 7,
        "attempted": True, "accepted": True, "state": "delivered", "verdict": "accepted",
        "expected_sessions": 2,
        "completed_sessions": 1, "usable_sessions": 1, "complete_usable_sessions": 1, "required_sessions": 2,
        "early_stopped_sessions": 0, "traceless_sessions": 1, "attempts": 1, "requeues": 0, "via": "callback",
        "result_seconds": 2.5, "policy_version": 3, "rollout_step": 3, "staleness": 1,
        "staleness_in_flight": 1,
        "staleness_in_queue": 0, "prompt_sha256": "ab", "prompt_preview": "hi",
    }  # fmt: skip
    first, second = rows(records, "session")
    for name in ("submitted_at", "result_at", "path"):
        first.pop(name)
    assert first == {
        "rollout_id": 4, "evaluation": False, "worker": "journal#1", "group": 0, "group_index": 7,
        "task_id": "t-1", "attempt": 1, "trajectory": 14, "position": 0, "session_id": "s-1",
        "attempted": True,
        "finished": True, "status": "COMPLETED", "node_id": "n", "completed": True, "early_stopped": False,
        "usable": True, "reward": 1.0, "policy_version": 3, "rollout_step": 3, "weight_version_oldest": "3",
        "weight_version_newest": "4", "staleness": 1, "kept_traces": 2, "dropped_traces": 1,
        "dropped_tokens": 9,
        "clipped_traces": 0, "aborted_masked_tokens": 2, "altered": True, "missing_rewards": 0,
        "trainable_tokens": 5,
        "run_ms": 7.0, "e2e_ms": 9.5,
    }  # fmt: skip
    assert (second["reason"], second["trajectory"], second["usable"]) == ("timeout", 15, False)
    assert "reward" not in second
    (requested, summed) = rows(records, "rollout")
    assert (requested["wanted_groups"], requested["requested_at"].timestamp()) == (1, 1001)
    assert summed["delivered_at"].timestamp() == 1007
    (metric,) = rows(records, "metric")
    assert (metric["name"], metric["value"], metric["unit"], metric["stream"]) == (
        "polar/reward_mean",
        1.0,
        "reward",
        "journal",
    )


@pytest.mark.parametrize(
    ("event", "fields", "state", "accepted"),
    [
        ("group_rejected", {"reason": "low_complete_fraction", "numbers": NUMBERS}, "rejected", False),
        ("group_returned", {}, "returned", False),
        ("group_abandoned", {}, "abandoned", False),
        ("group_given_up", {"attempts": 8, "last_error": "refused"}, "given_up", False),
        (None, {}, None, None),
    ],
)
def test_every_other_fate(tmp_path: Path, event: str | None, fields: Any, state: Any, accepted: Any) -> None:
    """Rejected, returned, abandoned, given up or unfinished: each group has its row."""
    write = Writer()
    opened(write)
    drawn(write, 0, 7)
    submitted(write, 0, "t-1")
    write("rollout_requested", rollout_id=9, wanted=1)
    if event is not None:
        write(event, group=0, **fields)
    records = read(write_lines(tmp_path / "journal.jsonl", *write.records), JOURNAL)
    (group,) = rows(records, "group")
    assert (group.get("state"), group.get("accepted")) == (state, accepted)
    assert group["rollout_id"] == (3 if event is None else 9)
    assert group.get("reject_reason") == fields.get("reason")
    assert group.get("last_error") == fields.get("last_error")


def test_sessions_that_never_came_back(tmp_path: Path) -> None:
    """A task without a result leaves one row per expected session, attempted and not finished."""
    write = Writer()
    opened(write)
    drawn(write, 0, 7)
    submitted(write, 0, "t-1")
    write("group_requeued", group=0, reason="lost", detail="404 after a restart")
    submitted(write, 0, "t-2", version=4)
    write(
        "task_result",
        group=0,
        task_id="t-2",
        attempt=1,
        via="poll",
        seconds=1,
        sessions=[outcome(0, "a"), outcome(1, "b")],
    )
    records = read(write_lines(tmp_path / "journal.jsonl", *write.records), JOURNAL)
    sessions = frame(records, "session").sort_values(["task_id", "position"])
    assert sessions["task_id"].tolist() == ["t-1", "t-1", "t-2", "t-2"]
    assert sessions["finished"].tolist() == [False, False, True, True]
    assert sessions["attempted"].all()
    assert sessions["trajectory"].tolist() == [14, 15, 14, 15]
    assert sessions["status"].isna().tolist() == [True, True, False, False]
    (group,) = rows(records, "group")
    assert (group["attempts"], group["requeues"], group["requeue_reason"]) == (2, 1, "lost")
    assert group["policy_version"] == 4


def test_groups_of_several_tasks(tmp_path: Path) -> None:
    """With one task per session, a lost task is one lost session, at its own place."""
    write = Writer()
    opened(write)
    drawn(write, 0, 7)
    submitted(write, 0, "t-s0")
    submitted(write, 0, "t-s1")
    write(
        "task_result", group=0, task_id="t-s0", attempt=1, via="poll", seconds=1, sessions=[outcome(0, "a")]
    )
    records = read(write_lines(tmp_path / "journal.jsonl", *write.records), JOURNAL)
    found = [(row["task_id"], row["position"], row["finished"]) for row in rows(records, "session")]
    assert sorted(found) == [("t-s0", 0, True), ("t-s1", 1, False)]


def test_several_openings(tmp_path: Path) -> None:
    """Group numbers start again with each opening: the groups are told apart."""
    write = Writer()
    for group_index in (7, 8):
        opened(write)
        drawn(write, 0, group_index)
        write("group_abandoned", group=0)
    records = read(write_lines(tmp_path / "journal.jsonl", *write.records), JOURNAL)
    found = [(row["worker"], row["group"], row["group_index"]) for row in rows(records, "group")]
    assert found == [("journal#1", 0, 7), ("journal#2", 0, 8)]
    events = frame(records, "event")
    assert events["worker"].tolist() == ["journal#1"] * 3 + ["journal#2"] * 3
    other = read(write_lines(tmp_path / "journal.1.jsonl", *write.records), JOURNAL)
    assert rows(other, "group")[0]["worker"] == "journal.1#1"


def test_reading_on(tmp_path: Path) -> None:
    """A journal that grows is read from where it ended; a group that began before keeps its ids."""
    write = Writer()
    opened(write)
    write("rollout_requested", rollout_id=4, wanted=1)
    drawn(write, 0, 7)
    submitted(write, 0, "t-1")
    path = write_lines(tmp_path / "journal.jsonl", *write.records, tail='{"v":1,"seq":4,"ts":1004.0,"eve')
    first = read(path, JOURNAL)
    assert whats(first) == ["an incomplete last line"]
    position = first.positions[str(path)]
    assert (position.line, position.opening, position.rollout_id) == (5, 1, 4)
    write(
        "task_result",
        group=0,
        task_id="t-1",
        attempt=1,
        via="poll",
        seconds=1,
        sessions=[outcome(0, "a"), outcome(1, "b")],
    )
    write(
        "group_delivered",
        group=0,
        rollout_id=4,
        policy_version=3,
        staleness=1,
        staleness_in_flight=1,
        staleness_in_queue=0,
    )
    write_lines(path, *write.records)
    second = read(path, JOURNAL, since=position)
    assert second.problems == ()
    assert [row["event"] for row in rows(second, "event")] == ["task_result", "group_delivered"]
    assert {row["worker"] for row in rows(second, "event")} == {"journal#1"}
    (group,) = rows(second, "group")
    assert (group["state"], group["group_index"], group["attempts"]) == ("delivered", 7, 0)
    assert [(row["session_id"], row["trajectory"]) for row in rows(second, "session")] == [
        ("a", 14),
        ("b", 15),
    ]
    assert rows(second, "session")[0]["submitted_at"].timestamp() == 1003
    third = read(path, JOURNAL, since=second.positions[str(path)])
    assert third.tables == {}
    assert third.positions == second.positions


def test_events_hold_everything(tmp_path: Path) -> None:
    """Every known event is a row with its ids; what has no column is kept as JSON."""
    write = Writer()
    for event, spec in EVENTS.items():
        write(
            event, **{name: 0 if name in ("group", "rollout_id", "attempt") else "x" for name in spec.fields}
        )
    write("event_of_tomorrow", group=0, colour="blue")
    records = read(write_lines(tmp_path / "journal.jsonl", *write.records), JOURNAL)
    events = frame(records, "event")
    assert events["event"].tolist() == [*EVENTS, "event_of_tomorrow"]
    assert events["seq"].tolist() == list(range(len(EVENTS) + 1))
    assert json.loads(events["data"].iloc[-1]) == {"colour": "blue"}
    assert events["kind"].eq("journal").all()
    assert set(whats(records)) == {"a record has no usable sessions"}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("not json", "a line holds no JSON object"),
        ("[1]", "a line holds no JSON object"),
        ('{"event": "x"}', "a line is no journal record"),
        (json.dumps({"v": SCHEMA_VERSION + 1, "event": "x"}), "written by a newer version"),
        ("[" * 100_000, "a line holds no JSON object"),
        ("\x00" * 40, None),
        ("", None),
    ],
)
def test_foreign_lines_are_passed_over(tmp_path: Path, line: str, what: str | None) -> None:
    """A torn, foreign or newer line in the middle is told once and costs no other."""
    write = Writer()
    opened(write)
    path = tmp_path / "journal.jsonl"
    record = json.dumps(write.records[0])
    path.write_text(f"{record}\n{line}\n{line}\n{record}\n")
    records = read(path, JOURNAL)
    assert len(rows(records, "event")) == 2
    assert whats(records) == ([] if what is None else [what])


@pytest.mark.parametrize(
    "fields",
    [
        {"event": None},
        {"ts": "soon"},
        {"ts": 1e300},
        {"seq": "x"},
        {"event": "verdict", "group": 0, "numbers": 5},
        {"event": "task_result", "group": 0, "sessions": [5, None]},
        {"event": "task_result", "group": 0, "task_id": 7},
        {"event": "group_drawn", "group": 0, "sample_indices": "abc", "group_index": []},
        {"group": 2**80},
        {
            "event": "task_result",
            "group": 0,
            "task_id": "t",
            "sessions": [{"position": -5, "timing": 3, "reward": "x"}],
        },
        {"event": "rollout_summary", "rollout_id": "four", "metrics": [1]},
        {"event": "rollout_requested"},
        {"event": "group_delivered", "group": 0, "staleness": float("nan")},
    ],
)
def test_records_of_strange_shape(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Whatever a record holds, it is an event, and those around it are untouched."""
    write = Writer()
    opened(write)
    record = {"v": 1, "seq": 1, "ts": 1.0, "event": "x", **fields}
    records = read(write_lines(tmp_path / "journal.jsonl", *write.records, record, *write.records), JOURNAL)
    assert len(rows(records, "event")) == 3
    assert set(whats(records)) <= {"a record has no usable sessions"}


def test_what_the_bridge_writes(tmp_path: Path) -> None:
    """A journal of the bridge's own writer reads without a problem."""
    journal = Journal(tmp_path, config={"a": 1})
    journal.record(
        "group_drawn", group=0, group_index=1, sample_indices=[2], prompt_sha256="x", prompt_preview="\ud83d"
    )
    journal.rejected_group(
        group=0, rollout_id=3, reason="zero_trainable", numbers=NUMBERS, samples=[sample(2)]
    )
    journal.close()
    records = read(tmp_path / "journal.jsonl", JOURNAL)
    assert records.problems == ()
    assert [row["event"] for row in rows(records, "event")] == [
        "journal_opened",
        "group_drawn",
        "journal_closed",
    ]
    rejected = read(tmp_path / "rejected.jsonl", SourceKind.REJECTED)
    assert rejected.problems == ()
    (group,) = rows(rejected, "group")
    assert (group["state"], group["reject_reason"], group["rollout_id"]) == ("rejected", "zero_trainable", 3)
