"""What must hold after every scenario, whatever it was about: books, samples, nothing left behind."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.lab.polar_server.state import TaskRecord
from slime_bridge.journal import JournalAuditor, JournalProblem, read_journal

SETTLE_SECONDS = 10.0
"""Sockets and threads end a moment after whoever ended them has returned."""


class Leftovers:
    """Threads and descriptors that are there now and were not there before."""

    def __init__(self) -> None:
        gc.collect()
        self._threads = set(threading.enumerate())
        self._descriptors = _descriptors()

    def check(self) -> None:
        """Fail unless all new threads and descriptors are gone within a moment."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            threads = [t.name for t in threading.enumerate() if t not in self._threads]
            new = {d: name for d, name in _descriptors().items() if self._descriptors.get(d) != name}
            if not threads and not new:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"left behind: threads {threads}, descriptors {new}")
            gc.collect()
            time.sleep(0.02)


def _descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


class Books:
    """A journal that proves conservation: no rule broken, and every drawn group with one end.

    Parameters
    ----------
    folder
        The run folder.

    Attributes
    ----------
    counts : collections.Counter
        As `JournalAuditor.counts`.
    requeued, rejected, given_up : collections.Counter
        By reason; prompts given up as the last delivered batch reported them.
    lost_sessions : collections.Counter
        Sessions of delivered groups without anything to train on, by reason.
    delivered : dict
        ``group_index`` of each rollout's groups, in the order of delivery.
    """

    def __init__(self, folder: Path) -> None:
        auditor = JournalAuditor()
        self.requeued: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.lost_sessions: Counter[str] = Counter()
        self.delivered: dict[int, list[int]] = {}
        self.drawn: dict[int, int] = {}
        self._sessions: dict[int, dict[str, list[dict[str, Any]]]] = {}
        problems: list[JournalProblem] = []
        for record in read_journal(folder, problems=problems):
            auditor.feed(record)
            self._note(record)
        assert problems == []
        assert auditor.finish() == []
        self.counts = auditor.counts

    def _note(self, record: Mapping[str, Any]) -> None:
        event, group = record["event"], record.get("group", -1)
        if event == "rollout_summary":
            self.given_up = Counter(record["ledger"]["given_up"])
        elif event == "group_drawn":
            self.drawn[group] = record["group_index"]
        elif event == "task_result":
            self._sessions.setdefault(group, {})[record["task_id"]] = record["sessions"]
        elif event == "group_requeued":
            self._sessions.pop(group, None)
            self.requeued[record["reason"]] += 1
        elif event == "group_rejected":
            self.rejected[record["reason"]] += 1
        elif event == "group_delivered":
            self.delivered.setdefault(record["rollout_id"], []).append(self.drawn[group])
            for sessions in self._sessions[group].values():
                self.lost_sessions.update(s["reason"] for s in sessions if s["reason"])

    def check_closed(self) -> None:
        """Fail unless every process closed its journal and every group has an end."""
        counts = self.counts
        ends = sum(counts[end] for end in ("delivered", "rejected", "returned", "abandoned", "given_up"))
        assert counts["killed"] == 0
        assert counts["drawn"] == ends, counts


def check_samples(
    groups: Iterable[Sequence[Any]],
    history: Iterable[TaskRecord],
    *,
    prompts: Callable[[Sequence[Any]], Sequence[int]],
    clipped: bool = False,
    masked: bool = False,
) -> None:
    """Compare delivered samples, token by token, with what the server's sessions hold.

    Parameters
    ----------
    groups
        Delivered groups.
    history
        The server's tasks; what a fault changed in a session is part of its record.
    prompts
        Gives the sample indices that a group must hold, from its samples.
    clipped
        Whether responses may be cut at their end.
    masked
        Whether sampled tokens may be masked.
    """
    sessions = {s.session_id: s for task in history for s in task.sessions if s.result is not None}
    for group in groups:
        assert list(dict.fromkeys(sample.index for sample in group)) == list(prompts(group))
        for sample in group:
            polar_metadata = sample.metadata["polar"]
            lag = polar_metadata["accepted_rollout_id"] - polar_metadata["policy_version"]
            assert polar_metadata["policy_staleness"] == lag
            if polar_metadata.get("placeholder"):
                assert sample.tokens == [0, 0]
                assert sample.loss_mask == [0]
                assert sample.remove_sample
                continue
            session = sessions[sample.session_id]
            _check_sample(sample, session.traces[polar_metadata["trace_index"]], session, clipped, masked)


def _check_sample(sample: Any, trace: Mapping[str, Any], session: Any, clipped: bool, masked: bool) -> None:
    length = sample.response_length
    assert sample.tokens == (trace["prompt_ids"] + trace["response_ids"])[: len(sample.tokens)]
    assert clipped or length == len(trace["response_ids"])
    assert len(sample.tokens) == len(trace["prompt_ids"]) + length
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == length
    if session.status == "COMPLETED":
        wire = trace["loss_mask"][:length] or [0] * length
    else:
        wire = [0] * length
    changed = [new for new, old in zip(sample.loss_mask, wire, strict=True) if new != old]
    assert not changed or (masked and not any(changed))
    for position, (flag, value) in enumerate(zip(sample.loss_mask, sample.rollout_log_probs, strict=True)):
        assert math.isfinite(value)
        assert not flag or value == trace["response_logprobs"][position]
    (reward,) = sample.reward.values()
    sent = trace["reward"]
    assert reward == (sent if isinstance(sent, float) and math.isfinite(sent) else 0.0)
