"""Every metric that the bridge emits, as data: name, unit, definition, and which way is better.

It computes nothing. Names with a part in braces are patterns; ``{reason}``, ``{dataset}`` and ``{k}`` stand
for any text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CATALOGUE", "SECTIONS", "Direction", "Metric"]

Direction = Literal["higher", "lower", "neutral"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, or one pattern of metrics.

    Parameters
    ----------
    name
        As it appears in the returned metrics.
    unit
        What the number counts.
    definition
        What it is, over which sessions or groups.
    better
        Which direction is an improvement, everything else being equal.
    """

    name: str
    unit: str
    definition: str
    better: Direction = "neutral"


_GROUPS = (
    Metric("polar/completed_groups", "groups", "handed to the trainer in this rollout"),
    Metric(
        "polar/dropped_groups", "groups", "rejected since the previous rollout, for whatever reason", "lower"
    ),
    Metric(
        "polar/dropped_sessions", "sessions", "of the groups rejected since the previous rollout", "lower"
    ),
    Metric(
        "polar/dropped_zero_trainable_groups",
        "groups",
        "rejected: no session has a token to train on",
        "lower",
    ),
    Metric(
        "polar/dropped_low_complete_fraction_groups",
        "groups",
        "rejected: fewer usable sessions than `polar_min_complete_accept_fraction` asks for",
        "lower",
    ),
    Metric(
        "polar/dropped_logprob_error_groups",
        "groups",
        "rejected: masks or logprobs are missing, misaligned or not finite",
        "lower",
    ),
    Metric(
        "polar/dropped_failed_groups", "groups", "rejected: every session failed and left no trace", "lower"
    ),
    Metric("polar/dropped_stale_groups", "groups", "rejected: too old for the trainer at delivery", "lower"),
    Metric(
        "polar/stale_groups",
        "groups",
        "found too old at delivery; such a group is always rejected, so this equals the metric above",
        "lower",
    ),
    Metric(
        "polar/dropped_no_token_ids_groups",
        "groups",
        "rejected: the engine or router gave no token ids",
        "lower",
    ),
    Metric("polar/dropped_missing_reward_groups", "groups", "rejected: a reward is missing", "lower"),
    Metric(
        "polar/dropped_filtered_groups",
        "groups",
        "dropped by Slime's dynamic sampling filter, for whatever reason",
        "lower",
    ),
    Metric(
        "polar/dropped_all_wrong_groups",
        "groups",
        "pruned from a complete batch without any success (`polar_drop_all_wrong_groups`)",
        "lower",
    ),
    Metric(
        "polar/dropped_all_correct_groups",
        "groups",
        "pruned from a complete batch beyond the number of mixed ones (`polar_balance_all_correct_groups`)",
        "lower",
    ),
    Metric("polar/dropped_{reason}_groups", "groups", "rejected for another reason", "lower"),
    Metric(
        "rollout/dynamic_filter/drop_{reason}",
        "groups",
        "dropped by Slime's dynamic sampling filter",
        "lower",
    ),
    Metric(
        "polar/output_queue_full_waits",
        "count",
        "times that all groups asked for waited for the trainer; 0 without `polar_fully_async`",
    ),
    Metric("polar/deferred_queue_dequeues", "groups", "taken from the queue for another attempt"),
    Metric("polar/requeued_groups", "groups", "put back after an infrastructure failure", "lower"),
    Metric("polar/given_up_groups", "groups", "whose prompt used up its attempts", "lower"),
    Metric("polar/returned_groups", "groups", "handed back to the data source"),
    Metric("polar/abandoned_groups", "groups", "unfinished when a worker ended", "lower"),
    Metric("polar/submitted_tasks", "tasks", "accepted by the rollout server"),
)

