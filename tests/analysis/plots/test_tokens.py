"""Token strips: lanes per token, lines like text, nothing invented where nothing is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from matplotlib.axes import Axes

from analysis.errors import PlotError
from analysis.plots import plot_tokens
from analysis.plots.style import PALETTE
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said, tick_names


def _tokens(**changes: object) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "position": [7, 8, 9, 10],
            "text": ["Hi", " there", "$x$", "\n"],
            "mask": [0, 1, 1, 1],
            "logprob": [None, -0.1, -3.0, None],
            "advantage": [None, 0.5, -1.0, 0.0],
        }
    )
    return frame.assign(**changes).convert_dtypes()


def test_each_token_has_a_field_in_each_lane(ax: Axes) -> None:
    """Fields are as wide as their text; what nobody sampled has no logprob and no advantage."""
    plot_tokens(_tokens(), ax=ax)
    mask, logprob, advantage = polygons(ax)
    widths = np.diff(boxes_of(mask)[:, :2], axis=1).ravel()
    assert widths[1] > widths[0] > widths[3]
    visible = [[bool(colour[3]) for colour in lane.get_facecolor()] for lane in (mask, logprob, advantage)]
    assert visible == [[True] * 4, [False, True, True, False], [False, True, True, True]]
    assert said(ax) == ["Hi", " there", r"\$x\$", "↵"]
    assert tick_names(ax, "y") == ["mask", "logprob", "advantage"]


def test_colours_of_advantages_tell_sign_and_strength(ax: Axes) -> None:
    """The strongest advantage has the full colour; zero has the colour of nothing."""
    plot_tokens(_tokens(), ax=ax)
    fills = polygons(ax)[2].get_facecolor()
    assert tuple(fills[1][:3]) == colors.to_rgb(PALETTE["blue"])
    assert tuple(fills[2]) == pytest.approx(colors.to_rgba(PALETTE["vermillion"]))
    assert fills[1][3] < 1.0
    assert legend_of(ax) == ["sampled", "given", "likely", "logprob ≤ −3", "advantage +0.5", "advantage −1"]


def test_lines_break_like_text_and_begin_with_their_position(ax: Axes) -> None:
    """A token that no longer fits begins the next line, which is named by its position."""
    plot_tokens(_tokens(), per_line=10, ax=ax)
    lines = np.unique(boxes_of(polygons(ax)[0])[:, 2])
    assert len(lines) == 2
    assert tick_names(ax, "y")[3:] == ["9"]


def test_without_texts_tokens_are_columns_of_a_picture(ax: Axes) -> None:
    """Lines are pictures of three rows, so that a hundred thousand tokens are a few artists."""
    count = 100_000
    frame = pd.DataFrame({"position": np.arange(count), "mask": 1, "logprob": -1.0, "advantage": 0.1})
    plot_tokens(frame, ax=ax)
    assert len(ax.images) == 24
    assert sum(image.get_array().shape[1] for image in ax.images) == count
    assert all(image.get_array().shape[0] == 3 for image in ax.images)


def test_the_rest_of_a_long_trace_is_counted(ax: Axes) -> None:
    """What does not fit is not drawn, and the title's line says how much that is."""
    frame = pd.concat([_tokens()] * 1000, ignore_index=True).assign(position=range(4000))
    plot_tokens(frame, ax=ax)
    drawn = len(polygons(ax)[0].get_paths())
    assert 0 < drawn < 4000
    assert ax.get_title(loc="right") == f"first {drawn:,} of 4,000 tokens"


def test_tokens_of_several_traces_are_refused() -> None:
    """A strip shows one trace: the advantages of others would be read as parts of it."""
    with pytest.raises(PlotError, match="several traces"):
        plot_tokens(_tokens(session_id=["a", "a", "b", "b"]))
    with pytest.raises(PlotError, match="trace_index"):
        plot_tokens(_tokens(session_id="a", trace_index=[0, 0, 1, 1]))


def test_masks_that_nobody_knows_are_empty(ax: Axes) -> None:
    """Without mask, logprobs and advantages only the texts stand there."""
    plot_tokens(_tokens(mask=pd.NA, logprob=pd.NA, advantage=pd.NA), ax=ax)
    assert not any(colour[3] for lane in polygons(ax) for colour in lane.get_facecolor())
    assert legend_of(ax) == ["sampled", "given"]
