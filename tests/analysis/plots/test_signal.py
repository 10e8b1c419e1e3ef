"""Signal: a map of prompts over time, and shares per rollout."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from matplotlib.axes import Axes

from analysis.errors import PlotError
from analysis.plots import plot_signal, plot_zero_signal
from analysis.plots.style import PALETTE
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, tick_names


def _groups() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "rollout_id": [0, 0, 1, 3, 3],
            "prompt_sha256": ["aa", "bb", "aa", "bb", "bb"],
            "prompt_preview": ["easy", "hard", "easy", "hard", "hard"],
            "kind": ["all_correct", "mixed", "all_correct", "all_wrong", "mixed"],
        }
    )


def test_map_shows_what_each_prompt_taught_when(ax: Axes) -> None:
    """The most useful prompt is on top; a group with a signal wins its field; no group is no colour."""
    plot_zero_signal(_groups(), ax=ax)
    assert tick_names(ax, "y") == ["hard", "easy"]
    grid = np.asarray(ax.images[0].get_array())
    mixed, correct = colors.to_rgb(PALETTE["blue"]), colors.to_rgb(PALETTE["green"])
    assert grid.shape == (2, 4, 4)
    assert [tuple(cell[:3]) for cell in grid[0, [0, 3]]] == [mixed, mixed]
    assert [tuple(cell[:3]) for cell in grid[1, [0, 1]]] == [correct, correct]
    assert grid[0, 1, 3] == grid[1, 2, 3] == 0.0
    assert legend_of(ax) == ["mixed", "all correct", "all wrong"]


def test_prompts_are_named_by_what_tells_them_apart(ax: Axes) -> None:
    """Messages are unpacked, a common beginning is left out, and digests stand in for what is unknown."""
    said = [f'[{{"role":"user","content":"Count the boxes on \\"{name}\\" please"}}]' for name in ("A", "B")]
    frame = _groups()
    frame["prompt_preview"] = [said[0], said[1], said[0], said[1], said[1]]
    plot_zero_signal(frame, ax=ax)
    assert tick_names(ax, "y") == ['…boxes on "B" please', '…boxes on "A" please']
    ax.clear()
    plot_zero_signal(frame.drop(columns="prompt_preview"), ax=ax)
    assert tick_names(ax, "y") == ["bb", "aa"]


def test_long_prompts_that_differ_at_their_ends_show_their_ends(ax: Axes) -> None:
    """Names that would be equal when cut are cut at the front."""
    frame = _groups()
    frame["prompt_preview"] = np.where(frame["prompt_sha256"] == "aa", "x" * 40 + "one", "x" * 40 + "two")
    plot_zero_signal(frame, ax=ax)
    assert [name[-3:] for name in tick_names(ax, "y")] == ["two", "one"]


def test_thousands_of_prompts_are_counted_and_not_named(ax: Axes) -> None:
    """A map of many prompts has no names, and as many rows as prompts."""
    frame = pd.DataFrame(
        {
            "rollout_id": np.arange(3000) % 7,
            "prompt_sha256": [f"{n:064d}" for n in range(3000)],
            "kind": "mixed",
        }
    )
    plot_zero_signal(frame, ax=ax)
    assert ax.get_ylabel() == "3,000 prompts"
    assert ax.images[0].get_array().shape[:2] == (3000, 7)


def test_shares_of_a_rollout_stack_to_one(ax: Axes) -> None:
    """Kinds that never occur have no entry; rollouts without a group are empty."""
    frame = pd.DataFrame(
        {
            "rollout_id": [0, 1, 2],
            "groups": [4, 0, 2],
            "mixed": [3, 0, 1],
            "all_wrong": [1, 0, 1],
            "lone": [0, 0, 0],
        }
    )
    plot_signal(frame, ax=ax)
    assert legend_of(ax) == ["mixed", "all wrong"]
    mixed, wrong = (boxes_of(bars)[:, 2:].tolist() for bars in polygons(ax))
    assert mixed == [[0.0, 0.75], [0.0, 0.5]]
    assert wrong == [[0.75, 1.0], [0.5, 1.0]]


def test_some_kind_must_be_counted() -> None:
    """A frame without any of the kinds names those that would do."""
    with pytest.raises(PlotError, match="mixed, all_correct, all_wrong"):
        plot_signal(pd.DataFrame({"rollout_id": [0], "groups": [1]}))
