"""What happened since the previous batch, in the terms that metrics are computed from.

Filled as groups end and emptied when a batch is delivered; a call that is interrupted empties nothing, so no
rejection is missing from the metrics or in them twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_bridge.group_task import JudgedGroup, PromptGroup
from slime_bridge.groups import Delivery
from slime_bridge.metrics import DecisionWindow, GroupFacts

__all__ = ["RolloutWindow", "WindowFacts"]


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """A closed window.

    Parameters
    ----------
    rejected
        Groups rejected in it.
    decisions
        How many groups were judged in it, and its length.
    counters
        Further counts by metric name without ``polar/``.
    filter_drops
        Groups dropped by Slime's dynamic filter, by the reason it gave.
    """

    rejected: list[GroupFacts]
    decisions: DecisionWindow
    counters: dict[str, float]
    filter_drops: dict[str, int]


@dataclass(slots=True, eq=False)
class RolloutWindow:
    """The open window of one worker.

    Parameters
    ----------
    keep_samples
        Whether the samples of rejected groups are kept until the window closes.

    Attributes
    ----------
    counters : Counter of str
        Counts by metric name without ``polar/``; add to them freely.
    rejected_samples : list of list of Sample
        One list per rejected group, with `keep_samples`; who processes them removes them.
    """

    keep_samples: bool = False
    counters: Counter[str] = field(default_factory=Counter, init=False)
    rejected_samples: list[list[Any]] = field(default_factory=list, init=False)
    _filter_drops: Counter[str] = field(default_factory=Counter, init=False)
    _rejected: list[GroupFacts] = field(default_factory=list, init=False)
    _accepted: int = field(default=0, init=False)
    _opened_at: float = field(default=math.nan, init=False)
    _totals: dict[str, float] = field(default_factory=dict, init=False)

    def accept(self) -> None:
        """Count a group that was judged good enough."""
        self._accepted += 1

    def reject(self, judged: JudgedGroup | None, reason: str, filter_reason: str | None = None) -> None:
        """Count a rejected group; None for one whose result was not waited for."""
        if filter_reason:
            self._filter_drops[filter_reason] += 1
        if judged is not None and self.keep_samples:
            self.rejected_samples.append(judged.conversion.samples)
        sessions = judged.conversion.sessions if judged is not None else []
        seconds = judged.seconds if judged is not None else None
        self._rejected.append(GroupFacts(sessions, reason=reason, seconds=seconds))

    def close(self, now: float, totals: Mapping[str, float]) -> WindowFacts:
        """Return what happened and begin anew.

        Parameters
        ----------
        now
            Seconds.
        totals
            Counts since the worker started, of which the window's share is reported beside `counters`.
        """
        grown = {name: value - self._totals.get(name, 0.0) for name, value in totals.items()}
        facts = WindowFacts(
            rejected=self._rejected,
            decisions=DecisionWindow(self._accepted, len(self._rejected), now - self._opened_at),
            counters={**grown, **self.counters},
            filter_drops=dict(self._filter_drops),
        )
        self.counters, self._filter_drops = Counter(), Counter()
        self._rejected, self._accepted, self._opened_at = [], 0, now
        self._totals = dict(totals)
        return facts


def delivered_facts(delivery: Delivery[PromptGroup, JudgedGroup]) -> GroupFacts:
    """Return what the metrics need of a delivered group."""
    return GroupFacts(
        delivery.result.conversion.sessions,
        staleness=delivery.staleness,
        staleness_in_flight=delivery.staleness_in_flight,
        staleness_in_queue=delivery.staleness_in_queue,
        seconds=delivery.result.seconds,
    )
