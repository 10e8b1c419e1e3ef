"""The worker over real sockets: whatever the server does, no call hangs and no prompt is lost or doubled."""

import asyncio
import logging
import os
import signal
import socket
import threading

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge.errors import (
    CallbackBindError,
    ConfigError,
    DataSourceError,
    DataSourceExhaustedError,
    InfrastructureStreakError,
    NoTrainableTokensError,
    PolarOutageError,
    TemplateError,
    WorkerError,
    WorkerStoppedError,
)
from slime_bridge.worker import PolarWorker
from tests.slime_bridge.rollouts import Source, group_indices, make_worker, running

QUICK = SessionProfile(duration=0.02)


def script(*faults, profile=QUICK):
    return FaultScript(sessions=profile, faults=list(faults))


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class InThread:
    """A call in another thread, with its result or error."""

    def __init__(self, call):
        self.result = self.error = None
        self.thread = threading.Thread(target=self.run, args=(call,))
        self.thread.start()

    def run(self, call):
        try:
            self.result = call()
        except BaseException as error:
            self.error = error

    def join(self):
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self


class TestNormalRun:
    def test_calls_get_what_they_ask_for_and_nothing_more_is_submitted(self):
        """By default no group is submitted that no call has asked for."""
        source = Source()
        with serve_polar(script()) as polar, running(polar, source) as worker:
            for rollout_id in range(3):
                batch, report = worker.collect(rollout_id)
                assert group_indices(batch) == list(range(4 * rollout_id, 4 * rollout_id + 4))
                assert polar.submits == 4 * (rollout_id + 1)
                assert report.ledger.live == 0
            assert source.delivered == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [8, 9, 10, 11]}

    def test_samples_carry_their_group_and_lag(self):
        """What the trainer and the dumps need is written into each sample."""
        with serve_polar(script()) as polar, running(polar, Source()) as worker:
            batch, _ = worker.collect(7)
        (sent, *_) = [record for record in polar.submissions]
        assert b'"policy_version":7' in sent.body
        for delivery, samples in zip(batch.deliveries, batch.groups, strict=True):
            assert {sample.index for sample in samples} == {s.index for s in delivery.group.prompt}
            for sample in samples:
                polar_metadata = sample.metadata["polar"]
                assert polar_metadata["accepted_rollout_id"] == 7
                assert polar_metadata["policy_version"] == 7
                assert polar_metadata["policy_staleness"] == 0
                assert polar_metadata["scheduler_group_id"] == delivery.group.group_id
                assert sample.train_metadata == {"policy_staleness": 0, "policy_version": 7}
                assert sample.metadata["row"] == delivery.group.prompt[0].metadata["row"]

    def test_fully_async_keeps_the_window_full_and_delivers_each_group_once(self):
        """Ten calls; drawn = delivered + under way + too old, at every step; nothing older than the bound.

        On a slow machine a group may fall behind the others by more than the bound, and is replaced then.
        """
        source = Source()
        with serve_polar(script()) as polar, running(polar, source, polar_fully_async=True) as worker:
            seen = []
            for rollout_id in range(10):
                batch, report = worker.collect(rollout_id)
                books = report.ledger
                seen += group_indices(batch)
                too_old = books.rejected.get("too_stale", 0)
                assert sum(books.rejected.values()) == too_old
                assert books.drawn == len(source.drawn) == 8 + 4 * rollout_id + too_old
                assert books.live == 4
                assert all(0 <= d.staleness <= worker.config.max_staleness for d in batch.deliveries)
            assert len(seen) == len(set(seen)) == 40
            assert polar.max_running_sessions <= 16
        assert len(source.returned) == 4
        assert sorted(seen + source.returned + source.given_up) == source.drawn == list(range(44 + too_old))

    def test_generation_that_waits_for_the_trainer_is_counted(self):
        """Once all groups that were asked for are accepted, nothing starts before the next call."""
        faults = [Fault("task_endless", instruction="prompt ([89]|1.)$")]
        with (
            serve_polar(script(*faults)) as polar,
            running(polar, Source(), polar_fully_async=True) as worker,
        ):
            _, first = worker.collect(0)
            polar.wait_until(lambda: worker.counts().buffered == 4)
            _, second = worker.collect(1)
        # The last of the eight may come before the first call has ended.
        waits = [report.window.counters.get("output_queue_full_waits", 0) for report in (first, second)]
        assert sum(waits) == 1

    def test_surplus_straggler_is_never_awaited(self):
        """One group that never ends must not hold up a call that has enough others."""
        faults = [Fault("task_endless", instruction="prompt 2$")]
        source = Source()
        with (
            serve_polar(script(*faults)) as polar,
            running(polar, source, polar_fully_async=True) as worker,
        ):
            batch, _ = worker.collect(0, wanted=7)
            assert group_indices(batch) == [0, 1, 3, 4, 5, 6, 7]
            assert worker.counts().in_flight == 1
        assert source.returned == [2]

    def test_individual_scoring_sends_one_task_per_sample(self):
        """Each sample is its own task, and the group is still judged as one."""
        with (
            serve_polar(script()) as polar,
            running(polar, Source(n=3), polar_scoring_mode="individual", n_samples_per_prompt=3) as worker,
        ):
            batch, _ = worker.collect(0)
            assert polar.submits == 12
            assert all(b'"num_samples":1' in record.body for record in polar.submissions)
            assert len({record.task_id for record in polar.history}) == 12
        for delivery, samples in zip(batch.deliveries, batch.groups, strict=True):
            assert [s.index for s in delivery.group.prompt] == sorted({s.index for s in samples})

    def test_works_inside_a_running_loop(self):
        """A notebook cell already runs a loop."""

        async def cell(url):
            with running(url, Source()) as worker:
                return worker.collect(0)

        with serve_polar(script()) as polar:
            batch, _ = asyncio.run(cell(polar.url))
        assert len(batch.groups) == 4

    def test_two_workers_talk_to_their_own_servers(self):
        """A second configuration never silently gets the first one's server."""
        with serve_polar(script()) as one, serve_polar(script()) as other:
            with running(one, Source()) as first, running(other, Source()) as second:
                first.collect(0)
                second.collect(0, wanted=2)
            assert (one.submits, other.submits) == (4, 2)

    def test_odd_rollout_ids_are_served_and_named(self, caplog):
        """A repeated id and a jump back work, with a warning each."""
        with serve_polar(script()) as polar, running(polar, Source()) as worker:
            for rollout_id in (7, 7, 3):
                batch, _ = worker.collect(rollout_id)
                assert batch.deliveries[0].policy_version == rollout_id
        messages = [record.getMessage() for record in caplog.records if "Rollout id" in record.getMessage()]
        assert len(messages) == 2
        assert "asked for again" in messages[0]
        assert "lower than the one before" in messages[1]

    def test_task_ids_are_unique_across_restarts(self):
        """A trainer that was killed and restarted does not meet its own old tasks."""
        with serve_polar(script()) as polar:
            for _ in range(2):
                with running(polar, Source()) as worker:
                    worker.collect(0)
            assert len({record.task_id for record in polar.history}) == 8


