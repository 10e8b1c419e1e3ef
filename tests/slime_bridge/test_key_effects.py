"""Every key has its effect through the entry point, or is reported: none is silently without."""

import base64
import hashlib
import json
import logging
import socket
import stat
import sys
import time
from types import SimpleNamespace

import pytest

from analysis.lab.polar_server.testing import (
    Fault,
    FaultScript,
    ServerSettings,
    SessionProfile,
    serve_polar,
)
from slime_bridge import capabilities
from slime_bridge.config import reading as config_reading
from slime_bridge.config.keys import ENVIRONMENT_KEYS, KEYS, SLIME_KEYS
from slime_bridge.data_source import CeilEpochRolloutDataSourceWithBuffer
from slime_bridge.errors import (
    CallbackBindError,
    CandidatePoolError,
    ConfigError,
    EvaluationError,
    InfrastructureStreakError,
    MissingRewardError,
    PolarOutageError,
    WeightBarrierError,
)
from slime_bridge.metrics import undocumented
from slime_bridge.reward_post_process import post_process_rewards
from slime_bridge.rollout import generate_rollout_polar_async, get_global_async_worker, stop_global_worker
from tests.slime_bridge.rollouts import Source, make_args

HOOKS = "tests.slime_bridge.trainer_hooks"
BESIDES = {
    "buffer_filter_path",
    "metadata.agent_timeout",
    "metadata.agent_step_limit",
    "metadata.runtime_env",
    "metadata.runtime_init_command",
    "metadata.training_filter",
    "custom_generate_function_path",
    "partial_rollout",
}
"""Inputs that are no keys of the bridge, but promised just the same."""

SHOWN = set()


def shows(*keys):
    """Mark a test as the one that shows the effect of these keys."""
    SHOWN.update(keys)
    return lambda test: test


@pytest.fixture(autouse=True)
def _clean(caplog):
    caplog.set_level(logging.INFO, logger="slime_bridge")
    capabilities._told.clear()
    config_reading._log_once.cache_clear()
    yield
    stop_global_worker()


def script(*faults, **profile):
    return FaultScript(sessions=SessionProfile(**{"duration": 0.02, "reward": 1.0, **profile}), faults=faults)


@pytest.fixture
def polar():
    with serve_polar(script()) as server:
        yield server


def roll(polar, rollout_id=0, source=None, **settings):
    """One call of the entry point, as Slime makes it."""
    source = source if source is not None else Source(n=settings.get("n_samples_per_prompt", 2))
    return generate_rollout_polar_async(make_args(polar.url, **settings), rollout_id, source)


def evaluate(polar, folder, *, rows=2, **settings):
    path = folder / "held-out.jsonl"
    path.write_text("\n".join(json.dumps({"input": f"question {n}", "metadata": {}}) for n in range(rows)))
    dataset = {"name": "held-out", "path": str(path), "input_key": "input", "metadata_key": "metadata"}
    args = make_args(polar.url, eval_datasets=[dataset], n_samples_per_eval_prompt=1, **settings)
    return generate_rollout_polar_async(args, 0, Source(), evaluation=True)


def payloads(polar):
    return [json.loads(request.body) for request in polar.submissions]


def samples_of(output):
    return [sample for group in output.samples for sample in group]


def asking(**metadata):
    """A data source whose prompts carry metadata."""

    class Asking(Source):
        def make(self, number):
            group = super().make(number)
            for sample in group:
                sample.metadata.update(metadata)
            return group

    return Asking()


