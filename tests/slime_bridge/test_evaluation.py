"""Evaluation over real sockets: complete results whatever fails, own ids and limits, nothing left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.lab.polar_server.testing import (
    Fault,
    FaultScript,
    PolarHandle,
    SessionInfo,
    SessionProfile,
    serve_polar,
)
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.data_source import CeilEpochRolloutDataSourceWithBuffer
from slime_bridge.errors import ConfigError, EvaluationError
from slime_bridge.evaluation import run_evaluation
from slime_bridge.journal import Journal, read_journal
from slime_bridge.metrics import CATALOGUE, find_metric, undocumented

TEMPLATE = {
    "agent": {"harness": "lab", "settings": {"temperature": "{args.rollout_temperature}"}},
    "timeout_seconds": 30,
    "metadata": {"label": "{sample.label}", "position": "{task_position}"},
}


def _config(polar: PolarHandle | None, **values: Any) -> PolarSlimeConfig:
    defaults: dict[str, Any] = {
        "rollout_url": polar.url if polar is not None else "http://127.0.0.1:9",
        "task_template": TEMPLATE,
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 2,
        "group_timeout": 30.0,
    }
    return PolarSlimeConfig(**{**defaults, **values})


def _args(tmp_path: Path, prompts: int = 6, n: int = 2, **values: Any) -> SimpleNamespace:
    path = tmp_path / "eval.jsonl"
    rows = [{"input": f"task {i:02d}", "label": str(i), "metadata": {"id": i}} for i in range(prompts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    entry = {"name": "shelf", "path": str(path), "label_key": "label", "n_samples_per_eval_prompt": n}
    defaults = {"eval_datasets": [entry], "reward_key": "score", "rollout_temperature": 1.0}
    return SimpleNamespace(**{**defaults, "n_samples_per_eval_prompt": n, "log_passrate": True, **values})


def _by_prompt(info: SessionInfo) -> float:
    """Reward 1 for even prompts."""
    return float(int(info.instruction.split()[1]) % 2 == 0)


def _threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("polar-eval"))


def test_each_session_has_one_reward_in_order(tmp_path: Path) -> None:
    """Prompts in order, sessions in order, samples flat, indices unique, metrics documented."""
    script = FaultScript(sessions=SessionProfile(reward=_by_prompt))
    with serve_polar(script=script) as polar:
        data, metrics = run_evaluation(_args(tmp_path), 7, None, config=_config(polar))
    block = data["shelf"]
    assert block["rewards"] == [1.0, 1.0, 0.0, 0.0] * 3
    assert block["truncated"] == [False] * 12
    assert len(block["samples"]) == len(block["all_rewards"]) == len(block["all_truncated"]) == 12
    assert [sample.group_index for sample in block["samples"]] == [i // 2 for i in range(12)]
    assert [sample.index for sample in block["samples"]] == list(range(12))
    assert [sample.label for sample in block["samples"]] == [str(i // 2) for i in range(12)]
    assert [sample.reward["score"] for sample in block["samples"]] == block["rewards"]
    assert metrics["polar/eval/shelf/reward_mean"] == metrics["polar/eval/resolved_rate"] == 0.5
    assert metrics["polar/eval/shelf/pass@1"] == metrics["polar/eval/shelf/pass@2"] == 0.5
    assert metrics["polar/eval/shelf/completed_rate"] == 1
    assert undocumented(metrics) == []
    assert all(type(value) is float for value in metrics.values())


def test_failed_sessions_count_as_zero_and_have_rates(tmp_path: Path) -> None:
    """Ten prompts, five of them fail: the headline is 0.5, the completed-only number stands beside it."""
    faults = [
        Fault("session_error", instruction="0[0-2]"),
        Fault("session_timeout", instruction="0[34]"),
        Fault("length_finish", instruction="09"),
    ]
    with serve_polar(script=FaultScript(sessions=SessionProfile(reward=1.0), faults=faults)) as polar:
        data, metrics = run_evaluation(_args(tmp_path, 10, 1), 0, None, config=_config(polar))
    assert data["shelf"]["rewards"] == [0.0] * 5 + [1.0] * 5
    assert data["shelf"]["completed_rewards"] == [1.0] * 5
    assert data["shelf"]["truncated"] == [False] * 9 + [True]
    stem = "polar/eval/shelf/"
    rates = {name.removeprefix(stem): value for name, value in metrics.items()}
    assert rates["reward_mean"] == rates["resolved_rate"] == rates["completed_rate"] == 0.5
    assert rates["reward_mean_completed"] == 1
    assert rates["error_rate"] == pytest.approx(0.3)
    assert rates["timeout_rate"] == pytest.approx(0.2)
    assert rates["truncated_rate"] == pytest.approx(0.1)
    assert rates["missing_rate"] == 0


def test_fan_out_keeps_one_reward_per_session(tmp_path: Path) -> None:
    """Sessions with several traces give several samples and one reward each."""
    profile = SessionProfile(reward=1.0, turns=3, separate_traces=True)
    with serve_polar(script=FaultScript(sessions=profile)) as polar:
        data, metrics = run_evaluation(_args(tmp_path, 3), 0, None, config=_config(polar))
    block = data["shelf"]
    assert len(block["rewards"]) == len(block["truncated"]) == 6
    assert len(block["samples"]) == len(block["all_rewards"]) == 18
    assert metrics["polar/eval/shelf/traces_mean"] == 3


def test_a_missing_reward_is_zero_in_the_headline_and_counted(tmp_path: Path) -> None:
    """Also where training would reject such sessions, or stop."""
    faults = [Fault("null_reward", instruction="00")]
    for rule in ("zero", "reject", "error"):
        with serve_polar(script=FaultScript(sessions=SessionProfile(reward=1.0), faults=faults)) as polar:
            config = _config(polar, missing_reward=rule)
            data, metrics = run_evaluation(_args(tmp_path, 2, 1), 0, None, config=config)
        assert data["shelf"]["rewards"] == [0.0, 1.0]
        assert metrics["polar/eval/shelf/missing_reward_rate"] == 0.5
        assert metrics["polar/eval/shelf/reward_mean_completed"] == 1


def test_a_session_without_token_ids_keeps_its_reward(tmp_path: Path) -> None:
    """Evaluation needs no tokens: the placeholder carries the session's score."""
    faults = [Fault("no_token_ids")]
    with serve_polar(script=FaultScript(sessions=SessionProfile(reward=1.0), faults=faults)) as polar:
        data, _ = run_evaluation(_args(tmp_path, 2, 1), 0, None, config=_config(polar))
    assert data["shelf"]["rewards"] == [1.0, 1.0] == data["shelf"]["all_rewards"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("response_status", on="submit", status=503, times=2),
        Fault("callback_lost"),
        Fault("callback_forged", tasks=[0]),
        Fault("callback_foreign", tasks=[1]),
        Fault("callback_malformed", tasks=[1], value="truncated"),
        Fault("task_forgotten", tasks=[0], attempts=[0], seconds=0.1),
        Fault("task_conflict", tasks=[0], attempts=[0]),
        Fault("response_hang", on="submit", tasks=[1], processed=True, times=1),
    ],
    ids=lambda fault: fault.kind,
)
def test_infrastructure_faults_change_nothing(tmp_path: Path, fault: Fault) -> None:
    """One 503, a lost or forged callback, a server that forgets: the same rewards in the end."""
    script = FaultScript(sessions=SessionProfile(reward=_by_prompt, duration=0.3), faults=[fault])
    with serve_polar(script=script) as polar:
        config = _config(polar, request_timeout=3.0)
        data, metrics = run_evaluation(_args(tmp_path, 3), 0, None, config=config)
        assert polar.fired.get(fault.kind), "the fault never fired"
    assert data["shelf"]["rewards"] == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert metrics["polar/eval/shelf/missing_rate"] == 0


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("task_endless", instruction="00"), "deadline"),
        (Fault("task_failed", instruction="00"), "failed"),
        (Fault("response_status", on="submit", instruction="00", status=422, value="bad image"), "bad image"),
        (Fault("session_missing", instruction="00"), ""),
        (Fault("session_malformed", instruction="00"), ""),
    ],
    ids=["endless", "failed", "refused", "missing", "malformed"],
)
def test_a_lost_task_counts_as_failed_and_the_rest_goes_on(
    tmp_path: Path, fault: Fault, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A task without a usable result: its sessions are 0 and missing, with placeholders in their place."""
    with serve_polar(script=FaultScript(sessions=SessionProfile(reward=1.0), faults=[fault])) as polar:
        config = _config(polar, group_timeout=2.0 if error == "deadline" else 30.0)
        data, metrics = run_evaluation(_args(tmp_path, 3), 0, None, config=config)
    assert data["shelf"]["rewards"] == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert len(data["shelf"]["samples"]) == 6
    assert metrics["polar/eval/shelf/missing_rate"] == pytest.approx(1 / 3)
    assert error in caplog.text


def test_a_dead_server_gives_zeros_within_the_outage_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No server at all: the evaluation ends, complete and loud, and training can go on."""
    with serve_polar() as polar:
        polar.stop()
        config = _config(polar, outage_timeout=1.0, group_timeout=600.0)
        data, metrics = run_evaluation(_args(tmp_path), 0, None, config=config)
    assert data["shelf"]["rewards"] == [0.0] * 12
    assert metrics["polar/eval/shelf/missing_rate"] == 1
    assert "polar/eval/shelf/reward_mean_completed" not in metrics
    assert "polar_outage_timeout" in caplog.text
    assert "No evaluation task gave a result" in caplog.text


class _Slots:
    """A session limit that is shared with a pretended training worker."""

    def __init__(self, total: int, training: int) -> None:
        self.total, self.training, self.taken, self.most, self.refused = total, training, 0, 0, 0

    def reserve(self, sessions: int) -> bool:
        if self.training + self.taken + sessions > self.total:
            self.refused += 1
            self.training = max(0, self.training - 1)  # training runs dry, because claims come first
            return False
        self.taken += sessions
        self.most = max(self.most, self.training + self.taken)
        return True

    def release(self, sessions: int) -> None:
        assert 0 <= sessions <= self.taken
        self.taken -= sessions


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_number_of_sessions_in_flight_is_bounded(tmp_path: Path, n: int) -> None:
    """The evaluation's own limit holds at the server, with any number of sessions per prompt."""
    with serve_polar(script=FaultScript(sessions=SessionProfile(duration=0.25))) as polar:
        config = _config(polar, eval_max_concurrent_sessions=4)
        run_evaluation(_args(tmp_path, 12, n), 0, None, config=config)
        assert n <= polar.max_running_sessions <= 4 // n * n


def test_the_limit_is_shared_with_training(tmp_path: Path) -> None:
    """With training in flight the sum stays below the limit, and all slots come back."""
    slots = _Slots(total=16, training=15)
    with serve_polar(script=FaultScript(sessions=SessionProfile(duration=0.05))) as polar:
        run_evaluation(_args(tmp_path, 12, 2), 0, None, config=_config(polar), slots=slots)
        assert polar.max_running_sessions <= 8
    assert slots.refused > 0
    assert slots.taken == 0
    assert slots.most <= 16


def test_a_task_larger_than_the_limit_still_runs(tmp_path: Path) -> None:
    """A limit below one prompt's sessions cannot block the evaluation for ever."""
    with serve_polar() as polar:
        config = _config(polar, eval_max_concurrent_sessions=1)
        data, _ = run_evaluation(_args(tmp_path, 3, 4), 0, None, config=config)
    assert len(data["shelf"]["rewards"]) == 12


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """No thread, no port, no prompt drawn, no task left running: evaluation alone starts no training."""
    source = _source(tmp_path)
    with serve_polar() as polar:
        before = _open_descriptors()
        run_evaluation(_args(tmp_path), 0, source, config=_config(polar))
        assert polar.running_sessions == 0
        callbacks = {record.url.split("/")[2] for record in polar.callbacks}
    assert _threads() == Counter()
    assert _open_descriptors() <= before + 1
    assert source.sample_group_index == source.get_buffer_length() == 0
    assert len(callbacks) == 1


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _source(tmp_path: Path) -> Any:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"input": f"train {i}"}) + "\n" for i in range(8)))
    args = SimpleNamespace(prompt_data=str(path), n_samples_per_prompt=2, rollout_batch_size=4)
    return CeilEpochRolloutDataSourceWithBuffer(args)