class TestServerTrouble:
    @pytest.mark.parametrize(
        "fault",
        [
            Fault("response_status", on="submit", status=503, times=3),
            Fault("response_reset", on="submit", times=3),
            Fault("response_hang", on="submit", times=1, processed=True),
            Fault("callback_lost", tasks=[0, 2]),
            Fault("callback_malformed", tasks=[1], value="truncated"),
            Fault("callback_forged", tasks=[1]),
            Fault("task_conflict", tasks=[0]),
            Fault("restart", tasks=[3]),
        ],
        ids=lambda fault: fault.kind,
    )
    def test_no_group_is_lost(self, fault):
        """Each of these costs time, never a prompt."""
        source = Source()
        with (
            serve_polar(script(fault)) as polar,
            running(polar, source, polar_request_timeout=1.0) as worker,
        ):
            batch, report = worker.collect(0)
        assert group_indices(batch) == [0, 1, 2, 3]
        assert report.ledger.rejected == {}
        assert polar.fired[fault.kind] >= 1
        rewards = {sample.reward["score"] for group in batch.groups for sample in group}
        assert rewards <= {0.0, 1.0}

    def test_refused_connections_are_ridden_out(self, caplog):
        """A server that is away for a while costs no prompt, few probes and one warning."""
        source = Source()
        profile = SessionProfile(duration=0.3)
        with (
            serve_polar(script(profile=profile)) as polar,
            running(polar, source, polar_fully_async=True) as worker,
        ):
            worker.collect(0)
            polar.refuse(2.0)
            seen = [group_indices(worker.collect(rollout_id)[0]) for rollout_id in (1, 2)]
            assert len(set(sum(seen, []))) == 8
            assert worker.ledger().rejected == {}
        assert source.unaccounted() == set()
        warnings = [r for r in caplog.records if "gives no usable answer" in r.getMessage()]
        assert len(warnings) == 1

    def test_server_that_forgets_everything_gets_the_groups_again(self):
        """A restart loses the server's tasks, not our prompts; new attempts have new ids and versions."""
        slow = script(profile=SessionProfile(duration=30.0))
        source = Source()
        with serve_polar(slow) as polar, running(polar, source) as worker:
            call = InThread(lambda: worker.collect(0))
            polar.wait_until(lambda: polar.submits == 4)
            polar.forget_all()
            polar.set_script(script())
            batch, report = call.join().result
            assert group_indices(batch) == [0, 1, 2, 3]
            assert len({record.task_id for record in polar.history}) == 8
            assert report.ledger.requeued == {}

    def test_stuck_task_frees_its_slot_at_the_deadline(self):
        """Tasks that never end are tried again; the call completes with full groups."""
        faults = [Fault("task_endless", tasks=[0, 1, 2])]
        source = Source()
        with (
            serve_polar(script(*faults)) as polar,
            running(polar, source, polar_group_timeout=2.0) as worker,
        ):
            batch, report = worker.collect(0)
        assert group_indices(batch) == [0, 1, 2, 3]
        assert report.ledger.requeued == {"deadline": 3}

    def test_no_slot_is_held_beyond_the_deadline_by_slow_phases(self):
        """Submit and wait share one deadline."""
        faults = [
            Fault("response_slow", on="submit", seconds=0.8, times=1),
            Fault("task_endless", attempts=[0], times=1),
        ]
        with (
            serve_polar(script(*faults)) as polar,
            running(polar, Source(), polar_group_timeout=2.0, rollout_batch_size=1) as worker,
        ):
            _, report = worker.collect(0)
        assert report.ledger.requeued == {"deadline": 1}

    def test_one_prompt_that_always_fails_is_given_up(self):
        """A bad example does not block the step for ever: bounded attempts, counted, named."""
        faults = [Fault("task_failed", instruction="prompt 1$"), Fault("callback_lost")]
        source = Source()
        with (
            serve_polar(script(*faults)) as polar,
            running(polar, source, polar_max_prompt_attempts=2) as worker,
        ):
            batch, report = worker.collect(0)
        assert group_indices(batch) == [0, 2, 3, 4]
        assert report.ledger.given_up == {"task_failed": 1}
        assert report.window.counters["given_up_groups"] == 1
        assert source.given_up == [1]

    def test_outage_ends_with_a_typed_error_and_every_prompt_back(self):
        """After polar_outage_timeout the error names the server, the time and the last failure."""
        source = Source()
        with serve_polar(script(profile=SessionProfile(duration=30.0))) as polar:
            with running(polar, source, polar_outage_timeout=1.0) as worker:
                call = InThread(lambda: worker.collect(0))
                polar.wait_until(lambda: polar.submits == 4)
                polar.stop()
                error = call.join().error
        assert isinstance(error, PolarOutageError)
        assert polar_port(worker) in str(error)
        assert "polar_outage_timeout is 1 s" in str(error)
        assert source.returned == [0, 1, 2, 3]

    def test_no_server_is_an_error_within_seconds_and_draws_nothing(self):
        """A wrong URL does not burn the data set."""
        source = Source()
        worker = make_worker(f"http://127.0.0.1:{closed_port()}", source, startup_timeout=0.6)
        with pytest.raises(PolarOutageError, match=r"no rollout server answers at http://127\.0\.0\.1"):
            worker.collect(0)
        assert source.drawn == []

    def test_server_that_accepts_and_never_answers_is_an_error_too(self):
        """A port that hangs is no server."""
        source = Source()
        with serve_polar(script(Fault("connection_half_open"))) as polar:
            worker = make_worker(polar.url, source, startup_timeout=0.6)
            with pytest.raises(PolarOutageError, match="no rollout server answers"):
                worker.collect(0)
        assert source.drawn == []

    def test_late_results_are_rejected_exactly_at_the_bound(self):
        """Bound 2 (level 1 + interval 1): lag 2 is delivered, lag 3 is not, in flight or in the buffer."""
        source = Source()
        faults = [Fault("task_endless", instruction="prompt [67]$")]
        with (
            serve_polar(script(*faults)) as polar,
            running(
                polar, source, polar_fully_async=True, rollout_batch_size=8, polar_max_async_level=1
            ) as worker,
        ):
            lags = []
            for rollout_id, complete in ((0, 0), (1, 4), (2, 4), (3, 4)):
                polar.wait_until(lambda complete=complete: worker.counts().buffered >= complete)
                batch, report = worker.collect(rollout_id, wanted=2)
                lags += [delivery.staleness for delivery in batch.deliveries]
            assert lags == [0, 0, 1, 1, 2, 2, 2, 2]
            assert report.ledger.rejected == {"too_stale": 2}
            assert source.given_up == [6, 7]


