"""Is a group good enough to train on? A verdict with the numbers that decided it.

The predicates of `PREDICATES` are asked in order; the first that objects names the reason. One bad session
never sinks its group by itself: the conversion has put a placeholder in its place, and the group is judged on
what is left. Infrastructure failures never get here; they are retried.

How old a group may be is decided when it is delivered, not when it arrives: see `too_stale`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from slime_bridge._display import pairs_html
from slime_bridge.adapter import SessionReason
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome

__all__ = [
    "PREDICATES",
    "Accepted",
    "AcceptanceSettings",
    "GroupNumbers",
    "RejectReason",
    "Rejected",
    "judge",
    "too_stale",
]


class RejectReason(StrEnum):
    """Why a group is not trained on; metric names, journal and tests derive from these words."""

    FAILED_TASK = "failed_task"
    """Every session failed, and none left a trace."""
    LOGPROB_ERROR = "logprob_error"
    """Masks or logprobs are unusable in too many sessions."""
    NO_TOKEN_IDS = "no_token_ids"
    """Sessions completed, but the engine or the router gave no token ids."""
    MISSING_REWARD = "missing_reward"
    """Rewards are missing in so many sessions that the rest is not enough, and such are to be rejected."""
    ZERO_TRAINABLE = "zero_trainable"
    """No session has a token to train on."""
    LOW_COMPLETE_FRACTION = "low_complete_fraction"
    """Fewer sessions completed with a trainable token than `polar_min_complete_accept_fraction` asks for."""
    TOO_STALE = "too_stale"
    """The policy it was sampled from is too old for the rollout it would be delivered to."""
    FILTERED = "filtered"
    """Slime's dynamic sampling filter dropped it."""
    ALL_WRONG = "all_wrong"
    """Pruned from a complete batch: none of its sessions succeeded."""
    ALL_CORRECT = "all_correct"
    """Pruned from a complete batch: all of its sessions succeeded, like those of too many others."""


class AcceptanceSettings(Protocol):
    """What judging needs of a configuration."""

    def min_complete_sessions(self, sessions: int) -> int:
        """Return how many of so many sessions must complete with a trainable token."""
        ...


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """What a group is judged by.

    Parameters
    ----------
    sessions
        Expected sessions.
    early_stopped
        Of these, stopped by the server as surplus; neither successes nor failures.
    completed
        Sessions that completed, usable or not.
    usable
        Sessions with a token to train on.
    complete_usable
        Sessions with both; what the fraction counts.
    required
        How many of these the settings ask for.
    traceless
        Sessions that failed without a trace, early-stopped ones left out.
    trainable_tokens, response_tokens
        Over all sessions.
    reasons
        Number of sessions by the reason why there is nothing to train on.
    """

    sessions: int
    early_stopped: int
    completed: int
    usable: int
    complete_usable: int
    required: int
    traceless: int
    trainable_tokens: int
    response_tokens: int
    reasons: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as a plain mapping, for the journal."""
        return {name: getattr(self, name) for name in self.__slots__}

    def short_of(self, reason: SessionReason) -> bool:
        """Tell whether it is the sessions with this reason that the group lacks."""
        lost = self.reasons.get(reason, 0)
        if not lost:
            return False
        missed = self.complete_usable < self.required
        return not self.trainable_tokens or (missed and self.complete_usable + lost >= self.required)


_MEANINGS = {
    RejectReason.FAILED_TASK: "Every session failed, and none left a trace.",
    RejectReason.LOGPROB_ERROR: "Masks or logprobs are unusable in too many sessions.",
    RejectReason.NO_TOKEN_IDS: "Sessions completed, but the engine or the router gave no token ids.",
    RejectReason.MISSING_REWARD: "Rewards are missing in too many sessions.",
    RejectReason.ZERO_TRAINABLE: "No session has a token to train on.",
    RejectReason.LOW_COMPLETE_FRACTION: "Too few sessions completed with a token to train on.",
    RejectReason.FILTERED: "The trainer's dynamic filter dropped it.",
    RejectReason.ALL_WRONG: "Pruned from a complete batch: none of its sessions succeeded.",
    RejectReason.ALL_CORRECT: "Pruned from a complete batch: all of its sessions succeeded.",
    RejectReason.TOO_STALE: "The policy that sampled it is older than the bound.",
}


@dataclass(frozen=True, slots=True)
class Accepted:
    """The group may be trained on."""

    numbers: dict[str, Any]

    def _repr_html_(self) -> str:
        return pairs_html("Accepted", "the group may be trained on", _shown(self.numbers))


@dataclass(frozen=True, slots=True)
class Rejected:
    """The group may not be trained on; its prompt is replaced by a fresh one."""

    reason: RejectReason
    numbers: dict[str, Any]

    def _repr_html_(self) -> str:
        return pairs_html("Rejected", self.reason, _shown(self.numbers), _MEANINGS[self.reason])


PREDICATES: tuple[tuple[RejectReason, Callable[[GroupNumbers], bool]], ...] = (
    (RejectReason.FAILED_TASK, lambda n: n.traceless > 0 and n.traceless + n.early_stopped == n.sessions),
    (RejectReason.LOGPROB_ERROR, lambda n: n.short_of(SessionReason.LOGPROB_ERROR)),
    (RejectReason.NO_TOKEN_IDS, lambda n: n.short_of(SessionReason.NO_TOKEN_IDS)),
    (RejectReason.MISSING_REWARD, lambda n: n.short_of(SessionReason.MISSING_REWARD)),
    (RejectReason.ZERO_TRAINABLE, lambda n: n.trainable_tokens == 0),
    (RejectReason.LOW_COMPLETE_FRACTION, lambda n: n.complete_usable < n.required),
)
"""Which condition rejects a group, in the order they are asked."""


def judge(conversion: GroupConversion, *, settings: AcceptanceSettings) -> Accepted | Rejected:
    """Judge one converted group on its content.

    Parameters
    ----------
    conversion
        All its sessions, placeholders included.
    settings
        The configuration.
    """
    numbers = _count(conversion.sessions, settings)
    for reason, objects in PREDICATES:
        if objects(numbers):
            return Rejected(reason, numbers.to_dict())
    return Accepted(numbers.to_dict())


def too_stale(staleness: int, max_staleness: int) -> Rejected:
    """Return the verdict on a group that is older than the bound, both in rollouts."""
    return Rejected(RejectReason.TOO_STALE, {"staleness": staleness, "max_staleness": max_staleness})


def _shown(numbers: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name.replace("_", " "), value) for name, value in numbers.items()]


def _count(sessions: list[SessionOutcome], settings: AcceptanceSettings) -> GroupNumbers:
    counted = [session for session in sessions if not session.early_stopped]
    return GroupNumbers(
        sessions=len(sessions),
        early_stopped=len(sessions) - len(counted),
        completed=sum(session.completed for session in counted),
        usable=sum(session.usable for session in counted),
        complete_usable=sum(session.completed and session.usable for session in counted),
        required=settings.min_complete_sessions(len(sessions)),
        traceless=sum(_left_nothing(session) for session in counted),
        trainable_tokens=sum(session.trainable_tokens for session in counted),
        response_tokens=sum(session.response_tokens for session in counted),
        reasons=dict(Counter(str(session.reason) for session in sessions if session.reason)),
    )


def _left_nothing(session: SessionOutcome) -> bool:
    return not session.completed and session.n_traces + session.dropped_traces == 0
