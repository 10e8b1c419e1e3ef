"""Conservation proved from a journal: each drawn group has one end, and what was trained on a right to it.

A pure function of the records; it reads no files. Each opening of a file (``journal_opened``) is a run of its
own, because group numbers start again there. A process that was killed leaves groups without an end: they are
counted, and are no violation; in an opening that was closed they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slime_bridge.journal.schema import ENVELOPE, EVENTS, TERMINAL_EVENTS

__all__ = ["JournalAuditor", "Rule", "Violation", "audit"]


class Rule(StrEnum):
    """What a journal must show."""

    INCOMPLETE = "incomplete"
    """No record was lost; otherwise nothing can be proved for that opening."""
    RECORD = "record"
    """Each record is of a known event and has its fields."""
    ORDER = "order"
    """Numbers grow without unexplained gaps, and nothing follows the end of an opening."""
    DRAWN_ONCE = "drawn_once"
    """Each group is drawn once, before anything else happens to it."""
    ENDED_ONCE = "ended_once"
    """Each group ends once, and nothing happens to it afterwards."""
    UNFINISHED = "unfinished"
    """When the journal is closed every group has ended."""
    PROMPT = "prompt"
    """A prompt is live, and is delivered, in one group at a time."""
    TASK = "task"
    """Each task id is used once, and a result belongs to a task that was submitted for that group."""
    DELIVERY = "delivery"
    """A delivered group has a result and was accepted after it, and its sessions were delivered never
    before."""
    REQUEST = "request"
    """Groups go to rollouts that asked for them, and not more than were asked for."""
    STALENESS = "staleness"
    """Staleness is rollout minus policy version, and the sum of its parts."""
    LEDGER = "ledger"
    """The ledger's own equation holds, and every end that it counts is in the journal."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that a journal must not show.

    Parameters
    ----------
    rule
        What is broken.
    message
        How, for people.
    seq
        Number of the record that shows it.
    group
        The group concerned, None for none.
    opening
        In which opening of the file, from 0.
    """

    rule: Rule
    message: str
    seq: int
    group: int | None
    opening: int


@dataclass(slots=True)
class _Group:
    """What is known of one group."""

    prompts: tuple[int, ...] = ()
    tasks: set[str] = field(default_factory=set)
    sessions: tuple[str, ...] = ()
    has_result: bool = False
    accepted: bool = False
    end: str | None = None


@dataclass(slots=True)
class _Opening:
    """What is known of one opening of the file."""

    number: int
    groups: dict[int, _Group] = field(default_factory=dict)
    tasks: set[str] = field(default_factory=set)
    live_prompts: dict[tuple[int, ...], int] = field(default_factory=dict)
    delivered_prompts: set[tuple[int, ...]] = field(default_factory=set)
    delivered_sessions: set[str] = field(default_factory=set)
    wanted: Counter[int] = field(default_factory=Counter)
    delivered: Counter[int] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    next_seq: int = 0
    skipped: int = 0
    reported: int = 0
    closed: bool = False
    incomplete: bool = False


def audit(records: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Check a journal.

    Parameters
    ----------
    records
        As `slime_bridge.journal.read_journal` yields them.

    Returns
    -------
    list of Violation
        Empty if the journal proves conservation.
    """
    auditor = JournalAuditor()
    for record in records:
        auditor.feed(record)
    return auditor.finish()