def polar_port(worker):
    return worker.config.rollout_url.rsplit(":", 1)[1]


class TestContent:
    def test_rejected_groups_are_replaced(self):
        """Every second group is useless: more prompts are drawn until the batch is full."""
        faults = [Fault("zero_mask", instruction="prompt [0-9]*[13579]$")]
        source = Source()
        with serve_polar(script(*faults)) as polar, running(polar, source) as worker:
            batch, report = worker.collect(0)
        assert group_indices(batch) == [0, 2, 4, 6]
        ledger = report.ledger
        assert ledger.rejected == {"zero_trainable": ledger.drawn - 4}
        assert ledger.drawn == polar.submits == len(source.drawn)
        assert [g.reason for g in report.window.rejected] == ["zero_trainable"] * (ledger.drawn - 4)

    def test_bad_sessions_become_placeholders(self):
        """One bad session does not sink its group."""
        faults = [
            Fault("short_logprobs", sessions=[1]),
            Fault("session_malformed", sessions=[0], instruction="prompt 0$"),
        ]
        with (
            serve_polar(script(*faults)) as polar,
            running(polar, Source(n=3), n_samples_per_prompt=3) as worker,
        ):
            batch, report = worker.collect(0)
        assert report.ledger.rejected == {}
        reasons = [[s.reason for s in facts.sessions] for facts in batch.facts()]
        assert reasons == [["malformed", "logprob_error", None], *([[None, "logprob_error", None]] * 3)]

    def test_run_without_token_ids_stops_and_says_why(self, caplog):
        """The router that strips ids is named once in the log and in the error; no endless draw."""
        source = Source()
        with (
            serve_polar(script(Fault("no_token_ids"))) as polar,
            running(polar, source, polar_max_consecutive_infrastructure_failures=6) as worker,
        ):
            with pytest.raises(NoTrainableTokensError, match="gives no token ids"):
                worker.collect(0)
        assert len(source.drawn) < 16
        assert sum("complete without token ids" in r.getMessage() for r in caplog.records) == 1
        assert source.unaccounted() == set()

    def test_infrastructure_streak_stops(self):
        """So many groups in a row without a trace end the run."""
        source = Source()
        with (
            serve_polar(script(Fault("session_error"))) as polar,
            running(polar, source, polar_max_consecutive_infrastructure_failures=3) as worker,
            pytest.raises(InfrastructureStreakError, match="failed without a trace"),
        ):
            worker.collect(0)

    def test_missing_reward_can_be_an_error(self):
        """The policy `error` reaches the trainer, with every prompt back."""
        source = Source()
        profile = SessionProfile(reward=None, evaluation=False)
        with (
            serve_polar(script(profile=profile)) as polar,
            running(polar, source, polar_missing_reward="error") as worker,
            pytest.raises(ValueError, match="reward"),
        ):
            worker.collect(0)
        assert source.unaccounted() == set()


