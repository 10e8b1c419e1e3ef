import json
import math
from pathlib import Path

import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_bridge.errors import ProtocolError, TemplateError
from slime_bridge.protocol import (
    MalformedSession,
    SessionResult,
    SessionStatus,
    SessionTiming,
    TaskRequest,
    Trace,
    decode_nodes,
    decode_server_status,
    decode_session_result,
    decode_submit_receipt,
    decode_task_list,
    decode_task_payload,
    encode_task_request,
    is_terminal,
    safe_task_id,
    task_is_over,
    validate_task_id,
)

CAPTURES = Path(__file__).parents[1] / "data" / "polar"
SESSIONS = sorted(path.name for path in CAPTURES.glob("session_result.*.json"))
TRACE_LISTS = ("prompt_ids", "response_ids", "loss_mask", "prompt_messages", "response_messages")


def capture(name):
    return (CAPTURES / name).read_bytes()


def session(**changes):
    return {
        "session_id": "s1",
        "task_id": "t1",
        "status": "COMPLETED",
        "trajectory": {"status": "COMPLETED", "traces": []},
        **changes,
    }


def with_trace(**trace):
    return session(trajectory={"status": "COMPLETED", "traces": [trace]})


def task(*results, **changes):
    return {"task_id": "t1", "status": "completed", "results": list(results), **changes}


def encode(value):
    return json.dumps(value).encode()


def same(left, right):
    """Equality in which NaN equals itself and an int is not a float."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


def assert_trace_equals(trace, wire):
    """Compare a typed trace with the parsed JSON that it came from."""
    for name in TRACE_LISTS:
        assert same(getattr(trace, name), wire.get(name) or []), name
    logprobs = wire.get("response_logprobs")
    assert same(trace.response_logprobs, None if logprobs is None else [float(x) for x in logprobs])
    assert same(trace.metadata, wire.get("metadata") or {})
    reward = wire.get("reward")
    assert same(trace.reward, None if reward is None else float(reward))
    assert (trace.tools, trace.finish_reason) == (wire.get("tools"), wire.get("finish_reason"))


def assert_session_equals(result, wire):
    """Compare a typed session with the parsed JSON that it came from."""
    assert (result.session_id, result.task_id, result.status) == (
        wire["session_id"],
        wire["task_id"],
        wire["status"],
    )
    assert (result.node_id, result.error) == (wire.get("node_id"), wire.get("error"))
    assert same(result.metadata, wire.get("metadata") or {})
    trajectory, wire_trajectory = result.trajectory, wire["trajectory"]
    assert trajectory.status == (wire_trajectory.get("status") or wire["status"])
    assert same(trajectory.metadata, wire_trajectory.get("metadata") or {})
    assert len(trajectory.traces) == len(wire_trajectory.get("traces") or [])
    for trace, wire_trace in zip(trajectory.traces, wire_trajectory.get("traces") or [], strict=True):
        assert_trace_equals(trace, wire_trace)
    wire_timing = wire.get("timing") or {}
    for name in SessionTiming.NAMES:
        expected = wire_timing.get(name)
        assert same(getattr(result.timing, name), math.nan if expected is None else float(expected))


class TestCaptures:
    @pytest.mark.parametrize("name", SESSIONS)
    def test_a_real_session_decodes_to_what_the_standard_parser_reads(self, name):
        """Nothing of a real result is lost or changed by the typed decoder."""
        assert_session_equals(decode_session_result(capture(name)), json.loads(capture(name)))

    @pytest.mark.parametrize("name", SESSIONS)
    def test_the_slow_path_reads_a_real_session_alike(self, name):
        """A bare NaN somewhere in a document changes nothing else in what is read."""
        wire = json.loads(capture(name))
        wire["metadata"]["odd"] = math.nan
        assert_session_equals(decode_session_result(encode(wire)), wire)

    def test_a_real_task_status_decodes(self):
        """The answer of a poll carries its sessions and its counts."""
        payload = decode_task_payload(capture("task_status.json"))
        wire = json.loads(capture("task_status.json"))
        assert (payload.task_id, payload.status) == (wire["task_id"], wire["status"])
        assert (payload.total_sessions, payload.completed_sessions) == (
            wire["total_sessions"],
            wire["completed_sessions"],
        )
        assert payload.result_paths == wire["result_paths"]
        for result, wire_result in zip(payload.results, wire["results"], strict=True):
            assert_session_equals(result, wire_result)

    @pytest.mark.parametrize(
        ("name", "prompt", "response", "trainable", "zeros"),
        [("small", 2734, 149, 119, None), ("long", 2965, 15803, 8506, 2119)],
    )
    def test_token_counts_of_the_captures(self, name, prompt, response, trainable, zeros):
        """The numbers that the captures' own description states."""
        [trace] = decode_session_result(capture(f"session_result.{name}.json")).trajectory.traces
        assert (len(trace.prompt_ids), len(trace.response_ids), sum(trace.loss_mask)) == (
            prompt,
            response,
            trainable,
        )
        assert trace.reward is None
        if zeros is not None:
            pairs = zip(trace.response_logprobs, trace.loss_mask, strict=True)
            assert sum(logprob == 0.0 and mask for logprob, mask in pairs) == zeros

    @pytest.mark.parametrize(
        "name", ["completion_record.json", "not_a_result.grades.json", "task_status.json"]
    )
    def test_other_files_of_a_run_are_no_session(self, name):
        """A messy run folder's other files are told from results."""
        with pytest.raises(ProtocolError, match="not a session result: Object missing required field"):
            decode_session_result(capture(name))

    @pytest.mark.parametrize("name", ["completion_record.json", "not_a_result.grades.json", *SESSIONS])
    def test_other_files_of_a_run_are_no_task(self, name):
        """A session's own result, posted where a task is expected, is not an empty task."""
        with pytest.raises(ProtocolError, match="not a task record"):
            decode_task_payload(capture(name))


scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
json_values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
maps = st.none() | st.dictionaries(st.text(max_size=8), json_values, max_size=3)
token_ids = st.none() | st.lists(st.integers(0, 200_000), max_size=8)
messages = st.none() | st.lists(
    st.fixed_dictionaries({"role": st.text(max_size=5), "content": json_values}), max_size=3
)
traces = st.fixed_dictionaries(
    {},
    optional={
        "prompt_ids": token_ids,
        "response_ids": token_ids,
        "loss_mask": st.none() | st.lists(st.integers(0, 1), max_size=8),
        "prompt_messages": messages,
        "response_messages": messages,
        "tools": messages,
        "finish_reason": st.none() | st.text(max_size=6),
        "response_logprobs": st.none() | st.lists(st.floats(), max_size=8),
        "reward": st.none() | st.floats() | st.integers(-5, 5),
        "metadata": maps,
        "from_a_newer_server": json_values,
    },
)
sessions = st.fixed_dictionaries(
    {
        "session_id": st.text(max_size=8),
        "task_id": st.text(max_size=8),
        "status": st.sampled_from(["COMPLETED", "ERROR", "TIMEOUT", "PAUSED_BY_NEWER_SERVER"]),
        "trajectory": st.fixed_dictionaries(
            {},
            optional={
                "status": st.none() | st.sampled_from(["COMPLETED", "ERROR"]),
                "metadata": maps,
                "traces": st.none() | st.lists(traces, max_size=3),
                "error": st.none() | st.text(max_size=6),
            },
        ),
    },
    optional={
        "timing": st.none()
        | st.dictionaries(st.sampled_from([*SessionTiming.NAMES, "build_ms"]), st.floats(0, 1e6), max_size=5),
        "node_id": st.none() | st.text(max_size=6),
        "error": st.none() | st.text(max_size=6),
        "metadata": maps,
    },
)


