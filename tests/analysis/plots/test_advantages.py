"""Advantages: one dot per trajectory, shares per rollout, groups that teach nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from analysis.plots import plot_advantage_distribution, plot_advantages, plot_group_advantages, plot_noise
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said, tick_names


def test_every_trajectory_is_one_dot_in_its_outcomes_colour(ax: Axes) -> None:
    """Unknown advantages are left out; each outcome has its own colour."""
    frame = pd.DataFrame(
        {
            "rollout_id": [0, 0, 1, 1, 1],
            "advantage": [1.5, -0.5, 0.0, 0.0, np.nan],
            "outcome": ["success", "failure", "success", "unusable", "failure"],
        }
    )
    plot_advantages(frame, ax=ax)
    dots = {collection.get_label(): collection.get_offsets() for collection in ax.collections}
    assert {name: len(places) for name, places in dots.items()} == {"success": 2, "failure": 1, "unusable": 1}
    assert sorted(dots["success"][:, 1]) == [0.0, 1.5]
    assert np.abs(dots["success"][:, 0] - [0, 1]).max() < 0.5
    assert legend_of(ax) == ["success", "failure", "unusable"]
    low, high = ax.get_ylim()
    assert low < -0.5
    assert high > 1.5


def test_advantages_all_zero_still_have_an_axis(ax: Axes) -> None:
    """A run in which nothing could be learnt shows a line of dots at zero."""
    plot_advantages(pd.DataFrame({"rollout_id": [0], "advantage": [0.0]}), ax=ax)
    low, high = ax.get_ylim()
    assert low < 0.0 < high


def test_groups_without_a_signal_stand_on_a_field(ax: Axes) -> None:
    """Groups are named in the frame's order; those whose advantages are all zero are marked."""
    frame = pd.DataFrame({"group": [9, 9, 4, 4, 7], "advantage": [0.5, -0.5, 0.0, 0.0, None]})
    plot_group_advantages(frame, ax=ax)
    assert tick_names(ax, "x") == ["9", "4"]
    (field,) = boxes_of(polygons(ax)[0])
    assert list(field[:2]) == [0.5, 1.5]
    assert legend_of(ax) == ["above", "below", "zero", "no signal"]


def test_group_index_names_groups_without_a_scheduler(ax: Axes) -> None:
    """Where only dumps are left, Slime's number names the group."""
    plot_group_advantages(pd.DataFrame({"group_index": [3, 3], "advantage": [1.0, -1.0]}), ax=ax)
    assert tick_names(ax, "x") == ["3"]


def test_shares_of_a_rollout_add_up_to_one(ax: Axes) -> None:
    """Each column is a distribution; a rollout without advantages is empty, not zero."""
    frame = pd.DataFrame({"rollout_id": [0, 0, 0, 0, 2], "advantage": [1.0, -1.0, 0.0, 0.0, 0.0]})
    plot_advantage_distribution(frame, ax=ax)
    shares = np.ma.filled(ax.images[0].get_array(), np.nan)
    assert np.nansum(shares, axis=0).tolist() == [1.0, 0.0, 1.0]
    assert np.isnan(shares[:, 1]).all()
    middle = shares.shape[0] // 2
    assert shares[middle].tolist()[0] == 0.5
    assert shares[middle].tolist()[2] == 1.0


@pytest.mark.parametrize("rollouts", [1, 5_000])
def test_distribution_has_no_more_columns_than_dots(ax: Axes, rollouts: int) -> None:
    """Thousands of rollouts share columns, and none is lost."""
    frame = pd.DataFrame({"rollout_id": np.arange(rollouts), "advantage": np.ones(rollouts)})
    plot_advantage_distribution(frame, ax=ax)
    shares = np.ma.filled(ax.images[0].get_array(), np.nan)
    assert shares.shape[1] <= 400
    assert (np.nansum(shares, axis=0) == 1.0).all()


def test_noise_and_wrong_signs_are_lines_as_far_as_they_are_known(ax: Axes) -> None:
    """A column of missing values gives no line and no entry in the legend."""
    frame = pd.DataFrame({"rollout_id": [1, 0], "noise_share": [0.4, 0.1], "p_sign_wrong": [None, None]})
    plot_noise(frame.astype({"p_sign_wrong": "Float64"}), ax=ax)
    assert legend_of(ax) == ["noise, of the square"]
    assert list(ax.lines[0].get_ydata()) == [0.1, 0.4]
    assert said(ax) == []