def test_without_datasets_a_training_batch_is_evaluated_and_handed_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning, results under the configured name, and the prompts still there for training."""
    source = _source(tmp_path)
    with serve_polar() as polar:
        args = _args(tmp_path, n=1, eval_datasets=[])
        data, _ = run_evaluation(args, 3, source, config=_config(polar, eval_dataset_name="probe"))
    assert list(data) == ["probe"]
    assert len(data["probe"]["rewards"]) == 4
    assert "There are no eval_datasets" in caplog.text
    drawn = source.get_samples(4)
    assert [group[0].group_index for group in drawn] == [0, 1, 2, 3]
    assert {sample.prompt for group in drawn for sample in group} == {f"train {i}" for i in range(4)}
    assert {sample.status.value for group in drawn for sample in group} == {"pending"}


def test_no_prompt_at_all_is_an_error(tmp_path: Path) -> None:
    """No datasets and an empty source cannot be evaluated."""
    for source in (None, SimpleNamespace(get_samples=lambda n: [])):
        with pytest.raises(EvaluationError, match="no prompt to evaluate"):
            run_evaluation(_args(tmp_path, eval_datasets=None), 0, source, config=_config(None))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"eval_datasets": [{"name": "a", "path": "nowhere.jsonl"}]}, EvaluationError, "nowhere.jsonl"),
        ({"n_samples_per_eval_prompt": 5}, EvaluationError, "log-passrate"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_submitted(
    tmp_path: Path, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Datasets and settings that cannot work raise at once; the server hears nothing."""
    with serve_polar() as polar:
        with pytest.raises(error, match=message):
            run_evaluation(_args(tmp_path, **values), 0, None, config=_config(polar))
        template = {**TEMPLATE, "metadata": {"x": "{sample.nothing}"}}
        with pytest.raises(ConfigError, match="nothing"):
            run_evaluation(_args(tmp_path), 0, None, config=_config(polar, task_template=template))
        args = _args(tmp_path)
        Path(args.eval_datasets[0]["path"]).write_text(
            '{"input": "ok", "label": 1}\n{"input": " ", "label": 1}\n'
        )
        with pytest.raises(ConfigError, match="blank instruction"):
            run_evaluation(args, 0, None, config=_config(polar))
        assert polar.requests == []


