"""The audit: a sound journal passes, and each way to lose, double or smuggle a group is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_bridge.journal import Journal, audit, read_journal
from slime_bridge.journal.audit import JournalAuditor, Rule
from slime_bridge.journal.schema import EVENTS, SCHEMA_VERSION

Record = dict[str, Any]


class _Story:
    """Writes records with growing numbers, with sound defaults for every field."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.open()

    def open(self) -> None:
        self.seq = 0
        self.add("journal_opened", versions={}, config={}, pid=1)

    def add(self, event: str, **fields: Any) -> Record:
        group = fields.get("group", 0)
        defaults: Record = {
            "wanted": 4,
            "rollout_id": 3,
            "group_index": group,
            "sample_indices": [2 * group, 2 * group + 1],
            "prompt_sha256": "0",
            "prompt_preview": "",
            "task_id": f"task-{group}",
            "attempt": 1,
            "via": "callback",
            "seconds": 1.0,
            "sessions": [{"session_id": f"s-{group}-{i}"} for i in range(2)],
            "accepted": True,
            "reason": None,
            "numbers": {},
            "policy_version": 2,
            "staleness": 1,
            "staleness_in_flight": 1,
            "staleness_in_queue": 0,
            "detail": "",
            "attempts": 8,
            "last_error": "",
            "since": 0.0,
            "metrics": {},
            "ledger": {},
            "versions": {},
            "config": {},
            "pid": 1,
            "count": 0,
            "events": {},
        }
        wanted = EVENTS[event].fields if event in EVENTS else ()
        record = {"v": SCHEMA_VERSION, "seq": self.seq, "ts": 0.0, "event": event}
        record |= {name: defaults[name] for name in wanted if name in defaults} | fields
        self.seq += 1
        self.records.append(record)
        return record

    def deliver(self, group: int, **fields: Any) -> None:
        self.add("group_drawn", group=group)
        self.add("task_submitted", group=group)
        self.add("task_result", group=group)
        self.add("verdict", group=group)
        self.add("group_delivered", group=group, **fields)

    def rules(self) -> list[Rule]:
        return [violation.rule for violation in audit(self.records)]


def test_a_sound_journal_has_no_violation_and_adds_up() -> None:
    """Delivered, rejected, retried, given up, returned and abandoned groups, each with one end."""
    story = _Story()
    story.add("rollout_requested")
    story.deliver(0)
    story.add("group_drawn", group=1)
    story.add("task_submitted", group=1)
    story.add("group_requeued", group=1, reason="refused")
    story.add("task_submitted", group=1, task_id="task-1-a2", attempt=2)
    story.add("task_result", group=1, task_id="task-1-a2")
    story.add("verdict", group=1, accepted=False, reason="zero_trainable")
    story.add("group_rejected", group=1, reason="zero_trainable")
    for group, end in ((2, "group_given_up"), (3, "group_returned"), (4, "group_abandoned")):
        story.add("group_drawn", group=group)
        story.add(end, group=group)
    story.add("group_drawn", group=5, sample_indices=[6, 7])
    story.add("group_returned", group=5)
    ends = {"delivered": 1, "rejected": {"zero_trainable": 1}, "given_up": {"x": 1}, "returned": 2}
    story.add("rollout_summary", ledger={**ends, "abandoned": 1, "unaccounted": 0})
    story.add("evaluation_summary")
    story.add("journal_closed")
    auditor = JournalAuditor()
    for record in story.records:
        auditor.feed(record)
    assert auditor.finish() == []
    counts = auditor.counts
    assert counts["drawn"] == 6
    assert sum(counts[end] for end in ("delivered", "rejected", "given_up", "returned", "abandoned")) == 6
    assert counts["rejected: zero_trainable"] == counts["requeued"] == 1
    assert (counts["openings"], counts["killed"], counts["live"], counts["submitted"]) == (1, 0, 0, 3)


def test_a_killed_process_leaves_live_groups_and_no_violation() -> None:
    """What was under way at a kill is counted; the next opening starts its numbers again."""
    story = _Story()
    story.add("rollout_requested")
    story.deliver(0)
    story.add("group_drawn", group=1)
    story.open()
    story.add("rollout_requested")
    story.deliver(0)
    story.add("group_drawn", group=1)
    story.add("group_returned", group=1)
    story.add("journal_closed")
    auditor = JournalAuditor()
    for record in story.records:
        auditor.feed(record)
    assert auditor.finish() == []
    assert (auditor.counts["killed"], auditor.counts["live"]) == (1, 1)
    assert auditor.counts["replayed"] == 1


def _twice(story: _Story) -> None:
    story.deliver(0)
    story.add("group_delivered", group=0)


def _returned_and_delivered(story: _Story) -> None:
    story.add("group_drawn", group=0)
    story.add("group_returned", group=0)
    story.add("task_submitted", group=0)


def _lost(story: _Story) -> None:
    story.add("group_drawn", group=0)
    story.add("journal_closed")


def _accepted_before_requeue(story: _Story) -> None:
    story.add("group_drawn", group=0)
    story.add("task_submitted", group=0)
    story.add("task_result", group=0)
    story.add("verdict", group=0)
    story.add("group_requeued", group=0)
    story.add("group_delivered", group=0)


def _rejected_and_delivered(story: _Story) -> None:
    story.add("group_drawn", group=0)
    story.add("task_submitted", group=0)
    story.add("task_result", group=0)
    story.add("verdict", group=0, accepted=False)
    story.add("group_delivered", group=0)


def _foreign_result(story: _Story) -> None:
    story.add("group_drawn", group=0)
    story.add("task_submitted", group=0)
    story.add("task_result", group=0, task_id="somebody-else")


