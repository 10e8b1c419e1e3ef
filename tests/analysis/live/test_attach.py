"""Taking a run up again by its name, after its process ended in one way or another."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import live
from analysis.errors import LiveError, RunBusyError, RunNotFoundError
from analysis.lab.polar_server.testing import Fault, FaultScript, PolarHandle, SessionProfile, serve_polar
from analysis.lab.processes import ChildProcess
from analysis.live.connecting import connect
from analysis.live.registry import LiveFolder
from analysis.live.submission_handle import SubmissionHandle
from slime_bridge.errors import SubmitRejectedError
from slime_bridge.journal import audit, read_journal
from tests.analysis.live.support import HANGING, KEYS, QUICK, lab_at

OTHER_KERNEL = """
import sys, time
from analysis.live.connecting import connect
url, runs, mode, prompts = sys.argv[1:]
lab = connect(url, runs_dir=runs, config={"polar_task_template": {"agent": {"harness": "lab"}}})
handle = lab.submit(list(prompts), 2, name="mine", max_in_flight=4)
while handle.progress.submitted < 4:
    time.sleep(0.01)
handle._submission.recorder.flush()
print("submitted", flush=True)
if mode == "exit":
    sys.exit(0)
time.sleep(60)
"""


def other_kernel(polar: PolarHandle, runs: Path, mode: str, prompts: str = "abc") -> ChildProcess:
    """A process that has submitted and runs on, or is about to exit."""
    argv = [sys.executable, "-c", OTHER_KERNEL, polar.url, str(runs), mode, prompts]
    return ChildProcess(argv, name="kernel", log_path=runs.parent / "kernel.log")


def attach(polar: PolarHandle, runs: Path, **options: Any) -> SubmissionHandle:
    handle = live.attach("mine", runs_dir=runs, polar_url=polar.url, config=KEYS, **options)
    assert isinstance(handle, SubmissionHandle)
    return handle


@pytest.fixture
def killed_kernel(tmp_path: Path) -> Any:
    """A server with the tasks of a kernel that was killed: two groups under way, one never submitted."""
    with serve_polar(HANGING, newer=True) as polar:
        with other_kernel(polar, tmp_path / "runs", "wait") as child:
            polar.wait_until(lambda: "submitted" in child.log_tail(), timeout=40)
        yield polar, tmp_path / "runs"


def test_results_of_a_killed_kernel_are_collected(tmp_path: Path) -> None:
    """What the server finished meanwhile is there without a second submit; the rest is told."""
    script = FaultScript(seed=1, sessions=SessionProfile(duration=1.5))
    with serve_polar(script, newer=True) as polar:
        with other_kernel(polar, tmp_path / "runs", "wait", "ab") as child:
            polar.wait_until(lambda: "submitted" in child.log_tail(), timeout=40)
        result = attach(polar, tmp_path / "runs").result(40)
        assert result.groups == {"accepted": 2}
        assert result.sessions == {"COMPLETED": 4}
        assert polar.submits == 2
        assert result.lost == ()
        assert sorted(result.run.groups().query("accepted")["group_index"]) == [0, 1]
        assert len(result.run.sessions().query("status == 'COMPLETED'")) == 4


def test_what_the_server_has_forgotten_is_listed(killed_kernel: Any) -> None:
    """And with `resubmit` it is run again, with what was never submitted."""
    polar, runs = killed_kernel
    polar.forget_all()
    result = attach(polar, runs).result(40)
    assert result.lost == (0, 1)
    assert result.groups == {"given up": 2, "not submitted": 1}
    assert "lost by the server: prompts 0, 1" in repr(result)


def test_resubmitting_finishes_the_plan(killed_kernel: Any) -> None:
    """Every prompt has its end, each counted once."""
    polar, runs = killed_kernel
    polar.forget_all()
    polar.set_script(QUICK)
    result = attach(polar, runs, resubmit=True).result(40)
    assert result.groups == {"accepted": 3}
    assert result.state == "finished"
    assert sorted(result.run.groups().query("accepted")["group_index"]) == [0, 1, 2]


def test_what_was_taken_up_can_be_cancelled(killed_kernel: Any) -> None:
    """Tasks of the killed kernel end on the server."""
    polar, runs = killed_kernel
    assert polar.running_sessions == 4
    handle = attach(polar, runs)
    polar.wait_until(lambda: handle.progress.groups.get("running") == 2)
    handle.cancel()
    assert handle.result(20).state == "cancelled"
    polar.wait_until(lambda: polar.running_sessions == 0)


def test_named_work_outlives_its_process(tmp_path: Path) -> None:
    """A process that ends by itself leaves named tasks running on servers that are not its own."""
    with serve_polar(HANGING, newer=True) as polar:
        with other_kernel(polar, tmp_path / "runs", "exit") as child:
            assert child.wait(40) == 0, child.log_tail()
        assert LiveFolder.find(tmp_path / "runs", "mine").read().state == "detached"
        assert polar.cancelled == []
        assert polar.running_sessions == 4
        attach(polar, tmp_path / "runs").close()
        polar.wait_until(lambda: polar.running_sessions == 0)


def test_detached_and_taken_up_in_one_kernel(tmp_path: Path) -> None:
    """`detach` leaves the tasks alone; `attach` on the same connection goes on with them."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        first = lab.submit("a", 2, name="mine")
        polar.wait_until(lambda: polar.running_sessions == 2 and first.progress.submitted == 2)
        assert lab.attach("mine") is first
        first.detach()
        assert first.result(20).state == "detached"
        assert audit(read_journal(first.folder / "polar")) == []
        assert polar.running_sessions == 2
        second = lab.attach("mine")
        assert second is not first
        polar.wait_until(lambda: second.progress.under_way == 2)
        assert second.progress.groups == {"running": 1}
        assert second.progress.submitted == 2
        assert polar.submits == 1