class TestAgainstTheStandardParser:
    @given(sessions)
    def test_any_session(self, wire):
        """Absent, null and unknown fields, and NaN anywhere, read as the standard parser reads them."""
        assert_session_equals(decode_session_result(encode(wire)), wire)

    @given(st.lists(sessions, max_size=3), st.booleans())
    def test_any_task(self, results, is_status):
        """Both shapes of a task record carry the same sessions."""
        wire = task(*results)
        if is_status:
            wire |= {"total_sessions": 9, "completed_sessions": len(results), "result_paths": None}
        payload = decode_task_payload(encode(wire))
        assert payload.total_sessions == (9 if is_status else None)
        for result, wire_result in zip(payload.results, results, strict=True):
            assert_session_equals(result, wire_result)

    @given(st.binary(max_size=60) | st.text(max_size=60))
    def test_any_bytes_decode_or_raise_the_typed_error(self, data):
        """Whatever a socket delivers, nothing but a ProtocolError comes out."""
        for decode in (decode_session_result, decode_task_payload, decode_nodes, decode_server_status):
            with pytest.raises(ProtocolError):
                # A list of nodes may be empty: the one thing here that is as short as it is right.
                decode(b"{}" if data.strip() in (b"[]", "[]") else data)

    @settings(max_examples=60)
    @given(st.data())
    def test_a_damaged_capture_decodes_or_raises_the_typed_error(self, data):
        """A torn or overwritten file never raises anything else, and no error repeats the file."""
        original = capture("session_result.small.json")
        start = data.draw(st.integers(0, len(original) - 1))
        length = data.draw(st.integers(0, 40))
        damaged = original[:start] + data.draw(st.binary(max_size=6)) + original[start + length :]
        problem = ""
        try:
            decode_session_result(damaged)
        except ProtocolError as exc:
            problem = str(exc)
        assert len(problem) < 300


numerals = st.from_regex(r" ?[+-]?[0-9]{1,6}(\.[0-9]{0,3})?(e[+-]?[0-9])? ?", fullmatch=True)


