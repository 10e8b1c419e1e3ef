"""What becomes of each group, without loop or server: requeue, give-up, refusals, verdicts, journal."""

import logging
import random

import pytest

from slime_bridge import group_flow
from slime_bridge.acceptance import Accepted, Rejected, RejectReason
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.errors import (
    ConservationError,
    InfrastructureError,
    InfrastructureStreakError,
    ProtocolError,
    SubmitRejectedError,
    TaskFailedError,
    TemplateError,
)
from slime_bridge.group_flow import GroupFlow, failure_reason
from slime_bridge.group_task import JudgedGroup
from slime_bridge.groups import GroupState
from slime_bridge.journal.schema import EVENTS, EventLog
from slime_bridge.retry import RetryPolicy
from tests.slime_bridge.rollouts import Source, make_args


class Notes(EventLog):
    """A journal in memory."""

    path = "memory"

    def __init__(self):
        self.records = []
        self.kept = []

    def record(self, event, /, **fields):
        assert set(EVENTS[event].fields) <= set(fields), event
        self.records.append((event, fields))

    def rejected_group(self, **fields):
        self.kept.append(fields)

    def of(self, group):
        return [event for event, fields in self.records if fields.get("group") == group]


class Bench:
    """A flow with a data source and a journal."""

    def __init__(self, **settings):
        self.notes = Notes()
        self.source = Source()
        config = resolve_polar_slime_config(make_args("http://polar", **settings))
        asks = config.dynamic_sampling_filter_path is not None
        self.flow = GroupFlow(config, self.notes, rng=random.Random(1), asks_filter=asks)

    def start(self, rollout_id=0, wanted=2):
        self.flow.begin(rollout_id, wanted)
        return self.draw()

    def draw(self):
        step = self.flow.step(away=False)
        if step.draw:
            self.flow.add(self.source.get_samples(step.draw))
        return self.flow.admit(None)


def good(group):
    sessions = [SessionOutcome(i, completed=True, usable=True, trainable_tokens=3) for i in range(2)]
    return JudgedGroup(GroupConversion(["sample"], sessions), Accepted({"trainable_tokens": 6}), 0.5)


def bad(reason=RejectReason.ZERO_TRAINABLE):
    conversion = GroupConversion(["kept"], [SessionOutcome(0, detail="the reason for people")])
    return JudgedGroup(conversion, Rejected(reason, {"trainable_tokens": 0}), 0.5)


class TestResults:
    def test_accepted_groups_are_handed_out_and_booked(self):
        """The whole way of a group stands in the journal, with the fields that the schema asks for."""
        bench = Bench()
        for group in bench.start():
            bench.flow.judged(group, good(group))
        step = bench.flow.step(away=False)
        report = bench.flow.commit(step.batch, {"callbacks/late": 2.0})
        assert bench.notes.of(0) == ["group_drawn", "verdict", "group_delivered"]
        assert report.ledger.delivered == 2
        assert report.counts.handed == 2
        assert report.window.decisions.accepted == 2
        assert report.window.counters["callbacks/late"] == 2.0

    def test_rejected_groups_keep_their_samples_in_the_journal(self):
        """The numbers that decided, the samples, and the prompt's number for the data source."""
        bench = Bench()
        first, _ = bench.start()
        bench.flow.judged(first, bad())
        assert bench.notes.of(0) == ["group_drawn", "verdict", "group_rejected"]
        (kept,) = bench.notes.kept
        assert (kept["group"], kept["rollout_id"], kept["samples"]) == (0, 0, ["kept"])
        assert kept["reason"] == "zero_trainable"
        step = bench.flow.step(away=False)
        assert (step.draw, step.ended) == (1, [0])
        assert bench.flow.step(away=False).ended == []

    def test_stale_groups_are_rejected_before_they_can_be_handed_out(self):
        """The verdict names lag and bound; tasks in flight are to be stopped."""
        bench = Bench(polar_fully_async=True, polar_max_async_level=1, rollout_batch_size=3)
        groups = bench.start(wanted=1)
        bench.flow.judged(groups[0], good(groups[0]))
        bench.flow.scheduler.end_request()
        bench.flow.begin(3, 1)
        step = bench.flow.step(away=False)
        assert step.batch == []
        assert step.stale == [0, 1, 2]
        (event,) = [
            fields for name, fields in bench.notes.records if name == "group_rejected" and not fields["group"]
        ]
        assert event["numbers"] == {"staleness": 3, "max_staleness": 2}
        assert [kept["group"] for kept in bench.notes.kept] == [0]
        assert [facts.reason for facts in bench.flow.window.close(0.0, {}).rejected] == ["too_stale"] * 3

    def test_result_of_a_group_that_is_not_in_flight_changes_nothing(self):
        """A late answer has no say."""
        bench = Bench()
        first, _ = bench.start()
        bench.flow.judged(first, bad())
        before = bench.flow.audit()
        bench.flow.judged(first, good(first))
        bench.flow.failed(first, "deadline", InfrastructureError("late", reason="deadline"))
        bench.flow.refused(first, SubmitRejectedError("no", status_code=422))
        assert bench.flow.audit() == before


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (InfrastructureError("x", reason="forgotten"), "forgotten"),
            (TaskFailedError("x", status="failed"), "task_failed"),
            (ProtocolError("x"), "undecodable"),
            (TemplateError("x"), None),
        ],
    )
    def test_failures_are_told_from_defects(self, error, reason):
        """What is no failure of the infrastructure ends the run."""
        assert failure_reason(error) == reason

    def test_failed_group_waits_and_goes_again(self, monkeypatch):
        """Back into the queue after a pause, the prompt untouched."""
        monkeypatch.setattr(group_flow, "_PAUSE", RetryPolicy(initial=600.0, max_delay=600.0))
        bench = Bench()
        first, _ = bench.start()
        prompt = first.prompt
        bench.flow.failed(first, "deadline", InfrastructureError("too late", reason="deadline"))
        assert first.state is GroupState.QUEUED
        assert bench.flow.last_error == "InfrastructureError: too late"
        assert bench.flow.admit(None) == []
        assert 0 < bench.flow.next_ready_in() <= 600
        assert first.prompt is prompt
        assert bench.notes.of(0)[-1] == "group_requeued"
        assert bench.flow.step(away=False).draw == 0

    def test_outage_is_not_the_prompts_fault(self):
        """However often it happens, nothing is given up, and it goes again at once."""
        bench = Bench(polar_max_prompt_attempts=1)
        first, _ = bench.start()
        for _ in range(20):
            bench.flow.failed(first, "outage", InfrastructureError("away", reason="outage"))
            assert bench.flow.admit(None) == [first]
        assert bench.flow.window.counters["requeued_groups"] == 20

    def test_last_attempt_gives_the_prompt_up(self, caplog):
        """Counted, named in log and journal, reported to the data source."""
        bench = Bench(polar_max_prompt_attempts=1)
        first, _ = bench.start()
        bench.flow.failed(first, "task_failed", TaskFailedError("disk full", status="failed"))
        assert first.state is GroupState.GIVEN_UP
        assert "group_index 0" in caplog.text
        (event,) = [fields for name, fields in bench.notes.records if name == "group_given_up"]
        assert event["attempts"] == 1
        assert "disk full" in event["last_error"]
        assert bench.flow.take_ended() == [0]

    def test_nothing_is_drawn_while_the_server_is_away(self):
        """A dead server burns no prompts."""
        bench = Bench()
        bench.flow.begin(0, 4)
        assert bench.flow.step(away=True).draw == 0
        assert bench.flow.step(away=False).draw == 4
        bench.draw()
        assert not bench.flow.moves(away=True)


