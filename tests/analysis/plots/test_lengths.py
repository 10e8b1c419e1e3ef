"""Lengths: shares within each kind, bins of whole tokens, and what was cut off."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from analysis.errors import PlotError
from analysis.plots import plot_lengths, plot_truncation
from tests.analysis.plots.looking import legend_of, said


def test_each_outline_shows_shares_of_its_own_kind(ax: Axes) -> None:
    """A rare ending is as tall as a frequent one; its number is in the legend."""
    frame = pd.DataFrame(
        {"status": ["COMPLETED"] * 8 + ["ERROR", None], "response_tokens": [10] * 8 + [12, None]}
    )
    plot_lengths(frame.convert_dtypes(), ax=ax)
    assert legend_of(ax) == ["COMPLETED (8)", "ERROR (1)"]
    outlines = [patch for patch in ax.patches if not patch.get_fill()]
    assert [float(patch.get_data().values.sum()) for patch in outlines] == [1.0, 1.0]
    assert np.array_equal(outlines[0].get_data().edges, [9.5, 10.5, 11.5, 12.5])


def test_lengths_over_magnitudes_get_a_logarithmic_axis(ax: Axes) -> None:
    """From ten to a hundred thousand tokens the short ones stay visible."""
    plot_lengths(pd.DataFrame({"status": "COMPLETED", "response_tokens": [10, 1_000, 100_000]}), ax=ax)
    assert ax.get_xscale() == "log"


def test_other_columns_can_be_drawn(ax: Axes) -> None:
    """Traces are drawn by their finish reason, prompts as well as responses."""
    frame = pd.DataFrame({"finish_reason": ["stop", "length"], "prompt_tokens": [5, 50]})
    plot_lengths(frame, value="prompt_tokens", by="finish_reason", ax=ax)
    assert ax.get_title(loc="left") == "Lengths by finish reason"
    assert ax.get_xlabel() == "prompt tokens"


def test_truncation_has_a_line_per_kind_that_is_known(ax: Axes) -> None:
    """The interval is a band around the first; shares are never drawn beyond 1."""
    frame = pd.DataFrame(
        {
            "rollout_id": [1, 0],
            "truncated_share": [0.9, 0.5],
            "truncated_low": [0.8, 0.4],
            "truncated_high": [1.0, 0.6],
            "timeout_share": [None, None],
        }
    )
    plot_truncation(frame.astype({"timeout_share": "Float64"}), ax=ax)
    assert legend_of(ax) == ["at the length limit"]
    assert list(ax.lines[0].get_ydata()) == [0.5, 0.9]
    assert ax.get_ylim()[1] == pytest.approx(1.02)
    assert said(ax) == []


def test_some_share_must_be_there() -> None:
    """A frame without any of the shares names the first of them."""
    with pytest.raises(PlotError, match="truncated_share"):
        plot_truncation(pd.DataFrame({"rollout_id": [0]}))