class JournalAuditor:
    """The audit, record by record; memory grows with the groups of one opening.

    Attributes
    ----------
    violations : list of Violation
        What was found so far.
    counts : collections.Counter
        ``openings``, ``killed`` (not closed), ``drawn``, each end by name (rejections also by reason),
        ``live`` (without an end when a process was killed), ``requeued``, ``submitted``, ``replayed``
        (delivered again by a later opening).
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._opening = _Opening(-1)
        self._ever_delivered: set[tuple[int, ...]] = set()

    def feed(self, record: Mapping[str, Any]) -> None:
        """Take the next record."""
        event = str(record.get("event"))
        if event == "journal_opened":
            self._end_opening()
            self._opening = _Opening(self.counts["openings"])
            self.counts["openings"] += 1
        elif self._opening.number < 0 and not self._opening.incomplete:
            self._object(record, Rule.ORDER, "the first record is not `journal_opened`")
            # Without its beginning nothing can be said about the groups in it.
            self._opening.incomplete = True
        if self._has_form(record):
            handler = _HANDLERS.get(event)
            if handler is not None:
                handler(self, record, self._opening)

    def finish(self) -> list[Violation]:
        """End the last opening and return all violations."""
        self._end_opening()
        return self.violations

    def _object(self, record: Mapping[str, Any], rule: Rule, message: str) -> None:
        opening = self._opening
        if opening.incomplete and rule is not Rule.INCOMPLETE:
            return
        group = record.get("group")
        seq = record.get("seq")
        self.violations.append(
            Violation(
                rule,
                message,
                seq if isinstance(seq, int) else -1,
                group if isinstance(group, int) else None,
                opening.number,
            )
        )

    def _has_form(self, record: Mapping[str, Any]) -> bool:
        opening = self._opening
        event, seq = record.get("event"), record.get("seq")
        spec = EVENTS.get(str(event))
        missing = [name for name in (*ENVELOPE, *(spec.fields if spec else ())) if name not in record]
        if spec is None or missing:
            problem = f"{event} lacks {missing}" if spec else f"{event!r} is no known event"
            self._object(record, Rule.RECORD, problem)
        if isinstance(seq, int):
            if seq < opening.next_seq:
                self._object(record, Rule.ORDER, f"record {seq} comes after record {opening.next_seq - 1}")
            opening.skipped += max(0, seq - opening.next_seq)
            opening.next_seq = seq + 1
        if opening.closed:
            self._object(record, Rule.ORDER, "a record follows `journal_closed`")
        return spec is not None and not missing

    def _end_opening(self) -> None:
        opening = self._opening
        if opening.number < 0:
            return
        if opening.skipped > opening.reported:
            message = f"{opening.skipped - opening.reported} records are missing and not accounted for"
            self._object({"seq": opening.next_seq - 1}, Rule.ORDER, message)
        if not opening.closed:
            self.counts["killed"] += 1
            self.counts["live"] += sum(group.end is None for group in opening.groups.values())

    def _group(self, record: Mapping[str, Any]) -> _Group:
        """Return the record's group, which must be drawn and live."""
        groups = self._opening.groups
        group = groups.get(record["group"])
        if group is None:
            self._object(record, Rule.DRAWN_ONCE, f"{record['event']} for a group that nobody drew")
            group = groups[record["group"]] = _Group()
        elif group.end is not None:
            rule = Rule.ENDED_ONCE
            self._object(record, rule, f"{record['event']} after the group had ended with {group.end}")
        return group

    def _on_dropped(self, record: Mapping[str, Any], opening: _Opening) -> None:
        # Lost samples of a rejected group leave the history whole.
        lost = sum(count for event, count in record["events"].items() if event != "rejected_samples")
        opening.reported += lost
        if lost:
            self._object(
                record, Rule.INCOMPLETE, f"{record['count']} records were lost: {dict(record['events'])}"
            )
            opening.incomplete = True

    def _on_requested(self, record: Mapping[str, Any], opening: _Opening) -> None:
        opening.wanted[record["rollout_id"]] += record["wanted"]

    def _on_drawn(self, record: Mapping[str, Any], opening: _Opening) -> None:
        self.counts["drawn"] += 1
        if record["group"] in opening.groups:
            self._object(record, Rule.DRAWN_ONCE, "the group is drawn a second time")
            return
        prompts = tuple(record["sample_indices"] or ())
        opening.groups[record["group"]] = _Group(prompts)
        if not prompts:
            return
        if prompts in opening.live_prompts:
            other = opening.live_prompts[prompts]
            self._object(record, Rule.PROMPT, f"samples {list(prompts)} are live in group {other} already")
        if prompts in opening.delivered_prompts:
            self._object(record, Rule.PROMPT, f"samples {list(prompts)} were delivered before")
        opening.live_prompts[prompts] = record["group"]

    def _on_submitted(self, record: Mapping[str, Any], opening: _Opening) -> None:
        group = self._group(record)
        self.counts["submitted"] += 1
        if record["task_id"] in opening.tasks:
            self._object(record, Rule.TASK, f"task id {record['task_id']} is used a second time")
        opening.tasks.add(record["task_id"])
        group.tasks.add(record["task_id"])

    def _on_result(self, record: Mapping[str, Any], opening: _Opening) -> None:
        group = self._group(record)
        if record["task_id"] not in group.tasks:
            self._object(
                record, Rule.TASK, f"a result of {record['task_id']}, which was not submitted for it"
            )
        known = [s.get("session_id") for s in record["sessions"] if isinstance(s, Mapping)]
        group.sessions = tuple(session for session in known if session is not None)
        group.has_result, group.accepted = True, False

    def _on_verdict(self, record: Mapping[str, Any], opening: _Opening) -> None:
        group = self._group(record)
        group.accepted = bool(record["accepted"])
        if not group.has_result and group.accepted:
            self._object(record, Rule.DELIVERY, "accepted without a result")

    def _on_requeued(self, record: Mapping[str, Any], opening: _Opening) -> None:
        group = self._group(record)
        self.counts["requeued"] += 1
        group.has_result = group.accepted = False

    def _on_end(self, record: Mapping[str, Any], opening: _Opening) -> None:
        group = self._group(record)
        end = str(record["event"]).removeprefix("group_")
        if group.end is not None:
            return
        group.end = end
        opening.ends[end] += 1
        self.counts[end] += 1
        opening.live_prompts.pop(group.prompts, None)
        if end == "delivered":
            self._check_delivery(record, group, opening)
        elif end == "rejected":
            self.counts[f"rejected: {record['reason']}"] += 1

    def _check_delivery(self, record: Mapping[str, Any], group: _Group, opening: _Opening) -> None:
        if not (group.has_result and group.accepted):
            self._object(record, Rule.DELIVERY, "delivered without an accepted result")
        again = opening.delivered_sessions.intersection(group.sessions)
        if again:
            self._object(record, Rule.DELIVERY, f"sessions delivered a second time: {sorted(again)[:3]}")
        opening.delivered_sessions.update(group.sessions)
        if group.prompts:
            self.counts["replayed"] += group.prompts in self._ever_delivered - opening.delivered_prompts
            opening.delivered_prompts.add(group.prompts)
            self._ever_delivered.add(group.prompts)
        rollout, version, lag = record["rollout_id"], record["policy_version"], record["staleness"]
        opening.delivered[rollout] += 1
        if opening.delivered[rollout] > opening.wanted[rollout]:
            message = (
                f"rollout {rollout} got {opening.delivered[rollout]} groups, {opening.wanted[rollout]} asked"
            )
            self._object(record, Rule.REQUEST, message)
        parts = (record["staleness_in_flight"], record["staleness_in_queue"])
        if None not in (lag, version) and lag != rollout - version:
            self._object(record, Rule.STALENESS, f"staleness {lag} is not {rollout} - {version}")
        if None not in (lag, *parts) and lag != sum(parts):
            self._object(record, Rule.STALENESS, f"staleness {lag} is not {parts[0]} + {parts[1]}")

    def _on_summary(self, record: Mapping[str, Any], opening: _Opening) -> None:
        ledger = record["ledger"]
        if not isinstance(ledger, Mapping):
            return
        if ledger.get("unaccounted"):
            self._object(record, Rule.LEDGER, f"{ledger['unaccounted']} groups are in no state")
        for end in (name.removeprefix("group_") for name in TERMINAL_EVENTS):
            counted = ledger.get(end, 0)
            counted = sum(counted.values()) if isinstance(counted, Mapping) else counted
            if counted > opening.ends[end]:
                message = f"the ledger counts {counted} {end} groups, the journal {opening.ends[end]}"
                self._object(record, Rule.LEDGER, message)

    def _on_closed(self, record: Mapping[str, Any], opening: _Opening) -> None:
        opening.closed = True
        for number, group in opening.groups.items():
            if group.end is None:
                self._object({**record, "group": number}, Rule.UNFINISHED, "the group has no end")


_HANDLERS = {
    "records_dropped": JournalAuditor._on_dropped,
    "rollout_requested": JournalAuditor._on_requested,
    "group_drawn": JournalAuditor._on_drawn,
    "task_submitted": JournalAuditor._on_submitted,
    "task_result": JournalAuditor._on_result,
    "verdict": JournalAuditor._on_verdict,
    "group_requeued": JournalAuditor._on_requeued,
    "rollout_summary": JournalAuditor._on_summary,
    "journal_closed": JournalAuditor._on_closed,
    **dict.fromkeys(TERMINAL_EVENTS, JournalAuditor._on_end),
}
