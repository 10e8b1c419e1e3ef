"""Submissions against a Polar-compatible server over real sockets: results, bounds, ends, troubles."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import RunNameError
from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile
from analysis.live import services
from analysis.live.registry import LiveFolder
from slime_bridge.errors import ConfigError, PolarOutageError, SubmitRejectedError, TemplateError
from slime_bridge.group_task import TaskBuilder
from slime_bridge.journal import audit, read_journal
from tests.analysis.live.support import HANGING, KEYS, QUICK, lab_at, live_threads


def script(*faults: Fault, **profile: Any) -> FaultScript:
    return FaultScript(seed=3, sessions=SessionProfile(**profile), faults=list(faults))


def events(folder: Path) -> list[str]:
    return [record["event"] for record in read_journal(folder / "polar")]


def test_results_are_a_run(tmp_path: Path) -> None:
    """Groups, sessions, rewards, tokens and messages, from the journal and the results as they came."""
    with lab_at(tmp_path, script(Fault("session_error", tasks=[1], sessions=[0]), reward=0.5)) as (
        lab,
        polar,
    ):
        result = lab.submit(["one", "two", "three"], 2).result(30)
        assert result.state == "finished"
        assert result.groups == {"accepted": 3}
        assert result.sessions == {"COMPLETED": 5, "ERROR": 1}
        assert result.reward_mean == 0.5
        run = result.run
        groups = run.groups()
        assert groups["accepted"].tolist() == [True] * 3
        assert groups["group_index"].tolist() == [0, 1, 2]
        sessions = run.sessions()
        assert sessions["status"].value_counts().to_dict() == {"COMPLETED": 5, "ERROR": 1}
        assert sessions["reward"].dropna().tolist() == [0.5] * 5
        assert set(sessions["session_id"]) == {
            session["session_id"]
            for task in polar.history
            for session in json.loads(task.status_body())["results"]
        }
        assert len(run.traces()) >= 5
        assert len(run.tokens(sessions["session_id"][0])) > 0
        assert run.problems.empty
        assert result.tokens == int(run.traces()["response_tokens"].sum())


def test_the_journal_keeps_its_promises(tmp_path: Path) -> None:
    """Conservation, as for a training: the bridge's own auditor finds nothing."""
    with lab_at(tmp_path, script(Fault("session_error", tasks=[0]))) as (lab, _):
        keys = {"min_complete_accept_fraction": 0.9}
        handle = lab.submit(["a", "b"], 2, max_sessions=4, **keys)
        assert handle.result(30).groups == {"rejected": 1, "accepted": 1}
        assert handle.progress.rejections
        assert audit(read_journal(handle.folder / "polar")) == []
        assert events(handle.folder)[-1] == "journal_closed"
        assert not handle.run.groups().query("not accepted").empty


def test_nothing_blocks_and_the_view_moves(tmp_path: Path) -> None:
    """The handle is there while sessions hang, and shows where they are."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        handle = lab.submit(["a", "b"], 2, name="mine")
        polar.wait_until(lambda: polar.running_sessions == 4)
        polar.wait_until(lambda: handle.progress.under_way == 4)
        assert not handle.done
        assert handle.state == "running"
        assert not handle.wait(0.0)
        with pytest.raises(TimeoutError, match="mine has not ended"):
            handle.result(0.0)
        assert handle.progress.oldest is not None
        assert "oldest task" in repr(handle)
        bundle = handle._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html"}  # no kernel here, so no widget
        assert lab.handles == {"mine": handle}
        assert "mine" in repr(lab)


def test_stages_come_from_the_event_stream(tmp_path: Path) -> None:
    """What the server publishes is where sessions are shown to be."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        polar_hub = polar.server.hub
        handle = lab.submit("a", 2)
        polar.wait_until(lambda: polar.running_sessions == 2 and polar_hub.subscribers > 0)
        task_id = polar.history[0].request.task_id
        for session, status in (("s1", "RUNNING"), ("s2", "EVALUATING")):
            polar.run(
                lambda s=session, w=status: polar_hub.publish(
                    "session.state_changed", task_id=task_id, session_id=s, status=w
                )
            )
        polar.wait_until(lambda: {"RUNNING", "EVALUATING"} & set(handle.progress.sessions))


