"""Metrics: the documented rules against plain loops, and a catalogue that tells the truth."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from slime_bridge.acceptance import RejectReason
from slime_bridge.callbacks import CallbackKind
from slime_bridge.conversion.groups import SessionOutcome
from slime_bridge.groups import SchedulerCounts
from slime_bridge.ledger import Ledger
from slime_bridge.metrics import (
    CATALOGUE,
    DecisionWindow,
    GroupFacts,
    find_metric,
    mean,
    pass_at_k,
    render_catalogue,
    rollout_metrics,
    undocumented,
)

NAN = math.nan


@dataclass(frozen=True)
class Session:
    """A session's facts; by default one that completed with reward 1."""

    status: str = "COMPLETED"
    reward: float = 1.0
    usable: bool = True
    early_stopped: bool = False
    reason: str | None = None
    trainable_tokens: int = 10
    response_tokens: int = 20
    n_traces: int = 1
    dropped_traces: int = 0
    dropped_tokens: int = 0
    clipped_traces: int = 0
    masked_tokens: int = 0
    timing: Any = field(default_factory=lambda: {"init_ms": 5.0, "run_ms": 1000.0, "postrun_ms": 2.0})
    weight_versions: tuple[Any, Any] | None = ("3", "3")

    @property
    def completed(self) -> bool:
        return self.status == "COMPLETED"


GOOD = Session()
WRONG = Session(reward=0.0)
UNRATED = Session(reward=NAN)
ERROR = Session(
    "ERROR", 0.0, usable=False, reason="failed", trainable_tokens=0, response_tokens=0, n_traces=0
)
TIMEOUT = replace(ERROR, status="TIMEOUT", reason="timeout", timing={"init_ms": 0.0, "run_ms": 0.0})
SURPLUS = replace(ERROR, early_stopped=True, reason="early_stopped", timing={"run_ms": 50_000.0})


def _group(*sessions: Any, **facts: Any) -> GroupFacts:
    return GroupFacts(sessions=sessions, **facts)


def test_failures_stay_out_of_the_reward_and_are_rates() -> None:
    """Two failed sessions of eight: the mean is over the six real ones, the failure rate stands beside it."""
    sessions = [GOOD] * 3 + [WRONG] * 3 + [ERROR, TIMEOUT]
    metrics = rollout_metrics(delivered=[_group(*sessions)])
    assert metrics["polar/reward_mean"] == 0.5
    assert metrics["rollout/session_reward_mean"] == 0.5
    assert metrics["polar/reward_std"] == 0.5
    assert metrics["polar/reward_mean_completed"] == 0.5
    assert metrics["polar/session/failed_rate"] == 1 / 8
    assert metrics["polar/session/timeout_rate"] == 1 / 8
    assert metrics["polar/session/unusable_rate"] == 2 / 8
    assert metrics["polar/rollout_success_rate"] == 3 / 8
    assert metrics["polar/session/reason/failed"] == 1
    assert metrics["polar/session/reason/timeout"] == 1


def test_a_stray_reward_on_a_failed_session_changes_no_mean() -> None:
    """A failed session that carries a reward is still a failed session."""
    stray = replace(ERROR, reward=999.0)
    metrics = rollout_metrics(delivered=[_group(GOOD, WRONG, stray)])
    assert metrics["polar/reward_mean"] == metrics["polar/reward_mean_completed"] == 0.5
    assert metrics["polar/rollout_success_rate"] == 1 / 3


def test_missing_rewards_are_counted_and_in_no_mean() -> None:
    """A session without a reward is neither 0 nor a failure to succeed."""
    metrics = rollout_metrics(delivered=[_group(GOOD, UNRATED, UNRATED, WRONG)])
    assert metrics["polar/reward_mean"] == 0.5
    assert metrics["polar/session/missing_reward_rate"] == 0.5
    assert metrics["polar/rollout_success_rate"] == 0.5


def test_a_session_votes_once_however_many_traces_it_has() -> None:
    """Ten traces in one session do not outvote another session."""
    metrics = rollout_metrics(delivered=[_group(replace(GOOD, n_traces=10), WRONG)])
    assert metrics["rollout/session_reward_mean"] == 0.5
    assert metrics["polar/session/traces_mean"] == 5.5


def test_surplus_sessions_are_in_neither_means_nor_failure_rates() -> None:
    """What the server stopped as surplus is counted under its own name only."""
    metrics = rollout_metrics(delivered=[_group(GOOD, WRONG, SURPLUS, SURPLUS)])
    assert metrics["polar/session/failed_rate"] == 0
    assert metrics["polar/session/completed_rate"] == 1
    assert metrics["polar/session_ms/run_mean"] == 1000
    assert metrics["polar/accepted/sessions"] == 2
    assert metrics["polar/early_stop/sessions"] == 2
    assert metrics["polar/early_stop/groups"] == 1
    assert metrics["polar/early_stop/session_fraction"] == 0.5
    assert not [name for name in metrics if "reason/early" in name]