_SCHEDULER = (
    Metric("polar/scheduler/active_groups", "groups", "in flight when the batch was complete"),
    Metric("polar/scheduler/active_sessions", "sessions", "of the groups in flight"),
    Metric("polar/scheduler/completed_buffer", "groups", "accepted and waiting for a later rollout"),
    Metric("polar/scheduler/output_queue", "groups", "handed out and not yet taken over by the trainer"),
    Metric("polar/scheduler/deferred_queue", "groups", "waiting for another attempt"),
    Metric("polar/scheduler/requested_groups", "groups", "the trainer asked for"),
    Metric("polar/scheduler/queued_groups", "groups", "drawn and not in flight, deferred ones included"),
    Metric(
        "polar/scheduler/suspended_groups", "groups", "held because the server refused their request", "lower"
    ),
    Metric("polar/scheduler/reserved_sessions", "sessions", "used by an evaluation under the same limit"),
    Metric(
        "polar/scheduler/oldest_age_seconds",
        "seconds",
        "since the oldest unfinished group was drawn",
        "lower",
    ),
    *(
        Metric(f"polar/ledger/{name}", "groups", f"{meaning}, since the worker started")
        for name, meaning in (
            ("drawn", "taken from the data source"),
            ("delivered", "handed to the trainer"),
            ("rejected", "rejected for their content"),
            ("given_up", "given up after too many failures"),
            ("returned", "handed back to the data source"),
            ("abandoned", "unfinished at the end"),
            ("live", "not in a final state: drawn minus the five above"),
            ("unaccounted", "in no state at all; anything but 0 is a defect"),
        )
    ),
    Metric("polar/ledger/submissions", "tasks", "groups that went into flight, attempts counted each"),
)

_REWARD = (
    Metric(
        "polar/reward_mean",
        "reward",
        "mean over the usable sessions of the delivered groups, one vote per session; failed sessions, "
        "placeholders and missing rewards are left out",
        "higher",
    ),
    Metric("polar/reward_std", "reward", "population standard deviation over the same sessions"),
    Metric(
        "polar/reward_mean_completed",
        "reward",
        "mean over the COMPLETED sessions of the delivered groups that have a reward, usable or not",
        "higher",
    ),
    Metric(
        "rollout/session_reward_mean",
        "reward",
        "the same number as `polar/reward_mean`, under the name that newer dashboards plot",
        "higher",
    ),
    Metric(
        "polar/rollout_success_rate",
        "fraction",
        "sessions with a reward of at least 1 among the sessions of the delivered groups that failed or have "
        "a reward; early-stopped sessions and missing rewards are left out",
        "higher",
    ),
)

_STALENESS = (
    Metric(
        "polar/staleness/mean",
        "rollouts",
        "rollout id minus policy version, over the delivered groups",
        "lower",
    ),
    Metric("polar/staleness/min", "rollouts", "the smallest of these"),
    Metric("polar/staleness/max", "rollouts", "the largest of these", "lower"),
    Metric("polar/staleness/in_flight_mean", "rollouts", "the part between submission and result", "lower"),
    Metric("polar/staleness/in_queue_mean", "rollouts", "the part between result and delivery", "lower"),
    Metric(
        "polar/staleness/mixed_weights_fraction",
        "fraction",
        "sessions of the delivered groups whose turns were sampled under more than one weight version, among "
        "those that report versions",
        "lower",
    ),
)

_SESSIONS = (
    Metric(
        "polar/session/completed_rate", "fraction", "COMPLETED sessions of the delivered groups", "higher"
    ),
    Metric("polar/session/failed_rate", "fraction", "sessions that ended in an error", "lower"),
    Metric("polar/session/timeout_rate", "fraction", "sessions that ran out of time", "lower"),
    Metric("polar/session/unusable_rate", "fraction", "sessions without a token to train on", "lower"),
    Metric(
        "polar/session/missing_reward_rate",
        "fraction",
        "usable sessions without a reward, among the usable",
        "lower",
    ),
    Metric("polar/session/traces_mean", "traces", "per usable session of the delivered groups"),
    Metric("polar/session/trainable_tokens_mean", "tokens", "per usable session of the delivered groups"),
    Metric("polar/session/response_tokens_mean", "tokens", "per usable session of the delivered groups"),
    Metric(
        "polar/session/dropped_traces", "traces", "left out of delivered groups, mostly as too long", "lower"
    ),
    Metric("polar/session/dropped_tokens", "tokens", "of the traces left out of delivered groups", "lower"),
    Metric("polar/session/clipped_traces", "traces", "of delivered groups cut at the token limit", "lower"),
    Metric(
        "polar/session/masked_tokens",
        "tokens",
        "of delivered groups masked because a weight push may have cut their turn",
        "lower",
    ),
    Metric(
        "polar/session/reason/{reason}",
        "sessions",
        "of delivered and rejected groups that gave nothing to train on, by reason",
        "lower",
    ),
    *(
        Metric(
            f"polar/session_ms/{stage}_mean",
            "milliseconds",
            f"{meaning}, over the sessions of the delivered groups that ran",
            "lower",
        )
        for stage, meaning in (
            ("register_to_init_queue", "waiting for the sandbox to start"),
            ("init", "starting and preparing the sandbox"),
            ("run", "the agent at work"),
            ("postrun", "building, evaluating and tearing down"),
        )
    ),
)