class TestTolerance:
    @pytest.mark.parametrize(
        ("wire", "expected"),
        [("7", 7), ("7.0", 7), (7.0, 7), (True, 1), (False, 0), (2**40, 2**40)],
    )
    def test_lax_integers(self, wire, expected):
        """Numbers come as pydantic's lax mode accepts them."""
        result = decode_session_result(encode(with_trace(prompt_ids=[wire])))
        assert same(result.trajectory.traces[0].prompt_ids, [expected])

    @pytest.mark.parametrize(
        ("wire", "expected"), [("1.5", 1.5), (2, 2.0), (True, 1.0), ("-3", -3.0), (10**30, 1e30)]
    )
    def test_lax_floats(self, wire, expected):
        """Rewards and logprobs come as pydantic's lax mode accepts them."""
        result = decode_session_result(encode(with_trace(reward=wire, response_logprobs=[wire])))
        [trace] = result.trajectory.traces
        assert same([trace.reward, trace.response_logprobs], [expected, [expected]])

    @pytest.mark.parametrize(
        ("trace", "path"),
        [
            ({"prompt_ids": [1, 1.5]}, "prompt_ids[1]"),
            ({"response_ids": [None]}, "response_ids[0]"),
            ({"response_ids": ["x"]}, "response_ids[0]"),
            ({"loss_mask": {}}, "loss_mask"),
            ({"reward": {"score": 1.0}}, "reward"),
            ({"reward": "good"}, "reward"),
            ({"response_messages": ["text"]}, "response_messages[0]"),
            ({"metadata": []}, "metadata"),
        ],
    )
    def test_a_wrong_value_is_named_by_its_path(self, trace, path):
        """What is wrong can be found in a body of megabytes."""
        with pytest.raises(ProtocolError) as error:
            decode_session_result(encode(with_trace(**trace)))
        assert f"$.trajectory.traces[0].{path}" in str(error.value)

    @given(st.integers() | st.floats() | st.booleans() | numerals)
    def test_numbers_that_pydantic_reads_are_read_alike(self, value):
        """Nothing that a conforming server accepts is refused here, and it means the same."""
        for field, kind in (("prompt_ids", int), ("response_logprobs", float)):
            try:
                expected = pydantic.TypeAdapter(kind).validate_python(value)
            except pydantic.ValidationError:
                continue
            result = decode_session_result(encode(with_trace(**{field: [value]})))
            assert same(getattr(result.trajectory.traces[0], field), [expected])

    def test_null_logprobs_are_nan_and_not_numbers(self):
        """A null among the logprobs was a NaN to the server; it is not mistaken for a probability of one."""
        result = decode_session_result(encode(with_trace(response_logprobs=[-0.5, None])))
        assert same(result.trajectory.traces[0].response_logprobs, [-0.5, math.nan])

    def test_bare_nan_and_infinity(self):
        """Python's non-standard literals are read as the floats they stand for."""
        text = encode(with_trace(response_logprobs=[math.nan, math.inf, -math.inf], reward=math.nan))
        assert b"NaN" in text
        [trace] = decode_session_result(text).trajectory.traces
        assert same(trace.response_logprobs, [math.nan, math.inf, -math.inf])
        assert math.isnan(trace.reward)

    def test_numbers_beyond_a_float_are_infinite(self):
        """An overflowing literal is an infinity, as for the standard parser."""
        data = encode(with_trace(reward=1.25)).replace(b"1.25", b"1e400")
        assert decode_session_result(data).trajectory.traces[0].reward == math.inf

    @pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\uD83D"])
    def test_half_a_surrogate_pair_keeps_its_text(self, escape):
        """A lone surrogate never empties the conversation, and what is read can be encoded again."""
        data = encode(with_trace(response_messages=[{"role": "assistant", "content": "before @ after"}]))
        [trace] = decode_session_result(data.replace(b"@", escape.encode())).trajectory.traces
        content = trace.response_messages[0]["content"]
        assert content == "before \N{REPLACEMENT CHARACTER} after"
        content.encode()

    def test_surrogates_as_raw_bytes_and_in_keys(self):
        """Writers that pass half pairs through as bytes are read as well."""
        data = encode(session(metadata={"@": "@"})).replace(b"@", b"\xed\xa0\x80")
        replaced = "\N{REPLACEMENT CHARACTER}"
        assert decode_session_result(data).metadata == {replaced: replaced}

    def test_whole_pairs_are_left_alone_beside_half_ones(self):
        """The repair touches only what is broken."""
        data = encode(session(metadata={"a": "\N{GRINNING FACE}", "b": "@"})).replace(b"@", b"\\ud800")
        assert decode_session_result(data).metadata["a"] == "\N{GRINNING FACE}"

    def test_byte_order_mark_and_text(self):
        """A file saved with a byte order mark, and a document given as text, decode."""
        assert decode_session_result(b"\xef\xbb\xbf" + encode(session())).session_id == "s1"
        assert decode_session_result(json.dumps(session())).session_id == "s1"

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"", "not JSON"),
            (b'{"session_id": "s', "not JSON"),
            (b"\xff\xfe", "not UTF-8: invalid start byte at byte 0"),
            (b'{"metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply nested"),
            (b'{"metadata": ' + b"9" * 6000 + b"}", "too many digits"),
            (b"[]", "Expected `object`, got `array`"),
            (b"null", "Expected `object`, got `null`"),
        ],
    )
    def test_hostile_bytes(self, data, problem):
        """Neither deep nesting nor endless numbers get past the typed error, and no body is repeated."""
        for decode in (decode_session_result, decode_task_payload):
            with pytest.raises(ProtocolError, match=problem) as error:
                decode(data)
            assert len(str(error.value)) < 200
            assert not hasattr(error.value.__context__, "doc")

    def test_unknown_status_is_kept(self):
        """A newer server's word reaches the reader."""
        result = decode_session_result(encode(session(status="PREEMPTED")))
        assert result.status == "PREEMPTED"
        assert not is_terminal(result.status)

    def test_which_statuses_end_what(self):
        """Three session states are terminal; a task is over in every state but running."""
        terminal = {status for status in SessionStatus if is_terminal(status)}
        assert terminal == {"COMPLETED", "ERROR", "TIMEOUT"}
        assert [task_is_over(word) for word in ("running", "completed", "failed", "cancelled")] == [
            False,
            True,
            True,
            True,
        ]

    def test_stored_form(self):
        """A session file has no trajectory status and error; the session's own stand in for them."""
        wire = json.loads(capture("session_result.small.json")) | {
            "status": "ERROR",
            "error": "step 0 exited",
        }
        del wire["trajectory"]["status"], wire["trajectory"]["error"]
        trajectory = decode_session_result(encode(wire)).trajectory
        assert (trajectory.status, trajectory.error) == ("ERROR", "step 0 exited")

    def test_wire_form_keeps_its_own_trajectory_error(self):
        """On the wire the two errors are separate facts."""
        wire = session(error="late", trajectory={"status": "COMPLETED", "error": None, "traces": []})
        assert decode_session_result(encode(wire)).trajectory.error is None

    def test_defaults_are_not_shared(self):
        """A reader that fills one result's empty map fills no other's."""
        first, second = (decode_session_result(encode(with_trace())) for _ in range(2))
        first.metadata["x"] = first.trajectory.metadata["x"] = 1
        first.trajectory.traces[0].prompt_ids.append(1)
        assert (second.metadata, second.trajectory.metadata) == ({}, {})
        assert second.trajectory.traces[0] == Trace()