class TestWhereAndWhat:
    @shows("polar_rollout_url")
    def test_rollout_url(self, polar):
        """Tasks go there."""
        assert len(roll(polar).samples) == 4
        assert polar.submits == 4

    @shows("polar_topology_path")
    def test_topology_path(self, polar, tmp_path):
        """Without a URL the topology's own is taken."""
        path = tmp_path / "topology.yaml"
        path.write_text(f"rollout: {{public_url: '{polar.url}'}}\ngateway: {{nodes: []}}\n")
        output = roll(polar, polar_rollout_url=None, polar_topology_path=str(path))
        assert len(output.samples) == 4

    @shows("polar_task_template", "polar_task_id_template", "polar_instruction_template", "hf_checkpoint")
    def test_templates(self, polar):
        """What they render to is what the server gets."""
        template = {"agent": {"harness": "lab", "settings": {"row": "{sample.metadata.row}"}}}
        template["metadata"] = {"model": "{args.hf_checkpoint}"}
        roll(
            polar,
            polar_task_template=template,
            polar_task_id_template="mine-{sample.group_index}",
            polar_instruction_template="Please: {instruction}",
            hf_checkpoint="/models/tiny",
        )
        first = min(payloads(polar), key=lambda payload: payload["task_id"])
        assert first["task_id"].startswith("mine-0")
        assert first["instruction"] == "Please: prompt 0"
        assert first["agent"]["settings"] == {"row": 0}
        assert first["metadata"]["model"] == "/models/tiny"

    @shows("polar_reward_key")
    def test_reward_key(self, polar):
        """Samples carry their reward under it."""
        output = roll(polar, polar_reward_key="won", reward_key="won")
        assert {tuple(sample.reward) for sample in samples_of(output)} == {("won",)}

    @shows("polar_scoring_mode", "n_samples_per_prompt", "rollout_batch_size")
    def test_scoring_mode(self, polar):
        """One task per group, or one per sample; the samples are the same."""
        output = roll(polar, n_samples_per_prompt=3, rollout_batch_size=2)
        assert [payload["num_samples"] for payload in payloads(polar)] == [3, 3]
        stop_global_worker()
        single = roll(polar, n_samples_per_prompt=3, rollout_batch_size=2, polar_scoring_mode="individual")
        assert [payload["num_samples"] for payload in payloads(polar)[2:]] == [1] * 6
        for found in (output, single):
            assert [[sample.index for sample in group] for group in found.samples] == [[0, 1, 2], [3, 4, 5]]

    @shows("polar_add_generation_prompt")
    def test_add_generation_prompt(self, polar, caplog):
        """Nothing here applies a chat template: that is said, once."""
        source = Source()
        for rollout_id in range(2):
            roll(polar, rollout_id, source, polar_add_generation_prompt=False)
        assert caplog.text.count("polar_add_generation_prompt has no effect: no chat template") == 1


class TestTransport:
    @shows("polar_callback_host", "polar_callback_port")
    def test_advertised_address(self, polar):
        """Polar is told to call this name and port."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        roll(polar, polar_callback_host="localhost", polar_callback_port=port)
        assert {p["callback_url"].split("/")[2] for p in payloads(polar)} == {f"localhost:{port}"}

    @shows("polar_callback_bind_host")
    def test_bind_host(self, polar):
        """The listener binds it, whatever is advertised."""
        with pytest.raises(CallbackBindError, match=r"192\.0\.2\.1"):
            roll(polar, polar_callback_bind_host="192.0.2.1")

    @shows("polar_trust_env")
    def test_trust_env(self, polar, monkeypatch):
        """The environment's proxy is taken only where that is asked for."""
        monkeypatch.setattr("slime_bridge.worker._STARTUP_SECONDS", 0.5)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        assert len(roll(polar).samples) == 4
        stop_global_worker()
        with pytest.raises(PolarOutageError):
            roll(polar, polar_trust_env=True)

    @shows("polar_request_timeout")
    def test_request_timeout(self):
        """A submit without answer costs this, not half a minute."""
        with serve_polar(script(Fault("response_hang", on="submit", times=1))) as polar:
            began = time.monotonic()
            assert len(roll(polar, polar_request_timeout=0.5).samples) == 4
            assert time.monotonic() - began < 20

    @shows("polar_group_timeout")
    def test_group_timeout(self):
        """A task that never ends costs its group this time, and the prompt another attempt."""
        with serve_polar(script(Fault("task_endless", attempts=[0], instruction="prompt 1$"))) as polar:
            output = roll(polar, polar_group_timeout=2.5)
        assert output.metrics["polar/requeued_groups"] == 1
        assert [group[0].group_index for group in output.samples] == [0, 1, 2, 3]

    @shows("polar_outage_timeout")
    def test_outage_timeout(self, polar):
        """A server that stays away is an error after so long."""
        source = Source()
        roll(polar, 0, source, polar_outage_timeout=1.0)
        polar.stop()
        with pytest.raises(PolarOutageError, match="polar_outage_timeout is 1 s"):
            roll(polar, 1, source, polar_outage_timeout=1.0)

    @shows("POLAR_CONTROL_PLANE_TOKEN")
    def test_control_plane_token(self, monkeypatch):
        """A server that asks for it gets it."""
        monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "plane-secret")
        settings = ServerSettings(control_token="plane-secret", protect_submit=True, newer=True)
        with serve_polar(script(), settings=settings) as polar:
            assert len(roll(polar).samples) == 4

    @shows("polar_weight_update_pause_timeout")
    def test_weight_update_pause_timeout(self, polar):
        """The barrier of the rollout function waits so long."""
        polar.gateways["node-1"].add_inflight(1)
        args = make_args(polar.url, polar_weight_update_pause_timeout=0.3)
        with pytest.raises(WeightBarrierError, match=r"within 0\.3 s"):
            generate_rollout_polar_async.pause_for_weight_update(args)
        assert not polar.gateways["node-1"].paused


