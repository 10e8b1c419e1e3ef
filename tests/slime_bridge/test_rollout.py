"""The entry point as Slime calls it: outputs, metrics, journal, workers by data source and configuration."""

import asyncio
import inspect
import json
import logging

import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge import _slime, rollout
from slime_bridge.data_source import CeilEpochRolloutDataSourceWithBuffer
from slime_bridge.errors import CallbackBindError, ConfigError, PolarOutageError
from slime_bridge.journal import read_journal
from slime_bridge.metrics import undocumented
from slime_bridge.rollout import generate_rollout_polar_async, get_global_async_worker, stop_global_worker
from slime_bridge.worker import PolarWorker
from tests.slime_bridge.rollouts import Source, make_args

QUICK = FaultScript(sessions=SessionProfile(duration=0.02))


@pytest.fixture(autouse=True)
def _stopped():
    yield
    stop_global_worker()
    assert rollout._workers._workers == []


@pytest.fixture
def polar():
    with serve_polar(QUICK) as server:
        yield server


def test_signature_is_slimes():
    """Slime's plug-in contract compares names, kinds and defaults with its own."""
    parameters = inspect.signature(generate_rollout_polar_async).parameters
    assert list(parameters) == ["args", "rollout_id", "data_source", "evaluation"]
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert parameters["evaluation"].default is False


class TestTraining:
    def test_output_is_what_slime_takes(self, polar):
        """A list of groups, each a flat list of samples, with finite numbers under documented names."""
        train_output, _ = _slime.rollout_output_classes()
        output = generate_rollout_polar_async(make_args(polar.url), 0, Source(), evaluation=False)
        assert isinstance(output, train_output)
        assert [len(group) for group in output.samples] == [2, 2, 2, 2]
        sample_class = _slime.sample_class()
        assert all(isinstance(sample, sample_class) for group in output.samples for sample in group)
        assert undocumented(output.metrics) == []
        assert output.metrics["polar/completed_groups"] == 4
        assert output.metrics["polar/ledger/unaccounted"] == 0
        assert output.metrics["polar/submitted_tasks"] == 4
        assert output.metrics["polar/scheduler/requested_groups"] == 4

    def test_drops_are_counted_where_they_happen(self):
        """Every kind of loss has its number, and drawn = delivered + dropped + under way at every step."""
        faults = [
            Fault("zero_mask", instruction="prompt 1$"),
            Fault("session_error", instruction="prompt 2$"),
            Fault("nan_logprob", instruction="prompt 3$"),
            Fault("no_token_ids", instruction="prompt 4$"),
            Fault("response_status", on="submit", instruction="prompt 5$", status=400),
            Fault("session_error", instruction="prompt 6$", sessions=[0]),
        ]
        script = FaultScript(sessions=SessionProfile(duration=0.02), faults=faults)
        with serve_polar(script) as polar:
            args = make_args(polar.url, polar_min_complete_accept_fraction=0.9)
            source = Source()
            output = generate_rollout_polar_async(args, 0, source)
            metrics = output.metrics
            for reason in (
                "zero_trainable",
                "failed",
                "logprob_error",
                "no_token_ids",
                "low_complete_fraction",
            ):
                assert metrics[f"polar/dropped_{reason}_groups"] == 1, reason
            assert metrics["polar/dropped_groups"] == 5
            assert metrics["polar/given_up_groups"] == 1
            assert (
                metrics["polar/ledger/drawn"] == len(source.drawn) == 4 + 5 + 1 + metrics["polar/ledger/live"]
            )
            output = generate_rollout_polar_async(args, 1, source)
            assert output.metrics["polar/dropped_groups"] == 0

    def test_bad_reward_key_is_a_start_up_error(self, polar):
        """Slime's metrics would fail on it in the middle of the first rollout."""
        with pytest.raises(ConfigError, match="reward_key"):
            generate_rollout_polar_async(make_args(polar.url, reward_key=None), 0, Source())
        assert polar.submits == 0

    def test_metrics_never_cost_a_batch(self, polar, monkeypatch, caplog):
        """A defect in the numbers is logged; the samples are delivered."""
        monkeypatch.setattr(rollout, "rollout_metrics", lambda **values: 1 / 0)
        output = generate_rollout_polar_async(make_args(polar.url), 0, Source())
        assert len(output.samples) == 4
        assert output.metrics == {}
        assert "could not be computed" in caplog.text

    def test_left_out_traces_are_mentioned_once_per_rollout(self, caplog):
        """Nobody has to find out from the curves that long traces are missing."""
        script = FaultScript(
            sessions=SessionProfile(separate_traces=True, turns=2),
            faults=[Fault("overlong", count=5000, sessions=[0])],
        )
        with serve_polar(script) as polar, caplog.at_level(logging.WARNING):
            args = make_args(polar.url, max_tokens_per_gpu=1000, context_parallel_size=1)
            output = generate_rollout_polar_async(args, 0, Source())
        assert output.metrics["polar/session/dropped_traces"] == 4
        assert caplog.text.count("were left out") == 1

    def test_works_inside_a_running_loop(self, polar):
        """A notebook cell calls it as it is."""

        async def cell():
            return generate_rollout_polar_async(make_args(polar.url), 0, Source())

        assert len(asyncio.run(cell()).samples) == 4


