"""Random faults over real sockets: whatever a server does, calls end, and every prompt is somewhere, once.

``WORKER_SCHEDULES=200`` runs that many schedules in place of the default number.
"""

import functools
import os

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from analysis.lab.polar_server.testing import Fault, FaultScript, Lognormal, SessionProfile, serve_polar
from slime_bridge import group_flow, pipeline
from slime_bridge.collect import Collector
from slime_bridge.errors import WorkerError
from slime_bridge.poller import PollSchedule
from slime_bridge.retry import RetryPolicy
from tests.slime_bridge.rollouts import Source, group_indices, running

SCHEDULES = int(os.environ.get("WORKER_SCHEDULES", "8"))
LEFT_RUNNING = {"task_endless", "task_forgotten", "task_conflict", "restart", "outage", "response_cut"}
TIMES = st.integers(1, 3)
CHANCES = st.sampled_from([0.1, 0.3, 0.6])

pytestmark = pytest.mark.timeout(120 + 20 * SCHEDULES)


def fault(kind, **fixed):
    return st.builds(functools.partial(Fault, kind, **fixed), probability=CHANCES)


def some(kind, **fixed):
    return st.builds(functools.partial(Fault, kind, **fixed), times=TIMES, skip=st.integers(0, 8))


FAULTS = st.lists(
    st.one_of(
        some("response_status", on="submit", status=503),
        some("response_status", on="task", status=500),
        some("response_status", on="status", status=502),
        some("response_reset", on="submit"),
        some("response_reset", on="submit", processed=True),
        some("response_hang", on="submit", processed=True),
        some("response_cut", on="task"),
        some("response_garbage", on="status"),
        some("response_status", on="submit", status=422),
        some("outage", seconds=0.7),
        some("restart", seconds=0.3),
        some("task_endless"),
        some("task_failed"),
        some("task_conflict"),
        some("task_forgotten", seconds=0.1),
        fault("callback_lost"),
        fault("callback_late", seconds=0.5),
        fault("callback_duplicate"),
        fault("callback_early"),
        fault("callback_malformed", value="truncated"),
        fault("callback_forged"),
        fault("callback_foreign"),
        fault("callback_cut"),
        fault("session_error"),
        fault("session_timeout"),
        fault("session_missing"),
        fault("session_duplicate"),
        fault("session_malformed"),
        fault("zero_mask"),
        fault("no_token_ids"),
        fault("short_logprobs"),
        fault("nan_logprob"),
        fault("null_reward"),
        fault("weight_version_jump"),
        fault("split_traces"),
    ),
    max_size=6,
)


@pytest.fixture
def hurried(monkeypatch):
    """Waits of the bridge in tenths of a second, so that a schedule takes a second."""
    collector = functools.partial(
        Collector,
        schedule=PollSchedule(first=0.1, max_interval=0.4, min_gap=0.05, max_duty=0.5),
        retry=RetryPolicy(initial=0.02, max_delay=0.2),
        callback_grace=0.1,
    )
    monkeypatch.setattr(pipeline, "Collector", collector)
    monkeypatch.setattr(group_flow, "_PAUSE", RetryPolicy(initial=0.05, max_delay=0.3))


@settings(
    max_examples=SCHEDULES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    faults=FAULTS,
    seed=st.integers(0, 999),
    fully_async=st.booleans(),
    level=st.integers(1, 2),
    wanted=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_any_schedule_of_faults_conserves_every_prompt(
    hurried, faults, seed, fully_async, level, wanted, fraction
):
    """No call hangs; each prompt is delivered once, rejected, given up, or back in the data source."""
    source = Source(n=2)
    profile = SessionProfile(duration=Lognormal(0.05, 1.0, 0.5))
    delivered, versions = [], []
    with serve_polar(FaultScript(seed=seed, sessions=profile, faults=faults)) as polar:
        with running(
            polar,
            source,
            polar_fully_async=fully_async,
            polar_max_async_level=level,
            polar_min_complete_accept_fraction=fraction,
            polar_group_timeout=1.5,
            polar_request_timeout=0.6,
            polar_max_prompt_attempts=3,
        ) as worker:
            try:
                for rollout_id, number in enumerate(wanted):
                    batch, report = worker.collect(rollout_id, wanted=number)
                    assert len(batch.groups) == number
                    delivered += group_indices(batch)
                    versions += [delivery.staleness for delivery in batch.deliveries]
                    assert report.ledger.unaccounted == 0
            except WorkerError:
                pass  # a run that brings nothing may end; it must not lose or double anything
        books = worker.ledger()
        left_running = any(item.kind in LEFT_RUNNING or item.processed for item in faults)
        # A task that is given up here goes on there: this server cannot cancel.
        if not left_running and not books.requeued:
            assert polar.max_running_sessions <= worker.config.max_sessions_in_flight
    assert len(delivered) == len(set(delivered)) == books.delivered
    assert all(0 <= staleness <= worker.config.max_staleness for staleness in versions)
    assert source.unaccounted() == set()
    waiting = [group[0].group_index for group in source.buffer]
    assert len(waiting) == len(set(waiting))
    assert not set(waiting) & set(delivered)
    ended = books.delivered + sum(books.rejected.values()) + sum(books.given_up.values())
    assert len(source.drawn) == books.drawn
    assert ended == len(delivered) + len(set(source.given_up))
