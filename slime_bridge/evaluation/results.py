"""From converted evaluation groups to what the trainer logs and dumps.

Every expected session has exactly one reward, in order, so the denominator never depends on what failed: a
failed session and a missing reward count as 0.0. The mean over completed sessions is another number under
another name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from slime_bridge import sample_view
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.metrics.inputs import SUCCESS_REWARD, finite, mean, pass_at_k, ratio

__all__ = ["EvalGroupResult", "dataset_block", "dataset_metrics", "overall_metrics", "weight_versions"]


@dataclass(frozen=True, slots=True)
class EvalGroupResult:
    """One evaluated prompt.

    Parameters
    ----------
    conversion
        Its samples and one outcome per session, placeholders included.
    error
        Why there is no result, None where there is one.
    started, ended
        Seconds on any one clock; NaN where it was never submitted.
    """

    conversion: GroupConversion
    error: str | None = None
    started: float = math.nan
    ended: float = math.nan


def session_score(session: SessionOutcome) -> float:
    """Return what a session contributes to the headline: its reward, 0.0 if it failed or has none."""
    return float(session.reward) if session.completed and math.isfinite(session.reward) else 0.0


def dataset_block(results: Sequence[EvalGroupResult], *, reward_key: str | None) -> dict[str, Any]:
    """Build what Slime keeps of one dataset.

    Parameters
    ----------
    results
        Its prompts in order.
    reward_key
        The trainer's `reward_key`: samples then carry their reward under it, and as a plain number without
        one.

    Returns
    -------
    dict
        ``samples`` (flat, placeholders included), ``rewards`` and ``truncated`` (one entry per session),
        ``all_rewards`` and ``all_truncated`` (one per sample), ``completed_rewards`` (completed sessions that
        have a reward).
    """
    sessions = [session for result in results for session in result.conversion.sessions]
    by_session = [group for result in results for group in _samples_by_session(result.conversion)]
    for session, samples in zip(sessions, by_session, strict=True):
        for sample in samples:
            _set_reward(sample, session, reward_key)
    samples = [sample for group in by_session for sample in group]
    return {
        "samples": samples,
        "rewards": [session_score(session) for session in sessions],
        "truncated": [any(map(_is_truncated, group)) for group in by_session],
        "all_rewards": [sample_view.reward_value(sample, reward_key) for sample in samples],
        "all_truncated": [_is_truncated(sample) for sample in samples],
        "completed_rewards": [s.reward for s in sessions if s.completed and math.isfinite(s.reward)],
    }


def _samples_by_session(conversion: GroupConversion) -> list[list[Any]]:
    # All samples of a session carry the index of the prompt sample at its position.
    return [list(group) for _, group in groupby(conversion.samples, key=lambda sample: sample.index)]


def _set_reward(sample: Any, session: SessionOutcome, reward_key: str | None) -> None:
    """Make the reward readable for the trainer's metrics; a placeholder stands for its session's score."""
    value = session_score(session) if sample_view.is_placeholder(sample) else _number(sample.reward)
    sample.reward = {**_as_mapping(sample.reward), reward_key: value} if reward_key else value


def _as_mapping(reward: Any) -> Mapping[str, Any]:
    return reward if isinstance(reward, Mapping) else {}


def _number(reward: Any) -> float:
    value = next(iter(reward.values()), 0.0) if isinstance(reward, Mapping) else reward
    return float(value) if value is not None and math.isfinite(value) else 0.0


def _is_truncated(sample: Any) -> bool:
    return sample_view.status_name(sample) == "truncated"


def dataset_metrics(
    name: str, results: Sequence[EvalGroupResult], truncated: Sequence[bool]
) -> dict[str, float]:
    """Compute one dataset's metrics.

    Parameters
    ----------
    name
        The dataset.
    results
        Its prompts in order.
    truncated
        Whether each session was cut, as in `dataset_block`.

    Returns
    -------
    dict
        Finite floats by metric name.
    """
    sessions = [session for result in results for session in result.conversion.sessions]
    scores = [session_score(session) for session in sessions]
    completed = [session for session in sessions if session.completed]
    answered = [session for session in sessions if session.response_tokens]
    # A session without a result has no status either.
    missing = sum(not session.status for session in sessions)
    timeouts = sum(session.status == "TIMEOUT" for session in sessions)
    unrated = sum(not math.isfinite(session.reward) for session in completed)
    total = len(sessions)
    values = {
        "reward_mean": mean(scores),
        "reward_mean_completed": mean(session.reward for session in completed),
        "resolved_rate": ratio(sum(score >= SUCCESS_REWARD for score in scores), total),
        "completed_rate": ratio(len(completed), total),
        "error_rate": ratio(total - len(completed) - timeouts - missing, total),
        "timeout_rate": ratio(timeouts, total),
        "missing_rate": ratio(missing, total),
        "missing_reward_rate": ratio(unrated, len(completed)),
        "truncated_rate": ratio(sum(truncated), total),
        "prompts": len(results),
        "sessions": total,
        "response_tokens_mean": mean(session.response_tokens for session in answered),
        "traces_mean": mean(session.n_traces for session in answered),
        "seconds": _span(results),
        **_pass_rates(results),
    }
    versions = weight_versions(results)
    if versions:
        values["mixed_weights"] = len(versions) > 1
    return finite({f"polar/eval/{name}/{key}": value for key, value in values.items()})


def overall_metrics(results: Sequence[EvalGroupResult]) -> dict[str, float]:
    """Compute what is reported over all datasets together."""
    scores = [session_score(session) for result in results for session in result.conversion.sessions]
    return finite({"polar/eval/resolved_rate": ratio(sum(s >= SUCCESS_REWARD for s in scores), len(scores))})


def weight_versions(results: Sequence[EvalGroupResult]) -> list[str]:
    """List the weight versions that the engine reported, in order."""
    known = [s.weight_versions for result in results for s in result.conversion.sessions if s.weight_versions]
    return sorted({str(version) for pair in known for version in pair})


def _pass_rates(results: Sequence[EvalGroupResult]) -> dict[str, float]:
    """Compute pass@k for k = 1, 2, 4, ... up to the number of sessions that every prompt has."""
    groups = [result.conversion.sessions for result in results]
    least = min(map(len, groups), default=0)
    rates, k = {}, 1
    while k <= least:
        won = [sum(session_score(s) >= SUCCESS_REWARD for s in group) for group in groups]
        rates[f"pass@{k}"] = mean(pass_at_k(len(g), c, k) for g, c in zip(groups, won, strict=True))
        k *= 2
    return rates


def _span(results: Sequence[EvalGroupResult]) -> float:
    started = [result.started for result in results if math.isfinite(result.started)]
    ended = [result.ended for result in results if math.isfinite(result.ended)]
    return max(ended) - min(started) if started and ended else math.nan
