"""Columns of a frame as arrays, and texts that can be drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.errors import AnalysisError, PlotError
from analysis.plots._columns import (
    flags,
    known_rows,
    numbered,
    numbers,
    one_run,
    plain,
    require,
    seconds,
    top_words,
    words,
    wrapped,
)


def test_numbers_of_any_dtype_are_floats_with_gaps() -> None:
    """Missing, infinite and immense numbers are NaN; flags are 0 and 1."""
    for values in (
        pd.array([1, None, 3], dtype="Int64"),
        np.array([1.0, np.nan, 3.0]),
        np.array([1, None, 3], dtype=object),
        np.array([1.0, np.inf, 3.0]),
        np.array([1.0, -1e300, 3.0]),
        np.array([1, pd.NA, 3.0], dtype=object),
    ):
        np.testing.assert_array_equal(numbers(pd.DataFrame({"x": values}), "x"), [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(numbers(pd.DataFrame({"x": [True, False]}), "x"), [1.0, 0.0])


def test_words_are_no_numbers() -> None:
    """A column of words where numbers belong is named."""
    with pytest.raises(PlotError, match="column x"):
        numbers(pd.DataFrame({"x": ["a", "b"]}), "x")


def test_frames_stay_what_they_are() -> None:
    """Gaps are made in a copy."""
    frame = pd.DataFrame({"x": [1.0, np.inf]})
    numbers(frame, "x")
    assert np.isinf(frame["x"][1])


def test_missing_columns_are_listed_in_the_error() -> None:
    """All that is missing is named at once, with what is there; rowless frames need no columns."""
    with pytest.raises(PlotError, match=r"lacks the columns b, c; it has a") as caught:
        require(pd.DataFrame({"a": [1]}), "a", "b", "c")
    assert caught.value.missing == ("b", "c")
    assert isinstance(caught.value, AnalysisError)
    require(pd.DataFrame(), "a")
    require(pd.DataFrame({"a": []}), "b")


def test_errors_travel_between_processes() -> None:
    """An error keeps its message and the columns when it is pickled."""
    import pickle

    error = pickle.loads(pickle.dumps(PlotError("text", ("a",))))
    assert (str(error), error.missing) == ("text", ("a",))


def test_several_runs_are_named() -> None:
    """One run or none is fine."""
    one_run(pd.DataFrame({"run": ["a", None, "a"]}))
    with pytest.raises(PlotError, match="2 runs, the figure shows one: a, b"):
        one_run(pd.DataFrame({"run": ["a", "b"]}))


def test_moments_count_from_the_first_of_all_columns() -> None:
    """Columns share their origin; time zones and missing moments are no problem."""
    start = pd.to_datetime(["2024-01-01T00:00:01.0Z", None])
    end = pd.to_datetime(["2024-01-01T00:00:03.5Z", "2024-01-01T00:00:00.0Z"])
    first, second = seconds(pd.DataFrame({"s": start, "e": end}), "s", "e")
    np.testing.assert_array_equal(first, [1.0, np.nan])
    np.testing.assert_array_equal(second, [3.5, 0.0])


def test_words_flags_and_rows_have_answers_for_what_is_missing() -> None:
    """Missing is a word of its own, or an answer that the caller gives."""
    frame = pd.DataFrame({"w": ["a", None], "f": pd.array([True, None], dtype="boolean"), "x": [None, 2.0]})
    assert list(words(frame, "w")) == ["a", "unknown"]
    assert flags(frame, "f").tolist() == [True, False]
    assert flags(frame, "f", missing=True).tolist() == [True, True]
    assert known_rows(frame, "x").index.tolist() == [1]


def test_numbering_takes_any_text() -> None:
    """Values are numbered in order of appearance, lone surrogates included."""
    number, values = numbered(["b", "\ud800", "b"])
    assert number.tolist() == [0, 1, 0]
    assert values == ["b", "\ud800"]


def test_the_heaviest_words_stay() -> None:
    """Others become one word; none is lost, missing weights weigh nothing."""
    assert top_words(["a", "b", "a"], [1.0, 5.0, 1.0]) == {"b": "b", "a": "a"}
    chosen = top_words(list("abcd"), [1.0, np.nan, 3.0, 2.0], most=3)
    assert chosen == {"c": "c", "d": "d", "a": "other", "b": "other"}


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("$x$", r"\$x\$"),
        ("_hidden", " _hidden"),
        ("a\nb\tc\r", "a↵b→c␍"),
        ("\x00\x1b", "··"),
        ("日本", "□□"),
        ("\ud800", "·"),
        ("x" * 40, "x" * 31 + "…"),
        (None, "None"),
        (12, "12"),
    ],
)
def test_texts_are_drawn_as_they_stand(text: object, drawn: str) -> None:
    """No mathematics, no label that a legend leaves out, no glyph that the font lacks, no endless word."""
    assert plain(text) == drawn


@pytest.mark.parametrize(
    ("text", "options", "drawn"),
    [
        ("low_complete_fraction", {}, "low\ncomplete\nfraction"),
        ("too_stale", {}, "too stale"),
        ("reinforce_plus_plus", {"width": 13, "keep": "_"}, "reinforce_\nplus_plus"),
        (
            "reinforce_plus_plus_baseline",
            {"width": 16, "limit": 40, "keep": "_"},
            "reinforce_plus_\nplus_baseline",
        ),
        ("as trained", {"keep": "_"}, "as trained"),
        ("a" * 50, {"limit": 10}, "a" * 9 + "…"),
        ("$x$", {}, r"\$x\$"),
        ("", {}, ""),
    ],
)
def test_names_of_several_words_are_broken_into_lines(text: str, options: dict, drawn: str) -> None:
    """Names that differ in their last word only stay different."""
    assert wrapped(text, **options) == drawn
