"""Lag: over rollouts with its bound, as counts, by its parts, and against rejections."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots import plot_lag_histogram, plot_lag_parts, plot_policy_lag, plot_rejection_by_lag
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said


def _rollouts() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "rollout_id": [1, 0],
            "lag_mean": [1.5, 0.5],
            "lag_min": [1, 0],
            "lag_max": [2, 1],
            "token_lag_mean": [np.nan, np.nan],
            "limit": [3, 3],
        }
    )


def test_lag_shows_mean_range_and_limit(ax: Axes) -> None:
    """The limit is a line above the data, and the token lag appears only where it is known."""
    plot_policy_lag(_rollouts(), ax=ax)
    assert legend_of(ax) == ["range", "mean", "bound"]
    assert list(ax.lines[0].get_ydata()) == [0.5, 1.5]
    assert ax.get_ylim()[1] > 3
    ax.clear()
    plot_policy_lag(_rollouts().assign(token_lag_mean=[1.0, 0.25]), ax=ax)
    assert legend_of(ax) == ["range", "mean", "per token", "bound"]


def test_bound_follows_its_changes(ax: Axes) -> None:
    """A bound that changed during the run is drawn as it was."""
    frame = _rollouts().drop(columns="limit").assign(bound=[2.0, 4.0])
    plot_policy_lag(frame, ax=ax)
    assert list(ax.lines[-1].get_ydata()) == [4.0, 2.0]


def test_histogram_puts_parts_side_by_side(ax: Axes) -> None:
    """Each part has bars of its own at the same lag; the bound lies behind the last lag that it allows."""
    frame = pd.DataFrame({"part": ["total", "total", "in_flight"], "lag": [0, 2, 0], "groups": [5, 1, 6]})
    plot_lag_histogram(frame, bound=2, ax=ax)
    total, flight = (boxes_of(bars) for bars in polygons(ax))
    assert total[:, 3].tolist() == [5.0, 1.0]
    assert flight[:, 3].tolist() == [6.0]
    assert total[0][1] <= flight[0][0]
    assert list(ax.lines[0].get_xdata()) == [2.5, 2.5]
    assert legend_of(ax) == ["total", "in flight", "bound"]


def test_histogram_without_parts_needs_no_legend(ax: Axes) -> None:
    """One kind of bars explains itself."""
    plot_lag_histogram(pd.DataFrame({"lag": [0, 1], "groups": [3, 4]}), ax=ax)
    assert legend_of(ax) == []
    assert boxes_of(polygons(ax)[0])[:, 3].tolist() == [3.0, 4.0]


def test_parts_are_counted_in_fields(ax: Axes) -> None:
    """Groups of the same parts are one field with their number; fields without a group stay empty."""
    frame = pd.DataFrame({"in_flight": [0, 0, 2, None], "in_queue": [1, 1, 0, 0], "bound": [2, 2, 2, 2]})
    plot_lag_parts(frame.convert_dtypes(), ax=ax)
    counts = np.ma.filled(ax.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(counts, [[np.nan, np.nan, 1.0], [2.0, np.nan, np.nan]])
    assert [text for text in said(ax) if text.isdigit()] == ["1", "2", "2"]
    stairs = ax.lines[0].get_xydata()
    assert [0.5, 1.5] in stairs.tolist()


def test_parts_far_apart_share_fields(ax: Axes) -> None:
    """A lag of thousands does not make a picture of millions of fields."""
    frame = pd.DataFrame({"in_flight": [0, 9_999], "in_queue": [5_000, 0]})
    plot_lag_parts(frame, ax=ax)
    counts = np.ma.filled(ax.images[0].get_array(), 0.0)
    assert counts.size <= 41 * 41
    assert counts.sum() == 2


def test_rejected_shares_have_intervals_and_numbers(ax: Axes) -> None:
    """Above each lag stands of how many groups the share is."""
    frame = pd.DataFrame(
        {
            "lag": [1, 0],
            "rejected_share": [0.5, 0.1],
            "low": [0.2, 0.0],
            "high": [0.8, 0.3],
            "candidates": [4, 1200],
        }
    )
    plot_rejection_by_lag(frame, ax=ax)
    assert said(ax) == ["1,200", "4"]
    assert list(ax.lines[0].get_ydata()) == [0.1, 0.5]
    ends = [[point[1] for point in segment] for segment in ax.collections[0].get_segments()]
    assert ends == [[0.0, 0.3], [0.2, 0.8]]