def test_times_leave_out_sessions_that_were_only_written_off() -> None:
    """A session that the server wrote off reports zeros; they are no measurement."""
    metrics = rollout_metrics(delivered=[_group(GOOD, TIMEOUT)])
    assert metrics["polar/session_ms/run_mean"] == 1000
    assert metrics["polar/session_ms/init_mean"] == 5
    assert "polar/session_ms/register_to_init_queue_mean" not in metrics


def test_nothing_delivered_gives_counts_and_no_means() -> None:
    """A mean over nothing is left out; counts are 0; nothing raises."""
    metrics = rollout_metrics(delivered=[])
    assert metrics["polar/completed_groups"] == 0
    assert metrics["polar/dropped_zero_trainable_groups"] == 0
    assert metrics["polar/output_queue_full_waits"] == 0
    assert not [name for name in metrics if name.endswith(("mean", "rate", "fraction"))]


def test_rejections_by_reason_add_up() -> None:
    """Each rejected group appears under exactly one reason, contract names included."""
    reasons = [
        "zero_trainable",
        "failed_task",
        "too_stale",
        "too_stale",
        "low_complete_fraction",
        "odd",
        None,
    ]
    rejected = [_group(WRONG, ERROR, reason=reason) for reason in reasons]
    metrics = rollout_metrics(delivered=[_group(GOOD)], rejected=rejected)
    assert metrics["polar/dropped_groups"] == len(reasons)
    assert metrics["polar/dropped_sessions"] == 2 * len(reasons)
    assert metrics["polar/dropped_failed_groups"] == 1
    assert metrics["polar/dropped_stale_groups"] == metrics["polar/stale_groups"] == 2
    assert metrics["polar/dropped_odd_groups"] == 1
    by_reason = [
        value
        for name, value in metrics.items()
        if name.startswith("polar/dropped_") and name.endswith("_groups") and name != "polar/dropped_groups"
    ]
    assert sum(by_reason) == len(reasons)
    assert metrics["polar/wasted/session_seconds"] == pytest.approx(2 * len(reasons) * 1.0)
    assert metrics["polar/wasted/response_tokens"] == 20 * len(reasons)
    assert metrics["polar/candidate/accept_fraction"] == 1 / 8


def test_groups_are_classified_by_their_rated_sessions() -> None:
    """All correct, all wrong, mixed, constant and without a trainable token, each by its definition."""
    groups = [
        _group(GOOD, GOOD),  # all correct, constant
        _group(WRONG, WRONG, ERROR),  # all wrong, constant
        _group(GOOD, WRONG),  # mixed
        _group(replace(GOOD, reward=0.5), WRONG),  # all wrong, not constant
        _group(UNRATED, ERROR),  # nothing rated
        _group(ERROR, TIMEOUT),  # no trainable token
        _group(GOOD),  # all correct, alone
    ]
    metrics = rollout_metrics(delivered=groups[:3], rejected=groups[3:])
    pool = {name.removeprefix("polar/candidate/"): value for name, value in metrics.items()}
    assert pool["groups"] == 7
    assert pool["all_correct_groups"] == 2
    assert pool["all_wrong_groups"] == 2
    assert pool["mixed_groups"] == 1
    assert pool["constant_groups"] == 2
    assert pool["zero_trainable_groups"] == 1
    assert pool["session_reward_mean"] == pytest.approx(4.5 / 9)
    assert pool["group_reward_mean"] == pytest.approx((1 + 0 + 0.5 + 0.25 + 1) / 5)
    assert metrics["polar/accepted/groups"] == 3


def test_lag_splits_into_its_parts() -> None:
    """Mean, smallest and largest staleness, its two parts, and weights that changed inside a session."""
    mixed = replace(GOOD, weight_versions=("3", "4"))
    unknown = replace(GOOD, weight_versions=None)
    delivered = [
        _group(GOOD, mixed, staleness=3, staleness_in_flight=1, staleness_in_queue=2, seconds=4.0),
        _group(GOOD, unknown, staleness=0, staleness_in_flight=0, staleness_in_queue=0, seconds=NAN),
    ]
    metrics = rollout_metrics(delivered=delivered)
    assert (metrics["polar/staleness/min"], metrics["polar/staleness/max"]) == (0, 3)
    assert metrics["polar/staleness/mean"] == 1.5
    assert metrics["polar/staleness/in_flight_mean"] + metrics["polar/staleness/in_queue_mean"] == 1.5
    assert metrics["polar/staleness/mixed_weights_fraction"] == pytest.approx(1 / 3)
    assert metrics["polar/result_seconds/mean"] == metrics["polar/result_seconds/max"] == 4


