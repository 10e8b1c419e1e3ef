"""Numbers about one rollout's samples, one vote per session: reward, usability, lag, tokens.

Missing stays missing: failed sessions, placeholders and sessions without a reward are out of every mean and
counted by themselves. Knows nothing about where the samples came from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_bridge.sample_view import (
    group_of,
    is_failed,
    polar_metadata,
    reward_value,
    status_name,
    trainable_tokens,
    trajectory_of,
)

__all__ = ["SessionView", "endings", "interval", "mean_and_error", "rollout_statistics", "sessions_of"]


@dataclass
class SessionView:
    """One session, seen through its samples.

    Attributes
    ----------
    group, trajectory
        What it belongs to.
    samples
        Positions of its samples in the flat list.
    reward
        Mean over its trainable samples; NaN where none is trainable or rewarded.
    usable
        Whether a sample neither failed nor lacks trainable tokens.
    trainable_tokens, staleness
        Sum over its samples; updates between submission and delivery (NaN where unknown).
    oldest_version
        Oldest weight version among its sampled tokens, as the engine counts; NaN where unknown.
    ending
        How it ended, in one word: Polar's session status in lower case, ``truncated`` for a completed session
        that reached a length limit, else the sample's own status.
    """

    group: Hashable
    trajectory: Hashable
    samples: list[int] = field(default_factory=list)
    reward: float = math.nan
    usable: bool = False
    trainable_tokens: int = 0
    staleness: float = math.nan
    oldest_version: float = math.nan
    ending: str = ""


def sessions_of(samples: Sequence[Any], *, reward_key: str | None = None) -> list[SessionView]:
    """Gather samples into sessions, in order of first occurrence.

    Parameters
    ----------
    samples
        Flat; Slime samples or the dicts of a dump.
    reward_key
        Which entry of a reward mapping counts.
    """
    found: dict[tuple[Hashable, Hashable], SessionView] = {}
    rewards: dict[tuple[Hashable, Hashable], list[float]] = {}
    for position, sample in enumerate(samples):
        key = (group_of(sample), trajectory_of(sample))
        session = found.setdefault(key, SessionView(*key))
        session.samples.append(position)
        session.staleness = _number(polar_metadata(sample).get("policy_staleness"), session.staleness)
        versions = [_number(version) for version in _versions(sample)]
        session.oldest_version = min(
            (v for v in [session.oldest_version, *versions] if not math.isnan(v)), default=math.nan
        )
        session.ending = _ending(sample, session.ending)
        tokens = 0 if is_failed(sample) else trainable_tokens(sample)
        if tokens > 0:
            session.usable = True
            session.trainable_tokens += tokens
            rewards.setdefault(key, []).append(reward_value(sample, reward_key))
    for key, values in rewards.items():
        known = [value for value in values if not math.isnan(value)]
        found[key].reward = sum(known) / len(known) if known else math.nan
    return list(found.values())


def mean_and_error(values: Iterable[tuple[Hashable, float]]) -> tuple[float, float]:
    """Mean over sessions and its standard error, with the sessions of a group seen as one draw.

    Parameters
    ----------
    values
        Pairs of group and value; NaN values are left out.

    Returns
    -------
    tuple of float
        Mean with one vote per session; the error from the spread of the groups' contributions (clustered
        standard error), NaN with fewer than two groups.
    """
    pairs = [(group, value) for group, value in values if not math.isnan(value)]
    if not pairs:
        return math.nan, math.nan
    mean = sum(value for _, value in pairs) / len(pairs)
    residuals: dict[Hashable, float] = {}
    for group, value in pairs:
        residuals[group] = residuals.get(group, 0.0) + value - mean
    groups = len(residuals)
    if groups < 2:
        return mean, math.nan
    spread = sum(value * value for value in residuals.values()) * groups / (groups - 1)
    return mean, math.sqrt(spread) / len(pairs)


def interval(mean: float, error: float) -> tuple[float, float]:
    """Return the 95 % interval of a mean (normal approximation); NaN where the error is unknown."""
    return mean - 1.96 * error, mean + 1.96 * error


def endings(sessions: Iterable[SessionView]) -> dict[str, int]:
    """Count sessions by how they ended, the most frequent ending first."""
    counts = Counter(session.ending or "unknown" for session in sessions)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def rollout_statistics(
    samples: Sequence[Any], *, reward_key: str | None = None, engine_version: int | None = None
) -> dict[str, Any]:
    """Summarise one rollout's samples.

    Parameters
    ----------
    samples
        Flat, in training order.
    reward_key
        Which entry of a reward mapping counts.
    engine_version
        Weight version that the engines run on now; None leaves the token lag unknown.

    Returns
    -------
    dict
        ``lab/reward_mean`` and ``lab/reward_stderr`` over usable sessions, ``lab/sessions``,
        ``lab/usable_sessions``, ``lab/groups``, ``lab/trainable_tokens``, and ``lab/lag_{mean,min,max}`` and
        ``lab/token_lag_mean`` in updates over usable sessions; and ``lab/endings``, a mapping from endings to
        numbers of sessions.
    """
    sessions = sessions_of(samples, reward_key=reward_key)
    usable = [session for session in sessions if session.usable]
    mean, error = mean_and_error((session.group, session.reward) for session in usable)
    lags = [session.staleness for session in usable if not math.isnan(session.staleness)]
    token_lags = (
        [engine_version - s.oldest_version for s in usable if not math.isnan(s.oldest_version)]
        if engine_version is not None
        else []
    )
    return {
        "lab/reward_mean": mean,
        "lab/reward_stderr": error,
        "lab/groups": float(len({session.group for session in sessions})),
        "lab/sessions": float(len(sessions)),
        "lab/usable_sessions": float(len(usable)),
        "lab/trainable_tokens": float(sum(session.trainable_tokens for session in usable)),
        "lab/lag_mean": _mean(lags),
        "lab/lag_min": min(lags, default=math.nan),
        "lab/lag_max": max(lags, default=math.nan),
        "lab/token_lag_mean": _mean(token_lags),
        "lab/endings": endings(sessions),
    }


def _ending(sample: Any, before: str) -> str:
    status = str(polar_metadata(sample).get("session_status") or status_name(sample) or before).lower()
    # One trace at its length limit makes the session a truncated one.
    cut = status == "completed" and (status_name(sample) == "truncated" or before == "truncated")
    return "truncated" if cut else status


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _versions(sample: Any) -> Iterable[Any]:
    found = (
        sample.get("weight_versions")
        if isinstance(sample, dict)
        else getattr(sample, "weight_versions", None)
    )
    return found or ()


def _number(value: Any, default: float = math.nan) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return default