class TestRefusals:
    def test_refused_group_is_held_and_replaced(self):
        """Nobody knows yet who is at fault."""
        bench = Bench()
        first, _ = bench.start()
        bench.flow.refused(first, SubmitRejectedError("422", status_code=422))
        step = bench.flow.step(away=False)
        assert (step.draw, step.counts.suspended) == (1, 1)
        assert bench.flow.admit(None) == []

    def test_next_accepted_request_condemns_the_prompt(self):
        """The server takes others: the prompt was at fault."""
        bench = Bench()
        first, _ = bench.start()
        bench.flow.refused(first, SubmitRejectedError("422", status_code=422))
        bench.flow.server_accepted()
        assert first.state is GroupState.GIVEN_UP
        assert bench.flow.audit().given_up == {"submit_rejected": 1}

    def test_refusals_that_go_on_stop_the_run(self):
        """Eight in a row: no prompt is worth another try, and all are still there."""
        bench = Bench(rollout_batch_size=8)
        for group in bench.start(wanted=8):
            assert bench.flow.stop_reason is None
            bench.flow.refused(group, SubmitRejectedError("422: bad harness", status_code=422))
        assert isinstance(bench.flow.stop_reason, InfrastructureStreakError)
        assert "bad harness" in str(bench.flow.stop_reason)
        assert isinstance(bench.flow.stop_reason.__cause__, SubmitRejectedError)
        assert len(bench.flow.scheduler.unfinished()) == 8
        assert bench.flow.admit(None) == []


class TestBooks:
    def test_interrupted_call_is_ended_by_the_next(self):
        """A call that never came to its end blocks nobody."""
        bench = Bench()
        bench.start()
        bench.flow.begin(1, 2)
        assert bench.flow.calling
        assert bench.flow.step(away=False).draw == 0

    def test_unfinished_groups_end_with_a_record_each(self):
        """Returned or abandoned, counted and journalled."""
        bench = Bench()
        groups = bench.start()
        bench.flow.end(groups[:1], GroupState.RETURNED)
        bench.flow.end(groups[1:], GroupState.ABANDONED, "the source takes nothing")
        assert bench.notes.of(0)[-1] == "group_returned"
        assert bench.notes.of(1)[-1] == "group_abandoned"
        assert bench.flow.audit().live == 0
        assert bench.flow.window.counters["returned_groups"] == 1

    def test_lost_group_is_a_loud_error(self):
        """A defect in the bookkeeping never passes for a normal rollout."""
        bench = Bench()
        first, _ = bench.start()
        bench.flow.scheduler.observer = lambda transition: None
        bench.flow.scheduler.reject(first.group_id, "x")
        with pytest.raises(ConservationError):
            bench.flow.audit()

    def test_first_reason_to_stop_stays(self, caplog):
        """Later troubles do not hide the first."""
        bench = Bench()
        with caplog.at_level(logging.ERROR):
            bench.flow.stop(InfrastructureStreakError("first"))
            bench.flow.stop(InfrastructureStreakError("second"))
        assert str(bench.flow.stop_reason) == "first"
        assert caplog.text.count("The rollout worker stops") == 1