def test_without_an_event_stream_the_server_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that hides `/events`: sessions that ended are seen before their task has."""
    monkeypatch.setattr(services, "_ASK_SECONDS", 0.05)
    hidden = script(Fault("response_status", on="events", status=404), Fault("session_endless", sessions=[1]))
    with lab_at(tmp_path, hidden) as (lab, polar):
        handle = lab.submit("a", 2)
        polar.wait_until(lambda: handle.progress.sessions == {"SUBMITTED": 1, "COMPLETED": 1})
        assert not handle.done


def test_cancelling_ends_the_tasks_on_the_server(tmp_path: Path) -> None:
    """At once, and what is done is kept."""
    hanging = script(Fault("session_endless", tasks=[1, 2]))
    with lab_at(tmp_path, hanging) as (lab, polar):
        handle = lab.submit(["a", "b", "c"], 2)
        polar.wait_until(lambda: handle.progress.groups.get("accepted") == 1 and polar.submits == 3)
        handle.cancel()
        handle.cancel()
        result = handle.result(20)
        assert result.state == "cancelled"
        assert result.groups == {"accepted": 1, "abandoned": 2}
        assert len(result.run.groups().query("accepted")) == 1
        polar.wait_until(lambda: polar.running_sessions == 0)
        assert len(polar.cancelled) == 2
        assert LiveFolder.find(tmp_path, handle.name).read().state == "cancelled"


def test_cancelled_before_it_began(tmp_path: Path) -> None:
    """Whatever it had done by then, it ends as cancelled and leaves nothing."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        handle = lab.submit("a", 2)
        handle.cancel()
        assert handle.result(20).state == "cancelled"
        polar.wait_until(lambda: polar.running_sessions == 0)


def test_time_is_up(tmp_path: Path) -> None:
    """What is under way then is cancelled on the server, and the result says why it ended."""
    with lab_at(tmp_path, script(Fault("session_endless", tasks=[1]))) as (lab, polar):
        result = lab.submit(["a", "b"], 2, max_seconds=1.5).result(30)
        assert (result.state, result.reason) == ("budget", "max_seconds reached: 1.5 s")
        assert "max_seconds reached" in repr(result)
        assert "max_seconds reached" in result._repr_html_()
        polar.wait_until(lambda: polar.running_sessions == 0)
        assert result.groups["abandoned"] >= 1


def test_tokens_and_sessions_are_bounded(tmp_path: Path) -> None:
    """Groups are not begun beyond a bound; the work of the others is kept."""
    with lab_at(tmp_path) as (lab, polar):
        result = lab.submit(["a"] * 9, 2, max_sessions=5).result(30)
        assert (result.state, result.reason) == ("budget", "max_sessions reached: 4 of 5 submitted")
        assert result.groups == {"accepted": 2, "not submitted": 7}
        assert polar.submits == 2
        result = lab.submit(["a"] * 30, 2, max_tokens=20, max_in_flight=2).result(30)
        assert result.state == "budget"
        assert result.reason.startswith("max_tokens reached")
        assert 20 <= result.tokens < 200
        assert result.groups["not submitted"] > 0


@pytest.mark.parametrize("change", [{"max_seconds": 0}, {"n_samples": 0}, {"max_tokens": -1}])
def test_senseless_bounds_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """Before anything is sent or written."""
    with lab_at(tmp_path) as (lab, polar):
        with pytest.raises(ValueError, match=next(iter(change))):
            lab.submit("a", **change)
        assert polar.submits == 0
        assert list(tmp_path.iterdir()) == []


def test_requests_that_cannot_be_made_raise_in_the_cell(tmp_path: Path) -> None:
    """A template that does not fit the prompts, or a key that has no such value; no folder is left."""
    with lab_at(tmp_path) as (lab, polar):
        template = {"agent": {"harness": "lab"}, "metadata": {"x": "{sample.metadata.missing}"}}
        with pytest.raises(TemplateError, match="missing"):
            lab.submit("a", task_template=template)
        with pytest.raises(ConfigError, match="polar_scoring_mode"):
            lab.submit("a", scoring_mode="no such")
        assert polar.submits == 0
        assert list(tmp_path.iterdir()) == []


def test_a_server_that_refuses_the_first_request_fails_the_submission(tmp_path: Path) -> None:
    """The typed error of the bridge comes out of `result`; the view says it too."""
    refusing = script(Fault("response_status", on="submit", status=422))
    with lab_at(tmp_path, refusing) as (lab, _):
        handle = lab.submit(["a"] * 20, 2)
        with pytest.raises(SubmitRejectedError):
            handle.result(30)
        assert handle.state == "failed"
        assert "SubmitRejectedError" in repr(handle)
        assert LiveFolder.find(tmp_path, handle.name).read().state == "failed"


