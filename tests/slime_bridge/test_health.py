"""Streaks and the candidate pool: ordinary failures pass, a run that brings nothing ends."""

import logging

import pytest

from slime_bridge.acceptance import Rejected, RejectReason
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import SessionOutcome
from slime_bridge.errors import CandidatePoolError, InfrastructureStreakError, NoTrainableTokensError
from slime_bridge.health import HealthMonitor


def monitor(**settings):
    return HealthMonitor(
        PolarSlimeConfig(rollout_url="http://polar", task_template={"agent": {}}, **settings)
    )


def accepted(watch):
    return watch.judged([SessionOutcome(0, completed=True, usable=True)], None, 5)


def rejected(watch, reason, tokens=0, completed=False):
    return watch.judged([SessionOutcome(0, completed=completed, detail="why")], Rejected(reason, {}), tokens)


def test_traceless_streak_stops_at_the_key():
    """So many groups in a row whose sessions all failed without a trace; a trace in between starts anew."""
    watch = monitor(max_consecutive_infrastructure_failures=3)
    for _ in range(2):
        assert rejected(watch, RejectReason.FAILED_TASK) is None
    assert rejected(watch, RejectReason.LOW_COMPLETE_FRACTION, tokens=3) is None
    for _ in range(2):
        assert rejected(watch, RejectReason.FAILED_TASK) is None
    error = rejected(watch, RejectReason.FAILED_TASK)
    assert isinstance(error, InfrastructureStreakError)
    assert "3 groups in a row" in str(error)
    assert "why" in str(error)


def test_default_never_waits_for_ever():
    """Off means that failures alone do not stop a run, but a run without any trainable token still ends."""
    watch = monitor(rollout_batch_size=2)
    errors = [rejected(watch, RejectReason.FAILED_TASK) for _ in range(16)]
    assert errors[:15] == [None] * 15
    assert isinstance(errors[15], NoTrainableTokensError)
    assert monitor(rollout_batch_size=32).trainable_limit == 64


def test_trainable_streak_is_broken_by_any_trainable_group():
    """Rejected for another reason still counts as a sign of life."""
    watch = monitor()
    for _ in range(5):
        for _ in range(10):
            assert rejected(watch, RejectReason.ZERO_TRAINABLE) is None
        assert rejected(watch, RejectReason.LOW_COMPLETE_FRACTION, tokens=1) is None


def test_missing_token_ids_are_named_once(caplog):
    """One line names the likely cause; the final error repeats it."""
    watch = monitor()
    with caplog.at_level(logging.WARNING):
        errors = [rejected(watch, RejectReason.NO_TOKEN_IDS, completed=True) for _ in range(16)]
    assert sum("complete without token ids" in record.message for record in caplog.records) == 1
    assert "gives no token ids" in str(errors[-1])


def test_warnings_are_few(caplog):
    """Loud, but not a line per group."""
    watch = monitor(max_consecutive_infrastructure_failures=1000)
    with caplog.at_level(logging.WARNING):
        for _ in range(999):
            assert rejected(watch, RejectReason.FAILED_TASK) is None
    assert len(caplog.records) == 16  # 4, 8, ..., 512 for each of two streaks


def test_prompts_given_up_in_a_row_stop_the_run():
    """A failure that hits every prompt ends the run; any judged group resets the count."""
    watch = monitor()
    for _ in range(7):
        assert watch.gave_up("boom") is None
    assert accepted(watch) is None
    for _ in range(7):
        assert watch.gave_up("boom") is None
    error = watch.gave_up("boom")
    assert isinstance(error, InfrastructureStreakError)
    assert "boom" in str(error)
    assert monitor(max_consecutive_infrastructure_failures=3).give_up_limit == 3


class TestPool:
    SETTINGS = {
        "candidate_pool_health_gate_enabled": True,
        "candidate_pool_health_gate_min_observed_sessions": 4,
        "candidate_pool_health_gate_min_completion_fraction": 0.5,
    }

    def test_too_few_completed_sessions_stop_before_training(self):
        """Rejected groups count; below the number to observe nothing is decided."""
        watch = monitor(**self.SETTINGS)
        assert accepted(watch) is None
        assert rejected(watch, RejectReason.ZERO_TRAINABLE) is None
        assert rejected(watch, RejectReason.ZERO_TRAINABLE) is None
        error = rejected(watch, RejectReason.ZERO_TRAINABLE)
        assert isinstance(error, CandidatePoolError)
        assert "1 of 4" in str(error)

    def test_exactly_enough_is_enough(self):
        """The fraction is a lower bound."""
        watch = monitor(**self.SETTINGS)
        results = [
            accepted(watch),
            accepted(watch),
            *(rejected(watch, RejectReason.FAILED_TASK) for _ in "ab"),
        ]
        assert results == [None] * 4

    def test_early_stopped_sessions_are_no_failures(self):
        """What the server stopped as surplus says nothing."""
        watch = monitor(**self.SETTINGS)
        stopped = [SessionOutcome(0, early_stopped=True)] * 10
        assert watch.judged(stopped, None, 5) is None

    def test_gate_closes_with_the_first_delivery(self):
        """Later dips are the trainer's business."""
        watch = monitor(**self.SETTINGS)
        watch.delivered()
        for _ in range(10):
            assert rejected(watch, RejectReason.FAILED_TASK) is None

    def test_off_by_default(self):
        """Without the key nothing is watched."""
        watch = monitor()
        for _ in range(15):
            assert rejected(watch, RejectReason.FAILED_TASK) is None


@pytest.mark.parametrize("streak", [1, 3, 5])
def test_short_streaks_are_silent(streak, caplog):
    """Single bad groups are ordinary."""
    watch = monitor()
    with caplog.at_level(logging.WARNING):
        for _ in range(streak):
            rejected(watch, RejectReason.LOW_COMPLETE_FRACTION, tokens=2)
    assert not caplog.records
