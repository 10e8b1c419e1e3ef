"""Verdicts: the first objection names the reason, and one bad session does not sink its group."""

import json
import math

import pytest

from slime_bridge.acceptance import PREDICATES, Accepted, Rejected, RejectReason, judge, too_stale
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome


def settings(fraction=0.0):
    return PolarSlimeConfig(
        rollout_url="http://polar", task_template={"agent": {}}, min_complete_accept_fraction=fraction
    )


def good(**changes):
    fields = {
        "status": "COMPLETED", "completed": True, "usable": True, "trainable_tokens": 5,
        "response_tokens": 9, "n_traces": 1, "reward": 1.0,
    }  # fmt: skip
    return {**fields, **changes}


def bad(reason, **changes):
    fields = {"status": "COMPLETED", "completed": True, "n_traces": 0, "dropped_traces": 1, "reason": reason}
    return {**fields, **changes}


FAILED = {"status": "ERROR", "reason": "failed"}
TIMEOUT = {"status": "TIMEOUT", "reason": "timeout"}
STOPPED = {"status": "ERROR", "reason": "early_stopped", "early_stopped": True}


def group(*sessions):
    return GroupConversion(
        [], [SessionOutcome(position, **fields) for position, fields in enumerate(sessions)]
    )


def verdict(*sessions, fraction=0.0):
    return judge(group(*sessions), settings=settings(fraction))


class TestReasons:
    @pytest.mark.parametrize(
        ("sessions", "reason"),
        [
            ([FAILED, TIMEOUT], RejectReason.FAILED_TASK),
            ([FAILED, STOPPED], RejectReason.FAILED_TASK),
            ([{"reason": "missing"}, {"reason": "malformed"}], RejectReason.FAILED_TASK),
            ([bad("logprob_error"), FAILED], RejectReason.LOGPROB_ERROR),
            ([bad("no_token_ids"), bad("no_token_ids")], RejectReason.NO_TOKEN_IDS),
            ([bad("missing_reward"), FAILED], RejectReason.MISSING_REWARD),
            ([bad("overlong"), FAILED], RejectReason.ZERO_TRAINABLE),
            ([bad("no_traces", dropped_traces=0)], RejectReason.ZERO_TRAINABLE),
            ([bad("masked", n_traces=1), FAILED], RejectReason.ZERO_TRAINABLE),
            ([STOPPED, STOPPED], RejectReason.ZERO_TRAINABLE),
        ],
    )
    def test_group_without_a_trainable_token_is_rejected_for_its_cause(self, sessions, reason):
        """The reason names the likely cause, not just the symptom."""
        judged = verdict(*sessions)
        assert isinstance(judged, Rejected)
        assert judged.reason is reason

    def test_failed_sessions_that_left_masked_traces_are_no_failed_task(self):
        """An agent that exits non-zero leaves traces; the infrastructure was fine."""
        assert verdict({**FAILED, "n_traces": 2}).reason is RejectReason.ZERO_TRAINABLE

    @pytest.mark.parametrize("reason", ["logprob_error", "missing_reward", "no_token_ids"])
    def test_one_bad_session_does_not_sink_its_group(self, reason):
        """A tenth of bad logprobs must not cost half of the groups."""
        assert isinstance(verdict(good(), bad(reason), FAILED), Accepted)

    @pytest.mark.parametrize("reason", ["logprob_error", "missing_reward", "no_token_ids"])
    def test_shortage_is_blamed_on_what_caused_it(self, reason):
        """With these sessions the fraction would have been met."""
        judged = verdict(good(), bad(reason), bad(reason), FAILED, fraction=0.75)
        assert judged.reason is RejectReason(reason)

    def test_shortage_that_has_other_causes_is_named_so(self):
        """Two logprob errors cannot explain three missing sessions."""
        judged = verdict(good(), bad("logprob_error"), FAILED, TIMEOUT, fraction=1.0)
        assert judged.reason is RejectReason.LOW_COMPLETE_FRACTION


class TestFraction:
    @pytest.mark.parametrize(
        ("complete", "total", "fraction", "accepted"),
        [
            (1, 4, 0.0, True),
            (1, 4, 0.25, True),
            (1, 4, 0.26, False),
            (2, 4, 0.26, True),
            (3, 4, 1.0, False),
            (4, 4, 1.0, True),
            (7, 100, 0.07, True),
            (6, 100, 0.07, False),
        ],
    )
    def test_bound_is_the_exact_ceiling(self, complete, total, fraction, accepted):
        """ceil(sessions * fraction) sessions are enough, one fewer is not; 7 percent of 100 is 7."""
        sessions = [good()] * complete + [FAILED] * (total - complete)
        assert isinstance(verdict(*sessions, fraction=fraction), Accepted) == accepted

    def test_usable_but_not_completed_does_not_count(self):
        """A timeout that is trainable is no completed session."""
        trainable_timeout = good(status="TIMEOUT", completed=False)
        assert isinstance(verdict(good(), trainable_timeout, fraction=0.5), Accepted)
        assert verdict(good(), trainable_timeout, fraction=0.6).reason is RejectReason.LOW_COMPLETE_FRACTION

    def test_early_stopped_sessions_still_count_as_expected(self):
        """The server stops stragglers only beyond what the fraction needs, so the bound stays that of all."""
        judged = verdict(good(), good(), STOPPED, STOPPED, fraction=0.5)
        assert isinstance(judged, Accepted)
        assert (judged.numbers["required"], judged.numbers["early_stopped"]) == (2, 2)


def test_verdict_carries_the_numbers_that_decided_it():
    """The journal can replay the decision."""
    judged = verdict(good(), bad("logprob_error"), FAILED, fraction=0.9)
    assert judged.numbers == {
        "sessions": 3,
        "early_stopped": 0,
        "completed": 2,
        "usable": 1,
        "complete_usable": 1,
        "required": 3,
        "traceless": 1,
        "trainable_tokens": 5,
        "response_tokens": 9,
        "reasons": {"logprob_error": 1, "failed": 1},
    }
    json.dumps(judged.numbers)


def test_missing_reward_is_no_objection_by_itself():
    """A null reward follows its own rule; NaN changes no verdict."""
    assert isinstance(verdict(good(reward=math.nan, missing_rewards=1)), Accepted)


def test_stale_verdict_names_both_numbers():
    """How old, and how old it may be."""
    assert too_stale(4, 3) == Rejected(RejectReason.TOO_STALE, {"staleness": 4, "max_staleness": 3})


def test_every_reason_can_be_reached():
    """No reason without a predicate, but for age and the trainer's own filters."""
    elsewhere = {"too_stale", "filtered", "all_wrong", "all_correct"}
    assert {reason for reason, _ in PREDICATES} | elsewhere == set(RejectReason)
