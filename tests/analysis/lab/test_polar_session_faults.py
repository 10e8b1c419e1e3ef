"""Session faults on the wire: each breaks exactly what its name says, and good siblings stay good."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from analysis.lab.polar_server.fault_kinds import kinds_of
from analysis.lab.polar_server.models import SessionResult
from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from tests.analysis.lab.polar_peers import callback_sink, get, submit

Check = Callable[[dict[str, Any], dict[str, Any]], Any]


def _trace(result: dict[str, Any]) -> dict[str, Any]:
    return result["trajectory"]["traces"][0]


def _traces_with(**expected: Any) -> Check:
    return lambda bad, good: all(_trace(bad)[key] == value for key, value in expected.items())


def _last_of(key: str, value: Any) -> Check:
    return lambda bad, good: _trace(bad)[key][-1] == value and _trace(bad)[key][:-1] == _trace(good)[key][:-1]


def _shorter(key: str) -> Check:
    return lambda bad, good: _trace(bad)[key] == _trace(good)[key][:-1]


def _failed(status: str, error: str) -> Check:
    def check(bad: dict[str, Any], _: dict[str, Any]) -> bool:
        trajectory = bad["trajectory"]
        return (
            (bad["status"], trajectory["status"], bad["error"], trajectory["error"])
            == (status, status, error, error)
            and trajectory["traces"] == []
            and trajectory["metadata"]["record_count"] == 0
        )

    return check


def _early(bad: dict[str, Any], _: dict[str, Any]) -> bool:
    notes = (bad["metadata"], bad["trajectory"]["metadata"])
    return bad["status"] == "ERROR" and all(note["early_stop_cancelled"] for note in notes)


def _jump(bad: dict[str, Any], _: dict[str, Any]) -> bool:
    turns = _trace(bad)["metadata"]["completion_metadata"]
    versions = [turn["weight_version"] for turn in turns]
    return versions == ["3", "5"] and [turn["policy_version"] for turn in turns] == [3, 5]


def _overlong(bad: dict[str, Any], good: dict[str, Any]) -> bool:
    extra = len(_trace(bad)["response_ids"]) - len(_trace(good)["response_ids"])
    return (
        extra == 50
        and _trace(bad)["loss_mask"][-50:] == [0] * 50
        and len(_trace(bad)["response_logprobs"]) > 50
    )


def _masked(bad: dict[str, Any], good: dict[str, Any]) -> bool:
    note = _trace(bad)["metadata"]["training_filter"]
    return (
        bad["status"] == "TIMEOUT"
        and not any(_trace(bad)["loss_mask"])
        and _trace(bad)["reward"] == 0.0
        and note["original_reward"] == _trace(good)["reward"] == 0.5
    )


def _cut(reason: str) -> Check:
    def check(bad: dict[str, Any], good: dict[str, Any]) -> bool:
        return (
            _trace(bad)["finish_reason"] == reason
            and _trace(bad)["response_ids"] == _trace(good)["response_ids"][:-1]
            and len(_trace(bad)["loss_mask"]) == len(_trace(bad)["response_ids"])
        )

    return check


def _infinite(bad: dict[str, Any], good: dict[str, Any]) -> bool:
    return _trace(bad)["response_logprobs"][-1] == float("-inf")


def _nan_logprob(bad: dict[str, Any], good: dict[str, Any]) -> bool:
    last = _trace(bad)["response_logprobs"][-1]
    return last != last and _trace(bad)["loss_mask"][-1] == 1


CASES: list[tuple[Fault, Check]] = [
    (Fault("session_error"), _failed("ERROR", "agent execution failed: scripted")),
    (Fault("session_error", value="no completions"), _failed("ERROR", "no completions")),
    (Fault("session_timeout"), _failed("TIMEOUT", "session execution timeout")),
    (
        Fault("session_error_with_traces"),
        lambda bad, good: (
            bad["status"] == "ERROR"
            and _trace(bad)["reward"] == 0.0
            and _trace(bad)["loss_mask"] == _trace(good)["loss_mask"]
        ),
    ),
    (Fault("session_early_stopped"), _early),
    (Fault("session_foreign_id"), lambda bad, good: bad["task_id"] == "somebody-elses-task"),
    (Fault("session_huge", count=50_000), lambda bad, good: len(json.dumps(bad)) > 50_000),
    (
        Fault("session_unknown_fields"),
        lambda bad, good: (
            all("future_field" in part for part in (bad, bad["trajectory"], _trace(bad)))
            and isinstance(bad["timing"]["runtime_exec_ms_by_category"], dict)
        ),
    ),
    (
        Fault("session_lone_surrogate"),
        lambda bad, good: "\ud83d" in _trace(bad)["response_messages"][-1]["content"],
    ),
    (
        Fault("no_traces"),
        lambda bad, good: bad["status"] == "COMPLETED" and bad["trajectory"]["traces"] == [],
    ),
    (
        Fault("no_token_ids"),
        _traces_with(
            prompt_ids=[], response_ids=[], loss_mask=[], response_logprobs=None, finish_reason="length"
        ),
    ),
    (Fault("no_prompt_ids"), _traces_with(prompt_ids=[])),
    (Fault("zero_mask"), lambda bad, good: set(_trace(bad)["loss_mask"]) == {0}),
    (Fault("empty_mask"), _traces_with(loss_mask=[])),
    (Fault("misaligned_mask"), _shorter("loss_mask")),
    (Fault("invalid_mask"), _last_of("loss_mask", 2)),
    (Fault("negative_token"), _last_of("response_ids", -1)),
    (Fault("fractional_token"), _last_of("response_ids", 3.5)),
    (Fault("null_logprobs"), _traces_with(response_logprobs=None)),
    (Fault("short_logprobs"), _shorter("response_logprobs")),
    (Fault("nan_logprob"), _nan_logprob),
    (Fault("infinite_logprob"), _infinite),
    (Fault("null_logprob"), _last_of("response_logprobs", None)),
    (Fault("sentinel_logprob"), _last_of("response_logprobs", -99999.0)),
    (
        Fault("null_reward"),
        lambda bad, good: _trace(bad)["reward"] is None and "evaluation" not in bad["trajectory"]["metadata"],
    ),
    (Fault("nan_reward"), lambda bad, good: _trace(bad)["reward"] != _trace(bad)["reward"]),
    (Fault("text_reward"), _traces_with(reward="one")),
    (Fault("reward", value=7.25), _traces_with(reward=7.25)),
    (Fault("length_finish"), _cut("length")),
    (Fault("abort_finish"), _cut("abort")),
    (Fault("weight_version_jump", count=2), _jump),
    (Fault("split_traces"), lambda bad, good: len(bad["trajectory"]["traces"]) == 2),
    (Fault("overlong", count=50), _overlong),
    (Fault("training_filter"), _masked),
]


@pytest.mark.parametrize(("fault", "check"), CASES, ids=[f"{n}-{c[0].kind}" for n, c in enumerate(CASES)])
def test_each_session_fault_breaks_what_it_says(fault: Fault, check: Check):
    """The broken session differs in its one way; its sibling is a valid Polar result."""
    profile = SessionProfile(reward=0.5, turns=2)
    with callback_sink() as sink, serve_polar(script=FaultScript(sessions=profile)) as polar:
        options: dict[str, Any] = {
            "num_samples": 2,
            "metadata": {"policy_version": 3},
            "callback_url": sink.url,
        }
        submit(polar, "good", **options)
        polar.wait_until(lambda: len(polar.callbacks) == 1)
        rules = FaultScript(sessions=profile, faults=[Fault(**{**vars(fault), "sessions": [0]})])
        polar.run(lambda: polar.server.engine.__init__(rules))
        submit(polar, "bad", **options)
        polar.wait_until(lambda: len(polar.callbacks) == 2)
        good, bad = (json.loads(got.body)["results"] for got in sink.received)
        assert json.loads(get(polar, "/rollout/task/bad").content)["status"] == "completed"
        assert polar.fired == {fault.kind: 1}
    assert check(bad[0], good[0])
    assert bad[1]["trajectory"]["traces"] == [
        {**trace, "metadata": bad[1]["trajectory"]["traces"][n]["metadata"]}
        for n, trace in enumerate(good[1]["trajectory"]["traces"])
    ]
    SessionResult.model_validate(bad[1])


def test_every_session_fault_is_covered():
    """Kinds that are not in the table above have tests of their own."""
    elsewhere = {
        "session_slow",
        "session_endless",
        "session_missing",
        "session_duplicate",
        "session_malformed",
    }
    assert {fault.kind for fault, _ in CASES} | elsewhere == kinds_of("session")


def test_nan_in_a_masked_position():
    """`value="masked"` puts the NaN where no training would see it."""
    script = FaultScript(sessions=SessionProfile(turns=2), faults=[Fault("nan_logprob", value="masked")])
    with serve_polar(script=script) as polar:
        submit(polar, "t-1")
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        answer = get(polar, "/rollout/task/t-1")
        assert b"NaN" in answer.content
        trace = _trace(json.loads(answer.content)["results"][0])
        odd = [i for i, value in enumerate(trace["response_logprobs"]) if value != value]
        assert [trace["loss_mask"][i] for i in odd] == [0]


def test_malformed_among_good_ones():
    """One session of the list is no session result at all; the others are."""
    faults = [
        Fault("session_malformed", sessions=[1], tasks=[0]),
        Fault("session_malformed", sessions=[1], tasks=[1], value={"x": 1}),
    ]
    with serve_polar(script=FaultScript(faults=faults)) as polar:
        for number in range(2):
            submit(polar, f"t-{number}", num_samples=3)
        polar.wait_until(lambda: all(record.status == "completed" for record in polar.tasks.values()))
        first, second = (get(polar, f"/rollout/task/t-{n}").json()["results"] for n in range(2))
        assert first[1]["trajectory"] == {"traces": "none"}
        assert second[1] == {"x": 1}
        for results in (first, second):
            for index in (0, 2):
                SessionResult.model_validate(results[index])
        assert get(polar, "/tasks").status_code == 200
        assert get(polar, "/tasks/t-0/sessions").status_code == 200


def test_endless_sessions_keep_their_task_running():
    """`session_endless`: the siblings finish, the task does not."""
    script = FaultScript(faults=[Fault("session_endless", sessions=[0])])
    with serve_polar(script=script) as polar:
        submit(polar, "t-1", num_samples=3)
        polar.wait_until(lambda: polar.tasks["t-1"].completed_sessions == 2)
        assert polar.tasks["t-1"].status == "running"
        assert polar.running_sessions == 1


def test_two_servers_with_one_seed_send_the_same_bytes():
    """Everything a scripted server shows of a task depends on seed and instruction alone."""
    bodies = []
    for order in ([0, 1, 2], [2, 0, 1]):
        with serve_polar(
            script=FaultScript(seed=9, faults=[Fault("session_error", probability=0.5)])
        ) as polar:
            for number in order:
                submit(polar, f"t-{number}", instruction=f"question {number}", num_samples=4)
            polar.wait_until(lambda: all(record.status == "completed" for record in polar.tasks.values()))
            bodies.append([get(polar, f"/rollout/task/t-{number}").content for number in range(3)])
    assert bodies[0] == bodies[1]
