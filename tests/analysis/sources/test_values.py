"""Foreign values as cells: what does not fit is missing, what fits is exact."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from analysis.sources.values import boolean, integer, json_text, mapping, moment, number, text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3), (3.0, 3), (np.int32(3), 3), (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (2**63, None),
        (True, None),
        ("3", None), (3.5, None), (float("nan"), None), (float("inf"), None), (None, None), ([], None),
        (1e300, None),
    ],
)  # fmt: skip
def test_integer(value: Any, expected: int | None) -> None:
    """Integers of 64 bits, also as integral floats; booleans and texts are no numbers."""
    assert integer(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5), (2, 2.0), (np.float32(0.5), 0.5), (float("nan"), None), (float("inf"), math.inf),
        (True, None),
        ("1", None), (10**400, None), (None, None), ({}, None),
    ],
)  # fmt: skip
def test_number(value: Any, expected: float | None) -> None:
    """Floats, NaN as missing, infinities as they are."""
    assert number(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), (np.bool_(False), False), (1, None), ("true", None), (None, None)]
)
def test_boolean(value: Any, expected: bool | None) -> None:
    """Only a boolean is one."""
    assert boolean(value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", "a"), ("", ""), (7, "7"), (1.5, "1.5"), (True, None), (None, None), ([], None), ({}, None),
        (b"x", None),
     ("a\ud83db", "a\N{REPLACEMENT CHARACTER}b"), ("\U0001f600", "\U0001f600")],
)  # fmt: skip
def test_text(value: Any, expected: str | None) -> None:
    """Text is valid Unicode; numbers become text, containers do not."""
    found = text(value)
    assert found == expected
    if found is not None:
        found.encode()


def test_text_is_cut() -> None:
    """A long text ends in an ellipsis, within the limit."""
    assert text("x" * 100, 10) == "x" * 9 + "…"


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, None, "x"]}, {"a": [1, None, "x"]}),
        ({"a": float("nan"), "b": float("inf")}, {"a": None, "b": None}),
        ({1: "x", (2, 3): "y"}, {"1": "x", "(2, 3)": "y"}),
        ({"a": np.float32(0.5), "b": np.arange(3)}, {"a": 0.5, "b": "<ndarray>"}),
        ({"a": 2**100}, {"a": 2**100}),
        ({"a": "\ud83d"}, {"a": "\N{REPLACEMENT CHARACTER}"}),
        ({"a": Odd()}, {"a": "<Odd>"}),
        ({"a": {1, 2}}, None),
    ],
)
def test_json_text(value: Any, expected: Any) -> None:
    """Anything becomes valid JSON: NaN is null, unknown objects are their type."""
    found = json_text(value)
    assert found is not None
    if expected is not None:
        assert json.loads(found) == expected


def test_json_text_of_nothing_and_of_too_much() -> None:
    """Empty containers are missing; what is too long or too deep is replaced by a note, in valid JSON."""
    assert json_text(None) is None
    assert json_text({}) is None
    assert json.loads(json_text({"a": "x" * 1000}, 100) or "") == {"__truncated": True, "characters": 1008}
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert json.loads(json_text(deep) or "") == {"__unreadable": "RecursionError"}


def test_mapping() -> None:
    """Whatever is no mapping is an empty one."""
    assert mapping({"a": 1}) == {"a": 1}
    assert mapping([1]) == {} == mapping(None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1_500_000), (0, 0), ("1970-01-01T00:00:01+00:00", 1_000_000),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-01T01:00:01+01:00", 1_000_000), ("1970-01-01T00:00:01Z", 1_000_000), ("soon", None),
        (None, None),
        (1e300, None), (float("nan"), None), (True, None),
    ],
)  # fmt: skip
def test_moment(value: Any, expected: int | None) -> None:
    """Unix seconds and ISO 8601 texts; a text without a zone is UTC; nonsense is missing."""
    assert moment(value) == expected