class TestRefusedRequests:
    def test_refusals_of_everything_stop_the_run_and_lose_no_prompt(self):
        """A wrong template is not retried and does not burn the data set."""
        source = Source()
        faults = [Fault("response_status", on="submit", status=422, value="agent.harness is unknown")]
        with serve_polar(script(*faults)) as polar, running(polar, source) as worker:
            with pytest.raises(InfrastructureStreakError, match="422") as caught:
                worker.collect(0)
            assert "agent.harness is unknown" in str(caught.value)
            assert 8 <= len(polar.submissions) <= 12  # what was under way when the eighth answer came
        assert source.unaccounted() == set()
        assert sorted(source.returned) == sorted(set(source.drawn))
        assert source.given_up == []

    def test_refusal_of_one_prompt_gives_up_that_prompt(self):
        """The server takes the others, so the fault is the prompt's."""
        source = Source()
        faults = [
            Fault("response_status", on="submit", instruction="prompt 1$", status=422, value="bad image")
        ]
        with serve_polar(script(*faults)) as polar, running(polar, source) as worker:
            batch, report = worker.collect(0)
        assert group_indices(batch) == [0, 2, 3, 4]
        assert report.ledger.given_up == {"submit_rejected": 1}
        assert source.given_up == [1]
        assert polar.fired["response_status"] == 1


