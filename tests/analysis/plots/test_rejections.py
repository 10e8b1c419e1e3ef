"""Rejections: stacked by reason, down a waterfall, at their cost, and with whom they leave out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots import plot_rejections, plot_survivorship, plot_waste, plot_waterfall
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said, tick_names


def test_bars_of_one_rollout_stand_on_each_other(ax: Axes) -> None:
    """The legend has totals, the most frequent reason first; quiet rollouts widen the axis."""
    frame = pd.DataFrame(
        {
            "rollout_id": [0, 1, 1, 2, 7],
            "reason": ["too_stale", "too_stale", "low_complete_fraction", "low_complete_fraction", None],
            "groups": [1, 2, 3, 4, 0],
        }
    )
    plot_rejections(frame, ax=ax)
    assert legend_of(ax) == ["low complete fraction (7)", "too stale (3)"]
    lower, upper = (boxes_of(bars) for bars in polygons(ax))
    assert lower[:, 2:].tolist() == [[0.0, 3.0], [0.0, 4.0]]
    assert upper[:, 2:].tolist() == [[0.0, 1.0], [3.0, 5.0]]
    assert ax.get_xlim()[1] > 7


def test_ledger_of_groups_is_taken_as_it_is(ax: Axes) -> None:
    """Without a count each row is a group; what was lost otherwise has a reason and is no rejection."""
    frame = pd.DataFrame(
        {
            "rollout_id": [0, 1, 1, 1, 2, 30],
            "stage": ["delivered", "content", "content", "infrastructure", "lag", "evaluation"],
            "reason": [None, "zero_trainable", "zero_trainable", "timeout", "too_stale", None],
        }
    )
    plot_rejections(frame, ax=ax)
    assert legend_of(ax) == ["zero trainable (2)", "too stale (1)"]
    assert ax.get_xlim()[1] < 4


def test_no_rejections_is_a_result_not_missing_data(ax: Axes) -> None:
    """Rollouts without any rejection say so, over the full range of rollouts."""
    plot_rejections(pd.DataFrame({"rollout_id": [0, 9], "reason": [None, None], "groups": [0, 0]}), ax=ax)
    assert said(ax) == ["none rejected"]
    assert ax.get_xlim()[1] > 9


def test_rare_reasons_are_put_together(ax: Axes) -> None:
    """More than six reasons end in one that holds the rest, and no group is lost."""
    frame = pd.DataFrame({"rollout_id": 0, "reason": [f"r{n}" for n in range(9)], "groups": range(9, 0, -1)})
    plot_rejections(frame, ax=ax)
    assert legend_of(ax)[-1] == "other (10)"
    assert boxes_of(polygons(ax)[-1])[-1][3] == 45.0


def test_many_rollouts_share_bars_and_lose_nothing(ax: Axes) -> None:
    """Ten thousand rollouts are drawn as bars of several, whose label says how many."""
    frame = pd.DataFrame({"rollout_id": np.arange(10_000), "reason": "too_stale", "groups": 1})
    plot_rejections(frame, ax=ax)
    bars = boxes_of(polygons(ax)[0])
    assert bars[:, 3].sum() == 10_000
    assert ax.get_ylabel() == "groups per 7 rollouts"


def test_waterfall_ends_at_the_delivered_groups(ax: Axes) -> None:
    """Losses follow a group's life, larger ones first; evaluations were never meant to be trained on."""
    rows = [("delivered", None)] * 5 + [("lag", "too_stale")] * 2 + [("content", "zero_trainable")]
    rows += [("content", "low_complete_fraction")] * 3 + [("evaluation", None)] * 4 + [("open", None)]
    plot_waterfall(pd.DataFrame(rows, columns=["stage", "reason"]), ax=ax)
    assert tick_names(ax, "y") == [
        *("drawn", "low complete fraction", "zero trainable", "too stale", "open", "delivered")
    ]
    spans = boxes_of(polygons(ax)[0])[:, :2].tolist()
    assert spans == [[0, 12], [9, 12], [8, 9], [6, 8], [5, 6], [0, 5]]
    assert said(ax) == [" 12", " −3", " −1", " −2", " −1", " 5"]


def test_waterfall_takes_counts(ax: Axes) -> None:
    """One row per stage and reason with a count is as good as one row per group."""
    frame = pd.DataFrame({"stage": ["delivered", "lag"], "reason": [None, "too_stale"], "groups": [7, 3]})
    plot_waterfall(frame, ax=ax)
    assert boxes_of(polygons(ax)[0])[:, :2].tolist() == [[0, 10], [7, 10], [0, 7]]


def _waste() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "fate": ["trained", "rejected", "evaluation", "unusable"],
            "reason": [None, "too_stale", None, "timeout"],
            "session_share": [0.7, 0.2, 0.05, 0.05],
            "second_share": [0.6, 0.1, 0.1, 0.2],
            "token_share": [0.8, 0.15, 0.05, None],
        }
    ).convert_dtypes()


def test_waste_leaves_out_what_was_trained_on_and_evaluations(ax: Axes) -> None:
    """Shares are of the whole, in percent; a share that nobody measured is no mark."""
    plot_waste(_waste(), ax=ax)
    assert tick_names(ax, "y") == ["rejected:\ntoo stale", "unusable:\ntimeout"]
    marks = [np.round(line.get_xdata(), 6).tolist() for line in ax.lines]
    assert marks[:2] == [[20.0, 5.0], [10.0, 20.0]]
    assert marks[2][0] == 15.0
    assert np.isnan(marks[2][1])
    assert legend_of(ax) == ["sessions", "seconds", "tokens"]


def test_no_waste_is_a_result(ax: Axes) -> None:
    """Where everything was trained on, the figure says so."""
    plot_waste(_waste().iloc[[0, 2]], ax=ax)
    assert said(ax) == ["nothing wasted"]


def test_effects_have_intervals_and_a_line_at_zero(ax: Axes) -> None:
    """Each mechanism has a marker of its own; unknown effects are left out."""
    frame = pd.DataFrame(
        {
            "mechanism": ["all", "all", "session: timeout"],
            "quantity": ["reward", "turns", "reward"],
            "effect": [-0.3, None, 0.2],
            "effect_low": [-0.4, None, 0.1],
            "effect_high": [-0.2, None, 0.3],
        }
    )
    plot_survivorship(frame, ax=ax)
    assert tick_names(ax, "y") == ["reward"]
    assert legend_of(ax) == ["all", "session: timeout"]
    assert [list(line.get_xdata()) for line in ax.lines] == [[0.0, 0.0], [-0.3], [0.2]]
    ends = [[point[0] for point in segment] for c in ax.collections for segment in c.get_segments()]
    assert ends == [[-0.4, -0.2], [0.1, 0.3]]