def test_task_ids_are_its_own_and_the_limits_reach_the_task(tmp_path: Path) -> None:
    """The id ends as documented and differs in each evaluation; sampling limits are the dataset's."""
    args = _args(tmp_path, 2, eval_temperature=0.7)
    args.eval_datasets[0] |= {"temperature": 0.2, "max_response_len": 99, "eval_task_timeout": 45}
    second = {"name": "other set/1", "path": args.eval_datasets[0]["path"]}
    args.eval_datasets.append(second)
    with serve_polar() as polar:
        for _ in range(2):
            run_evaluation(args, 12, None, config=_config(polar, eval_agent_timeout=9.0))
        bodies = [json.loads(request.body) for request in polar.submissions]
    ids = [body["task_id"] for body in bodies]
    assert len(set(ids)) == 8
    ends = sorted({"-".join(task_id.split("-eval-")[1:]) for task_id in ids})
    assert [end for end in ends if end.startswith("shelf")] == ["shelf-12-0", "shelf-12-1"]
    assert all(end.startswith("other-set-1-") for end in ends if not end.startswith("shelf"))
    shelf, other = (next(b for b in bodies if name in b["task_id"]) for name in ("-shelf-", "-other-"))
    assert shelf["agent"]["settings"]["temperature"] == 0.2
    assert shelf["metadata"]["sampling_params"] == {"temperature": 0.2, "max_response_len": 99}
    assert (shelf["timeout_seconds"], other["timeout_seconds"]) == (45, 30)
    assert other["agent"]["settings"]["temperature"] == 0.7
    assert shelf["metadata"]["eval_dataset"] == "shelf"
    assert shelf["metadata"]["agent_timeout"] == 9.0
    assert shelf["metadata"]["policy_version"] == shelf["metadata"]["rollout_step"] == 12
    assert args.rollout_temperature == 1.0


