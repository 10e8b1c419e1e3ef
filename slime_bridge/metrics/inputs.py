"""What metrics are computed from, and the few rules that all of them share.

It knows no metric names and reads no samples: sessions come as facts, one record each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "SUCCESS_REWARD",
    "DecisionWindow",
    "GroupFacts",
    "SessionFacts",
    "finite",
    "is_rated",
    "mean",
    "pass_at_k",
    "ratio",
    "succeeded",
]

SUCCESS_REWARD = 1.0
"""A session whose reward is at least this is a success (Slime's own pass rate asks for exactly 1)."""


class SessionFacts(Protocol):
    """What the metrics read of a session; `slime_bridge.conversion.groups.SessionOutcome` has it."""

    @property
    def status(self) -> str:
        """Polar's session status, such as ``COMPLETED``; "" where there was no result."""

    @property
    def completed(self) -> bool:
        """Whether the status is COMPLETED."""

    @property
    def usable(self) -> bool:
        """Whether it has a token to train on."""

    @property
    def early_stopped(self) -> bool:
        """Whether the server stopped it as surplus."""

    @property
    def reward(self) -> float:
        """The session's reward, NaN where it has none."""

    @property
    def reason(self) -> str | None:
        """Why it gave nothing to train on, None where it did."""

    @property
    def trainable_tokens(self) -> int:
        """Tokens to train on."""

    @property
    def response_tokens(self) -> int:
        """Tokens after the prompt."""

    @property
    def n_traces(self) -> int:
        """Traces that became samples."""

    @property
    def dropped_traces(self) -> int:
        """Traces left out."""

    @property
    def dropped_tokens(self) -> int:
        """Tokens of the traces left out."""

    @property
    def clipped_traces(self) -> int:
        """Traces cut at the token limit."""

    @property
    def masked_tokens(self) -> int:
        """Tokens masked because a weight push may have cut their turn."""

    @property
    def timing(self) -> Any:
        """Stage times in milliseconds, as attributes or as a mapping; None where unknown."""

    @property
    def weight_versions(self) -> tuple[Any, Any] | None:
        """Oldest and newest weight version of its turns, None where unknown."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the metrics need of a judged group.

    Parameters
    ----------
    sessions
        One entry per session.
    reason
        Why it was rejected; None for a delivered one.
    staleness, staleness_in_flight, staleness_in_queue
        Lag at delivery in rollouts, and its two parts; None where it does not apply.
    seconds
        From submission to result; None where unknown.
    """

    sessions: Sequence[SessionFacts]
    reason: str | None = None
    staleness: int | None = None
    staleness_in_flight: int | None = None
    staleness_in_queue: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DecisionWindow:
    """The time between the previous rollout's return and this one's.

    Parameters
    ----------
    accepted, rejected
        Groups judged in that time, whether or not they were delivered.
    seconds
        Its length; NaN for the first rollout, which has no previous one.
    """

    accepted: int
    rejected: int
    seconds: float = math.nan


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries that are finite numbers, as floats."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(float(value))
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean of the finite values, NaN where there are none or their sum is too large."""
    kept = list(filter(math.isfinite, values))
    try:
        return math.fsum(kept) / len(kept) if kept else math.nan
    except OverflowError:  # rewards near the end of the float range: their sum is no number
        return math.nan


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Estimate without bias how likely one of k tries succeeds, from n tries of one prompt.

    Parameters
    ----------
    n
        Tries.
    correct
        Successes among them, 0 to `n`.
    k
        Tries to be granted, 1 to `n`.

    Returns
    -------
    float
        ``1 - C(n - correct, k) / C(n, k)``, exact.

    References
    ----------
    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not (0 <= correct <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} needs 0 <= correct <= n and 1 <= k <= n, got n={n}, correct={correct}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def is_rated(session: SessionFacts) -> bool:
    """Tell whether a session counts in means of quality: something to train on, and a reward."""
    return session.usable and not session.early_stopped and math.isfinite(session.reward)


def ratio(part: float, whole: float) -> float:
    """Return the quotient, NaN where there is nothing to divide by."""
    return part / whole if whole else math.nan


def succeeded(session: SessionFacts) -> bool:
    """Tell whether a session completed with a reward of at least `SUCCESS_REWARD`."""
    return session.completed and session.reward >= SUCCESS_REWARD
