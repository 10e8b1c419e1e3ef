"""Tracking: only an active run is used, nothing it does can reach the trainer, no call owns the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime_bridge.metrics import CATALOGUE
from slime_bridge.tracking import NullTracker, WandbTracker, longest_session, step_axes

ROOT = Path(__file__).resolve().parents[2]


def _sample(index: int, length: int, *, group: int = 0, placeholder: bool = False, **polar: Any) -> Any:
    metadata = {"polar": {"session_id": f"sk-polar-{index}", "placeholder": placeholder, **polar}}
    return SimpleNamespace(
        group_index=group,
        index=index,
        group_id=index,
        prompt=[{"role": "user", "content": "do it with api_key=hunter2hunter2"}],
        response=f"done {index}",
        response_length=length,
        loss_mask=[1] * length,
        remove_sample=False,
        reward={"score": 1.0},
        status=SimpleNamespace(value="completed"),
        metadata=metadata,
    )


class _Run:
    """A run that records its calls."""

    def __init__(self, fail: Exception | None = None, block: threading.Event | None = None) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self._fail = fail
        self._block = block

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            self.calls.append((name, args, kwargs))
            if self._block is not None:
                assert self._block.wait(30)
            if self._fail is not None:
                raise self._fail

        return call


class _Artifact:
    def __init__(self, name: str, type: str, metadata: dict[str, Any]) -> None:
        self.name, self.type, self.metadata = name, type, metadata
        self.content = b""

    def new_file(self, name: str, mode: str) -> Any:
        artifact = self

        class File(BytesIO):
            def close(self) -> None:
                artifact.content = self.getvalue()
                super().close()

        return File()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> _Run:
    """Make a fake W&B with an active run the one that this process has imported."""
    return _activate(monkeypatch, _Run())


def _activate(monkeypatch: pytest.MonkeyPatch, run: _Run) -> _Run:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run, Artifact=_Artifact))
    return run


def test_every_fifth_rollout_uploads_the_longest_session(run: _Run) -> None:
    """The session with the most response tokens over all its traces goes out, with its facts."""
    tracker = WandbTracker()
    samples = [_sample(1, 7), _sample(2, 5), _sample(2, 4, trace_index=1), _sample(3, 90, placeholder=True)]
    for rollout_id in range(11):
        tracker.rollout_done(rollout_id, samples)
    artifacts = [args[0] for name, args, _ in run.calls if name == "log_artifact"]
    assert [artifact.name for artifact in artifacts] == [f"longest_trace_r{n}" for n in (0, 5, 10)]
    assert {artifact.type for artifact in artifacts} == {"rollout-trace"}
    content = json.loads(artifacts[1].content)
    assert content["rollout_id"] == 5
    assert content["response_tokens"] == 9
    assert [trace["response"] for trace in content["traces"]] == ["done 2", "done 2"]
    assert artifacts[1].metadata["response_tokens"] == 9


def test_no_secret_leaves(run: _Run) -> None:
    """The session id, which is the agent's key, is hashed, and credentials in texts are masked."""
    WandbTracker().rollout_done(0, [_sample(1, 3)])
    (artifact,) = [args[0] for name, args, _ in run.calls if name == "log_artifact"]
    assert b"sk-polar" not in artifact.content
    assert b"hunter2" not in artifact.content
    assert b"do it with" in artifact.content


def test_the_run_is_never_owned_and_no_step_is_passed(run: _Run) -> None:
    """No init, login, finish or log, and no explicit step in any call."""
    tracker = WandbTracker()
    for rollout_id in range(6):
        tracker.rollout_done(rollout_id, [_sample(1, 3)])
    assert {name for name, _, _ in run.calls} == {"define_metric", "log_artifact"}
    assert not [kwargs for _, _, kwargs in run.calls if "step" in kwargs]
    names = [args[0] for name, args, _ in run.calls if name == "define_metric"]
    assert len(names) == len(set(names)) == len(step_axes())


