"""Rewards: lines in order, intervals where they are known, gaps where nothing is."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots import plot_evaluations, plot_reward
from tests.analysis.plots.looking import legend_of


def _reward() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "series": ["training"] * 3 + ["held-out"] * 2,
            "rollout_id": [2, 0, 1, 0, 3],
            "reward_mean": [0.8, 0.3, 0.5, 0.35, 0.9],
            "reward_low": [0.7, 0.2, 0.4, 0.3, 0.85],
            "reward_high": [0.9, 0.4, 0.6, 0.4, 0.95],
        }
    )


def test_training_line_is_in_order_and_evaluations_are_marks(ax: Axes) -> None:
    """The line is sorted by rollout, the band is the interval, evaluations are not joined."""
    plot_reward(_reward(), ax=ax)
    assert list(ax.lines[0].get_xdata()) == [0, 1, 2]
    assert list(ax.lines[0].get_ydata()) == [0.3, 0.5, 0.8]
    assert ax.lines[-1].get_linestyle() == "None"
    assert list(ax.lines[-1].get_xdata()) == [0, 3]
    assert legend_of(ax) == ["training", "held-out"]
    assert ax.get_ylim() == (0.0, 1.03)


def test_missing_rewards_are_not_drawn_as_zero(ax: Axes) -> None:
    """A rollout whose reward is unknown leaves a gap in the points, not a dip to zero."""
    frame = _reward()
    frame.loc[frame["rollout_id"] == 1, "reward_mean"] = np.nan
    plot_reward(frame, ax=ax)
    assert list(ax.lines[0].get_xdata()) == [0, 2]
    assert min(ax.lines[0].get_ydata()) == 0.3


def test_rewards_beyond_the_unit_interval_scale(ax: Axes) -> None:
    """Rewards are not assumed to lie between 0 and 1, and one rollout is a dot."""
    plot_reward(pd.DataFrame({"rollout_id": [0], "reward_mean": [-3.0]}), ax=ax)
    low, high = ax.get_ylim()
    assert low < -3.0 < high
    assert ax.lines[0].get_marker() == "o"
    assert legend_of(ax) == []


def test_table_of_rollouts_is_taken_as_it_is(ax: Axes) -> None:
    """With `evaluation` and `reward_std` of the schema, spread and completed-only means are drawn."""
    frame = pd.DataFrame(
        {
            "rollout_id": [0, 1, 0],
            "evaluation": [False, None, True],
            "reward_mean": [0.2, 0.4, 0.3],
            "reward_std": [0.1, 0.2, None],
            "reward_mean_completed": [0.25, 0.45, None],
        }
    ).convert_dtypes()
    plot_reward(frame, ax=ax)
    assert legend_of(ax) == ["training", "±1 sd", "completed", "held-out"]
    spread = ax.collections[0].get_paths()[0].vertices
    assert {round(float(y), 6) for y in spread[:, 1]} >= {0.1, 0.3, 0.2, 0.6}
    assert list(ax.lines[1].get_ydata()) == [0.25, 0.45]


def test_thousands_of_rollouts_keep_their_extremes(ax: Axes) -> None:
    """A band of more points than dots shows the lowest and the highest of them."""
    at = np.arange(50_000)
    low, high = np.full(50_000, 0.4), np.full(50_000, 0.6)
    low[12_345], high[43_210] = 0.05, 0.95
    frame = pd.DataFrame({"rollout_id": at, "reward_mean": 0.5, "reward_low": low, "reward_high": high})
    plot_reward(frame, ax=ax)
    ends = ax.collections[0].get_paths()[0].vertices
    assert len(ends) < 5_000
    assert ends[:, 1].min() == 0.05
    assert ends[:, 1].max() == 0.95


def test_each_data_set_has_a_line_with_its_own_marker(ax: Axes) -> None:
    """Data sets evaluated at the same rollouts stand side by side, and bars are their intervals."""
    frame = pd.DataFrame(
        {
            "rollout_id": [10, 0, 0, 10],
            "dataset": ["a", "a", "b", "b"],
            "reward_mean": [0.6, 0.2, 0.1, 0.3],
            "reward_low": [0.5, 0.1, None, 0.2],
            "reward_high": [0.7, 0.4, None, 0.4],
        }
    )
    plot_evaluations(frame, ax=ax)
    lines = [line for line in ax.lines if line.get_linestyle() == "-"]
    assert [list(line.get_ydata()) for line in lines] == [[0.2, 0.6], [0.1, 0.3]]
    assert len({line.get_marker() for line in lines}) == 2
    assert lines[0].get_xdata()[0] < lines[1].get_xdata()[0]
    bars = [segment for collection in ax.collections for segment in collection.get_segments()]
    assert sorted((round(s[0][1], 6), round(s[1][1], 6)) for s in bars) == [
        (0.1, 0.4),
        (0.2, 0.4),
        (0.5, 0.7),
    ]
    assert legend_of(ax) == ["a", "b"]


def test_training_rollouts_are_no_evaluations(ax: Axes) -> None:
    """Rows that the schema marks as training are left out."""
    frame = pd.DataFrame({"rollout_id": [0, 1], "evaluation": [True, False], "reward_mean": [0.5, 0.9]})
    plot_evaluations(frame, ax=ax)
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.5]]