class TestStartErrors:
    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({"polar_callback_host": "192.0.2.1"}, CallbackBindError),
            ({"polar_callback_host": "0.0.0.0"}, ConfigError),
            ({"polar_rollout_url": "nonsense"}, ConfigError),
        ],
    )
    def test_unusable_set_up_is_a_clear_error(self, polar, settings, error):
        """Nothing is drawn, nothing waits."""
        source = Source()
        with pytest.raises(error):
            generate_rollout_polar_async(make_args(**{"url": polar.url, **settings}), 0, source)
        assert source.drawn == []


class TestWorkers:
    def test_same_source_and_configuration_share_a_worker(self, polar):
        """The worker lives on between calls."""
        args, source = make_args(polar.url), Source()
        assert get_global_async_worker(args, source) is get_global_async_worker(make_args(polar.url), source)

    def test_other_source_gets_its_own_worker(self, polar):
        """Prompts of one data source never end up with another's trainer."""
        args = make_args(polar.url)
        assert get_global_async_worker(args, Source()) is not get_global_async_worker(args, Source())

    def test_changed_configuration_gets_another_worker_and_loses_no_prompt(self, polar, caplog):
        """A second call with another URL is not silently served by the first one's server."""
        source = Source()
        generate_rollout_polar_async(make_args(polar.url, polar_fully_async=True), 0, source)
        with serve_polar(QUICK) as other:
            output = generate_rollout_polar_async(make_args(other.url, polar_fully_async=True), 1, source)
            assert other.submits >= 4
        assert len(source.returned) == 4
        assert source.drawn[8:12] == source.returned
        assert len(output.samples) == 4
        assert "configuration has changed" in caplog.text
        stop_global_worker()
        assert source.unaccounted() == set()

    def test_dead_worker_is_reported_once_and_then_replaced(self, polar):
        """The error is seen, and the next call can go on."""
        args, source = make_args(polar.url), Source()
        generate_rollout_polar_async(args, 0, source)
        polar.stop()
        worker = get_global_async_worker(args, source)
        worker._loop.soon(die)
        worker._loop.join(10)
        with pytest.raises(RuntimeError, match="died of SystemExit"):
            generate_rollout_polar_async(args, 1, source)
        polar.restart()
        assert len(generate_rollout_polar_async(args, 1, source).samples) == 4
        assert get_global_async_worker(args, source) is not worker

    def test_several_workers_stop_together(self, monkeypatch):
        """Each is told before any is waited for: two seconds in all, not two for each."""
        order = []
        for name in ("begin_stop", "stop"):
            plain = getattr(PolarWorker, name)

            def noted(worker, *, name=name, plain=plain):
                order.append(name)
                plain(worker)

            monkeypatch.setattr(PolarWorker, name, noted)
        sources = [Source() for _ in range(4)]
        with serve_polar(FaultScript(faults=[Fault("task_endless", instruction="[4-7]$")])) as polar:
            for source in sources:
                generate_rollout_polar_async(make_args(polar.url, polar_fully_async=True), 0, source)
            polar.set_script(FaultScript(faults=[Fault("connection_half_open"), Fault("response_hang")]))
            stop_global_worker()
        assert order[:5] == ["begin_stop"] * 4 + ["stop"]
        assert all(source.unaccounted() == set() for source in sources)

    def test_stop_is_harmless_without_workers(self):
        """Scripts call it at their end, whatever happened before."""
        stop_global_worker()
        stop_global_worker()


def die():
    raise SystemExit(3)


class TestJournal:
    def test_every_group_has_a_beginning_and_one_end(self, tmp_path):
        """Conservation can be audited from the file alone, rejected samples included."""
        faults = [Fault("zero_mask", instruction="prompt 2$")]
        script = FaultScript(sessions=SessionProfile(duration=0.02), faults=faults)
        with serve_polar(script) as polar:
            args = make_args(polar.url, polar_run_dir=str(tmp_path), polar_fully_async=True)
            source = Source()
            for rollout_id in range(2):
                generate_rollout_polar_async(args, rollout_id, source)
            stop_global_worker()
        records = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
        by_event = {}
        for record in records:
            by_event.setdefault(record["event"], []).append(record)
        drawn = {record["group"] for record in by_event["group_drawn"]}
        ends = [
            record["group"]
            for event in ("group_delivered", "group_rejected", "group_returned", "group_abandoned")
            for record in by_event.get(event, [])
        ]
        assert sorted(ends) == sorted(drawn)
        assert [record["wanted"] for record in by_event["rollout_requested"]] == [4, 4]
        assert len(by_event["rollout_summary"]) == 2
        assert by_event["rollout_summary"][1]["ledger"]["unaccounted"] == 0
        assert {r["task_id"] for r in by_event["task_result"]} <= {
            r["task_id"] for r in by_event["task_submitted"]
        }
        (rejected,) = (json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines())
        assert rejected["reason"] == "zero_trainable"
        assert len(rejected["samples"]) == 2
        assert records[-1]["event"] == "journal_closed"
        list(read_journal(tmp_path / "journal.jsonl"))