def _same_sessions(story: _Story) -> None:
    story.deliver(0)
    story.add("group_drawn", group=1)
    story.add("task_submitted", group=1)
    story.add("task_result", group=1, sessions=[{"session_id": "s-0-1"}])
    story.add("verdict", group=1)
    story.add("group_delivered", group=1)


def _same_prompt_live(story: _Story) -> None:
    story.add("group_drawn", group=0)
    story.add("group_drawn", group=1, sample_indices=[0, 1])


def _same_prompt_delivered(story: _Story) -> None:
    story.deliver(0)
    story.add("group_drawn", group=1, sample_indices=[0, 1])


def _too_many(story: _Story) -> None:
    for group in range(5):
        story.deliver(group)


CASES: list[tuple[Callable[[_Story], Any], Rule]] = [
    (_twice, Rule.ENDED_ONCE),
    (_returned_and_delivered, Rule.ENDED_ONCE),
    (_lost, Rule.UNFINISHED),
    (_accepted_before_requeue, Rule.DELIVERY),
    (_rejected_and_delivered, Rule.DELIVERY),
    (_foreign_result, Rule.TASK),
    (_same_sessions, Rule.DELIVERY),
    (_same_prompt_live, Rule.PROMPT),
    (_same_prompt_delivered, Rule.PROMPT),
    (_too_many, Rule.REQUEST),
    (lambda s: s.deliver(0, rollout_id=9, staleness=7, staleness_in_flight=7), Rule.REQUEST),
    (lambda s: s.deliver(0, staleness=0, staleness_in_flight=0), Rule.STALENESS),
    (lambda s: s.deliver(0, staleness_in_queue=5), Rule.STALENESS),
    (lambda s: [s.add("group_drawn", group=0) for _ in range(2)], Rule.DRAWN_ONCE),
    (lambda s: s.add("group_returned", group=7), Rule.DRAWN_ONCE),
    (lambda s: s.add("rollout_summary", ledger={"unaccounted": 2}), Rule.LEDGER),
    (lambda s: s.add("rollout_summary", ledger={"rejected": {"too_stale": 1}}), Rule.LEDGER),
    (lambda s: s.add("something_new"), Rule.RECORD),
    (lambda s: s.add("group_returned", group=0).pop("group"), Rule.RECORD),
    (lambda s: s.add("outage_over", seq=0), Rule.ORDER),
    (lambda s: s.add("outage_over", seq=9), Rule.ORDER),
    (lambda s: [s.add("journal_closed"), s.add("outage_over")], Rule.ORDER),
]


@pytest.mark.parametrize(("damage", "rule"), CASES, ids=[f"{r}-{n}" for n, (_, r) in enumerate(CASES)])
def test_each_breach_is_named(damage: Callable[[_Story], Any], rule: Rule) -> None:
    """One breach gives violations of its own rule."""
    story = _Story()
    story.add("rollout_requested")
    damage(story)
    assert set(story.rules()) == {rule}


def test_a_violation_says_where() -> None:
    """Group, record number and opening lead to the place."""
    story = _Story()
    story.add("journal_closed")
    story.open()
    story.add("group_drawn", group=4)
    story.add("journal_closed")
    (violation,) = audit(story.records)
    assert (violation.group, violation.seq, violation.opening) == (4, 2, 1)
    assert "no end" in violation.message


def test_lost_records_make_an_opening_unprovable() -> None:
    """After a loss the audit says so once and invents no breaches; the next opening is judged again."""
    story = _Story()
    story.add("group_drawn", group=0)
    story.seq += 3
    story.add("records_dropped", count=3, events={"group_delivered": 1, "verdict": 2})
    story.add("group_delivered", group=12)
    story.add("journal_closed")
    story.open()
    story.add("group_drawn", group=0)
    story.add("journal_closed")
    assert story.rules() == [Rule.INCOMPLETE, Rule.UNFINISHED]


def test_lost_samples_of_rejected_groups_are_no_gap() -> None:
    """The samples of a rejected group stand in another file and use no number."""
    story = _Story()
    story.add("records_dropped", count=2, events={"rejected_samples": 2})
    story.add("journal_closed")
    assert story.rules() == []


@pytest.mark.parametrize("records", [[], [{"v": 1, "seq": 0, "ts": 0.0, "event": "outage_over"}], [{}]])
def test_strange_journals_are_survived(records: list[Record]) -> None:
    """Nothing at all, a journal without its beginning, and a record without anything."""
    rules = [violation.rule for violation in audit(records)]
    assert rules == ([Rule.ORDER] if records else [])


def test_a_real_journal_passes(tmp_path: Path) -> None:
    """What the writer writes, gaps after lost records included, is what the audit reads."""
    journal = Journal(tmp_path)
    story = _Story()
    story.add("rollout_requested")
    story.deliver(0)
    for record in story.records[1:]:
        fields = {k: v for k, v in record.items() if k not in ("v", "seq", "ts", "event")}
        journal.record(record["event"], **fields)
    journal.close()
    assert audit(read_journal(tmp_path)) == []
    second = Journal(tmp_path)
    second.record("outage", since=object.__new__(_Unprintable))
    second.record("outage_over")
    second.close()
    assert [violation.rule for violation in audit(read_journal(tmp_path))] == [Rule.INCOMPLETE]


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_leaving_one_record_out_of_a_sound_journal_is_noticed(data: st.DataObject) -> None:
    """Any single missing record but the last breaks at least one rule."""
    story = _Story()
    story.add("rollout_requested", wanted=10)
    for group in range(data.draw(st.integers(1, 4))):
        story.deliver(group)
    story.add("journal_closed")
    assert story.rules() == []
    del story.records[data.draw(st.integers(0, len(story.records) - 2))]
    assert story.rules()
