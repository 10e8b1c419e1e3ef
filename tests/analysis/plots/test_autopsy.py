"""Autopsy: bars from baseline to reward, advantages in numbers, reasons of the absent."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis.plots import plot_autopsy
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said, tick_names


def _group() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "position": [0, 1, 2, 3],
            "counted": [True, True, True, False],
            "reward": [1.0, 0.0, 0.5, 0.0],
            "baseline": [0.25, 0.75, 0.5, None],
            "advantage": [0.75, -0.75, 0.0, None],
            "absent": [None, None, None, "it ran out of time"],
        }
    ).convert_dtypes()


def test_bars_reach_from_baseline_to_reward(ax: Axes) -> None:
    """Above and below the baseline have their own colours; no difference is no bar."""
    plot_autopsy(_group(), ax=ax)
    above, below = (boxes_of(bars) for bars in polygons(ax))
    assert above[:, :2].tolist() == [[0.25, 1.0]]
    assert below[:, :2].tolist() == [[0.0, 0.75]]
    assert tick_names(ax, "y") == ["0", "1", "2", "3"]
    assert legend_of(ax) == ["reward", "above", "below", "baseline", "not counted"]


def test_numbers_and_reasons_stand_beside_the_bars(ax: Axes) -> None:
    """Advantages are signed; who is not counted has the reason instead of a number."""
    plot_autopsy(_group(), ax=ax)
    assert said(ax) == ["+0.750", "−0.750", "+0.000", "it ran out of time"]


def test_reasons_stand_without_the_session_s_own_message(ax: Axes) -> None:
    """What follows the colon is longer than a line, and the model's or the server's text."""
    frame = _group().assign(absent=[None, None, None, "it ended in an error: Traceback (most recent call)"])
    plot_autopsy(frame, ax=ax)
    assert "it ended in an error" in said(ax)


def test_a_group_nobody_counts_in_is_drawn(ax: Axes) -> None:
    """Without any reward there is nothing to compare, and still everybody is listed."""
    frame = _group().assign(counted=False, reward=None, baseline=None, advantage=None, absent=None)
    plot_autopsy(frame, ax=ax)
    assert said(ax) == ["not counted"] * 4
    assert polygons(ax) == []