class TestTiming:
    def test_newer_fields_are_kept(self):
        """Counts, nested maps and times of newer servers reach the reader."""
        timing = {
            "init_ms": 1,
            "run_ms": "2.5",
            "build_ms": 3.0,
            "runtime_exec_ms_by_category": {"agent": 4.5},
        }
        decoded = decode_session_result(encode(session(timing=timing))).timing
        assert (decoded.init_ms, decoded.run_ms) == (1.0, 2.5)
        assert decoded.extra == {"build_ms": 3.0, "runtime_exec_ms_by_category": {"agent": 4.5}}
        assert decoded.to_dict()["runtime_exec_ms_by_category"] == {"agent": 4.5}

    @pytest.mark.parametrize("timing", [None, {}, {"init_ms": None}])
    def test_missing_is_not_zero(self, timing):
        """A time that no server reported is NaN, so that no mean counts it."""
        decoded = decode_session_result(encode(session(timing=timing))).timing
        assert math.isnan(decoded.init_ms)
        assert decoded.extra == {}

    def test_a_value_that_is_no_time_is_kept_aside(self):
        """A broken time costs that time, not the session's tokens."""
        decoded = decode_session_result(encode(session(timing={"init_ms": "soon", "run_ms": True}))).timing
        assert math.isnan(decoded.init_ms)
        assert math.isnan(decoded.run_ms)
        assert decoded.extra == {"init_ms": "soon", "run_ms": True}

    def test_a_timing_that_is_no_object_is_an_error(self):
        """The error names the path."""
        with pytest.raises(ProtocolError, match=r"Expected `object`, got `list` - at `\$.timing`"):
            decode_session_result(encode(session(timing=[])))

    def test_equality_and_text(self):
        """Two readings of the same body are equal and show their times."""
        assert SessionTiming(init_ms=1, run_ms=2, postrun_ms=3, register_to_init_queue_ms=0) == SessionTiming(
            0, 1, 2, 3
        )
        assert SessionTiming() != 3
        assert "init_ms=1.0" in repr(SessionTiming(init_ms=1.0, extra={"build_ms": 2}))