class TestDataSource:
    def test_exhausted_source_is_an_error_not_a_wait(self):
        """What is there is waited for; then the error says how many were missing."""
        source = Source(limit=3)
        with serve_polar(script()) as polar, running(polar, source) as worker:
            with pytest.raises(DataSourceExhaustedError, match="3 of 4 groups are accepted"):
                worker.collect(0)
            source.limit = 4
            batch, _ = worker.collect(0)
        assert group_indices(batch) == [0, 1, 2, 3]

    def test_empty_source_is_an_error_at_once(self):
        """Nothing to give, nothing to wait for."""
        with serve_polar(script()) as polar, running(polar, Source(limit=0)) as worker:
            with pytest.raises(DataSourceExhaustedError, match="0 of 4"):
                worker.collect(0)
            assert polar.submits == 0

    @pytest.mark.parametrize(
        ("make", "error", "text"),
        [
            (lambda source: lambda number: None, DataSourceError, "NoneType"),
            (lambda source: lambda number: [[]], DataSourceError, "an empty group at position 0"),
            (lambda source: lambda number: [source.make(0)[0]], DataSourceError, "Sample at position 0"),
            (lambda source: lambda number: [[without_index(source)]], DataSourceError, "without index"),
            (lambda source: lambda number: [blank(source)], TemplateError, "blank instruction"),
        ],
        ids=["nothing", "empty group", "flat", "no index", "blank prompt"],
    )
    def test_unusable_prompts_are_named_before_anything_is_submitted(self, make, error, text):
        """Never a task with an empty instruction; what was drawn goes back."""
        source = Source()
        source.get_samples = make(source)
        with serve_polar(script()) as polar, running(polar, source) as worker:
            with pytest.raises(error, match=text):
                worker.collect(0)
            assert polar.submits == 0
        assert len(source.buffer) == (text in ("without index", "blank instruction"))

    def test_prompts_are_returned_as_they_were_drawn(self):
        """Nothing of a run sticks to a prompt that is handed back."""
        source = Source()
        with (
            serve_polar(script(profile=SessionProfile(duration=30.0))) as polar,
            running(polar, source) as worker,
        ):
            call = InThread(lambda: worker.collect(0))
            polar.wait_until(lambda: polar.submits == 4)
            worker.stop()
            call.join()
        assert [[s.to_dict() for s in g] for g in source.buffer] == [
            [s.to_dict() for s in source.make(number)] for number in range(4)
        ]

    def test_source_that_takes_nothing_back_is_counted(self, caplog):
        """A read-only source: the prompts are abandoned, with their numbers in the log."""
        source = Source()
        source.add_samples = read_only
        with (
            serve_polar(script(profile=SessionProfile(duration=30.0))) as polar,
            running(polar, source) as worker,
        ):
            call = InThread(lambda: worker.collect(0))
            polar.wait_until(lambda: polar.submits == 4)
            worker.stop()
            call.join()
            assert worker.ledger().abandoned == 4
        assert "4 unfinished groups are abandoned" in caplog.text
        assert "[0, 1, 2, 3]" in caplog.text

    def test_source_is_touched_by_the_calling_thread_only(self):
        """A data source need not be thread-safe."""
        threads = set()

        class Watched(Source):
            def get_samples(self, number):
                threads.add(threading.current_thread())
                return super().get_samples(number)

            def add_samples(self, groups):
                threads.add(threading.current_thread())
                super().add_samples(groups)

        faults = [Fault("task_endless", instruction="prompt 7$")]
        with serve_polar(script(*faults)) as polar:
            with running(polar, Watched(), polar_fully_async=True) as worker:
                worker.collect(0)
        assert threads == {threading.current_thread()}