class TestEvaluation:
    def test_evaluation_alone_leaves_no_worker(self, polar, tmp_path):
        """An evaluation-only run draws nothing and starts nothing that stays."""
        args = eval_args(polar.url, tmp_path)
        source = Source()
        _, eval_output = _slime.rollout_output_classes()
        output = generate_rollout_polar_async(args, 0, source, evaluation=True)
        assert isinstance(output, eval_output)
        assert list(output.data) == ["held-out"]
        assert len(output.data["held-out"]["rewards"]) == 3
        assert source.drawn == []
        assert rollout._workers._workers == []

    def test_evaluation_and_training_share_the_cap(self, tmp_path):
        """Both together never exceed the sessions that were configured."""
        script = FaultScript(sessions=SessionProfile(duration=0.3))
        with serve_polar(script) as polar:
            args = eval_args(
                polar.url,
                tmp_path,
                rows=12,
                polar_fully_async=True,
                rollout_batch_size=2,
                n_samples_per_prompt=2,
            )
            source = Source()
            generate_rollout_polar_async(args, 0, source)
            generate_rollout_polar_async(args, 0, source, evaluation=True)
            generate_rollout_polar_async(args, 1, source)
            assert polar.max_running_sessions <= 8


def eval_args(url, folder, rows=3, **settings):
    path = folder / "held-out.jsonl"
    lines = [json.dumps({"input": f"question {number}", "metadata": {}}) for number in range(rows)]
    path.write_text("\n".join(lines))
    dataset = {"name": "held-out", "path": str(path), "input_key": "input", "metadata_key": "metadata"}
    return make_args(url, eval_datasets=[dataset], n_samples_per_eval_prompt=1, **settings)


def test_checkpoints_of_our_data_source_hear_what_became_of_prompts(polar, tmp_path):
    """Under way and delivered later than the checkpoint: both come back; what was trained on does not."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"input": f"prompt {number}"}) for number in range(40)))
    args = make_args(
        polar.url,
        polar_fully_async=True,
        prompt_data=str(prompts),
        input_key="input",
        label_key=None,
        metadata_key="metadata",
        rollout_global_dataset=True,
        rollout_shuffle=False,
        rollout_seed=1,
        buffer_filter_path=None,
        save=str(tmp_path),
        load=None,
        hf_checkpoint=None,
        dump_details=None,
        tool_key=None,
        multimodal_keys=None,
        apply_chat_template=False,
        apply_chat_template_kwargs={},
        rollout_max_prompt_len=None,
    )
    source = CeilEpochRolloutDataSourceWithBuffer(args)
    for rollout_id in range(2):
        generate_rollout_polar_async(args, rollout_id, source)
    unsettled = set(source.unsettled_groups(0))
    assert len(unsettled) == 8
    assert len(set(source.unsettled_groups(1))) == 4


def test_no_server_is_an_error_that_names_the_url(monkeypatch):
    """Within seconds, not for ever."""
    monkeypatch.setattr("slime_bridge.worker._STARTUP_SECONDS", 0.5)
    with pytest.raises(PolarOutageError, match=r"127\.0\.0\.1:9"):
        generate_rollout_polar_async(make_args("http://127.0.0.1:9"), 0, Source())


class TestGates:
    def test_pair_for_weight_pushes_is_on_the_function(self):
        """Trainers that call it find it there; a push left unfinished does not hold the next rollout."""
        with serve_polar(QUICK, gateways=2) as polar:
            args, source = make_args(polar.url), Source()
            generate_rollout_polar_async(args, 0, source)
            generate_rollout_polar_async.pause_for_weight_update(args)
            assert all(gateway.paused for gateway in polar.gateways.values())
            generate_rollout_polar_async.resume_after_weight_update(args)
            assert not any(gateway.paused for gateway in polar.gateways.values())
            generate_rollout_polar_async.pause_for_weight_update(args)
            generate_rollout_polar_async(args, 1, source)
            assert not any(gateway.paused for gateway in polar.gateways.values())
            generate_rollout_polar_async.pause_for_weight_update(args)
            stop_global_worker()
            assert not any(gateway.paused for gateway in polar.gateways.values())

    def test_gates_that_a_killed_run_left_closed_are_opened_at_the_start(self):
        """A new process remembers nothing; it asks the gateways."""
        with serve_polar(QUICK, gateways=2) as polar:
            for gateway in polar.gateways.values():
                httpx.post(f"{gateway.url}/admin/inference/pause", json={}, trust_env=False)
            assert any(gateway.paused for gateway in polar.gateways.values())
            generate_rollout_polar_async(make_args(polar.url), 0, Source())
            assert not any(gateway.paused for gateway in polar.gateways.values())