COUNTS = SchedulerCounts(
    queued=5,
    waiting_retry=2,
    suspended=1,
    in_flight=4,
    in_flight_sessions=16,
    reserved_sessions=3,
    buffered=6,
    handed=8,
    wanted=8,
    oldest_age=2.5,
)


def test_scheduler_counts_reach_the_metrics_under_the_kept_names() -> None:
    """Dashboards find the six names they plot; an age that does not exist is left out."""
    metrics = rollout_metrics(delivered=[], scheduler=COUNTS)
    kept = {name: metrics[f"polar/scheduler/{name}"] for name in ("active_groups", "active_sessions")}
    assert kept == {"active_groups": 4, "active_sessions": 16}
    assert metrics["polar/scheduler/completed_buffer"] == 6
    assert metrics["polar/scheduler/output_queue"] == 8
    assert metrics["polar/scheduler/deferred_queue"] == 2
    assert metrics["polar/scheduler/requested_groups"] == 8
    idle = rollout_metrics(delivered=[], scheduler=replace(COUNTS, oldest_age=NAN))
    assert "polar/scheduler/oldest_age_seconds" not in idle


def test_the_ledger_s_totals_are_flattened() -> None:
    """Reasons are summed, live states are one number, and an empty ledger has nothing unaccounted for."""
    totals = {
        **Ledger().snapshot().to_dict(),
        "drawn": 10,
        "rejected": {"zero_trainable": 2, "too_stale": 1},
        "queued": 1,
        "in_flight": 2,
    }
    metrics = rollout_metrics(delivered=[], ledger=totals)
    assert metrics["polar/ledger/rejected"] == 3
    assert metrics["polar/ledger/live"] == 3
    assert metrics["polar/ledger/unaccounted"] == 0


def test_decision_window_counts_what_was_judged() -> None:
    """Accepted but not yet delivered groups are in the window; a first window has no length."""
    metrics = rollout_metrics(delivered=[], window=DecisionWindow(accepted=6, rejected=2, seconds=4.0))
    assert metrics["polar/decision_window/accept_fraction"] == 0.75
    assert metrics["polar/decision_window/groups_per_second"] == 2
    first = rollout_metrics(delivered=[], window=DecisionWindow(accepted=0, rejected=0))
    assert first["polar/decision_window/groups"] == 0
    assert "polar/decision_window/seconds" not in first
    assert "polar/decision_window/accept_fraction" not in first


rewards = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0]))
counts = st.integers(0, 10**6)
sessions = st.builds(
    Session,
    status=st.sampled_from(["COMPLETED", "ERROR", "TIMEOUT", "", "NEWER"]),
    reward=rewards,
    usable=st.booleans(),
    early_stopped=st.booleans(),
    reason=st.sampled_from([None, "failed", "overlong"]),
    trainable_tokens=counts,
    response_tokens=counts,
    timing=st.sampled_from([None, {}, {"run_ms": NAN}, {"run_ms": 3.0, "init_ms": None}]),
)
groups = st.lists(st.builds(GroupFacts, sessions=st.lists(sessions, max_size=6)), max_size=5)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(delivered=groups, rejected=groups)
def test_only_finite_numbers_under_known_names_leave(
    delivered: list[GroupFacts], rejected: list[GroupFacts]
) -> None:
    """Whatever the sessions hold: floats, finite, and every name is in the catalogue."""
    metrics = rollout_metrics(delivered=delivered, rejected=rejected, counters={"outage_seconds": NAN})
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
    assert undocumented(metrics) == []
    every = [s.reward for g in delivered for s in g.sessions if s.usable and not s.early_stopped]
    finite = [reward for reward in every if math.isfinite(reward)]
    if finite and all(abs(reward) < 1e6 for reward in finite):
        assert metrics["polar/reward_mean"] == pytest.approx(statistics.fmean(finite))
        assert metrics["polar/reward_std"] == pytest.approx(statistics.pstdev(finite), abs=1e-9, rel=1e-6)


def _everything() -> dict[str, float]:
    counters = {
        name.removeprefix("polar/"): 1.0
        for name in (metric.name for metric in CATALOGUE)
        if name.startswith(("polar/callbacks/", "polar/outage"))
    }
    counters |= {f"callbacks/{kind}": 1.0 for kind in CallbackKind}
    for name in ("requeued", "given_up", "returned", "abandoned"):
        counters[f"{name}_groups"] = 1.0
    counters |= {"submitted_tasks": 9.0, "polled_results": 1.0, "journal_dropped_records": 0.0}
    counters["inactive_features"] = 2.0
    timed = replace(
        GOOD, timing={f"{s}_ms": 1.0 for s in ("register_to_init_queue", "init", "run", "postrun")}
    )
    facts = {"staleness": 1, "staleness_in_flight": 1, "staleness_in_queue": 0, "seconds": 1.0}
    return rollout_metrics(
        delivered=[_group(timed, SURPLUS, ERROR, **facts)],
        rejected=[_group(WRONG, reason="zero_std"), _group(WRONG, reason="zero_trainable")],
        scheduler=COUNTS,
        ledger=Ledger().snapshot().to_dict(),
        window=DecisionWindow(1, 2, 3.0),
        counters=counters,
        filter_drops={"zero_std_1.0": 2},
        wait_seconds=1.0,
    )