def without_index(source):
    sample = source.make(0)[0]
    sample.index = None
    return sample


def blank(source):
    group = source.make(0)
    group[0].prompt = "  "
    return group


def read_only(groups):
    raise RuntimeError("this is a read-only data source")


class TestStart:
    def test_unusable_callback_host_is_an_error_at_once(self):
        """An address of somebody else's machine cannot be bound."""
        source = Source()
        with serve_polar(script()) as polar:
            worker = make_worker(polar.url, source, polar_callback_host="192.0.2.1")
            with pytest.raises(CallbackBindError, match=r"192\.0\.2\.1"):
                worker.collect(0)
        assert source.drawn == []

    def test_making_a_worker_starts_nothing(self):
        """No thread, no port, no draw before the first call."""
        before = threading.active_count()
        source = Source()
        worker = make_worker("http://127.0.0.1:9", source)
        assert threading.active_count() == before
        worker.stop()
        assert source.drawn == []

    def test_stopped_worker_says_so(self):
        """No call hangs on a worker that is gone."""
        with serve_polar(script()) as polar:
            worker = make_worker(polar.url, Source())
            worker.collect(0)
            worker.stop()
            worker.stop()
            assert not worker.usable
            with pytest.raises(WorkerStoppedError):
                worker.collect(1)


class TestDeath:
    def test_dead_loop_reaches_the_waiting_call_at_once(self):
        """A worker whose thread dies is an error, not an endless wait; the prompts go back."""
        source = Source()
        with serve_polar(script(profile=SessionProfile(duration=30.0))) as polar:
            worker = make_worker(polar.url, source)
            call = InThread(lambda: worker.collect(0))
            polar.wait_until(lambda: polar.submits == 4)
            worker._loop.soon(die)
            error = call.join().error
        assert isinstance(error, WorkerError)
        assert "died of SystemExit" in str(error)
        assert source.returned == [0, 1, 2, 3]
        assert not worker.usable
        with pytest.raises(WorkerError):
            worker.collect(1)

    def test_death_between_calls_reaches_the_next_one(self):
        """Nobody waits for a worker that died while the trainer was training."""
        source = Source()
        with serve_polar(script()) as polar:
            worker = make_worker(polar.url, source, polar_fully_async=True)
            worker.collect(0)
            assert worker.usable
            worker._loop.soon(die)
            worker._loop.join(10)
            with pytest.raises(WorkerError, match="died of SystemExit"):
                worker.collect(1)
        assert source.unaccounted() == set()


def die():
    raise SystemExit(3)