def test_a_run_that_raises_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever W&B raises, the rollout goes on, and the log says it once."""
    run = _activate(monkeypatch, _Run(fail=RuntimeError("no quota")))
    tracker = WandbTracker()
    for rollout_id in range(0, 30, 5):
        tracker.rollout_done(rollout_id, [_sample(1, 3)])
    assert [name for name, _, _ in run.calls].count("log_artifact") == 6
    assert [record.message for record in caplog.records] == ["W&B refused: RuntimeError: no quota"]


def test_a_run_that_blocks_delays_once_and_briefly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While an upload hangs, later rollouts neither wait nor pile up threads."""
    release = threading.Event()
    _activate(monkeypatch, _Run(block=release))
    tracker = WandbTracker(timeout=0.1)
    before = threading.active_count()
    for rollout_id in range(0, 100, 5):
        tracker.rollout_done(rollout_id, [_sample(1, 3)])
    assert threading.active_count() - before <= 1
    assert len(caplog.records) == 1
    release.set()
    assert tracker.wait(10)


def test_a_broken_sample_is_survived(run: _Run, caplog: pytest.LogCaptureFixture) -> None:
    """A sample without the expected fields costs the upload, not the rollout."""
    WandbTracker().rollout_done(0, [SimpleNamespace(response_length=3)])
    assert len(caplog.records) == 1


def test_without_a_run_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No W&B imported, imported without a run, and the null tracker: all silent, and W&B stays unimported."""
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    WandbTracker().rollout_done(0, [_sample(1, 3)])
    assert "wandb" not in sys.modules
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    WandbTracker().rollout_done(0, [_sample(1, 3)])
    NullTracker().rollout_done(0, [_sample(1, 3)])


@pytest.mark.parametrize("samples", [[], [_sample(1, 0)], [_sample(1, 5, placeholder=True)]])
def test_nothing_to_show_uploads_nothing(run: _Run, samples: list[Any]) -> None:
    """A rollout without a response has no longest session."""
    assert longest_session(samples) == []
    WandbTracker().rollout_done(0, samples)
    assert "log_artifact" not in [name for name, _, _ in run.calls]


def test_every_metric_has_one_axis() -> None:
    """Each `polar/` metric is matched by a name or prefix, evaluation by the evaluation's step only."""
    axes = step_axes()
    assert all("*" not in name[:-1] for name in axes)
    for metric in CATALOGUE:
        if not metric.name.startswith("polar/"):
            continue
        name = metric.name.replace("{reason}", "odd").replace("{dataset}", "d").replace("{k}", "2")
        matches = {a for p, a in axes.items() if name == p or (p.endswith("*") and name.startswith(p[:-1]))}
        assert matches == {"eval/step" if name.startswith("polar/eval/") else "rollout/step"}


_OFFLINE = """
import os, signal, sys, time
import wandb
from types import SimpleNamespace
sys.path.insert(0, sys.argv[2])
from tests.slime_bridge.test_tracking import _sample
from slime_bridge.tracking import WandbTracker
run = wandb.init(project="p", dir=sys.argv[1], mode="offline", settings=wandb.Settings(silent=True))
tracker = WandbTracker(timeout=20.0)
for rollout_id in range(6):
    tracker.rollout_done(rollout_id, [_sample(1, 3)])
    run.log({"polar/reward_mean": rollout_id / 10, "rollout/step": rollout_id})
assert wandb.run is run
if sys.argv[3] == "term":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["return", "term"])
def test_a_real_offline_run_keeps_its_last_step(tmp_path: Path, ending: str) -> None:
    """With real W&B offline, artifact and last step are in the run's file, at a normal end and at SIGTERM."""
    pytest.importorskip("wandb")
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {"WANDB_MODE": "offline"}
    env |= {"HOME": str(tmp_path), "WANDB_CACHE_DIR": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _OFFLINE, str(tmp_path), str(ROOT), ending],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == (3 if ending == "term" else 0), done.stderr
    assert "Traceback" not in done.stderr
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"longest_trace_r5" in content
    assert b"polar/scheduler/*" in content
    assert content.count(b"polar/reward_mean") >= 7
    assert b"0.5" in content
