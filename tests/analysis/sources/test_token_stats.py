"""Summaries of token arrays: counts that are exact, means that are over the right tokens."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.sources.token_stats import (
    SUMMARY,
    TraceTokens,
    all_packed,
    count_all_ids,
    count_ids,
    logprob_cells,
    mask_from_json,
    mask_from_numbers,
    packed,
    summaries,
    tokens_digest,
    turn_count,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[]", 0), (b"[ ]", 0), (b"[1]", 1), (b"[1,2,3]", 3), (b"[ 1 , 2 ]", 2), (b"[1,null]", None),
        (b"null", None),
        (b"[[1],[2]]", None), (b'["1","2"]', 2), (b"[-1]", 1), (b"", None), (b"[1.5]", 1), (b"{}", None),
        (b'["a"]', None), (b'"a"', None), (b"17", None), (b"true", None),
    ],
)  # fmt: skip
def test_count_ids(text: bytes, expected: int | None) -> None:
    """Ids are counted without being decoded; what is no array of ids has no count."""
    assert count_ids(text) == expected
    assert count_all_ids([text, b"[7,8]"]) == [expected, 2]


@given(
    st.lists(st.lists(st.integers(0, 2**40), max_size=20), max_size=5),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_counts_of_any_arrays(arrays: list[list[int]], separators: tuple[str, str]) -> None:
    """Any arrays, compact or not, have as many ids as they have."""
    texts = [json.dumps(array, separators=separators).encode() for array in arrays]
    assert count_all_ids(texts) == [len(array) for array in arrays]


@given(st.lists(st.integers(0, 1), max_size=40), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_masks_of_any_form(mask: list[int], separators: tuple[str, str]) -> None:
    """A mask is the same from JSON, a list, booleans and an array; its turns are its runs of 1."""
    flags = mask_from_json(json.dumps(mask, separators=separators).encode())
    assert flags == bytes(mask)
    for other in (
        mask,
        [bool(value) for value in mask],
        np.array(mask, dtype=np.int32),
        np.array(mask, dtype=bool),
    ):
        assert mask_from_numbers(other) == flags
    runs = sum(1 for i, value in enumerate(mask) if value and (i == 0 or not mask[i - 1]))
    assert turn_count(bytes(mask)) == runs


@pytest.mark.parametrize(
    "text",
    [b"[2]", b"[10]", b"[0,1,]", b"[1", b"null", b"{}", b"[null]", b"[0.5]", b'["x"]', b"[[1]]", b"11"],
)
def test_what_is_no_mask(text: bytes) -> None:
    """Other values than 0 and 1, and other JSON, are no mask."""
    assert mask_from_json(text) is None


@pytest.mark.parametrize("values", [[2], [None], "ab", None, 5, [0.5], np.zeros((2, 2)), np.array([0.5])])
def test_what_is_no_mask_either(values: Any) -> None:
    """The same for Python values."""
    assert mask_from_numbers(values) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5], [1.0, 2.5]), ([None, -1.0], [math.nan, -1.0]), ([], []),
        (np.array([1], dtype=np.float16), [1.0]),
        ([np.float32(0.5)], [0.5]), (["x"], None), ([[1.0]], None), (None, None), (5, None), ({}, None),
        ([True, None], None),
    ],
)  # fmt: skip
def test_packed(values: Any, expected: Any) -> None:
    """Numbers become an array, null NaN; anything else is none."""
    found = packed(values)
    if expected is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, expected)


@given(st.lists(st.lists(st.floats(allow_nan=False), max_size=9), max_size=5))
def test_packing_many(lists: list[list[float]]) -> None:
    """Many lists in one buffer are the lists."""
    for array, expected in zip(all_packed(lists), lists, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_digests() -> None:
    """Equal ids have equal digests, whatever holds them; others differ; no ids have none."""
    ids = [1, 300, 2**40, -1]
    expected = tokens_digest(ids)
    assert expected is not None
    assert (
        expected
        == tokens_digest(tuple(ids))
        == tokens_digest(np.array(ids))
        == tokens_digest(np.array(ids, dtype=">i8"))
    )
    assert expected != tokens_digest(ids[:-1])
    assert tokens_digest([]) != tokens_digest([0])
    for other in (None, ["a"], [None], [2**70], np.zeros((2, 2), dtype=int), np.zeros(2), 5):
        assert tokens_digest(other) is None


def reference(trace: TraceTokens) -> dict[str, Any]:
    """The same summary, token by token."""
    flags = trace.flags if trace.flags is not None else b"\x01" * (trace.response or 0)
    pairs = zip(flags, [] if trace.logprobs is None else trace.logprobs.tolist(), strict=False)
    chosen = [value for flag, value in pairs if flag]
    known = [value for value in chosen if math.isfinite(value)]
    cells: dict[str, Any] = {"logprob_missing": len(chosen) - len(known) if chosen else None}
    if known:
        cells |= {
            "logprob_mean": math.fsum(known) / len(known),
            "logprob_min": min(known),
            "logprob_sum": math.fsum(known),
            "logprob_zero_share": known.count(0.0) / len(known),
        }
    return cells


LOGPROB = st.one_of(st.floats(-20, 0), st.just(0.0), st.just(math.nan), st.just(-math.inf))
TRACE = st.lists(st.tuples(st.integers(0, 1), LOGPROB), max_size=12)


@given(st.lists(st.tuples(TRACE, st.booleans()), max_size=6))
def test_summaries_of_any_traces(traces: list[tuple[list[tuple[int, float]], bool]]) -> None:
    """Many traces at once have the summaries that each has alone, counted token by token."""
    given_traces = [
        TraceTokens(
            3,
            len(pairs),
            bytes(flag for flag, _ in pairs) if masked else None,
            masked,
            np.array([value for _, value in pairs], dtype=np.float64),
        )
        for pairs, masked in traces
    ]
    for trace, cells in zip(given_traces, summaries(given_traces), strict=True):
        found = dict(zip(SUMMARY, cells, strict=True))
        for name, value in reference(trace).items():
            assert found[name] == (value if value is None else pytest.approx(value)), name
        assert found["response_tokens"] == trace.response
        if trace.flags is not None:
            assert found["sampled_tokens"] == trace.flags.count(1)


@pytest.mark.parametrize(
    ("trace", "told", "with_logprobs"),
    [
        (TraceTokens(1, 2, b"\x01\x01", True, np.zeros(2)), None, True),
        (TraceTokens(1, 2, b"\x01", True, np.zeros(2)), "1 mask entries for 2 response tokens", False),
        (TraceTokens(1, 2, None, True, np.zeros(2)), "a mask entry that is neither 0 nor 1", False),
        (TraceTokens(1, 2, b"\x01\x01", True, np.zeros(3)), "3 logprobs for 2 response tokens", False),
        (TraceTokens(1, 2, None, False, np.zeros(2)), None, True),
        (TraceTokens(), None, False),
        (TraceTokens(1, 0, b"", True, np.zeros(0)), None, True),
    ],
)
def test_arrays_that_do_not_fit(trace: TraceTokens, told: str | None, with_logprobs: bool) -> None:
    """What does not fit the response is said in words and gives no logprob summary."""
    assert trace.mismatch() == told
    (cells,) = summaries([trace])
    assert cells[SUMMARY.index("has_logprobs")] is with_logprobs


def test_stretches() -> None:
    """Consecutive stretches are kept apart; empty ones have nothing, one of NaN alone has only a count."""
    values = np.array([-1.0, 0.0, math.nan, -3.0])
    assert logprob_cells(values, [2, 0, 1, 1, 0]) == [
        (-0.5, -1.0, -1.0, 0.5, 0),
        (None,) * 5,
        (None, None, None, None, 1),
        (-3.0, -3.0, -3.0, 0.0, 0),
        (None,) * 5,
    ]
    assert logprob_cells(np.zeros(0), []) == []


def test_turns_of_a_trace_without_marks_are_unknown() -> None:
    """A server masks what a failed session sampled: that is no conversation without a turn."""
    place = SUMMARY.index("turns")
    masks = [b"\0\0\0", b"\0\1\0", b""]
    traces = [TraceTokens(prompt=1, response=len(mask), flags=mask, has_mask=True) for mask in masks]
    assert [cells[place] for cells in summaries(traces)] == [None, 1, 0]
