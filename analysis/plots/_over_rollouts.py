"""Marks over rollouts, also where there are more rollouts than a figure has columns of dots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.plots._canvas import bars, whole_numbers
from analysis.plots._columns import Floats

__all__ = ["Columns", "band", "columns_of", "curve", "stack"]

_MOST_COLUMNS = 1500
"""More than three times the dots of a figure one column wide at screen resolution."""

_SEPARATE = 60
"""Up to so many columns are drawn with a gap between them."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Rollouts, or several in a row where there are too many, as columns of a figure.

    Parameters
    ----------
    first
        The first rollout.
    step
        Rollouts per column.
    at
        Shape (m,): the middle of each column.
    width
        Of a bar.
    """

    first: float
    step: int
    at: Floats
    width: float

    def sums(self, at: Floats, values: Floats) -> Floats:
        """Add up the values of rollouts per column, shape (m,); missing ones add nothing."""
        index = np.minimum((at - self.first) // self.step, len(self.at) - 1).astype(np.int64)
        total = np.bincount(index, weights=np.nan_to_num(values), minlength=len(self.at))
        return np.asarray(total, dtype=np.float64)


def columns_of(at: Floats) -> Columns:
    """Divide rollouts into columns.

    Parameters
    ----------
    at
        Shape (n,): rollouts, at least one, no NaN, in any order.
    """
    first, span = float(at.min()), float(at.max() - at.min()) + 1.0
    step = max(1, int(np.ceil(span / _MOST_COLUMNS)))
    count = int((span - 1.0) // step) + 1
    middles: Floats = first + step * (np.arange(count, dtype=np.float64) + 0.5) - 0.5
    return Columns(first, step, middles, step * (0.86 if count <= _SEPARATE else 1.0))


def stack(ax: Axes, columns: Columns, heights: Mapping[str, Floats], fills: Mapping[str, str]) -> Floats:
    """Draw bars on each other, and set the limits; return the height of the whole, shape (m,)."""
    base = np.zeros(len(columns.at))
    for name, height in heights.items():
        bars(ax, columns.at, base, base + height, columns.width, facecolor=fills[name], label=name)
        base = base + height
    edge = 0.5 * columns.step + 0.2
    ax.set_xlim(float(columns.at[0]) - edge, float(columns.at[-1]) + edge)
    ax.set_ylim(0.0, max(float(base.max()) * 1.05, 1e-9))
    whole_numbers(ax, "x")
    return base


def curve(ax: Axes, at: Floats, values: Floats, form: str = "-", **options: Any) -> Line2D:
    """Draw a line, or a dot for a single rollout; of too many points the extremes of each column, unbroken.

    Parameters
    ----------
    ax
        Where to draw.
    at, values
        Shape (n,), by ascending `at`; NaN leaves a gap.
    form
        Matplotlib's name for a line style.
    **options
        Of `Axes.plot`.
    """
    if len(at) > 2 * _MOST_COLUMNS:
        starts = np.linspace(0, len(at), _MOST_COLUMNS, endpoint=False).astype(np.int64)
        ends = np.stack([np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)], axis=1)
        at, values, form = np.repeat(at[starts], 2), ends.ravel(), "-"
    (made,) = ax.plot(at, values, linestyle=form, **({"marker": "o" if len(at) == 1 else None} | options))
    return made


def band(ax: Axes, at: Floats, low: Floats, high: Floats, **options: Any) -> Any:
    """Fill between two lines; where there are more points than columns, between their extremes.

    Parameters
    ----------
    ax
        Where to draw.
    at, low, high
        Shape (n,), by ascending `at`; NaN leaves a gap.
    **options
        Of `Axes.fill_between`.
    """
    if len(at) > 2 * _MOST_COLUMNS:
        starts = np.linspace(0, len(at), _MOST_COLUMNS, endpoint=False).astype(np.int64)
        at = at[starts]
        low, high = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
    return ax.fill_between(at, low, high, **({"linewidth": 0} | options))
