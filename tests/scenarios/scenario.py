"""A fault scenario as data: what the server, the network and the trainer do, and what must come of it.

The catalogue consists of these; `tests.scenarios.playing` plays one, and the table of ``make faults`` and
``docs/faults.md`` are made from the same fields, so that neither can promise what is not tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from analysis.lab.polar_server.testing import Fault, SessionProfile

BATCH = 4
"""Groups per rollout, unless a scenario sets another number."""

SESSIONS = 2
"""Sessions per group, unless a scenario sets another number."""

QUICK = SessionProfile(duration=0.02)
"""Ordinary sessions: over at once, reward 0 or 1."""

LONG = SessionProfile(duration=600.0)
"""Sessions that outlast every scenario."""

Count = float | tuple[float, float]
"""A number, or the range that it is in."""

Deed = Literal["forget", "refuse", "stop server", "hang server", "good server", "stop worker", "interrupt"]


@dataclass(frozen=True, kw_only=True)
class Act:
    """Something that happens while a call waits.

    Parameters
    ----------
    submits
        Happens when the server has accepted so many tasks in all.
    does
        What, one after the other: ``forget`` makes the server lose its tasks, ``refuse`` makes it refuse
        connections for `seconds`, ``stop server`` kills it, ``hang server`` lets it answer nothing more,
        ``good server`` ends all its faults, ``stop worker`` stops the bridge, ``interrupt`` is Ctrl-C.
    seconds
        For ``refuse``.
    """

    submits: int
    does: Sequence[Deed]
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Error:
    """The error that one call ends with.

    Parameters
    ----------
    kind
        Its type.
    text
        Regular expression found in its message.
    call
        Which call, counted from 0.
    """

    kind: type[BaseException]
    text: str = ""
    call: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What must come of a scenario.

    Parameters
    ----------
    delivered
        Groups per call that succeeded: their ``group_index`` where it is certain, else how many.
    rejected, given_up
        Groups by reason; a pair is a range: results that were under way at the end may or may not count.
    requeued
        Requeues by reason; None where load decides about their number.
    returned, abandoned
        Groups that went back to the data source, or were counted as abandoned, when the worker ended; None
        where load decides about their number.
    sessions
        Sessions without anything to train on in delivered groups, by reason; None where load decides.
    statuses
        Samples delivered, by status; None: not looked at.
    masked
        Whether tokens that the policy sampled were masked.
    errors
        Calls that end with an error.
    metrics
        Values of the last successful call's metrics; a pair is a range.
    log
        Texts that the log must hold, each exactly once.
    submits
        Range of the number of tasks that the server accepted; None: not looked at.
    within
        Seconds that all calls and the stop may take; ``make faults`` holds them to it.
    """

    delivered: Sequence[int | Sequence[int]] = ((0, 1, 2, 3),)
    rejected: Mapping[str, Count] = field(default_factory=dict)
    given_up: Mapping[str, Count] = field(default_factory=dict)
    requeued: Mapping[str, int] | None = field(default_factory=dict)
    returned: int | None = 0
    abandoned: int = 0
    sessions: Mapping[str, int] | None = field(default_factory=dict)
    statuses: Mapping[str, int] | None = None
    masked: bool = False
    errors: Sequence[Error] = ()
    metrics: Mapping[str, Count] = field(default_factory=dict)
    log: Sequence[str] = ()
    submits: tuple[int, int] | None = None
    within: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One entry of the catalogue.

    Parameters
    ----------
    name
        Unique, for people and ``-k``.
    what
        What happens, in one sentence.
    outcome
        What must come of it.
    faults
        The server's fault script.
    profile
        The server's ordinary sessions.
    settings
        Trainer arguments beside the usual ones.
    rollouts
        One call each, with this rollout id.
    changes
        Settings that change before the call of this number.
    acts
        What happens meanwhile.
    prompts
        Prompts that the data source has; None: endless.
    newer
        Whether the server is of a newer version (it can cancel tasks and stop sessions early).
    seed
        Of the server's sessions and chances.
    environment
        Environment variables.
    server
        ``polar``; ``none``: nothing listens there; ``silent``: something listens and never answers.
    ends_by
        How the trainer ends: by stopping the worker, or as a process of its own at the end of its script, by
        an exception or by SIGTERM, with work in flight.
    evaluation
        Prompts to evaluate, with the last rollout id, in place of training; 0 trains.
    slow
        Whether it takes more than two or three seconds.
    """

    name: str
    what: str
    outcome: Outcome = field(default_factory=Outcome)
    faults: Sequence[Fault] = ()
    profile: SessionProfile = QUICK
    settings: Mapping[str, Any] = field(default_factory=dict)
    rollouts: Sequence[int] = (0,)
    changes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    acts: Sequence[Act] = ()
    prompts: int | None = None
    newer: bool = False
    seed: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    server: Literal["polar", "none", "silent"] = "polar"
    ends_by: Literal["stop", "end of script", "exception", "sigterm"] = "stop"
    evaluation: int = 0
    slow: bool = False

    def __post_init__(self) -> None:
        if len(self.outcome.delivered) + len(self.outcome.errors) != len(self.rollouts):
            raise ValueError(f"{self.name}: every call either delivers or fails")

    @property
    def batch(self) -> int:
        """Groups per rollout."""
        return int(self.settings.get("rollout_batch_size", BATCH))

    @property
    def group_size(self) -> int:
        """Sessions per group."""
        return int(self.settings.get("n_samples_per_prompt", SESSIONS))


def bounds(count: Count) -> tuple[float, float]:
    """Return the range that a count is in."""
    return count if isinstance(count, tuple) else (count, count)


def _shown(count: Count) -> str:
    low, high = bounds(count)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def outcome_text(scenario: Scenario) -> str:
    """Return the expected outcome in words, from the very fields that the test compares."""
    outcome = scenario.outcome
    counts = [group if isinstance(group, int) else len(group) for group in outcome.delivered]
    unit = "evaluated" if scenario.evaluation else "delivered"
    parts = [f"{' + '.join(map(str, counts))} groups {unit}"] if counts else []
    parts += [
        f"{_shown(count)} groups {word} ({reason})"
        for word, reasons in (("rejected", outcome.rejected), ("given up", outcome.given_up))
        for reason, count in reasons.items()
    ]
    parts += [f"{count} requeued ({reason})" for reason, count in (outcome.requeued or {}).items()]
    parts += [f"{count} sessions left out ({reason})" for reason, count in (outcome.sessions or {}).items()]
    if outcome.masked:
        parts.append("suspect tokens masked")
    parts += [f"call {e.call + 1}: {e.kind.__name__}" for e in outcome.errors]
    if outcome.returned is None:
        parts.append("unfinished prompts returned")
    elif outcome.returned:
        parts.append(f"{outcome.returned} prompts returned")
    if outcome.abandoned:
        parts.append(f"{outcome.abandoned} groups counted as abandoned")
    return "; ".join(parts)