_TIME = (
    Metric("polar/wait_seconds", "seconds", "the trainer waited for this rollout", "lower"),
    Metric(
        "polar/result_seconds/mean",
        "seconds",
        "from submission to result, over the delivered groups",
        "lower",
    ),
    Metric("polar/result_seconds/max", "seconds", "the longest of these", "lower"),
    Metric("polar/outages", "count", "times that the server became unreachable", "lower"),
    Metric("polar/outage_seconds", "seconds", "without the server", "lower"),
)


def _pool(name: str, which: str) -> tuple[Metric, ...]:
    stem = f"polar/{name}/"
    return (
        Metric(f"{stem}groups", "groups", which),
        Metric(f"{stem}sessions", "sessions", f"of the {name} groups, early-stopped ones left out"),
        Metric(f"{stem}all_correct_groups", "groups", "every rated session has a reward of at least 1"),
        Metric(f"{stem}all_wrong_groups", "groups", "no rated session has a reward of at least 1", "lower"),
        Metric(f"{stem}mixed_groups", "groups", "some rated sessions have a reward of at least 1", "higher"),
        Metric(f"{stem}constant_groups", "groups", "two or more rated sessions, all of one reward", "lower"),
        Metric(f"{stem}zero_trainable_groups", "groups", "no session has a token to train on", "lower"),
        Metric(f"{stem}completed_fraction", "fraction", f"COMPLETED sessions of the {name} groups", "higher"),
        Metric(f"{stem}session_reward_mean", "reward", "mean over rated sessions, one vote each", "higher"),
        Metric(
            f"{stem}group_reward_mean", "reward", "mean over the groups' means, one vote per group", "higher"
        ),
    )


_POOLS = (
    *_pool("candidate", "delivered in this rollout, or rejected since the previous one: before all filters"),
    Metric("polar/candidate/accept_fraction", "fraction", "delivered among the candidates", "higher"),
    *_pool("accepted", "delivered in this rollout"),
    Metric("polar/decision_window/groups", "groups", "judged between the previous rollout and this one"),
    Metric("polar/decision_window/accepted_groups", "groups", "accepted in that time, delivered or not"),
    Metric("polar/decision_window/rejected_groups", "groups", "rejected in that time", "lower"),
    Metric("polar/decision_window/accept_fraction", "fraction", "accepted among these", "higher"),
    Metric("polar/decision_window/seconds", "seconds", "length of that time"),
    Metric("polar/decision_window/groups_per_second", "groups/s", "judged per second of that time", "higher"),
    Metric("polar/wasted/groups", "groups", "rejected since the previous rollout", "lower"),
    Metric("polar/wasted/sessions", "sessions", "of these groups", "lower"),
    Metric("polar/wasted/response_tokens", "tokens", "in the sessions of these groups", "lower"),
    Metric("polar/wasted/trainable_tokens", "tokens", "in the sessions of these groups", "lower"),
    Metric(
        "polar/wasted/session_seconds", "seconds", "that the agents of these groups ran, added up", "lower"
    ),
    Metric(
        "polar/wasted/session_fraction", "fraction", "sessions of these groups among all candidates'", "lower"
    ),
    Metric(
        "polar/early_stop/groups", "groups", "candidates with sessions that the server stopped as surplus"
    ),
    Metric("polar/early_stop/sessions", "sessions", "stopped as surplus"),
    Metric("polar/early_stop/session_fraction", "fraction", "stopped among the candidates' sessions"),
)

