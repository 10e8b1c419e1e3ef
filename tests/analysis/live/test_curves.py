"""Line charts as SVG: round axes, broken lines, nothing that acts."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.live.curves import axis_ticks, line_chart
from analysis.live.progress import Point


def points(*values: float) -> list[Point]:
    return [Point(place, value) for place, value in enumerate(values)]


def parsed(markup: str) -> ElementTree.Element:
    svg = re.search(r"<svg.*</svg>", markup, re.DOTALL)
    assert svg is not None
    return ElementTree.fromstring(svg.group())


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_ticks_span_the_range(one: float, other: float) -> None:
    """The first and last tick enclose the values, in at most a handful of equal steps."""
    low, high = min(one, other), max(one, other)
    ticks = axis_ticks(low, high)
    slack = (ticks[-1] - ticks[0]) * 1e-6
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (0.31, 0.42, [0.3, 0.35, 0.4, 0.45]), (0, 0, [-1, -0.5, 0, 0.5, 1])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    """As a person would draw them."""
    assert axis_ticks(low, high) == pytest.approx(expected)


def test_higher_values_are_higher_up() -> None:
    """SVG's y axis points down."""
    svg = parsed(line_chart("reward", {"a": points(0.0, 1.0)}))
    line = svg.find(".//polyline")
    assert line is not None
    (x0, y0), (x1, y1) = (map(float, pair.split(",")) for pair in line.attrib["points"].split())
    assert x0 < x1
    assert y0 > y1


def test_missing_values_break_the_line() -> None:
    """A point between two missing ones is a dot; nothing is drawn across the gap."""
    svg = parsed(line_chart("r", {"a": points(0, 1, math.nan, 2, math.nan, 3, 4)}))
    assert [len(line.attrib["points"].split()) for line in svg.iter("polyline")] == [2, 2]
    assert len(list(svg.iter("circle"))) == 2


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": points(math.nan, math.inf)}])
def test_nothing_to_draw_is_said(series: dict[str, list[Point]]) -> None:
    """An empty chart says that there are no values yet."""
    assert "no values yet" in line_chart("reward", series)


def test_one_value_is_a_dot() -> None:
    """A single point has no extent, and that is no error."""
    svg = parsed(line_chart("reward", {"a": points(0.5)}))
    assert len(list(svg.iter("circle"))) == 1


def test_text_of_a_run_is_inert() -> None:
    """Names of estimators and titles may be anything."""
    markup = line_chart(
        "<img src=x>", {"<script>alert(1)</script>": points(1, 2), 'b" onload="x': points(2, 1)}
    )
    assert "<script>" not in markup
    assert "<img" not in markup
    assert 'onload="x' not in markup.replace("&#34;", "'")
