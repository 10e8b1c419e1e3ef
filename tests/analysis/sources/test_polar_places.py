"""Places of token arrays in a file, in any order of keys and any layout."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis.sources.polar_places import ARRAYS, places_of
from tests.analysis.sources.source_files import CAPTURES, session, trace

KEYS = dict(zip(ARRAYS, ("prompt_ids", "response_ids", "loss_mask", "response_logprobs"), strict=True))
LONG = [{"role": "tool", "content": "x" * 50_000}]
TRACES = [
    trace(),
    trace(prompt_ids=[7], response_messages=LONG, tools=[{"name": "t", "description": "y" * 5000}]),
    trace(response_logprobs=None),
    trace(prompt_ids=[8, 9], response_messages=LONG, reward=None),
    trace(response_ids=[], loss_mask=[], response_logprobs=[]),
]


def check(data: bytes, traces: list[dict[str, Any]], result: int | None = None) -> None:
    """Every array that is there is found, and what stands at its place is it."""
    found = places_of(data, result)
    assert found is not None
    for places, source in zip(found, traces, strict=True):
        assert set(places) == {name for name, key in KEYS.items() if source[key] is not None}
        for name, (offset, size) in places.items():
            assert json.loads(data[offset : offset + size]) == source[KEYS[name]], name


@pytest.mark.parametrize("options", [{"separators": (",", ":")}, {}, {"indent": 1}, {"indent": 4}])
def test_layouts(options: dict[str, Any]) -> None:
    """Compact, spaced and indented copies of one result have all places."""
    check(json.dumps(session(traces=TRACES), **options).encode(), TRACES)


@pytest.mark.parametrize("reverse", [False, True])
def test_other_orders_of_keys(reverse: bool) -> None:
    """The order of keys does not matter."""
    traces = [{key: value[key] for key in sorted(value, reverse=reverse)} for value in TRACES]
    check(json.dumps(session(traces=traces)).encode(), traces)


def test_keys_of_the_same_name_elsewhere() -> None:
    """Messages and metadata may hold the same keys, as text or objects: they are never taken for them."""
    decoys = {"prompt_ids": [1, 10, 11, 3], "response_logprobs": [0.0] * 8, "loss_mask": [9]}
    text = '"prompt_ids":[1,10,11,3],"response_ids":[0],"response_logprobs":[1,2,3,4,5,6,7,8]'
    message = {"role": "tool", "content": text, **decoys}
    value = trace(prompt_messages=[message], response_messages=[message], tools=[message], metadata=decoys)
    check(json.dumps(session(traces=[value, trace()])).encode(), [value, trace()])


def test_task_records() -> None:
    """Inside a task's record, places are those in the whole file."""
    results = [session("a", TRACES), session("b", TRACES[:2])]
    data = json.dumps({"task_id": "t", "status": "completed", "results": results}).encode()
    check(data, TRACES, 0)
    check(data, TRACES[:2], 1)
    assert places_of(data, 2) is None


def test_captures() -> None:
    """Real results have their arrays where they are found."""
    for path in CAPTURES.glob("session_result.*.json"):
        data = path.read_bytes()
        check(data, json.loads(data)["trajectory"]["traces"])


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", None), (b"[]", None), (b'{"trajectory": {"traces": [{"prompt_ids": [NaN]}]}}', None), (b"{}", []),
     (b'{"trajectory": null}', []), (b"[" * 100_000, None)],
)  # fmt: skip
def test_other_files(data: bytes, expected: Any) -> None:
    """What is no strict JSON has no places; what has no traces has none either."""
    assert places_of(data) == expected
