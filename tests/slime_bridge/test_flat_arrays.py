"""Records decoded into flat buffers say what the same records decoded into lists say, errors included."""

from __future__ import annotations

import gc
import json
import math
import mmap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_bridge._stand_in import Sample
from slime_bridge.conversion.groups import convert_group
from slime_bridge.errors import MissingRewardError, ProtocolError
from slime_bridge.protocol import MalformedSession, Trace, codec, decode_task_payload

DATA = Path(__file__).parents[1] / "data"
ARRAYS = ("prompt_ids", "response_ids", "loss_mask", "response_logprobs")


@pytest.fixture(autouse=True, scope="module")
def small_records_too():
    """Tests use small records, which would be decoded into lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_WORTH_FLAT_ARRAYS", 0)
        yield


def trace(length=3, **fields):
    values = {
        "prompt_ids": [11, 12],
        "response_ids": list(range(1000, 1000 + length)),
        "loss_mask": [1] * length,
        "response_logprobs": [-0.5] * length,
        "reward": 1.0,
    }
    return {**values, **fields}


def session(name, *traces):
    trajectory = {"status": "COMPLETED", "traces": list(traces)}
    return {"session_id": name, "task_id": "t", "status": "COMPLETED", "trajectory": trajectory}


def record(*sessions):
    return json.dumps({"task_id": "t", "status": "completed", "results": list(sessions)}).encode()


def decoded(body, flat):
    return decode_task_payload(body, flat_arrays=flat)


def only_trace(body, flat=True) -> Trace:
    [result] = decoded(body, flat).results
    [found] = result.trajectory.traces
    return found


def plain(result):
    """Return everything about a session as text, in which 1, 1.0, True, -0.0 and NaN differ."""
    if isinstance(result, MalformedSession):
        return repr(result)
    fields = {name: getattr(result, name) for name in codec.SessionResult.__struct_fields__}
    trajectory = fields.pop("trajectory")
    traces = []
    for found in trajectory.traces:
        values = {name: getattr(found, name) for name in Trace.__struct_fields__}
        for name in ARRAYS:
            if values[name] is not None:
                values[name] = list(values[name])
        traces.append(values)
    return repr((fields, trajectory.status, trajectory.metadata, trajectory.error, traces))


def outcome(body, flat, config):
    """Return what a record comes to: the payload, the samples and their account, or the error."""
    try:
        payload = decoded(body, flat)
    except ProtocolError as exc:
        return str(exc)
    results = [plain(result) for result in payload.results]
    rest = (payload.task_id, payload.status, payload.total_sessions, payload.result_paths)
    prompts = [Sample(group_index=0, index=i) for i in range(max(1, len(results)))]
    try:
        done = convert_group(payload.results, prompts, config=config)
    except MissingRewardError as exc:
        return results, rest, str(exc)
    samples = [repr(sample.to_dict()) for sample in done.samples]
    return results, rest, samples, [repr(s.to_dict()) for s in done.sessions]


CONFIG = SimpleNamespace(
    reward_key="score", max_tokens=None, overlong_traces="drop", aborted_turns="mask", missing_reward="zero"
)
CLIPPING = SimpleNamespace(**{**vars(CONFIG), "max_tokens": 5, "overlong_traces": "clip"})

ODD = st.sampled_from(
    [
        *(None, True, False, "7", "1.5", "x", "[", [], [1], [[2]], {}, {"a": [1]}),
        *(-1, 2, 255, 256, (1 << 20) - 1, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 53) + 1),
        *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 1 << 200),
        *(0.0, -0.0, 1.0, 0.5, 1e2, 5e-324, 1e23, 1.7976931348623157e308, math.nan, math.inf, -math.inf),
        *(-9999.0, -1e4, -1e5),
    ]
)
IDS = st.lists(st.integers(0, 200_000), max_size=8)
LOGPROB = st.one_of(
    st.just(0.0), st.just(-0.0), st.floats(-20, 0), st.floats(), st.integers(-(1 << 64), 1 << 64)
)


@st.composite
def arrays(draw):
    """Draw a trace that may be sound, of wrong lengths, or odd in one place."""
    length = draw(st.integers(0, 40))
    values = {
        "prompt_ids": draw(IDS),
        "response_ids": draw(st.lists(st.integers(0, 200_000), min_size=length, max_size=length)),
        "loss_mask": draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)),
        "response_logprobs": draw(st.lists(LOGPROB, min_size=length, max_size=length)),
        "reward": draw(st.sampled_from([1.0, 0, None, "1", True])),
    }
    if draw(st.booleans()):
        name = draw(st.sampled_from(ARRAYS))
        where = draw(st.integers(0, length))
        match draw(st.sampled_from(["replace", "insert", "whole", "absent", "nest", "text", "zeros"])):
            case "replace":
                values[name][where : where + 1] = [draw(ODD)]
            case "insert":
                values[name].insert(where, draw(ODD))
            case "whole":
                values[name] = draw(ODD)
            case "absent":
                del values[name]
            case "nest":
                values[name][where : where + 2] = [values[name][where : where + 2]]
            case "text":
                values[name] = ",".join(map(str, values[name]))
            case "zeros":
                values["response_logprobs"][where:] = [0.0] * (length - where)
    return values


BODIES = st.builds(
    lambda traces, layout: json.dumps(
        {
            "task_id": "t",
            "status": "completed",
            "results": [session(f"s{i}", *group) for i, group in enumerate(traces)],
        },
        **layout,
    ).encode(),
    st.lists(st.lists(arrays(), max_size=2), max_size=3),
    st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 1}]),
)


@given(BODIES, st.sampled_from([CONFIG, CLIPPING]))
@settings(max_examples=400, deadline=None)
def test_flat_and_listed_agree(body, config):
    """Whatever a server writes into the arrays, payload, samples and errors are the same either way."""
    assert outcome(body, True, config) == outcome(body, False, config)


@given(BODIES, st.data())
@settings(max_examples=400, deadline=None)
def test_they_agree_on_damaged_records(body, data):
    """A byte lost, changed or added, or a record cut short, is the same error, at the same position."""
    place = data.draw(st.integers(0, len(body)))
    piece = data.draw(
        st.sampled_from([b"", b"[", b"]", b",", b"-", b"0", b".", b"e", b'"', b" ", b"\xff", b"NaN"])
    )
    end = data.draw(st.sampled_from([place, place + 1, place + 2, len(body)]))
    damaged = body[:place] + piece + body[end:]
    assert outcome(damaged, True, CONFIG) == outcome(damaged, False, CONFIG)


def captured_records():
    for path in sorted([*(DATA / "polar").glob("*.json"), *(DATA / "messy").rglob("*.json")]):
        raw = path.read_bytes()
        yield pytest.param(raw, id=path.name)
        wrapped = b'{"task_id":"t","status":"completed","results":[%s]}' % raw.strip()
        yield pytest.param(wrapped, id=f"task of {path.name}")


@pytest.mark.parametrize("body", list(captured_records()))
def test_they_agree_on_captures(body):
    """Real results, stored ones, and files that are no results."""
    assert outcome(body, True, CONFIG) == outcome(body, False, CONFIG)


@pytest.mark.parametrize("layout", [{"separators": (",", ":")}, {}, {"indent": 2}])
def test_sound_arrays_become_buffers(layout):
    """No number of a sound trace becomes an object while it is decoded."""
    body = json.dumps(
        json.loads(record(session("a", trace(response_ids=[5, 0, 1 << 40])))), **layout
    ).encode()
    found = only_trace(body)
    assert all(isinstance(getattr(found, name), memoryview) for name in ARRAYS)
    assert (list(found.response_ids), list(found.loss_mask)) == ([5, 0, 1 << 40], [1, 1, 1])


def test_absent_and_empty_arrays():
    """Null and absent ids are empty; absent logprobs are None, empty ones are empty."""
    found = only_trace(record(session("a", {"prompt_ids": None, "loss_mask": [], "response_logprobs": []})))
    assert [len(found.prompt_ids), len(found.response_ids), len(found.loss_mask)] == [0, 0, 0]
    assert list(found.response_logprobs) == []
    assert only_trace(record(session("a", {}))).response_logprobs is None


@pytest.mark.parametrize(
    "odd", [{"prompt_ids": [1.0]}, {"loss_mask": [1, True, 0]}, {"response_logprobs": [None, -1, -2]}]
)
def test_one_odd_trace_makes_lists_of_all(odd):
    """What is not plain is read by the patient path, and the record after it is flat again."""
    body = record(session("a", trace(), trace(**odd)))
    traces = decoded(body, True).results[0].trajectory.traces
    assert isinstance(traces[0].prompt_ids, list)
    assert isinstance(only_trace(record(session("a", trace()))).prompt_ids, memoryview)


def test_nested_arrays_are_not_flattened():
    """[[1], [2, 3]] is no list of three ids."""
    body = record(session("a", trace(prompt_ids=[[1], [2, 3]])), session("b", trace()))
    broken, good = decoded(body, True).results
    assert isinstance(broken, MalformedSession)
    assert list(good.trajectory.traces[0].prompt_ids) == [11, 12]


@pytest.mark.parametrize("mask", ["1", "1,0", {"1": 0}, 1])
def test_a_mask_that_only_looks_like_one(mask):
    """Digits and commas in a string are no mask."""
    broken, good = decoded(record(session("a", trace(loss_mask=mask)), session("b", trace())), True).results
    assert isinstance(broken, MalformedSession)
    assert list(good.trajectory.traces[0].loss_mask) == [1, 1, 1]


def test_lists_unless_asked_for():
    """Readers of single results get the lists that the structs promise."""
    assert type(only_trace(record(session("a", trace())), flat=False).response_logprobs) is list


def test_objects_are_shared_in_samples():
    """A token id is one int object in all samples, and the zeros of tool output are one float object."""
    zeros = trace(
        40, response_ids=[70_000] * 40, loss_mask=[1] + [0] * 39, response_logprobs=[-1.0] + [0.0] * 39
    )
    body = record(session("a", zeros), session("b", zeros))
    prompts = [Sample(group_index=0, index=i) for i in range(2)]
    first, second = convert_group(decoded(body, True).results, prompts, config=CONFIG).samples
    for sample in (first, second):
        assert all(
            type(values) is list for values in (sample.tokens, sample.loss_mask, sample.rollout_log_probs)
        )
    assert {id(token) for token in first.tokens[2:] + second.tokens[2:]} == {id(first.tokens[2])}
    assert len({id(value) for value in first.rollout_log_probs[1:]}) == 1


def test_negative_zero_is_kept():
    """It equals 0.0 and is another number; exact means exact."""
    values = [-0.0] * 30
    body = record(session("a", trace(30, loss_mask=[1] + [0] * 29, response_logprobs=values)))
    for flat in (True, False):
        prompts = [Sample(group_index=0, index=0)]
        [sample] = convert_group(decoded(body, flat).results, prompts, config=CONFIG).samples
        assert [math.copysign(1, value) for value in sample.rollout_log_probs] == [-1.0] * 30


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("logprob", [-0.5, math.nan])
def test_any_buffer_will_do_and_none_is_kept(flat, logprob):
    """A body in mapped memory can be unmapped as soon as it has been decoded."""
    body = record(session("a", trace(response_logprobs=[logprob] * 3)), session("b"))
    expected = [plain(result) for result in decoded(body, flat).results]
    with mmap.mmap(-1, len(body)) as memory:
        memory[:] = body
        view = memoryview(memory)
        results = [decoded(data, flat).results for data in (memory, view, view.toreadonly(), bytearray(body))]
        view.release()
        gc.collect()
    assert [[plain(result) for result in found] for found in results] == [expected] * 4


def test_threads_do_not_disturb_each_other():
    """Groups are decoded in several threads at once, refused arrays among them."""
    bodies = [record(session("a", trace(500, prompt_ids=[number] * 500))) for number in range(4)]
    bodies[3] = record(session("a", trace(500, prompt_ids=["3"] * 500)))
    found: dict[int, bool] = {}

    def work(number):
        rounds = [list(only_trace(bodies[number]).prompt_ids) == [number] * 500 for _ in range(100)]
        found[number] = all(rounds)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)