def test_every_catalogue_entry_of_training_is_emitted_and_the_other_way_round() -> None:
    """The catalogue lists what is emitted, no more and no less (evaluation has its own test)."""
    emitted = _everything()
    assert undocumented(emitted) == []
    wanted = {metric.name for metric in CATALOGUE if not metric.name.startswith("polar/eval/")}
    found = {metric.name for name in emitted if (metric := find_metric(name)) is not None}
    assert found == wanted


def test_catalogue_entries_are_complete_and_unique() -> None:
    """Each metric has one entry with unit and definition; exact names win over patterns."""
    names = [metric.name for metric in CATALOGUE]
    assert len(names) == len(set(names))
    assert all(metric.unit and metric.definition for metric in CATALOGUE)
    exact = find_metric("polar/dropped_stale_groups")
    assert exact is not None
    assert exact.name == "polar/dropped_stale_groups"
    pattern = find_metric("polar/eval/a/b c/pass@8")
    assert pattern is not None
    assert pattern.name == "polar/eval/{dataset}/pass@{k}"
    assert undocumented(["polar/unheard_of", "polar/reward_mean", "x"]) == ["polar/unheard_of", "x"]


def test_every_reject_reason_has_its_own_entry() -> None:
    """Each verdict of the bridge is documented by name; only foreign reasons fall to the pattern."""
    metrics = rollout_metrics(delivered=[], rejected=[_group(reason=reason) for reason in RejectReason])
    counted = [name for name, value in metrics.items() if name.startswith("polar/dropped_") and value == 1]
    assert len(counted) == len(RejectReason)
    assert all(metric is not None and "{" not in metric.name for metric in map(find_metric, counted))


def test_session_outcomes_are_facts() -> None:
    """What conversion reports is what metrics read."""
    outcome = SessionOutcome(
        0, status="COMPLETED", completed=True, usable=True, trainable_tokens=3, reward=1.0
    )
    missing = SessionOutcome(1, reason="missing")
    metrics = rollout_metrics(delivered=[_group(outcome, missing)])
    assert metrics["polar/reward_mean"] == 1
    assert metrics["polar/session/completed_rate"] == 0.5
    assert metrics["polar/session/reason/missing"] == 1


def test_the_contract_s_names_are_in_the_catalogue() -> None:
    """Names that existing dashboards plot are kept."""
    kept = """completed_groups dropped_groups dropped_sessions dropped_zero_trainable_groups
    dropped_low_complete_fraction_groups dropped_logprob_error_groups dropped_failed_groups
    dropped_stale_groups stale_groups output_queue_full_waits deferred_queue_dequeues
    scheduler/active_groups scheduler/active_sessions scheduler/completed_buffer scheduler/output_queue
    scheduler/deferred_queue scheduler/requested_groups session_ms/register_to_init_queue_mean
    session_ms/init_mean session_ms/run_mean session_ms/postrun_mean reward_mean reward_std
    reward_mean_completed staleness/mean rollout_success_rate eval/resolved_rate"""
    names = {metric.name for metric in CATALOGUE}
    assert {f"polar/{name}" for name in kept.split()} <= names


def test_the_rendered_catalogue_has_every_metric() -> None:
    """The documentation page has one row per metric and no broken table cell."""
    page = render_catalogue()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(CATALOGUE)
    assert all(row.count("|") == 5 for row in rows)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_equals_the_share_of_lucky_draws(n: int) -> None:
    """The estimator equals counting all subsets of k tries by hand."""
    for correct in range(n + 1):
        tries = [1] * correct + [0] * (n - correct)
        for k in range(1, n + 1):
            draws = [max(draw) for draw in itertools.combinations(tries, k)]
            assert pass_at_k(n, correct, k) == pytest.approx(statistics.fmean(draws))


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_pass_at_k_refuses_nonsense(n: int, correct: int, k: int) -> None:
    """More successes than tries, or more tries granted than made, is an error."""
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, correct, k)


def test_mean_ignores_what_is_not_finite() -> None:
    """NaN and infinities are no values; nothing left means NaN."""
    assert mean([1.0, NAN, 3.0, math.inf]) == 2.0
    assert math.isnan(mean([NAN]))
    assert math.isnan(mean([]))