class TestInterrupts:
    def test_interrupted_call_leaves_a_worker_that_goes_on(self):
        """After KeyboardInterrupt the next call gets the same groups; nothing is drawn twice or lost."""
        source = Source()
        with (
            serve_polar(script(profile=SessionProfile(duration=0.5))) as polar,
            running(polar, source) as worker,
        ):
            plain = worker._moved.wait

            def wait(timeout):
                if source.drawn:
                    polar.wait_until(lambda: polar.submits == 4)
                    signal.raise_signal(signal.SIGINT)
                return plain(timeout)

            worker._moved.wait = wait
            with pytest.raises(KeyboardInterrupt):
                worker.collect(0)
            worker._moved.wait = plain
            assert worker.usable
            batch, report = worker.collect(0)
        assert group_indices(batch) == [0, 1, 2, 3]
        assert report.ledger.drawn == 4
        assert polar.submits == 4

    def test_interrupt_between_draw_and_hand_over_gives_the_prompts_back(self):
        """What was drawn and not yet taken over exists nowhere else."""
        source = Source()
        with serve_polar(script()) as polar, running(polar, source) as worker:
            plain = worker._source._check
            worker._source._check = lambda group: signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                worker.collect(0)
            assert source.returned == [0, 1, 2, 3]
            worker._source._check = plain
            batch, report = worker.collect(0)
        assert group_indices(batch) == [0, 1, 2, 3]
        assert report.ledger.drawn == 4

    def test_error_before_the_hand_over_puts_the_batch_back(self):
        """A filter that raises costs no group."""
        source = Source()
        with serve_polar(script()) as polar, running(polar, source) as worker:
            with pytest.raises(ZeroDivisionError):
                worker.collect(0, finish=lambda batch: 1 / 0)
            assert worker.counts().buffered == 4
            seen = []
            batch, report = worker.collect(1, finish=lambda batch: seen.append(batch.rollout_id))
        assert seen == [1]
        assert group_indices(batch) == [0, 1, 2, 3]
        assert report.ledger.drawn == 4
        assert {d.staleness for d in batch.deliveries} == {1}
        assert {s.metadata["polar"]["accepted_rollout_id"] for g in batch.groups for s in g} == {1}

    def test_second_call_at_the_same_time_is_refused(self):
        """One worker serves one call; nothing waits in a queue that nobody sees."""
        with (
            serve_polar(script(profile=SessionProfile(duration=1.0))) as polar,
            running(polar, Source()) as worker,
        ):
            call = InThread(lambda: worker.collect(0))
            polar.wait_until(lambda: polar.submits == 4)
            with pytest.raises(WorkerError, match="another call"):
                worker.collect(1)
            assert len(call.join().result[0].groups) == 4