class TestScheduling:
    @shows("polar_fully_async", "polar_max_async_level")
    def test_window(self, polar):
        """Fully async: first the whole window, then what was consumed; otherwise what is asked for."""
        source = Source()
        roll(polar, 0, source)
        assert len(source.drawn) == 4
        stop_global_worker()
        source = Source()
        for rollout_id, drawn in enumerate((12, 16, 20)):
            roll(polar, rollout_id, source, polar_fully_async=True, polar_max_async_level=3)
            assert len(source.drawn) == drawn

    @pytest.mark.parametrize("name", ["colocate", "offload", "offload_rollout", "offload_train"])
    def test_fully_async_is_refused_where_engines_must_be_quiet(self, polar, name):
        """With the reason, before anything is drawn."""
        source = Source()
        with pytest.raises(ConfigError, match=f"polar_fully_async is true and {name} is on"):
            roll(polar, 0, source, polar_fully_async=True, **{name: True})
        assert source.drawn == []

    @shows("update_weights_interval")
    def test_staleness_bound(self, polar, caplog):
        """Level plus interval, said once; a group that is older than that is replaced."""
        source = Source()
        settings = {"polar_fully_async": True, "polar_max_async_level": 2, "update_weights_interval": 2}
        for rollout_id in (0, 4):
            output = roll(polar, rollout_id, source, **settings)
        assert output.metrics["polar/dropped_stale_groups"] == 0
        assert output.metrics["polar/staleness/max"] == 4
        output = roll(polar, 9, source, **settings)
        assert output.metrics["polar/dropped_stale_groups"] == 4
        assert output.metrics["polar/staleness/max"] == 0
        assert caplog.text.count("samples at most 4 rollouts old") == 1

    def test_rollout_ids_that_jump_back_or_repeat(self, polar, caplog):
        """They are served and warned about, and nothing is delivered twice."""
        source = Source()
        seen = []
        for rollout_id in (7, 7, 3, 4):
            output = roll(polar, rollout_id, source, polar_fully_async=True)
            seen += [group[0].group_index for group in output.samples]
            assert 0 <= output.metrics["polar/staleness/min"] <= output.metrics["polar/staleness/max"] <= 1
        assert len(set(seen)) == len(seen) == 16
        assert caplog.text.count("asked for again") == 1
        assert caplog.text.count("lower than the one before") == 1

    @shows("polar_max_prompt_attempts")
    def test_max_prompt_attempts(self):
        """A prompt that never works is given up after so many."""
        with serve_polar(script(Fault("task_failed", instruction="prompt 1$"))) as polar:
            output = roll(polar, polar_max_prompt_attempts=1)
        assert output.metrics["polar/given_up_groups"] == 1
        assert [group[0].group_index for group in output.samples] == [0, 2, 3, 4]

    @shows("polar_max_prompt_deadlines")
    def test_max_prompt_deadlines(self):
        """A prompt that hangs is given up after so many whole deadlines, long before its other attempts."""
        with serve_polar(script(Fault("task_endless", instruction="prompt 1$"))) as polar:
            output = roll(polar, polar_max_prompt_deadlines=1, polar_group_timeout=2.5)
        assert output.metrics["polar/given_up_groups"] == 1
        assert [group[0].group_index for group in output.samples] == [0, 2, 3, 4]

    @shows("over_sampling_batch_size")
    def test_over_sampling(self, polar):
        """So many groups per refill; the first ones complete the batch, the rest serves the next call."""
        source = Source()
        for rollout_id in range(2):
            output = roll(polar, rollout_id, source, over_sampling_batch_size=7)
            assert len(output.samples) == 4
        assert source.requests == [7, 7]

    @shows("buffer_filter_path")
    def test_buffer_filter(self, polar, tmp_path):
        """The data source calls it for every draw, as Slime's does."""
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text("\n".join(json.dumps({"input": f"prompt {n}"}) for n in range(9)))
        args = make_args(
            polar.url,
            prompt_data=str(prompts),
            input_key="input",
            label_key=None,
            metadata_key="metadata",
            rollout_global_dataset=True,
            rollout_shuffle=False,
            rollout_seed=1,
            buffer_filter_path=f"{HOOKS}.last_first",
            save=None,
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
        held = source.get_samples(4)
        source.add_samples(held)
        output = generate_rollout_polar_async(args, 0, source)
        assert [group[0].group_index for group in output.samples] == [3, 2, 1, 0]

    @shows("custom_generate_function_path", "partial_rollout")
    def test_flags_that_cannot_apply(self, polar, caplog):
        """Each is named once with its reason, and the worker knows."""
        settings = {"custom_generate_function_path": "my.generate", "partial_rollout": True}
        source = Source()
        for rollout_id in range(2):
            output = roll(polar, rollout_id, source, **settings)
        for key in settings:
            assert caplog.text.count(f"{key} has no effect") == 1
        worker = get_global_async_worker(make_args(polar.url, **settings), source)
        assert settings.keys() <= worker.inactive_features.keys()
        assert output.metrics["polar/inactive_features"] >= 2


class TestContent:
    @shows("polar_min_complete_accept_fraction")
    def test_min_complete_accept_fraction(self):
        """One of two is less than nine tenths."""
        fault = Fault("session_error", instruction="prompt 1$", sessions=[0])
        with serve_polar(script(fault)) as polar:
            assert roll(polar).metrics["polar/dropped_groups"] == 0
            stop_global_worker()
            metrics = roll(polar, polar_min_complete_accept_fraction=0.9).metrics
        assert metrics["polar/dropped_low_complete_fraction_groups"] == 1

    @shows("polar_missing_reward")
    def test_missing_reward(self):
        """Zero, a rejected session, or the end."""
        fault = Fault("null_reward", instruction="prompt 1$")
        with serve_polar(script(fault)) as polar:
            zero = roll(polar)
            assert {sample.reward["score"] for sample in zero.samples[1]} == {0.0}
            stop_global_worker()
            rejecting = roll(polar, polar_missing_reward="reject")
            assert rejecting.metrics["polar/dropped_missing_reward_groups"] == 1
            stop_global_worker()
            with pytest.raises(MissingRewardError):
                roll(polar, polar_missing_reward="error")

    @shows("polar_overlong_traces", "polar_max_trajectory_tokens")
    def test_overlong_traces(self):
        """Dropped, or cut to what fits."""
        fault = Fault("overlong", count=500, sessions=[0])
        with serve_polar(script(fault)) as polar:
            dropped = roll(polar, polar_max_trajectory_tokens=400)
            assert dropped.metrics["polar/session/dropped_traces"] == 4
            stop_global_worker()
            clipped = roll(polar, polar_max_trajectory_tokens=400, polar_overlong_traces="clip")
        assert clipped.metrics["polar/session/clipped_traces"] == 4
        assert max(len(sample.tokens) for sample in samples_of(clipped)) == 400

    @shows("polar_allow_single_sample_over_token_cap")
    def test_single_sample_over_token_cap(self):
        """Only `seq_length` is left as the bound."""
        fault = Fault("overlong", count=500, sessions=[0])
        cap = {"max_tokens_per_gpu": 400, "context_parallel_size": 1, "seq_length": 4096}
        with serve_polar(script(fault)) as polar:
            assert roll(polar, **cap).metrics["polar/session/dropped_traces"] == 4
            stop_global_worker()
            output = roll(polar, **cap, polar_allow_single_sample_over_token_cap=True)
        assert output.metrics["polar/session/dropped_traces"] == 0

    @shows("polar_aborted_turns")
    def test_aborted_turns(self):
        """Masked, dropped with their trace, or kept."""
        with serve_polar(script(Fault("abort_finish", sessions=[0]), turns=2)) as polar:
            masked = roll(polar).metrics["polar/session/masked_tokens"]
            stop_global_worker()
            dropped = roll(polar, polar_aborted_turns="drop").metrics["polar/session/dropped_traces"]
            stop_global_worker()
            kept = roll(polar, polar_aborted_turns="keep").metrics
        assert masked > 0
        assert dropped == 4
        assert (kept["polar/session/masked_tokens"], kept["polar/session/dropped_traces"]) == (0, 0)

    @shows("metadata.training_filter")
    def test_training_filter(self):
        """What a newer gateway masked is not trained on."""
        with serve_polar(script(Fault("training_filter", sessions=[0])), newer=True) as polar:
            output = roll(polar)
        for group in output.samples:
            assert group[0].remove_sample
            assert sum(group[0].loss_mask) == 0
            assert group[0].reward == {"score": 0.0}

    @shows("polar_run_dir")
    def test_run_dir(self, polar, tmp_path):
        """The journal goes there."""
        roll(polar, polar_run_dir=str(tmp_path / "run"))
        stop_global_worker()
        assert (tmp_path / "run" / "journal.jsonl").stat().st_size > 0

    @shows("dynamic_sampling_filter_path", "rollout_sample_filter_path", "rollout_all_samples_process_path")
    def test_slimes_filters(self, polar):
        """Replacement, marks and the view on everything; details have their own tests."""
        settings = {
            "dynamic_sampling_filter_path": f"{HOOKS}.keep_even_rows",
            "rollout_sample_filter_path": f"{HOOKS}.remove_first",
            "rollout_all_samples_process_path": f"{HOOKS}.process_all",
        }
        output = roll(polar, **settings)
        assert [group[0].metadata["row"] for group in output.samples] == [0, 2, 4, 6]
        assert all(group[0].remove_sample for group in output.samples)
        assert output.metrics["rollout/dynamic_filter/drop_odd_row"] >= 3

    @shows("polar_drop_all_wrong_groups", "polar_balance_all_correct_groups")
    def test_pruning(self):
        """After the batch is complete, without refill; the numbers say what went."""
        faults = [
            Fault("reward", instruction="prompt 0$", value=0.0),
            Fault("reward", instruction="prompt 1$", sessions=[0], value=0.0),
        ]
        with serve_polar(script(*faults)) as polar:
            output = roll(polar, polar_drop_all_wrong_groups=True, polar_balance_all_correct_groups=True)
            assert polar.submits == 4
        assert len(output.samples) == 2
        assert output.samples[0][0].group_index == 1
        assert output.metrics["polar/dropped_all_wrong_groups"] == 1
        assert output.metrics["polar/dropped_all_correct_groups"] == 1
        assert output.metrics["polar/candidate/all_wrong_groups"] == 1
        assert output.metrics["polar/candidate/all_correct_groups"] == 2
        assert output.metrics["polar/accepted/all_correct_groups"] == 1
        assert output.metrics["polar/accepted/mixed_groups"] == 1
        assert output.metrics["polar/candidate/accept_fraction"] == 0.5
        assert output.metrics["polar/wasted/sessions"] == 4
        assert undocumented(output.metrics) == []

    @shows(
        "polar_advantage_estimator",
        "polar_advantage_estimator_kwargs",
        "gdpo_reward_keys",
        "dvao_reward_keys",
    )
    def test_advantages(self):
        """Each choice gives other numbers for the same samples."""
        fault = Fault("reward", sessions=[0], value=0.25)
        with serve_polar(script(fault)) as polar:
            samples = samples_of(roll(polar, n_samples_per_prompt=4))
        choices = (
            {},
            {"polar_advantage_estimator": "grpo"},
            {"polar_advantage_estimator": "pass_at_k", "polar_advantage_estimator_kwargs": {"k": 1}},
            {"polar_advantage_estimator": "pass_at_k", "polar_advantage_estimator_kwargs": {"k": 2}},
            {"gdpo_reward_keys": ["score", "outcome_reward"]},
            {"dvao_reward_keys": ["score", "outcome_reward"]},
        )
        found = set()
        for choice in choices:
            args = make_args("http://polar", grpo_std_normalization=False, **choice)
            raw, advantages = post_process_rewards(args, samples)
            assert raw == [0.25, 1.0, 1.0, 1.0] * 4
            found.add(tuple(round(advantage, 6) for advantage in advantages))
        assert len(found) == len(choices)


class TestHealth:
    @shows("polar_max_consecutive_infrastructure_failures")
    def test_streak(self):
        """So many groups without a trace end the run."""
        with serve_polar(script(Fault("session_error"))) as polar:
            with pytest.raises(InfrastructureStreakError, match="in 3 groups in a row"):
                roll(polar, polar_max_consecutive_infrastructure_failures=3)

    @shows(
        "polar_candidate_pool_health_gate_enabled",
        "polar_candidate_pool_health_gate_min_observed_sessions",
        "polar_candidate_pool_health_gate_min_completion_fraction",
    )
    def test_candidate_pool(self):
        """Before the first delivery, rejected groups count: one of four completed is not half."""
        gate = {
            "polar_candidate_pool_health_gate_min_observed_sessions": 4,
            "polar_candidate_pool_health_gate_min_completion_fraction": 0.5,
            "polar_min_complete_accept_fraction": 1.0,
            "n_samples_per_prompt": 4,
        }
        fault = Fault("session_error", sessions=[1, 2, 3], instruction="prompt [0-3]$")
        with serve_polar(script(fault)) as polar:
            assert len(roll(polar, **gate).samples) == 4
            stop_global_worker()
            with pytest.raises(CandidatePoolError, match="of .* sessions completed"):
                roll(polar, polar_candidate_pool_health_gate_enabled=True, **gate)

    def test_the_gate_closes_with_the_first_delivery(self):
        """Later trouble is another key's business."""
        fault = Fault("session_error", instruction="prompt ([4-9]|1[01])$", sessions=[1])
        with serve_polar(script(fault)) as polar:
            source = Source()
            for rollout_id in range(3):
                roll(
                    polar,
                    rollout_id,
                    source,
                    polar_candidate_pool_health_gate_enabled=True,
                    polar_candidate_pool_health_gate_min_observed_sessions=1,
                    polar_candidate_pool_health_gate_min_completion_fraction=0.9,
                )


class TestNewerServers:
    @shows("polar_early_stop_grace_sessions")
    def test_early_stop(self, caplog):
        """Stragglers end after min(n, ceil(n f) + grace) usable sessions, outside quality and time means."""
        settings = {
            "rollout_batch_size": 2,
            "n_samples_per_prompt": 6,
            "polar_min_complete_accept_fraction": 0.3,
            "polar_early_stop_grace_sessions": 1,
        }
        slow = Fault("session_slow", sessions=[3, 4, 5], seconds=30.0)
        with serve_polar(script(slow), newer=True) as polar:
            output = roll(polar, **settings)
        assert {payload["early_stop_min_usable_sessions"] for payload in payloads(polar)} == {3}
        metrics = output.metrics
        assert metrics["polar/early_stop/sessions"] == 6
        assert metrics["polar/early_stop/groups"] == 2
        assert metrics["polar/early_stop/session_fraction"] == 0.5
        assert metrics["polar/reward_mean"] == metrics["polar/reward_mean_completed"] == 1.0
        assert metrics["polar/session/completed_rate"] == metrics["polar/rollout_success_rate"] == 1.0
        assert metrics["polar/session/failed_rate"] == 0.0
        assert metrics["polar/session_ms/run_mean"] < 15_000
        placeholders = [s for s in samples_of(output) if s.metadata["polar"].get("placeholder")]
        assert len(placeholders) == 6
        assert all(sum(sample.loss_mask) == 0 and sample.remove_sample for sample in placeholders)
        assert "Inactive with the rollout server" not in caplog.text

    def test_early_stop_on_a_baseline_server(self, caplog):
        """Every session runs to its end, and that is said once."""
        settings = {"n_samples_per_prompt": 6, "polar_min_complete_accept_fraction": 0.3}
        with serve_polar(script()) as polar:
            source = Source(n=6)
            output = roll(polar, 0, source, **settings)
            worker = get_global_async_worker(make_args(polar.url, **settings), source)
            polar.wait_until(lambda: "early_stop" in worker.inactive_features)
            roll(polar, 1, source, **settings)
        assert output.metrics["polar/early_stop/sessions"] == 0
        assert caplog.text.count("early_stop: polar_early_stop_grace_sessions has no effect") == 1

    @shows("polar_task_timeout_floor")
    def test_task_timeout_floor(self, polar):
        """At least this; a larger one stays."""
        template = {"agent": {"harness": "lab"}, "timeout_seconds": "{sample.metadata.seconds}"}
        for seconds, sent in ((5, 60.0), (90, 90)):
            roll(
                polar,
                source=asking(seconds=seconds),
                polar_task_template=template,
                polar_task_timeout_floor=60,
            )
            assert {payload["timeout_seconds"] for payload in payloads(polar)[-4:]} == {sent}

    @shows("polar_train_agent_timeout", "metadata.agent_timeout")
    def test_train_agent_timeout(self, polar):
        """In the task's metadata; the prompt's own is stronger."""
        roll(polar, polar_train_agent_timeout=7)
        assert {payload["metadata"]["agent_timeout"] for payload in payloads(polar)} == {7.0}
        roll(polar, source=asking(agent_timeout=3), polar_train_agent_timeout=7)
        assert {payload["metadata"]["agent_timeout"] for payload in payloads(polar)[4:]} == {3}

    @shows("metadata.agent_step_limit", "metadata.runtime_env", "metadata.runtime_init_command")
    def test_what_prompts_ask_for(self, polar, caplog):
        """It reaches agent and sandbox; what the server does not know of it is named."""
        template = {
            "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
            "runtime": {"image": "x", "env": {"A": "1"}, "direct_exec_init_command": "make;"},
        }
        source = asking(agent_step_limit=5, runtime_env={"B": "2"}, runtime_init_command="echo hi")
        output = roll(polar, source=source, polar_task_template=template)
        assert len(output.samples) == 4
        payload = payloads(polar)[0]
        assert payload["agent"]["settings"]["step_limit"] == 5
        assert payload["runtime"]["env"] == {"A": "1", "B": "2"}
        assert payload["runtime"]["direct_exec_init_command"] == "make && echo hi"
        worker = get_global_async_worker(make_args(polar.url, polar_task_template=template), source)
        polar.wait_until(lambda: "init_command" in worker.inactive_features)
        assert caplog.text.count("metadata.runtime_init_command") == 1

    @pytest.mark.parametrize(
        "metadata",
        [
            {"agent_timeout": True},
            {"agent_timeout": -1},
            {"agent_step_limit": 0.5},
            {"runtime_env": {"A": 1}},
            {"runtime_init_command": 3},
        ],
    )
    def test_malformed_wishes_are_errors_before_anything_is_sent(self, polar, metadata):
        """Named with the prompt; the prompt goes back."""
        template = {"agent": {"harness": "lab"}, "runtime": {"image": "x"}}
        source = asking(**metadata)
        with pytest.raises(ConfigError, match=f"metadata.{next(iter(metadata))}"):
            roll(polar, source=source, polar_task_template=template)
        assert polar.submits == 0
        assert len(source.buffer) == 4


class TestEvaluation:
    @shows("polar_eval_dataset_name")
    def test_name_without_datasets(self, polar):
        """One batch of training prompts under this name; the prompts go back."""
        source = Source()
        args = make_args(polar.url, polar_eval_dataset_name="mine", n_samples_per_eval_prompt=1)
        output = generate_rollout_polar_async(args, 0, source, evaluation=True)
        assert list(output.data) == ["mine"]
        assert len(source.buffer) == 4

    @shows("polar_eval_agent_timeout")
    def test_eval_agent_timeout(self, polar, tmp_path):
        """Of its own, whatever training has."""
        evaluate(polar, tmp_path, polar_eval_agent_timeout=9, polar_train_agent_timeout=7)
        assert {payload["metadata"]["agent_timeout"] for payload in payloads(polar)} == {9.0}

    @shows("polar_eval_max_concurrent_sessions")
    def test_concurrency(self, tmp_path):
        """Never more sessions at a time."""
        with serve_polar(script(duration=0.1)) as polar:
            evaluate(polar, tmp_path, rows=9, polar_eval_max_concurrent_sessions=2)
            assert polar.max_running_sessions == 2

    @shows("POLAR_EVAL_DATA_INTEGRITY_B64")
    def test_integrity(self, polar, tmp_path, monkeypatch):
        """Other bytes than those that were promised are an error, and nothing is submitted."""
        evaluate(polar, tmp_path)
        content = (tmp_path / "held-out.jsonl").read_bytes()
        for digest, good in ((hashlib.sha256(content).hexdigest(), True), ("0" * 64, False)):
            entry = {"name": "held-out", "path": str(tmp_path / "held-out.jsonl"), "sha256": digest}
            manifest = {"schema_version": 1, "algorithm": "sha256", "datasets": [entry]}
            encoded = base64.b64encode(json.dumps(manifest).encode()).decode()
            monkeypatch.setenv("POLAR_EVAL_DATA_INTEGRITY_B64", encoded)
            before = polar.submits
            if good:
                assert evaluate(polar, tmp_path).data["held-out"]["rewards"] == [1.0, 1.0]
            else:
                with pytest.raises(EvaluationError):
                    evaluate(polar, tmp_path)
                assert polar.submits == before


@shows(
    "POLAR_ROLLOUT_EXAMPLE_INTERVAL",
    "POLAR_ROLLOUT_EXAMPLE_COUNT",
    "POLAR_ROLLOUT_EXAMPLES_DIR",
    "POLAR_ROLLOUT_EXAMPLES_WANDB",
)
def test_examples(polar, tmp_path, monkeypatch, caplog):
    """At these rollouts, so many, private; without a W&B run the last key is said to have no effect."""
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    for name, value in (("INTERVAL", "2"), ("COUNT", "3")):
        monkeypatch.setenv(f"POLAR_ROLLOUT_EXAMPLE_{name}", value)
    monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLES_DIR", str(tmp_path))
    monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLES_WANDB", "true")
    monkeypatch.setattr("slime_bridge.rollout._workers.examples._saving._warned", False)
    source = Source()
    for rollout_id in range(3):
        roll(polar, rollout_id, source)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["rollout_examples_r0.json", "rollout_examples_r2.json"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert len(json.loads(files[0].read_text())["examples"]) == 3
    assert caplog.text.count("no W&B run is active") == 1


def test_no_key_is_left_out():
    """A key that is added without an effect fails here; so does a promise that is forgotten."""
    names = {key.name for key in (*KEYS, *SLIME_KEYS, *ENVIRONMENT_KEYS)}
    assert names | BESIDES == SHOWN


def test_unknown_keys_are_named(polar, caplog):
    """A misspelt key does nothing, and that is said."""
    roll(polar, polar_max_async_levle=3)
    assert "did you mean polar_max_async_level?" in caplog.text


def test_the_namespace_is_not_changed(polar):
    """Slime goes on with the same arguments."""
    args = make_args(polar.url)
    before = SimpleNamespace(**vars(args))
    generate_rollout_polar_async(args, 0, Source())
    assert vars(args) == vars(before)