def test_weights_that_change_during_the_evaluation_are_flagged(tmp_path: Path) -> None:
    """One version throughout, or more than one: said as a metric, and nothing is dropped for its age."""
    faults = [Fault("weight_version_jump", instruction="01", count=2)]
    profile = SessionProfile(reward=1.0, turns=2)
    with serve_polar(script=FaultScript(sessions=profile)) as polar:
        polar.set_weight_version(4)
        _, metrics = run_evaluation(_args(tmp_path, 2), 0, None, config=_config(polar))
        assert metrics["polar/eval/shelf/mixed_weights"] == 0
        polar.set_script(FaultScript(sessions=profile, faults=faults))
        data, metrics = run_evaluation(_args(tmp_path, 2), 0, None, config=_config(polar))
    assert metrics["polar/eval/shelf/mixed_weights"] == 1
    assert data["shelf"]["rewards"] == [1.0] * 4


def test_it_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    """As in a notebook: the caller's loop is neither needed nor touched."""

    async def notebook() -> dict[str, Any]:
        data, _ = run_evaluation(_args(tmp_path, 2), 0, None, config=_config(polar))
        return data

    with serve_polar() as polar:
        assert len(asyncio.run(notebook())["shelf"]["rewards"]) == 4


def test_a_port_that_is_taken_means_polling(tmp_path: Path) -> None:
    """The training worker holds the fixed callback port: the evaluation gets its results without one."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, serve_polar() as polar:
        config = _config(polar, callback_port=taken.getsockname()[1])
        data, metrics = run_evaluation(_args(tmp_path, 2), 0, None, config=config)
        assert polar.callbacks == []
    assert metrics["polar/eval/shelf/completed_rate"] == 1
    assert len(data["shelf"]["rewards"]) == 4


def test_an_interrupt_stops_it_and_cancels_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the caller within seconds; tasks on the server are cancelled where it can."""
    with serve_polar(FaultScript(sessions=SessionProfile(duration=600.0)), newer=True) as polar:
        waited = threading.Event.wait

        def wait(self: threading.Event, timeout: float | None = None) -> bool:
            if (
                timeout == 0.5
                and threading.current_thread() is threading.main_thread()
                and polar.running_sessions
            ):
                raise KeyboardInterrupt
            return waited(self, timeout)

        monkeypatch.setattr(threading.Event, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            run_evaluation(_args(tmp_path), 0, None, config=_config(polar, group_timeout=600.0))
        monkeypatch.setattr(threading.Event, "wait", waited)
        assert _threads() == Counter()
        assert set(polar.cancelled) == {task.task_id for task in polar.history}


def test_the_journal_gets_a_summary(tmp_path: Path) -> None:
    """Metrics, failed tasks by dataset and the first errors stand in the journal."""
    journal = Journal(tmp_path / "run")
    faults = [Fault("task_failed", instruction="00")]
    with serve_polar(script=FaultScript(faults=faults)) as polar:
        _, metrics = run_evaluation(_args(tmp_path, 2), 5, None, config=_config(polar), journal=journal)
    journal.close()
    (record,) = [r for r in read_journal(journal.path) if r["event"] == "evaluation_summary"]
    assert record["rollout_id"] == 5
    assert record["metrics"] == metrics
    assert record["failed_tasks"] == {"shelf": 1}
    assert "failed" in record["errors"][0]


def test_every_evaluation_metric_of_the_catalogue_is_emitted(tmp_path: Path) -> None:
    """The catalogue lists what an evaluation with successes and failures emits, no more and no less."""
    with serve_polar(script=FaultScript(faults=[Fault("session_error", instruction="00")])) as polar:
        _, metrics = run_evaluation(_args(tmp_path), 0, None, config=_config(polar))
    found = {metric.name for name in metrics if (metric := find_metric(name)) is not None}
    assert found == {metric.name for metric in CATALOGUE if metric.name.startswith("polar/eval/")}


@pytest.mark.parametrize("reward_key", [None, "score", "other"])
def test_rewards_are_readable_under_the_trainer_s_key(tmp_path: Path, reward_key: str | None) -> None:
    """With a key a mapping that has it, without one a number: never a dict where a number is expected."""
    with serve_polar(script=FaultScript(sessions=SessionProfile(reward=1.0))) as polar:
        args = _args(tmp_path, 2, reward_key=reward_key)
        data, _ = run_evaluation(args, 0, None, config=_config(polar))
    assert [sample.get_reward_value(args) for sample in data["shelf"]["samples"]] == [1.0] * 4


_INSIDE_SLIME = """
import importlib.abc, importlib.machinery, sys, types
from pathlib import Path
from unittest.mock import MagicMock

HEAVY = {"sglang", "megatron", "ray", "sglang_router", "pybase64", "pylatexenc", "wandb", "tensorboard"}

class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        def attribute(module, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module = type("Stub", (types.ModuleType,), {"__getattr__": attribute})(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Stubs())
sys.path[:0] = sys.argv[1:3]
import slime.ray.rollout as manager
from slime.utils.types import Sample
from slime_bridge.evaluation import run_evaluation
from tests.slime_bridge import test_evaluation as own

logged = {}
manager.logging_utils.log = lambda args, values, step_key: logged.update(values)
faults = [
    own.Fault("session_error", instruction="00"),
    own.Fault("no_token_ids", instruction="04"),
    own.Fault("task_failed", instruction="02"),
]
profile = own.SessionProfile(reward=own._by_prompt, separate_traces=True)
names = ("custom_eval_rollout_log_function_path", "log_reward_category", "sglang_speculative_algorithm")
flags = dict.fromkeys(("wandb_always_use_train_step", "use_wandb", "use_tensorboard"), False)
for key in ("score", None):
    with own.serve_polar(own.FaultScript(sessions=profile, faults=faults)) as polar:
        extra = {"reward_key": key, "advantage_estimator": "grpo", **dict.fromkeys(names), **flags}
        args = own._args(Path(sys.argv[3]), 5, 4, **extra)
        data, metrics = run_evaluation(args, 3, None, config=own._config(polar))
    assert all(isinstance(sample, Sample) for sample in data["shelf"]["samples"])
    manager._log_eval_rollout_data(3, args, data, dict(metrics))
    assert logged["eval/shelf"] == metrics["polar/eval/shelf/reward_mean"] == 0.2
    assert abs(logged["eval/shelf-pass@4"] - metrics["polar/eval/shelf/pass@4"]) < 1e-12
    assert logged["eval/shelf/zero_std/count_1.0"] == 1
    assert logged["eval/shelf/zero_std/count_0.0"] == 4
print("accepted")
"""


@pytest.mark.slime
def test_slime_s_own_logger_and_pass_rate_accept_the_result(tmp_path: Path) -> None:
    """Real Slime computes its evaluation metrics and pass rate from our blocks, failures included."""
    slime = os.environ.get("SLIME_DIR")
    if not slime:
        pytest.skip("SLIME_DIR names no checkout")
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", _INSIDE_SLIME, slime, root, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=55)
    assert done.stdout.endswith("accepted\n"), done.stderr[-3000:]