class TestStop:
    def test_stop_with_work_in_flight_is_quick_and_returns_every_prompt(self):
        """It waits for no session; the server's tasks are cancelled where it can."""
        source = Source()
        slow = script(profile=SessionProfile(duration=600.0))
        with serve_polar(slow, newer=True) as polar:
            with running(polar, source) as worker:
                call = InThread(lambda: worker.collect(0))
                accepted = worker._pipeline.flow.window.counters
                polar.wait_until(lambda: accepted["submitted_tasks"] == 4)
                worker.stop()
                assert isinstance(call.join().error, WorkerStoppedError)
                assert source.returned == [0, 1, 2, 3]
            assert len(polar.cancelled) == 4

    @pytest.mark.parametrize("trouble", ["gone", "hangs"])
    def test_stop_does_not_wait_for_a_sick_server(self, trouble):
        """Cancelling fails quietly; the prompts still go back."""
        source = Source()
        slow = script(profile=SessionProfile(duration=600.0))
        with serve_polar(slow, newer=True) as polar, running(polar, source) as worker:
            call = InThread(lambda: worker.collect(0))
            polar.wait_until(lambda: polar.submits == 4)
            if trouble == "gone":
                polar.stop()
            else:
                polar.set_script(script(Fault("response_hang"), Fault("connection_half_open")))
            worker.stop()
            assert isinstance(call.join().error, WorkerStoppedError)
        assert source.returned == [0, 1, 2, 3]

    def test_stop_between_calls_returns_what_is_buffered_and_in_flight(self):
        """Surplus of a fully async run is handed back before a save, not forgotten."""
        source = Source()
        faults = [Fault("task_endless", instruction="prompt [67]$")]
        with serve_polar(script(*faults)) as polar:
            with running(polar, source, polar_fully_async=True) as worker:
                worker.collect(0)
                polar.wait_until(lambda: worker.counts().buffered == 2)
                worker.stop()
        assert len(source.returned) == 4
        assert source.unaccounted() == set()

    def test_stop_while_the_source_is_in_use_does_not_touch_it(self):
        """A source that is busy in another thread is left alone; the call returns the prompts itself."""
        source = Source()
        entered, leave = threading.Event(), threading.Event()
        plain = source.get_samples

        def slow_draw(number):
            entered.set()
            leave.wait(20)
            return plain(number)

        source.get_samples = slow_draw
        with serve_polar(script()) as polar, running(polar, source) as worker:
            call = InThread(lambda: worker.collect(0))
            assert entered.wait(10)
            worker.stop(timeout=0.5)
            assert source.returned == []
            leave.set()
            assert isinstance(call.join().error, WorkerStoppedError)
        assert source.unaccounted() == set()

    def test_stop_from_inside_the_call_settles_when_it_ends(self):
        """A signal handler may stop the worker while its own call is on the stack."""
        source = Source()
        with serve_polar(script()) as polar:
            worker = make_worker(polar.url, source)
            plain = source.get_samples

            def stopping(number):
                worker.stop()
                return plain(number)

            source.get_samples = stopping
            with pytest.raises(WorkerStoppedError):
                worker.collect(0)
        assert source.unaccounted() == set()

    def test_fork_shares_nothing(self):
        """A forked child neither stops the parent's worker nor returns its prompts."""
        source = Source()
        with serve_polar(script()) as polar, running(polar, source, polar_fully_async=True) as worker:
            worker.collect(0)
            child = os.fork()
            if child == 0:
                verdict = 1
                try:
                    worker.collect(1)
                except WorkerError as error:
                    worker.stop()
                    verdict = 0 if "parent process" in str(error) and not source.returned else 2
                finally:
                    os._exit(verdict)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            batch, _ = worker.collect(1)
            assert len(batch.groups) == 4


def test_progress_line_tells_what_is_waited_for(caplog):
    """A waiting trainer can see counts, age and the last failure, at growing intervals."""
    faults = [
        Fault("response_status", on="submit", status=503, value="overloaded", times=1),
        Fault("session_slow", seconds=2.0),
    ]
    with (
        caplog.at_level(logging.INFO, logger="slime_bridge.worker"),
        serve_polar(script(*faults)) as polar,
        running(polar, Source(), progress_interval=0.2) as worker,
    ):
        worker.collect(3)
    lines = [r.getMessage() for r in caplog.records if "has waited" in r.getMessage()]
    assert 1 <= len(lines) <= 6
    assert "Rollout 3 has waited" in lines[0]
    assert "of 4 groups accepted" in lines[0]
    assert "in flight" in lines[0]
    assert "overloaded" in lines[-1]


def test_session_slots_are_shared_with_an_evaluation():
    """Training and evaluation together stay below the cap, and the claim of who waited comes first."""
    profile = SessionProfile(duration=0.3)
    with serve_polar(script(profile=profile)) as polar, running(polar, Source()) as worker:
        worker.collect(0)
        assert worker.config.max_sessions_in_flight == 16
        assert worker.reserve(14)
        worker.collect(1)
        assert polar.max_running_sessions <= 8
        assert not worker.reserve(3)
        worker.release(0)
        worker.release(14)


def test_worker_is_typed_for_its_users():
    """The class that docs name is the one that is exported."""
    assert PolarWorker.__module__ == "slime_bridge.worker"
    with pytest.raises(ConfigError):
        make_worker("http://127.0.0.1:9", Source(), polar_callback_host="0.0.0.0")