def test_a_run_that_somebody_drives_is_not_taken_up(tmp_path: Path) -> None:
    """Two collectors of one run would book everything twice."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        lab.submit("a", 2, name="mine")
        other = connect(polar.url, runs_dir=tmp_path, config=KEYS)
        try:
            with pytest.raises(RunBusyError):
                other.attach("mine")
        finally:
            other.close()


def test_a_finished_run_is_there_at_once(tmp_path: Path) -> None:
    """With its numbers and its results; nothing is asked of the server, and nothing is written."""
    with lab_at(tmp_path) as (lab, polar):
        first = lab.submit(["a", "b"], 2, name="mine")
        before = first.result(20)
        submits, journal = polar.submits, sorted((first.folder / "polar").iterdir())
        handle = lab.attach("mine")
        assert (handle.state, handle.done) == ("finished", True)
        assert "finished" in handle.text()
        after = handle.result(0.0)
        assert after.seconds == pytest.approx(before.seconds, abs=0.1)
        assert sorted((first.folder / "polar").iterdir()) == journal
        assert after.groups == before.groups
        assert after.reward_mean == before.reward_mean
        assert polar.submits == submits
        assert live.runs(tmp_path)["state"].tolist() == ["finished"]


@pytest.mark.parametrize("embedded", [False, True], ids=["dead server", "dead stack"])
def test_a_finished_run_needs_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedded: bool
) -> None:
    monkeypatch.delenv("POLAR_ROLLOUT_URL", raising=False)
    with lab_at(tmp_path) as (lab, _):
        before = lab.submit(["a", "b"], 2, name="mine").result(20)
    folder = LiveFolder.find(tmp_path, "mine")
    if embedded:
        folder.write(replace(folder.read(), server=""))
    after = live.attach("mine", runs_dir=tmp_path).result(0.0)
    assert (after.state, after.groups, after.reward_mean) == ("finished", before.groups, before.reward_mean)
    assert len(after.run.sessions()) == 4


def test_a_run_that_was_ended_stays_ended(tmp_path: Path) -> None:
    """As what it was, until somebody asks for the rest."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        handle = lab.submit(["a", "b"], 2, name="mine", max_in_flight=2)
        polar.wait_until(lambda: polar.running_sessions == 2 and handle.progress.submitted == 2)
        handle.cancel()
        handle.result(20)
        ended = live.runs(tmp_path)["ended"][0]
        again = lab.attach("mine")
        assert again.done
        assert again.result(0.0).state == "cancelled"
        assert live.runs(tmp_path)[["state", "ended"]].values.tolist() == [["cancelled", ended]]
        polar.set_script(QUICK)
        assert lab.attach("mine", resubmit=True).result(20).groups == {"abandoned": 1, "accepted": 1}


def test_a_run_that_had_failed_says_so_again(tmp_path: Path) -> None:
    """With the reason of then, and what can be done."""
    refusing = FaultScript(faults=[Fault("response_status", on="submit", status=422)])
    with lab_at(tmp_path, refusing) as (lab, _):
        with pytest.raises(SubmitRejectedError):
            lab.submit("a", 2, name="mine").result(20)
        again = lab.attach("mine")
        assert again.state == "failed"
        with pytest.raises(LiveError, match=r"SubmitRejectedError: .*resubmit=True"):
            again.result(0.0)
        assert live.runs(tmp_path)["state"].tolist() == ["failed"]


def test_a_result_that_was_not_judged_any_more_is_not_asked_for_again(tmp_path: Path) -> None:
    """The earlier process had written it down; the server may have forgotten it."""
    with lab_at(tmp_path) as (lab, polar):
        handle = lab.submit("a", 2, name="mine")
        handle.result(20)
        journal = handle.folder / "polar" / "journal.jsonl"
        lines = journal.read_text().splitlines(keepends=True)
        cut = next(place for place, line in enumerate(lines) if '"task_result"' in line)
        journal.write_text("".join(lines[:cut]) + '{"v":1,"torn')
        polar.forget_all()
        assert lab.attach("mine").result(20).groups["accepted"] == 1


def test_unknown_names_and_dead_stacks_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error says what to do."""
    monkeypatch.delenv("POLAR_ROLLOUT_URL", raising=False)
    with pytest.raises(RunNotFoundError, match="there are: none"):
        live.attach("mine", runs_dir=tmp_path)
    LiveFolder.new(tmp_path, "submission", "mine", server="").release()
    with pytest.raises(LiveError, match=r"live\.connect\(\)\.attach\('mine', resubmit=True\)"):
        live.attach("mine", runs_dir=tmp_path)
