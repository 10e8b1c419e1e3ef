"""Replay: relative changes with their intervals, and which verdicts change."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis.plots import plot_replay, plot_verdicts
from tests.analysis.plots.looking import boxes_of, polygons, said, tick_names


def test_changes_are_relative_to_history(ax: Axes) -> None:
    """Bars are percent of what was before; where that was nothing, only the numbers stand there."""
    frame = pd.DataFrame(
        {
            "quantity": ["groups", "staleness", "zero_signal_groups"],
            "before": [200.0, 1.0, 0.0],
            "after": [150.0, 1.2, 3.0],
            "difference": [-50.0, 0.2, 3.0],
        }
    )
    plot_replay(frame, ax=ax)
    spans = boxes_of(polygons(ax)[0])[:, :2].round(6).tolist()
    assert spans == [[-25.0, 0.0], [0.0, 20.0], [0.0, 0.0]]
    assert said(ax) == ["200 → 150", "1 → 1.2", "0 → 3"]
    assert tick_names(ax, "y") == ["groups", "staleness", "zero signal groups"]


def test_intervals_of_the_difference_are_relative_too(ax: Axes) -> None:
    """The ends of an interval are divided by the same number as the bar."""
    frame = pd.DataFrame(
        {
            "quantity": ["x"],
            "before": [-2.0],
            "after": [-1.0],
            "difference": [1.0],
            "low": [0.5],
            "high": [1.5],
        }
    )
    plot_replay(frame, ax=ax)
    (segment,) = next(c for c in ax.collections if hasattr(c, "get_segments")).get_segments()
    assert [point[0] for point in segment] == [25.0, 75.0]


def test_verdicts_are_counted_and_changes_framed(ax: Axes) -> None:
    """Rows are history, columns the replay; groups that cannot be judged are a column of their own."""
    rows = [(True, None, True, None)] * 3 + [(True, None, False, "too_stale")] * 2
    rows += [(False, "too_stale", True, None), (False, "too_stale", None, None)]
    names = ["accepted", "reason", "replayed_accepted", "replayed_reason"]
    plot_verdicts(pd.DataFrame(rows, columns=names).convert_dtypes(), ax=ax)
    assert tick_names(ax, "y") == ["accepted", "too stale"]
    assert tick_names(ax, "x") == ["accepted", "too stale", "unknown"]
    assert said(ax) == ["3", "2", "0", "1", "0", "1"]
    framed = [
        boxes_of(field)[0][[0, 2]].round().tolist()
        for field in polygons(ax)
        if len(field.get_facecolor()) == 0
    ]
    assert framed == [[1.0, 0.0], [0.0, 1.0]]


def test_numbers_are_short(ax: Axes) -> None:
    """Large numbers are written with separators or in millions."""
    frame = pd.DataFrame(
        {
            "quantity": ["a", "b"],
            "before": [71_181.0, 2.5e6],
            "after": [25_685.0, 1e6],
            "difference": [-45_496.0, -1.5e6],
        }
    )
    plot_replay(frame, ax=ax)
    assert said(ax) == ["71,181 → 25,685", "2.50M → 1.00M"]