class TestTaskPayload:
    GOOD = session()
    BAD = (None, 3, [], {}, session(status=None), session(trajectory=None), with_trace(prompt_ids=[0.5]))

    @pytest.mark.parametrize("bad", BAD)
    @pytest.mark.parametrize("nan", [False, True])
    def test_one_malformed_session_does_not_sink_the_others(self, bad, nan):
        """The others of the group decode, in their positions, on the fast and on the slow path."""
        good = session(metadata={"x": math.nan}) if nan else self.GOOD
        payload = decode_task_payload(encode(task(good, bad, self.GOOD)))
        first, broken, last = payload.results
        assert isinstance(first, SessionResult)
        assert isinstance(last, SessionResult)
        assert isinstance(broken, MalformedSession)
        assert broken.index == 1
        assert broken.session_id == ("s1" if isinstance(bad, dict) and bad else None)
        assert "not a session result" in broken.error

    def test_a_lax_number_in_one_session_changes_no_other(self):
        """The slow path reads the same as the fast one."""
        payload = decode_task_payload(encode(task(with_trace(prompt_ids=["5"]), self.GOOD)))
        assert payload.results[0].trajectory.traces[0].prompt_ids == [5]
        assert payload.results[1] == decode_task_payload(encode(task(self.GOOD))).results[0]

    def test_an_endless_number_in_one_session_does_not_sink_the_others(self):
        """Even what the standard parser refuses stays that session's own problem."""
        data = encode(task(session(metadata={"n": 12345}), self.GOOD)).replace(b"12345", b"9" * 6000)
        broken, good = decode_task_payload(data).results
        assert isinstance(broken, MalformedSession)
        assert "too many digits" in broken.error
        assert isinstance(good, SessionResult)

    @pytest.mark.parametrize(
        ("wire", "problem"),
        [
            ({"task_id": "t"}, "missing required field `status`"),
            ({"task_id": 5, "status": "running", "results": []}, r"at `\$.task_id`"),
            ({"task_id": "t", "status": "running", "results": {}}, r"at `\$.results`"),
            ({"task_id": "t", "status": "running"}, "neither `results` nor `total_sessions`"),
            ({"detail": "Task not found"}, "missing required field `task_id`"),
        ],
    )
    def test_a_record_that_is_no_task(self, wire, problem):
        """Another JSON object is not taken for a task without sessions."""
        with pytest.raises(ProtocolError, match=problem):
            decode_task_payload(encode(wire))

    def test_running_task_without_sessions(self):
        """An early poll has counts and nothing else."""
        payload = decode_task_payload(
            encode({"task_id": "t", "status": "running", "total_sessions": "4", "completed_sessions": 0})
        )
        assert (payload.total_sessions, payload.results, payload.result_paths) == (4, [], [])


class TestServerTypes:
    def test_nodes(self):
        """Gateways are read with unknown fields ignored."""
        node = {
            "node_id": "n",
            "gateway_url": "http://g:1",
            "healthy": False,
            "metrics": {"init_inflight": 1},
            "x": 1,
        }
        [decoded] = decode_nodes(encode([node]))
        assert (decoded.node_id, decoded.healthy, decoded.draining) == ("n", False, False)
        assert decoded.metrics == {"init_inflight": 1}

    def test_status(self):
        """Task states, pending sessions and the doubly nested nodes are found."""
        status = decode_server_status(
            encode(
                {
                    "tasks": {"a": "running", "b": "cancelled"},
                    "pipeline": {"pending_sessions": 3},
                    "nodes": {"nodes": [{"node_id": "n", "gateway_url": "u"}]},
                }
            )
        )
        assert status.tasks == {"a": "running", "b": "cancelled"}
        assert (status.pending_sessions, [node.node_id for node in status.nodes]) == (3, ["n"])

    def test_status_with_only_tasks(self):
        """What steers nothing may be missing."""
        status = decode_server_status(encode({"tasks": {}, "nodes": None}))
        assert (status.tasks, status.pending_sessions, status.nodes) == ({}, None, [])

    def test_tasks_and_receipt(self):
        """A list of tasks keeps missing means apart from zero; a submit's receipt is read."""
        [entry] = decode_task_list(
            encode({"tasks": [{"task_id": "t", "status": "running", "mean_reward": None}]})
        )
        assert (entry.task_id, entry.mean_reward) == ("t", None)
        assert decode_submit_receipt(b'{"task_id": "t", "status": "running"}').status == "running"

    def test_nan_in_a_status(self):
        """A bare NaN in a metric does not cost the list of nodes."""
        [node] = decode_nodes(b'[{"node_id": "n", "gateway_url": "u", "metrics": {"load": NaN}}]')
        assert math.isnan(node.metrics["load"])

    @pytest.mark.parametrize("data", [b"{}", b"<html>busy</html>", b'{"detail": "Not Found"}'])
    def test_other_bodies_are_typed_errors(self, data):
        """A proxy's page is not a server's status."""
        for decode in (decode_nodes, decode_server_status, decode_task_list, decode_submit_receipt):
            with pytest.raises(ProtocolError):
                decode(data)


