"""Off-policy: ratios around 1 on a logarithmic axis, effective shares, logprobs against logprobs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from analysis.plots import plot_ess, plot_logprobs, plot_ratio
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, tick_names


def _by_lag() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "lag": [1, 0],
            "tokens": [12_345, 999],
            "ratio_mean": [0.98, 1.0],
            "log_ratio_abs_mean": [np.log(2.0), 0.0],
            "ratio_max": [6.0, 1.1],
            "ess": [0.9, 1.0],
            "sequence_ess": [0.4, 0.95],
        }
    )


def test_ratios_reach_as_far_as_their_logarithms(ax: Axes) -> None:
    """The bar is symmetrical on the logarithmic axis: half as likely is as far as twice as likely."""
    plot_ratio(_by_lag(), ax=ax)
    assert ax.get_yscale() == "log"
    ends = [[round(float(p[1]), 6) for p in segment] for segment in ax.collections[0].get_segments()]
    assert ends == [[1.0, 1.0], [0.5, 2.0]]
    assert list(ax.lines[1].get_ydata()) == [1.0, 0.98]
    assert legend_of(ax) == ["mean", "mean |log|", "largest"]
    low, high = ax.get_ylim()
    assert low < 0.5
    assert high > 6.0


@pytest.mark.parametrize("largest", [1.01, 1.3, 3.4, 7.0, 5000.0])
def test_no_change_has_a_tick(ax: Axes, largest: float) -> None:
    """A ratio of 1 is named on the axis, however wide it is."""
    plot_ratio(_by_lag().assign(ratio_max=largest, log_ratio_abs_mean=0.01), ax=ax)
    assert 1.0 in ax.get_yticks()


def test_rows_are_named_with_the_number_of_tokens(ax: Axes) -> None:
    """Below each lag stands how many tokens it is the mean of."""
    plot_ratio(_by_lag(), ax=ax)
    assert tick_names(ax, "x") == ["0\n999", "1\n12.3k"]


def test_any_column_can_stand_below(ax: Axes) -> None:
    """Positions are bins of unequal width, named by where they begin."""
    frame = _by_lag().rename(columns={"lag": "position"}).assign(position=[16, 0], position_end=[None, 16])
    plot_ess(frame.drop(columns=["tokens", "sequence_ess"]), by="position", ax=ax)
    assert ax.get_xlabel() == "position in the response (tokens)"
    assert tick_names(ax, "x") == ["0+", "16+"]
    assert legend_of(ax) == []


def test_effective_shares_are_bars_of_tokens_and_traces(ax: Axes) -> None:
    """Both shares stand side by side, sorted by lag, on an axis from 0 to 1."""
    plot_ess(_by_lag(), ax=ax)
    tokens, traces = (boxes_of(bars)[:, 3].tolist() for bars in polygons(ax))
    assert tokens == [1.0, 0.9]
    assert traces == [0.95, 0.4]
    assert ax.get_ylim() == (0.0, 1.02)


def test_few_tokens_are_dots_and_many_are_counted(ax: Axes) -> None:
    """Tokens that nobody sampled are left out; shades add up to the number of tokens."""
    frame = pd.DataFrame(
        {"logprob": [-1.0, -2.0, -3.0], "train_logprob": [-1.1, -2.0, None], "mask": [1, 0, 1]}
    )
    plot_logprobs(frame.convert_dtypes(), ax=ax)
    assert ax.collections[0].get_offsets().tolist() == [[-1.0, -1.1]]
    ax.clear()
    rng = np.random.default_rng(0)
    values = -rng.exponential(size=5_000)
    plot_logprobs(pd.DataFrame({"logprob": values, "train_logprob": values}), ax=ax)
    counts = np.ma.filled(ax.images[0].get_array(), 0.0)
    assert counts.sum() == 5_000
    assert np.allclose(counts, np.diag(np.diag(counts)))


def test_equal_logprobs_lie_on_the_diagonal(ax: Axes) -> None:
    """Both axes have the same limits, so that the line is the diagonal."""
    plot_logprobs(pd.DataFrame({"logprob": [-4.0, -1.0], "train_logprob": [-2.0, -1.0]}), ax=ax)
    assert ax.get_xlim() == ax.get_ylim()