def test_a_server_that_goes_away_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    """After `polar_outage_timeout`, with the bridge's own error."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        handle = lab.submit("a", 2, outage_timeout=0.5)
        polar.wait_until(lambda: polar.running_sessions == 2)
        polar.stop()
        with pytest.raises(PolarOutageError, match="stayed away"):
            handle.result(50)
        polar.restart()


def test_lost_callbacks_and_no_listener_change_nothing(tmp_path: Path) -> None:
    """Polling is the truth."""
    with lab_at(tmp_path, script(Fault("callback_lost"))) as (lab, _):
        assert lab.submit(["a", "b"], 2).result(30).groups == {"accepted": 2}
        lab._backend.callback_host = None
        handle = lab.submit("c", 2)
        assert handle.result(30).groups == {"accepted": 1}


def test_groups_scored_one_by_one(tmp_path: Path) -> None:
    """Each session is a task of its own, and still one group."""
    with lab_at(tmp_path) as (lab, polar):
        result = lab.submit("a", 3, scoring_mode="individual").result(30)
        assert polar.submits == 3
        assert result.groups == {"accepted": 1}
        assert result.sessions == {"COMPLETED": 3}
        assert len(result.run.sessions()) == 3


def test_each_prompt_is_checked_once_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tasks it will be: with ten thousand prompts that is the difference of a coffee."""
    rendered: list[str] = []
    request = TaskBuilder.request

    def counted(self: TaskBuilder, part: Any, **where: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            rendered.append(part[0].prompt)
        return request(self, part, **where)

    monkeypatch.setattr(TaskBuilder, "request", counted)
    with lab_at(tmp_path, HANGING) as (lab, _):
        lab.submit(["a", "b", "c"], 8, scoring_mode="individual")
        assert rendered == ["a", "b", "c"]
        with pytest.raises(TemplateError):
            lab.submit(["a", " "], 8)


def test_inside_a_running_loop(tmp_path: Path) -> None:
    """As in a notebook: awaited, waited for without await, several at a time, and cancelled awaiting."""

    async def cell() -> None:
        with lab_at(tmp_path) as (lab, polar):
            first, second = await asyncio.gather(lab.submit("a", 2), lab.submit("b", 2))
            assert first.state == second.state == "finished"
            assert lab.submit("c", 2).result(20).state == "finished"
            assert (await lab.submit("d", 2)).state == "finished"
            polar.set_script(HANGING)
            handle = lab.submit("e", 2)
            waiting = asyncio.ensure_future(handle._awaited())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not handle.done

    asyncio.run(cell())
    assert live_threads() == []


def test_twice_in_one_kernel(tmp_path: Path) -> None:
    """Two connections at a time, and one after the other, are strangers to each other."""
    with lab_at(tmp_path / "a") as (one, _), lab_at(tmp_path / "b") as (two, polar):
        handles = [one.submit("a", 2, name="same"), two.submit("a", 2, name="same")]
        assert [handle.result(20).state for handle in handles] == ["finished"] * 2
        one.close()
        assert two.submit("b", 2).result(20).state == "finished"
        assert polar.submits == 2
    assert live_threads() == []


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    """The second submission of a name is refused, and the first goes on."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        handle = lab.submit("a", 2, name="mine")
        with pytest.raises(RunNameError, match="mine"):
            lab.submit("b", 2, name="mine")
        assert not handle.done
        polar.wait_until(lambda: polar.submits == 1)


def test_closing_the_connection_ends_everything(tmp_path: Path) -> None:
    """Handles end, sessions end, threads end."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        handles = [lab.submit("a", 2), lab.submit("b", 2, name="named")]
        polar.wait_until(lambda: polar.running_sessions == 4)
        lab.close()
        assert [handle.state for handle in handles] == ["cancelled"] * 2
        polar.wait_until(lambda: polar.running_sessions == 0)
        assert live_threads() == []


def test_hostile_prompts_travel_and_are_shown_as_text(tmp_path: Path) -> None:
    """Whatever a prompt holds, it is a prompt."""
    hostile = [
        "<script>alert(1)</script>",
        "\u202eright to left",
        "{sample.prompt}",
        "emoji \U0001f600",
        " a\x00b",
    ]
    with lab_at(tmp_path) as (lab, polar):
        handle = lab.submit(hostile, 1)
        assert handle.result(30).groups == {"accepted": 5}
        sent = {json.loads(request.body)["instruction"] for request in polar.submissions}
        assert sent == {text.strip() if text.strip() in sent else text for text in hostile}
        assert "<script>" not in handle._repr_html_()


def test_a_waiting_script_hears_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines on standard error where nobody shows a widget."""
    with lab_at(tmp_path) as (lab, _):
        handle = lab.submit("a", 2, name="mine")
        assert handle.wait(20, progress=True)
        handle.show()
        out, err = capsys.readouterr()
        assert "mine: finished" in out
        assert err.startswith("mine: ") or err == ""


def test_settings_of_a_connection_are_overridden(tmp_path: Path) -> None:
    """Keys of `submit`, with or without their prefix, stand over those of the connection."""
    with lab_at(tmp_path, QUICK, config={**KEYS, "polar_task_id_template": "from-connect"}) as (lab, polar):
        lab.submit("a", 1, task_id_template="from-submit").result(20)
        lab.submit("a", 1, polar_task_id_template="prefixed").result(20)
        ids = [task.request.task_id.split("-")[0:2] for task in polar.history]
        assert ids[0] == ["from", "submit"]
        assert ids[1][0] == "prefixed"
