"""From groups and counts to the numbers that the trainer logs.

Everything here is a pure function of its arguments. Rules:

- Only finite numbers leave, under names of the catalogue. A number that does not exist (a mean over nothing)
  is left out, never written as 0.
- NaN and missing rewards are in no mean; how many there are is a rate of its own.
- Sessions that failed, and placeholders, are in no mean of quality; they are rates of their own. Sessions
  that a server stopped as surplus are in neither.
- A mean over sessions has one vote per session, however many traces it has.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from slime_bridge.groups import SchedulerCounts
from slime_bridge.metrics.catalogue import CATALOGUE, SECTIONS, Direction, Metric
from slime_bridge.metrics.inputs import (
    SUCCESS_REWARD,
    DecisionWindow,
    GroupFacts,
    SessionFacts,
    finite,
    is_rated,
    mean,
    pass_at_k,
    ratio,
    succeeded,
)

__all__ = [
    "CATALOGUE",
    "SUCCESS_REWARD",
    "DecisionWindow",
    "Direction",
    "GroupFacts",
    "Metric",
    "SessionFacts",
    "find_metric",
    "mean",
    "pass_at_k",
    "render_catalogue",
    "rollout_metrics",
    "undocumented",
]

_SAME_REWARD = 1e-6
_ALWAYS_REPORTED = (
    "zero_trainable",
    "low_complete_fraction",
    "logprob_error",
    "failed",
    "stale",
    "no_token_ids",
    "missing_reward",
    "filtered",
    "all_wrong",
    "all_correct",
)
_REASON_NAMES = {"failed_task": "failed", "too_stale": "stale"}
_STAGES = ("register_to_init_queue", "init", "run", "postrun")


def rollout_metrics(
    *,
    delivered: Sequence[GroupFacts],
    rejected: Sequence[GroupFacts] = (),
    scheduler: SchedulerCounts | None = None,
    ledger: Mapping[str, Any] | None = None,
    window: DecisionWindow | None = None,
    counters: Mapping[str, float] | None = None,
    filter_drops: Mapping[str, int] | None = None,
    wait_seconds: float = math.nan,
) -> dict[str, float]:
    """Aggregate one rollout.

    Parameters
    ----------
    delivered
        Groups handed to the trainer.
    rejected
        Groups rejected since the previous rollout.
    scheduler
        Counts of groups by state when the batch was complete.
    ledger
        Totals since the worker started, as `slime_bridge.ledger.LedgerSnapshot.to_dict` gives them.
    window
        What was judged since the previous rollout.
    counters
        Further counts since the previous rollout, by metric name without ``polar/``, such as
        ``requeued_groups`` or ``callbacks/late``. What is left out of `output_queue_full_waits` and
        `deferred_queue_dequeues` is 0.
    filter_drops
        Groups dropped by Slime's dynamic filter, by its reason.
    wait_seconds
        How long the trainer waited; NaN where unknown.

    Returns
    -------
    dict
        Finite floats by metric name.
    """
    candidates = [*delivered, *rejected]
    metrics: dict[str, float] = {
        "polar/output_queue_full_waits": 0.0,
        "polar/deferred_queue_dequeues": 0.0,
        "polar/wait_seconds": wait_seconds,
    }
    metrics |= {f"polar/{name}": value for name, value in (counters or {}).items()}
    metrics |= {f"rollout/dynamic_filter/drop_{name}": count for name, count in (filter_drops or {}).items()}
    metrics |= _group_counts(delivered, rejected)
    metrics |= _quality([s for g in delivered for s in g.sessions], candidates)
    metrics |= _lag(delivered)
    metrics |= _stage_times(delivered)
    metrics |= _pool("candidate", candidates) | _pool("accepted", delivered)
    metrics["polar/candidate/accept_fraction"] = ratio(len(delivered), len(candidates))
    metrics |= _wasted(rejected, candidates)
    metrics |= _scheduler(scheduler) if scheduler is not None else {}
    metrics |= _ledger(ledger) if ledger is not None else {}
    metrics |= _window(window) if window is not None else {}
    return finite(metrics)


def _group_counts(delivered: Sequence[GroupFacts], rejected: Sequence[GroupFacts]) -> dict[str, float]:
    reasons = Counter({name: 0 for name in _ALWAYS_REPORTED})
    for group in rejected:
        reason = group.reason or "unspecified"
        reasons[_REASON_NAMES.get(reason, reason)] += 1
    return {
        "polar/completed_groups": len(delivered),
        "polar/dropped_groups": len(rejected),
        "polar/dropped_sessions": sum(len(group.sessions) for group in rejected),
        "polar/stale_groups": reasons["stale"],
        **{f"polar/dropped_{reason}_groups": count for reason, count in reasons.items()},
    }


def _quality(sessions: Sequence[SessionFacts], candidates: Sequence[GroupFacts]) -> dict[str, float]:
    """Aggregate the sessions of the delivered groups; reasons are counted over all candidates."""
    counted = [s for s in sessions if not s.early_stopped]
    usable = [s for s in counted if s.usable]
    rewards = [s.reward for s in usable if math.isfinite(s.reward)]
    centre = mean(rewards)
    # A failed session is a failure to succeed; a completed one without a reward says nothing.
    decided = [s for s in counted if not s.completed or math.isfinite(s.reward)]
    reasons = Counter(s.reason for g in candidates for s in g.sessions if s.reason and not s.early_stopped)
    return {
        "polar/reward_mean": centre,
        "polar/reward_std": math.sqrt(mean((reward - centre) * (reward - centre) for reward in rewards)),
        "polar/reward_mean_completed": mean(s.reward for s in counted if s.completed),
        "rollout/session_reward_mean": centre,
        "polar/rollout_success_rate": ratio(sum(succeeded(s) for s in decided), len(decided)),
        "polar/session/completed_rate": ratio(sum(s.completed for s in counted), len(counted)),
        "polar/session/failed_rate": ratio(sum(s.status == "ERROR" for s in counted), len(counted)),
        "polar/session/timeout_rate": ratio(sum(s.status == "TIMEOUT" for s in counted), len(counted)),
        "polar/session/unusable_rate": ratio(len(counted) - len(usable), len(counted)),
        "polar/session/missing_reward_rate": ratio(len(usable) - len(rewards), len(usable)),
        "polar/session/traces_mean": mean(s.n_traces for s in usable),
        "polar/session/trainable_tokens_mean": mean(s.trainable_tokens for s in usable),
        "polar/session/response_tokens_mean": mean(s.response_tokens for s in usable),
        "polar/session/dropped_traces": sum(s.dropped_traces for s in counted),
        "polar/session/dropped_tokens": sum(s.dropped_tokens for s in counted),
        "polar/session/clipped_traces": sum(s.clipped_traces for s in counted),
        "polar/session/masked_tokens": sum(s.masked_tokens for s in counted),
        **{f"polar/session/reason/{reason}": count for reason, count in reasons.items()},
    }


def _lag(delivered: Sequence[GroupFacts]) -> dict[str, float]:
    lags = [g.staleness for g in delivered if g.staleness is not None]
    seconds = [g.seconds for g in delivered if g.seconds is not None and math.isfinite(g.seconds)]
    versions = [s.weight_versions for g in delivered for s in g.sessions if s.weight_versions is not None]
    return {
        "polar/staleness/mean": mean(lags),
        "polar/staleness/min": min(lags, default=math.nan),
        "polar/staleness/max": max(lags, default=math.nan),
        "polar/staleness/in_flight_mean": mean(
            g.staleness_in_flight for g in delivered if g.staleness_in_flight is not None
        ),
        "polar/staleness/in_queue_mean": mean(
            g.staleness_in_queue for g in delivered if g.staleness_in_queue is not None
        ),
        "polar/staleness/mixed_weights_fraction": ratio(sum(a != b for a, b in versions), len(versions)),
        "polar/result_seconds/mean": mean(seconds),
        "polar/result_seconds/max": max(seconds, default=math.nan),
    }


def _stage_ms(session: SessionFacts, stages: Sequence[str] = _STAGES) -> list[float]:
    timing = session.timing
    if isinstance(timing, Mapping):
        values = [timing.get(f"{stage}_ms") for stage in stages]
    else:
        values = [getattr(timing, f"{stage}_ms", None) for stage in stages]
    return [float(value) if isinstance(value, int | float) else math.nan for value in values]


def _stage_times(delivered: Sequence[GroupFacts]) -> dict[str, float]:
    times = [_stage_ms(s) for group in delivered for s in group.sessions if not s.early_stopped]
    # Servers report zeros for sessions that they only wrote off: those did not run.
    ran = [row for row in times if any(value > 0 for value in row)]
    return {
        f"polar/session_ms/{stage}_mean": mean(row[column] for row in ran)
        for column, stage in enumerate(_STAGES)
    }


def _pool(name: str, groups: Sequence[GroupFacts]) -> dict[str, float]:
    rated = [[s for s in group.sessions if is_rated(s)] for group in groups]
    successes = [sum(succeeded(s) for s in sessions) for sessions in rated]
    shares = [ratio(won, len(sessions)) for won, sessions in zip(successes, rated, strict=True)]
    rewards = [[s.reward for s in sessions] for sessions in rated]
    counted = [s for group in groups for s in group.sessions if not s.early_stopped]
    values = {
        "groups": len(groups),
        "sessions": len(counted),
        "all_correct_groups": sum(share == 1 for share in shares),
        "all_wrong_groups": sum(share == 0 for share in shares),
        "mixed_groups": sum(0 < share < 1 for share in shares),
        "constant_groups": sum(len(r) > 1 and max(r) - min(r) <= _SAME_REWARD for r in rewards),
        # A group without sessions was stopped before its result: it may have had tokens.
        "zero_trainable_groups": sum(
            bool(g.sessions) and not any(s.trainable_tokens for s in g.sessions) for g in groups
        ),
        "completed_fraction": ratio(sum(s.completed for s in counted), len(counted)),
        "session_reward_mean": mean(reward for group in rewards for reward in group),
        "group_reward_mean": mean(mean(group) for group in rewards),
    }
    return {f"polar/{name}/{key}": value for key, value in values.items()}


def _wasted(rejected: Sequence[GroupFacts], candidates: Sequence[GroupFacts]) -> dict[str, float]:
    lost = [session for group in rejected for session in group.sessions]
    every = [session for group in candidates for session in group.sessions]
    run = [ms for s in lost if math.isfinite(ms := _stage_ms(s, ["run"])[0])]
    stopped = [[s for s in group.sessions if s.early_stopped] for group in candidates]
    surplus = sum(map(len, stopped))
    return {
        "polar/wasted/groups": len(rejected),
        "polar/wasted/sessions": len(lost),
        "polar/wasted/response_tokens": sum(s.response_tokens for s in lost),
        "polar/wasted/trainable_tokens": sum(s.trainable_tokens for s in lost),
        "polar/wasted/session_seconds": math.fsum(run) / 1000,
        "polar/wasted/session_fraction": ratio(len(lost), len(every)),
        "polar/early_stop/groups": sum(map(bool, stopped)),
        "polar/early_stop/sessions": surplus,
        "polar/early_stop/session_fraction": ratio(surplus, len(every)),
    }


def _scheduler(counts: SchedulerCounts) -> dict[str, float]:
    values = {
        "active_groups": counts.in_flight,
        "active_sessions": counts.in_flight_sessions,
        "completed_buffer": counts.buffered,
        "output_queue": counts.handed,
        "deferred_queue": counts.waiting_retry,
        "requested_groups": counts.wanted,
        "queued_groups": counts.queued,
        "suspended_groups": counts.suspended,
        "reserved_sessions": counts.reserved_sessions,
        "oldest_age_seconds": counts.oldest_age,
    }
    return {f"polar/scheduler/{name}": value for name, value in values.items()}


def _ledger(ledger: Mapping[str, Any]) -> dict[str, float]:
    totals = {
        name: sum(value.values()) if isinstance(value, Mapping) else value
        for name, value in ledger.items()
        if name not in ("sessions", "requeued")
    }
    live = [totals.pop(name) for name in ("queued", "in_flight", "buffered", "handed") if name in totals]
    return {f"polar/ledger/{name}": value for name, value in {**totals, "live": sum(live)}.items()}


def _window(window: DecisionWindow) -> dict[str, float]:
    judged = window.accepted + window.rejected
    values = {
        "groups": judged,
        "accepted_groups": window.accepted,
        "rejected_groups": window.rejected,
        "accept_fraction": ratio(window.accepted, judged),
        "seconds": window.seconds,
        "groups_per_second": ratio(judged, window.seconds),
    }
    return {f"polar/decision_window/{name}": value for name, value in values.items()}


_EXACT = {metric.name: metric for metric in CATALOGUE if "{" not in metric.name}
_PATTERNS = tuple(
    (re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(metric.name))), metric)
    for metric in CATALOGUE
    if "{" in metric.name
)


@lru_cache(maxsize=4096)
def find_metric(name: str) -> Metric | None:
    """Return the catalogue's entry for a metric name, None where there is none."""
    exact = _EXACT.get(name)
    if exact is not None:
        return exact
    return next((metric for pattern, metric in _PATTERNS if pattern.fullmatch(name)), None)


def undocumented(names: Iterable[str]) -> list[str]:
    """Return those of the names that the catalogue does not know, in order."""
    return [name for name in names if find_metric(name) is None]


def render_catalogue() -> str:
    """Render the catalogue as Markdown."""
    lines = ["# Metrics", "", "Generated from the catalogue in `slime_bridge.metrics.catalogue`.", ""]
    for title, metrics in SECTIONS:
        lines += [f"## {title}", "", "| name | unit | definition | better |", "|---|---|---|---|"]
        lines += [f"| `{m.name}` | {m.unit} | {m.definition} | {m.better} |" for m in metrics]
        lines.append("")
    return "\n".join(lines)