class TestTaskId:
    @pytest.mark.parametrize("task_id", ["a", "0", "polar-slime-0-1", "A.b_c-d", "x" * 120])
    def test_safe_ids_stay(self, task_id):
        """An id that is safe is used as it is."""
        assert validate_task_id(task_id) == task_id
        assert safe_task_id(task_id) == task_id

    @pytest.mark.parametrize(
        "task_id", ["", ".", "..", "a/b", "../../etc", "-a", "x" * 121, "a b", "ä", "a\n", "a%2F", None, 5]
    )
    def test_unsafe_ids_are_refused(self, task_id):
        """No id can leave the server's folder or be lost between server and URL."""
        with pytest.raises(TemplateError, match="not usable as a path component"):
            validate_task_id(task_id)

    @given(st.text(min_size=1).filter(str.strip), st.sampled_from(["", "-a2", "-eval-data_set-3-17"]))
    def test_any_rendered_id_becomes_safe(self, rendered, suffix):
        """Every rendered id becomes a valid one that still ends with its suffix."""
        task_id = safe_task_id(rendered, suffix=suffix)
        assert validate_task_id(task_id) == task_id
        assert task_id.endswith(suffix)
        assert task_id == safe_task_id(rendered, suffix=suffix)

    @given(st.lists(st.text(min_size=1, max_size=6).filter(str.strip), min_size=2, max_size=6, unique=True))
    def test_different_ids_stay_different(self, rendered):
        """Replacing unsafe characters never merges two tasks into one."""
        assert len({safe_task_id(text) for text in rendered}) == len(rendered)

    @given(st.text(max_size=130))
    def test_any_suffix_is_made_safe(self, suffix):
        """A dataset's name in a suffix may be anything; names that look alike afterwards stay apart."""
        task_id = safe_task_id("x", suffix=suffix)
        assert validate_task_id(task_id) == task_id
        assert safe_task_id("x", suffix="-a b") != safe_task_id("x", suffix="-a/b")

    def test_what_an_unsafe_id_becomes(self):
        """The form that the documentation states: readable, with the hash of the original."""
        task_id = safe_task_id("cases/no 1", suffix="-a2")
        assert task_id.startswith("cases-no-1-")
        assert task_id.endswith("-a2")
        assert len(task_id) == len("cases-no-1-") + 8 + len("-a2")

    @pytest.mark.parametrize("rendered", ["", "  ", "\n"])
    def test_a_blank_id_is_an_error(self, rendered):
        """A template that rendered to nothing is a mistake to be told."""
        with pytest.raises(TemplateError, match="blank"):
            safe_task_id(rendered)


def request(**changes):
    return TaskRequest.from_payload(
        {"task_id": "t1", "instruction": "Say hello.", "agent": {"harness": "shell"}, **changes}
    )


