"""Estimators side by side: ridges without zeros, agreement per pair, weights against tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots import plot_estimator_agreement, plot_estimator_lengths, plot_estimators
from slime_bridge.advantages import ESTIMATORS
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said, tick_names


def test_zeros_are_a_share_and_not_a_ridge(ax: Axes) -> None:
    """The share of zeros stands beside each ridge; estimators stand in the frame's order."""
    frame = pd.DataFrame(
        {"estimator": ["loo"] * 4 + ["grpo"] * 4, "advantage": [0.0, 0.0, 0.0, 1.0, 0.0, 2.0, -2.0, None]}
    )
    plot_estimators(frame, ax=ax)
    assert said(ax) == ["75%", "33%", "zero"]
    assert tick_names(ax, "y") == ["grpo", "loo"]
    first = ax.patches[0].get_data()
    assert (first.values > first.baseline).sum() == 1


def test_rests_of_sums_are_zeros(ax: Axes) -> None:
    """What floats leave of a 0 is no advantage: the share is the one of the comparison's table."""
    frame = pd.DataFrame({"estimator": ["max_at_k"] * 4, "advantage": [0.0, 2.8e-17, -5.6e-17, 1.0]})
    plot_estimators(frame, ax=ax)
    assert said(ax) == ["75%", "zero"]
    ridge = ax.patches[0].get_data()
    assert (ridge.values > ridge.baseline).sum() == 1


def test_each_pair_has_one_field(ax: Axes) -> None:
    """Fields hold the correlation and the share of flips, in whichever order the pair is given."""
    frame = pd.DataFrame(
        {
            "first": ["b", "a", "c", "a"],
            "second": ["a", "c", "b", "a"],
            "spearman": [0.95, 0.5, None, 1.0],
            "sign_flip_share": [0.25, None, 0.5, 0.0],
        }
    )
    plot_estimator_agreement(frame, ax=ax)
    assert tick_names(ax, "x") == ["b", "a"]
    assert tick_names(ax, "y") == ["a", "c"]
    fields = [text for text in said(ax) if "flip" in text or text == "0.500"]
    assert fields == ["0.950\n25.0% flip", "0.500", "?\n50.0% flip"]
    values = np.ma.filled(ax.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(values, [[0.95, np.nan], [np.nan, 0.5]])


def test_almost_equal_is_not_called_equal(ax: Axes) -> None:
    """A correlation that rounds to 1 without being 1 says so."""
    frame = pd.DataFrame({"first": ["a", "a"], "second": ["b", "c"], "spearman": [0.99999, 1.0]})
    plot_estimator_agreement(frame, ax=ax)
    assert {">0.999", "1.000"} <= set(said(ax))


def test_weights_are_bars_and_tokens_a_line(ax: Axes) -> None:
    """Bars of one bin stand side by side, bins in order of length."""
    frame = pd.DataFrame(
        {
            "estimator": ["x", "x", "y", "y"],
            "length_low": [11, 1, 11, 1],
            "length_high": [20, 10, 20, 10],
            "weight_share": [0.7, 0.3, 0.4, 0.6],
            "token_share": [0.8, 0.2, 0.8, 0.2],
        }
    )
    plot_estimator_lengths(frame, ax=ax)
    assert tick_names(ax, "x") == ["1–10", "11–20"]
    tops = [sorted(boxes_of(bars)[:, 3]) for bars in polygons(ax)]
    assert tops == [[0.3, 0.7], [0.4, 0.6]]
    lines = [segment[0][1] for segment in ax.collections[-1].get_segments()]
    assert lines == [0.2, 0.8]
    assert legend_of(ax) == ["x", "y", "of tokens"]


def test_many_estimators_have_room_for_their_names() -> None:
    """Eight of them make a higher figure, in which no two names of ticks overlap."""
    names = [*ESTIMATORS][:8]
    frame = pd.DataFrame(
        [(a, b, 0.9) for a, b in itertools.combinations(names, 2)], columns=["first", "second", "spearman"]
    )
    few, many = plot_estimator_agreement(frame.head(1)), plot_estimator_agreement(frame)
    assert many.figure.get_figheight() > few.figure.get_figheight()
    many.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in many.get_yticklabels()]
    assert [label.get_text().replace("\n", "") for label in many.get_yticklabels()] == names[1:]
    assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))


def test_a_long_legend_takes_no_room_from_the_bars() -> None:
    """The axes of a figure of its own keep their height."""
    names = [*ESTIMATORS][:8]
    rows = [(name, 1, 32, 1.0, 1.0) for name in names]
    frame = pd.DataFrame(
        rows, columns=["estimator", "length_low", "length_high", "weight_share", "token_share"]
    )
    heights = []
    for part in (frame.head(2), frame):
        ax = plot_estimator_lengths(part)
        ax.figure.canvas.draw()
        heights.append(ax.get_window_extent().height)
    assert heights[1] > 0.9 * heights[0]
