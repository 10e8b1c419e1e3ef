"""The embedded stack behind a connection: a real engine, the real router, real sessions."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from analysis import live
from tests.analysis.live.support import live_threads

pytestmark = pytest.mark.lab


@pytest.mark.timeout(240)
def test_submit_and_train_on_the_embedded_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing to rewards of a real policy, and back to nothing."""
    for name in ("POLAR_ROLLOUT_URL", "SGLANG_ROUTER_URL"):
        monkeypatch.delenv(name, raising=False)
    before = set(psutil.Process().children(recursive=True))
    with live.connect(runs_dir=tmp_path, quiet=True, warm_start_steps=2) as lab:
        assert lab.embedded
        assert lab.prompts(3, seed=1) == lab.prompts(3, seed=1)
        assert lab.prompts(3, seed=1) != lab.prompts(3, seed=2)
        preflight = lab.preflight(probe=False)
        assert preflight.ok, repr(preflight)
        result = lab.submit(lab.prompts(2), 2, name="mine").result(100)
        assert result.state == "finished"
        assert sum(result.sessions.values()) == 4
        run = result.run
        tokens = run.tokens(run.traces()["session_id"][0], text=True)
        assert tokens["text"].notna().all()
        assert set(run.sessions()["weight_version_newest"].dropna()) == {"0"}
    assert set(psutil.Process().children(recursive=True)) <= before
    assert live_threads() == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_estimators_train_side_by_side(tmp_path: Path) -> None:
    """Both learn from the same questions; what comes out is two runs in one frame."""
    with live.connect(runs_dir=tmp_path, embedded=True, quiet=True) as lab:
        both = lab.train(["grpo", "rloo"], rollouts=2, rollout_batch_size=4, eval_prompts=8)
        results = both.result(300)
        assert [result.state for result in results] == ["finished"] * 2
        assert all(len(result.reward) == 2 and len(result.held_out) == 2 for result in results)
        run = both.run
        assert run.names == ["grpo", "rloo"]
        first = run.groups().query("rollout_id == 0").groupby("run")["prompt_sha256"].apply(set)
        assert first["grpo"] & first["rloo"]
        handle = lab.train("rloo", rollouts=8)
        while not handle.progress.submitted:
            assert not handle.wait(0.1)
        handle.cancel()
        assert handle.result(60).state == "cancelled"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seconds", [0.1, 1.0, 3.0, 6.0, 9.0])
def test_an_interrupted_start_leaves_no_process(tmp_path: Path, seconds: float) -> None:
    """Whatever the stack was doing when the cell was interrupted."""
    before = set(psutil.Process().children(recursive=True))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(KeyboardInterrupt):
            connect_and_wait(tmp_path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, handler)
    assert set(psutil.Process().children(recursive=True)) <= before
    assert live_threads() == []


def connect_and_wait(runs: Path) -> None:
    """Start the stack, and wait for the interrupt if it comes later than that."""
    live.connect(runs_dir=runs, embedded=True, quiet=True).close()
    signal.pause()
