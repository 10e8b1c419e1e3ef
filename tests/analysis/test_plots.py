"""The four figures of a run: right marks for right data, honest about missing data, no state left behind."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from matplotlib.axes import Axes

from analysis.plots import plot_advantages, plot_policy_lag, plot_rejections, plot_reward
from analysis.plots.style import COLUMN_WIDTH, PALETTE, colour_for, house_style, new_figure

FUNCTIONS = [plot_reward, plot_advantages, plot_rejections, plot_policy_lag]
COLUMNS = {
    plot_reward: ["series", "rollout_id", "reward_mean"],
    plot_advantages: ["rollout_id", "advantage", "outcome"],
    plot_rejections: ["rollout_id", "reason", "groups"],
    plot_policy_lag: ["rollout_id", "lag_mean", "lag_min", "lag_max"],
}


@pytest.fixture
def ax() -> Axes:
    return new_figure().subplots()


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


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_data_is_said_and_axes_keep_their_labels(function, ax: Axes) -> None:
    """Frames without rows, with or without columns, give labelled axes that say so."""
    for frame in (pd.DataFrame(columns=COLUMNS[function]), pd.DataFrame()):
        ax.clear()
        drawn = function(frame, ax=ax)
        assert drawn is ax
        assert [text.get_text() for text in ax.texts] == ["no data"]
        assert ax.get_xlabel()
        assert ax.get_ylabel()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_style_leaves_global_settings_alone(function, ax: Axes) -> None:
    """Drawing changes no rcParams, and the figure is one column wide."""
    before = dict(mpl.rcParams)
    function(pd.DataFrame(columns=COLUMNS[function]), ax=ax)
    assert dict(mpl.rcParams) == before
    assert ax.figure.get_figwidth() == COLUMN_WIDTH


@pytest.mark.parametrize("function", FUNCTIONS)
def test_own_axes_are_made_on_request_and_can_be_closed(function) -> None:
    """Without `ax` the function opens one figure, which pyplot knows and closes."""
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    drawn = function(pd.DataFrame(columns=COLUMNS[function]))
    assert plt.fignum_exists(drawn.figure.number)
    plt.close(drawn.figure)
    assert plt.get_fignums() == []


def test_reward_is_drawn_in_order_with_interval_and_held_out_points(ax: Axes) -> None:
    """The training line is sorted by rollout, the held-out points carry asymmetric error bars."""
    plot_reward(_reward(), ax=ax)
    line = ax.lines[0]
    assert list(line.get_xdata()) == [0, 1, 2]
    assert list(line.get_ydata()) == [0.3, 0.5, 0.8]
    assert len(ax.collections) >= 1
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["training", "held-out"]
    assert ax.get_ylim()[0] == 0.0


def test_reward_missing_is_not_drawn_as_zero(ax: Axes) -> None:
    """A rollout whose reward is unknown leaves a gap in the points, not a dip to zero."""
    frame = _reward()
    frame.loc[frame["rollout_id"] == 1, "reward_mean"] = np.nan
    plot_reward(frame, ax=ax)
    assert list(ax.lines[0].get_xdata()) == [0, 2]
    assert min(ax.lines[0].get_ydata()) == 0.3


def test_reward_outside_the_unit_interval_scales(ax: Axes) -> None:
    """Rewards are not assumed to lie between 0 and 1, and one rollout is enough."""
    plot_reward(pd.DataFrame({"series": ["training"], "rollout_id": [0], "reward_mean": [-3.0]}), ax=ax)
    low, high = ax.get_ylim()
    assert low < -3.0 < high


def test_every_trajectory_is_one_dot_in_its_outcomes_colour(ax: Axes) -> None:
    """Unknown advantages are left out; each outcome has its own colour, full strength in the legend."""
    frame = pd.DataFrame(
        {
            "rollout_id": [0, 0, 1, 1, 1],
            "advantage": [1.5, -0.5, 0.0, 0.0, np.nan],
            "outcome": ["success", "failure", "success", "unusable", "failure"],
        }
    )
    plot_advantages(frame, ax=ax)
    dots = {collection.get_label(): collection for collection in ax.collections}
    assert {name: len(collection.get_offsets()) for name, collection in dots.items()} == {
        "success": 2,
        "failure": 1,
        "unusable": 1,
    }
    assert sorted(dots["success"].get_offsets()[:, 1]) == [0.0, 1.5]
    assert np.abs(dots["success"].get_offsets()[:, 0] - [0, 1]).max() < 0.5
    low, high = ax.get_ylim()
    assert low < -0.5
    assert high > 1.5


def test_advantages_all_zero_still_have_an_axis(ax: Axes) -> None:
    """A run in which nothing could be learnt shows a line of dots at zero."""
    plot_advantages(pd.DataFrame({"rollout_id": [0], "advantage": [0.0], "outcome": ["success"]}), ax=ax)
    low, high = ax.get_ylim()
    assert low < 0.0 < high


def test_rejections_stack_by_reason(ax: Axes) -> None:
    """Bars of one rollout stand on each other; the legend has totals, the most frequent reason first."""
    frame = pd.DataFrame(
        {
            "rollout_id": [0, 1, 1, 2, 3],
            "reason": ["too_stale", "too_stale", "low_complete_fraction", "low_complete_fraction", None],
            "groups": [1, 2, 3, 4, 0],
        }
    )
    plot_rejections(frame, ax=ax)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["low complete fraction (7)", "too stale (3)"]
    tops = [bar.get_y() + bar.get_height() for bar in ax.containers[1]]
    assert tops == [1.0, 5.0, 4.0]
    assert ax.get_xlim()[1] > 3


def test_no_rejections_is_a_result_not_missing_data(ax: Axes) -> None:
    """Rollouts without any rejection say so, over the full range of rollouts."""
    plot_rejections(pd.DataFrame({"rollout_id": [0, 9], "reason": [None, None], "groups": [0, 0]}), ax=ax)
    assert [text.get_text() for text in ax.texts] == ["none rejected"]
    assert ax.get_xlim()[1] > 9


def test_lag_shows_mean_range_and_limit(ax: Axes) -> None:
    """The limit is a line above the data, and the token lag appears only where it is known."""
    frame = pd.DataFrame(
        {
            "rollout_id": [1, 0],
            "lag_mean": [1.5, 0.5],
            "lag_min": [1, 0],
            "lag_max": [2, 1],
            "token_lag_mean": [np.nan, np.nan],
            "limit": [3, 3],
        }
    )
    plot_policy_lag(frame, ax=ax)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["range", "mean, at submission", "limit"]
    assert list(ax.lines[0].get_ydata()) == [0.5, 1.5]
    assert ax.get_ylim()[1] > 3
    frame["token_lag_mean"] = [1.0, 0.25]
    ax.clear()
    plot_policy_lag(frame, ax=ax)
    assert "mean, oldest token" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_palette_is_distinguishable_in_grey_and_by_name() -> None:
    """Neighbouring colours of the cycle differ in lightness or hue enough to survive colour blindness."""
    names = ["a", "b", "c"]
    chosen = [colour_for(name, names) for name in names]
    assert len(set(chosen)) == 3
    assert set(chosen) <= set(PALETTE.values())
    values = np.array([colors.to_rgb(colour) for colour in chosen])
    # Deuteranopia after Viénot, Brettel and Mollon (1999): red and green collapse into one axis.
    seen = values @ np.array([[0.29275, 0.29275, -0.02234], [0.70725, 0.70725, 0.02234], [0.0, 0.0, 1.0]])
    distances = [np.linalg.norm(seen[i] - seen[j]) for i in range(3) for j in range(i)]
    assert min(distances) > 0.25


def test_house_style_is_a_scope() -> None:
    """The style holds inside the block only."""
    outside = mpl.rcParams["font.size"]
    with house_style():
        assert mpl.rcParams["font.size"] == 8
    assert mpl.rcParams["font.size"] == outside
