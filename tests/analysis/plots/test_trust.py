"""Zeros by cause, metrics computed twice, gradients by difficulty: what stands in these figures."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from analysis.plots import plot_contamination, plot_reconciliation, plot_simulation
from analysis.plots.style import PALETTE
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said, tick_names
from tests.analysis.plots.trust_examples import contamination, reconciliation, simulation


def test_bars_are_sessions_and_those_in_baselines(ax: Axes) -> None:
    """A cause without sessions has no bar; the opaque part are those that were counted."""
    plot_contamination(contamination(), ax=ax)
    assert tick_names(ax, "y") == ["timeout", "error", "sandbox", "task"]
    every, counted = (boxes_of(each)[:, 1].tolist() for each in polygons(ax))
    assert every == [12, 9, 4, 31]
    assert counted == [3, 0, 4, 31]
    fills = [to_hex(colour) for colour in polygons(ax)[1].get_facecolor()]
    assert fills == [PALETTE[name].lower() for name in ("vermillion", "vermillion", "orange", "blue")]
    assert legend_of(ax) == ["infrastructure", "suspected", "the task's own"]
    assert {"3 of 12", "0 of 9", "4 of 4", "31 of 31", "in baselines"} == set(said(ax))


def test_without_counts_every_session_is_taken_to_count(ax: Axes) -> None:
    """And more counted ones than there are sessions are not drawn."""
    plot_contamination(contamination().drop(columns="counted"), ax=ax)
    assert "12 of 12" in said(ax)
    ax.clear()
    plot_contamination(contamination().assign(counted=99), ax=ax)
    assert "12 of 12" in said(ax)


def test_only_rows_with_both_numbers_are_dots(ax: Axes) -> None:
    """Those that differ are counted and named; what was not emitted has no place."""
    plot_reconciliation(reconciliation(), ax=ax)
    assert legend_of(ax) == ["equal (7)", "differs (2)"]
    assert sum(len(each.get_offsets()) for each in ax.collections) == 9
    assert said(ax) == ["differ:\nrollout/raw_reward\npolar/failed_share"]


def test_many_names_are_cut_short(ax: Axes) -> None:
    """Five are named, the others counted; where all agree nothing is listed."""
    frame = pd.DataFrame(
        {"name": [f"m{n}" for n in range(9)], "emitted": 1.0, "recomputed": 2.0, "status": "differs"}
    )
    plot_reconciliation(frame, ax=ax)
    assert said(ax)[0].splitlines() == ["differ:", "m0", "m1", "m2", "m3", "m4", "and 4 more"]
    ax.clear()
    plot_reconciliation(frame.assign(status="equal"), ax=ax)
    assert said(ax) == [""] or said(ax) == []


def test_estimators_have_their_own_marks(ax: Axes) -> None:
    """Six at most, and one without a name needs no legend."""
    plot_simulation(simulation(), ax=ax)
    assert legend_of(ax) == ["loo", "grpo"]
    assert len(ax.collections) == 2
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 1.0)
    ax.clear()
    plot_simulation(simulation().drop(columns="estimator"), ax=ax)
    assert legend_of(ax) == []
    ax.clear()
    many = pd.concat([simulation().assign(estimator=f"e{n}") for n in range(9)])
    plot_simulation(many, ax=ax)
    assert len(ax.collections) == 6
    assert ax.get_title(loc="right") == "first 6 of 9"