_DELIVERY = (
    Metric("polar/callbacks/accepted", "count", "callbacks that brought a result", "higher"),
    *(
        Metric(f"polar/callbacks/{kind}", "count", meaning, "lower")
        for kind, meaning in (
            ("late", "callbacks after their task had ended here"),
            ("duplicate", "callbacks for a result that was there already"),
            ("foreign", "callbacks for a task that is not ours"),
            ("forged", "requests without the secret path"),
            ("malformed", "callbacks that are no result of their task"),
            ("oversized", "callbacks above the size limit"),
            ("slow", "callbacks that did not arrive in time"),
            ("cut", "connections that ended before their callback did"),
            ("refused", "connections above the limit, and bodies that there was no memory for"),
        )
    ),
    Metric("polar/polled_results", "count", "results that polling brought"),
    Metric("polar/journal_dropped_records", "count", "journal records lost since the start", "lower"),
    Metric(
        "polar/inactive_features",
        "count",
        "keys and optional features without effect; the log and the journal name each with its reason",
        "lower",
    ),
)

_EVALUATION = (
    Metric(
        "polar/eval/resolved_rate", "fraction", "sessions with a reward of at least 1, all datasets", "higher"
    ),
    Metric(
        "polar/eval/{dataset}/reward_mean",
        "reward",
        "mean over all sessions; a failed session and a missing reward count as 0: the denominator is fixed",
        "higher",
    ),
    Metric(
        "polar/eval/{dataset}/reward_mean_completed",
        "reward",
        "mean over the COMPLETED sessions that have a reward; looks better the more sessions fail",
        "higher",
    ),
    Metric(
        "polar/eval/{dataset}/resolved_rate", "fraction", "sessions with a reward of at least 1", "higher"
    ),
    Metric("polar/eval/{dataset}/completed_rate", "fraction", "COMPLETED sessions", "higher"),
    Metric("polar/eval/{dataset}/error_rate", "fraction", "sessions that ended in an error", "lower"),
    Metric("polar/eval/{dataset}/timeout_rate", "fraction", "sessions that ran out of time", "lower"),
    Metric("polar/eval/{dataset}/missing_rate", "fraction", "sessions without any result", "lower"),
    Metric(
        "polar/eval/{dataset}/missing_reward_rate", "fraction", "COMPLETED sessions without a reward", "lower"
    ),
    Metric("polar/eval/{dataset}/truncated_rate", "fraction", "sessions cut at a length limit", "lower"),
    Metric(
        "polar/eval/{dataset}/pass@{k}",
        "fraction",
        "mean over prompts of 1 - C(n-c, k) / C(n, k), with c of the prompt's n sessions at a reward of at "
        "least 1 (Chen et al. 2021, Evaluating Large Language Models Trained on Code, eq. 1)",
        "higher",
    ),
    Metric("polar/eval/{dataset}/prompts", "prompts", "evaluated"),
    Metric("polar/eval/{dataset}/sessions", "sessions", "expected"),
    Metric("polar/eval/{dataset}/response_tokens_mean", "tokens", "per session that has a response"),
    Metric("polar/eval/{dataset}/traces_mean", "traces", "per session that has a response"),
    Metric(
        "polar/eval/{dataset}/seconds", "seconds", "from the first submission to the last result", "lower"
    ),
    Metric(
        "polar/eval/{dataset}/mixed_weights",
        "0 or 1",
        "whether the engine reported more than one weight version during this evaluation",
        "lower",
    ),
)

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Groups", _GROUPS),
    ("Scheduler and ledger", _SCHEDULER),
    ("Reward", _REWARD),
    ("Policy lag", _STALENESS),
    ("Sessions", _SESSIONS),
    ("Time", _TIME),
    ("Before and after the filters", _POOLS),
    ("Delivery of results", _DELIVERY),
    ("Evaluation", _EVALUATION),
)

CATALOGUE: tuple[Metric, ...] = tuple(metric for _, metrics in SECTIONS for metric in metrics)
"""Every metric of the bridge, in the order of the documentation."""
