"""The short table at the end of a run, computed from what the run left on disk.

Knows the names in the metrics file and in the journal; draws nothing and starts nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.lab.captures import CaptureReport
from analysis.lab.progress import duration

__all__ = ["Summary", "format_summary", "summarise"]


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    Attributes
    ----------
    rollouts
        Rollouts that were trained on.
    reward_first, reward_last
        Mean reward of the first rollout, and mean over the last (up to) five; NaN where unknown.
    eval_before, eval_after
        Mean held-out reward; NaN without an evaluation.
    accepted, rejected
        Groups delivered to the trainer, and rejected ones by reason.
    endings
        Sessions of delivered groups by how they ended.
    lag_mean, lag_max
        Updates between submission and delivery, over usable sessions.
    token_lag_mean
        The same from the weight versions of the oldest sampled tokens.
    wall_seconds
        From start to end of the run.
    tokens, tokens_per_second
        Trained tokens, and their number per second of the training phase.
    """

    rollouts: int
    reward_first: float
    reward_last: float
    eval_before: float
    eval_after: float
    accepted: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    endings: Mapping[str, int] = field(default_factory=dict)
    lag_mean: float = math.nan
    lag_max: float = math.nan
    token_lag_mean: float = math.nan
    wall_seconds: float = math.nan
    tokens: int = 0
    tokens_per_second: float = math.nan


def summarise(
    records: Sequence[Mapping[str, Any]], rejected: Mapping[str, int], *, wall_seconds: float = math.nan
) -> Summary:
    """Summarise a run.

    Parameters
    ----------
    records
        The metrics file, one mapping per line.
    rejected
        Rejected groups by reason, as the journal has them.
    wall_seconds
        From start to end.
    """
    rollouts = [record for record in records if record.get("kind") == "rollout"]
    evaluations = [record for record in records if record.get("kind") == "evaluation"]
    rewards = [_number(record, "lab/reward_mean") for record in rollouts]
    sessions = [_number(record, "lab/usable_sessions") for record in rollouts]
    tokens = sum(_known([_number(record, "lab/trainable_tokens") for record in rollouts]))
    seconds = sum(_known([_number(record, "perf/step_time") for record in rollouts]))
    return Summary(
        rollouts=len(rollouts),
        reward_first=rewards[0] if rewards else math.nan,
        reward_last=_mean(rewards[-5:]),
        eval_before=_number(evaluations[0], "lab/reward_mean") if evaluations else math.nan,
        eval_after=_number(evaluations[-1], "lab/reward_mean") if len(evaluations) > 1 else math.nan,
        accepted=int(sum(_known([_number(record, "lab/groups") for record in rollouts]))),
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        endings=_endings(rollouts),
        lag_mean=_weighted([_number(record, "lab/lag_mean") for record in rollouts], sessions),
        lag_max=max(_known([_number(record, "lab/lag_max") for record in rollouts]), default=math.nan),
        token_lag_mean=_weighted([_number(record, "lab/token_lag_mean") for record in rollouts], sessions),
        wall_seconds=wall_seconds,
        tokens=int(tokens),
        tokens_per_second=tokens / seconds if seconds > 0 else math.nan,
    )


def format_summary(summary: Summary, captures: Sequence[CaptureReport] = ()) -> str:
    """Lay the summary out as lines of plain text, names on the left, numbers on the right."""
    rows = [
        ("rollouts", f"{summary.rollouts}"),
        ("reward, first rollout", _text(summary.reward_first)),
        ("reward, last five rollouts", _text(summary.reward_last)),
        ("held-out reward, before", _text(summary.eval_before)),
        ("held-out reward, after", _text(summary.eval_after)),
        ("groups accepted", f"{summary.accepted}"),
        ("groups rejected", _counts(summary.rejected)),
        ("sessions in accepted groups", _counts(summary.endings)),
        ("policy lag, mean / max", f"{_text(summary.lag_mean, 2)} / {_text(summary.lag_max, 0)}"),
        ("policy lag of oldest token, mean", _text(summary.token_lag_mean, 2)),
        ("wall time", duration(summary.wall_seconds) if math.isfinite(summary.wall_seconds) else "-"),
        (
            "trained tokens",
            f"{summary.tokens:,} ({_text(summary.tokens_per_second, 0)} per second of training)",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {value}" for name, value in rows]
    if captures:
        lines.append("")
        lines.append(
            "  not of this run: three sessions of real agents on real Polar servers come with the package\n"
            "  and go through the same conversion, to show what it makes of them:"
        )
        lines.extend(f"    {capture.name:<14} {capture.describe()}" for capture in captures)
    return "\n".join(lines)


def _number(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(values: Sequence[float]) -> float:
    known = _known(values)
    return sum(known) / len(known) if known else math.nan


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if not math.isnan(v) and w > 0]
    total = sum(w for _, w in pairs)
    return sum(v * w for v, w in pairs) / total if total else math.nan


def _endings(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Sum the counts that the run wrote beside each rollout."""
    counts: Counter[str] = Counter()
    for record in rollouts:
        for ending, count in (record.get("lab/endings") or {}).items():
            counts[ending] += int(count)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _text(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _counts(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    parts = ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in counts.items())
    return f"{total} ({parts})" if total else "0"