class TestTaskRequest:
    def test_only_what_was_set_in_a_fixed_order(self):
        """The bytes do not depend on the order of the payload, and unset fields are not invented."""
        payload = {
            "metadata": {"b": 1, "a": None},
            "agent": {"harness": "shell"},
            "instruction": "Grüße \N{GRINNING FACE}",
            "num_samples": 2,
            "task_id": "t1",
            "runtime": None,
            "from_the_template": [1, 2.5],
        }
        expected = (
            '{"task_id":"t1","instruction":"Grüße 😀","num_samples":2,"runtime":null,'
            '"agent":{"harness":"shell"},"metadata":{"b":1,"a":null},"from_the_template":[1,2.5]}'
        )
        assert encode_task_request(TaskRequest.from_payload(payload)) == expected.encode()

    def test_replace_leaves_the_original(self):
        """An attempt's id and callback URL are set on a copy."""
        first = request()
        second = first.replace(task_id="t2", callback_url="http://h:1/x")
        assert json.loads(encode_task_request(first)).keys() == {"task_id", "instruction", "agent"}
        assert json.loads(encode_task_request(second))["callback_url"] == "http://h:1/x"

    @given(st.dictionaries(st.text(max_size=8), json_values, max_size=4))
    def test_metadata_round_trips(self, metadata):
        """What was given is what a server parses, exactly."""
        assert same(json.loads(encode_task_request(request(metadata=metadata)))["metadata"], metadata)

    def test_numpy_values_are_numbers(self):
        """Metadata from a Parquet file is sent as JSON."""
        metadata = {
            "i": np.int64(3),
            "f": np.float32(0.5),
            "a": np.array([[1, 2]]),
            "o": np.array([{"k": 1}]),
        }
        sent = json.loads(encode_task_request(request(metadata=metadata)))["metadata"]
        assert sent == {"i": 3, "f": 0.5, "a": [[1, 2]], "o": [{"k": 1}]}

    @pytest.mark.parametrize(
        ("metadata", "problem"),
        [
            ({"x": [1.0, math.nan]}, r"task.metadata.x\[1\] is nan"),
            ({"x": {"y": math.inf}}, "task.metadata.x.y is inf"),
            ({"x": np.float64("nan")}, "task.metadata.x is nan"),
            ({"x": {3: 1}}, "task.metadata.x has the key 3"),
            ({"x": "\ud800"}, "task.metadata.x holds half of a surrogate pair"),
            ({"x": {1, 2}}, "task.metadata.x is a set"),
            ({"x": 10**5000}, "an integer that is too long"),
        ],
    )
    def test_what_has_no_exact_form_is_refused_by_path(self, metadata, problem):
        """Nothing is sent as null or text that was a number or an object."""
        with pytest.raises(TemplateError, match=problem):
            encode_task_request(request(metadata=metadata))

    def test_a_payload_that_contains_itself(self):
        """A cycle is a typed error, not a crash."""
        loop = {}
        loop["self"] = loop
        with pytest.raises(TemplateError, match="contains itself"):
            encode_task_request(request(metadata=loop))

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"num_samples": 0}, "num_samples is 0"),
            ({"num_samples": "two"}, r"Expected `int`, got `str` - at `\$.num_samples`"),
            ({"timeout_seconds": math.nan}, "timeout_seconds is nan"),
            ({"timeout_seconds": -1}, "timeout_seconds is -1:"),
            ({"agent": {}}, "exactly one of `harness` and `import_path`, got none"),
            ({"agent": {"harness": "a", "import_path": "b:C"}}, "exactly one of"),
            ({"agent": None}, r"at `\$.agent`"),
            ({"runtime": []}, r"at `\$.runtime`"),
            ({"task_id": "../x"}, "not usable as a path component"),
            ({"metadata": None}, r"at `\$.metadata`"),
        ],
    )
    def test_what_a_server_refuses_is_refused_before(self, changes, problem):
        """A mistake in a template is told before anything is submitted."""
        with pytest.raises(TemplateError, match=problem):
            request(**changes)

    def test_numbers_from_a_command_line(self):
        """Numbers that a template took from text arrive as numbers, and whole ones stay whole."""
        sent = encode_task_request(request(num_samples="4", timeout_seconds="90"))
        assert b'"num_samples":4,"timeout_seconds":90,' in sent

    def test_a_missing_key_is_named(self):
        """The error says which key the template lacks."""
        with pytest.raises(TemplateError, match="missing required field `agent`"):
            TaskRequest.from_payload({"task_id": "t", "instruction": "x"})
