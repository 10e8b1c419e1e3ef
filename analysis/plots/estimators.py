"""Several advantage estimators on the same rewards: their distributions, agreement, and what they favour."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from analysis.plots._canvas import ON_SHADE, bars, begin, colour_key, empty, legend, line, styled, swatch
from analysis.plots._columns import Floats, known_rows, numbers, require, words, wrapped
from analysis.plots.style import HEIGHT, colour, colours_for, shades

__all__ = ["plot_estimator_agreement", "plot_estimator_lengths", "plot_estimators"]

_BINS = 60
_ROOM = 0.85
_MOST_ESTIMATORS = 8
_TINY = 1e-12  # the bound of `zero_share` in a comparison
_MOST_BARS = 300


@styled
def plot_estimators(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how the advantages of each estimator are distributed, one ridge below the other.

    Traces with an advantage of 0 (up to 1e-12, as in `compare(run).summary`: sums leave such rests) are
    left out of the ridges and given as a share at the right; each ridge is scaled to the same height.

    Parameters
    ----------
    frame
        One row per trace and estimator, such as `compare(run).traces`: `estimator` (name), `advantage`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Advantages by estimator", "advantage", "", grid="x", height=_height(frame, "estimator"))
    require(frame, "estimator", "advantage")
    rows = known_rows(frame, *(("advantage",) if len(frame) else ()))
    if rows.empty:
        return empty(ax)
    names, advantage = words(rows, "estimator"), numbers(rows, "advantage")
    found = list(dict.fromkeys(names))
    reach = max(float(np.abs(advantage).max()), 1e-3) * 1.04
    sides = np.linspace(-reach, reach, _BINS + 1)
    fills = colours_for(found)
    for place, name in enumerate(found):
        own = advantage[names == name]
        zero = np.abs(own) <= _TINY
        counts, _ = np.histogram(own[~zero], bins=sides)
        heights = counts / max(int(counts.max()), 1) * _ROOM
        base = float(len(found) - 1 - place)
        ax.stairs(base + heights, sides, baseline=base, fill=True, color=fills[name], alpha=0.85, linewidth=0)
        ax.plot([-reach, reach], [base, base], color=fills[name], linewidth=0.8)
        share = f"{float(zero.mean()):.0%}"
        ax.text(1.02, base + 0.08, share, transform=ax.get_yaxis_transform(), fontsize=7, color=colour("ink"))
    ax.text(
        1.02, len(found) - 0.02, "zero", transform=ax.get_yaxis_transform(), fontsize=7, color=colour("muted")
    )
    ax.axvline(0.0, color=colour("ink"), linewidth=0.6)
    ax.set_xlim(-reach, reach)
    ax.set_ylim(-0.12, len(found) - 0.02)
    ax.set_yticks(np.arange(len(found)) + 0.3, [_name(name) for name in reversed(found)])
    ax.tick_params(axis="y", length=0)
    return ax


@styled
def plot_estimator_agreement(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how far each two estimators agree: rank correlation, and how many traces change sign.

    Eight estimators are drawn at most, the first ones.

    Parameters
    ----------
    frame
        One row per two estimators, such as `compare(run).pairs`: `first`, `second` (names), `spearman` (-1 to
        1), and optionally `sign_flip_share` (fraction of traces with opposite signs).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    height = _height(frame, "first", "second")
    ax = begin(ax, "Agreement of estimators", "", "", grid="none", height=height)
    require(frame, "first", "second", "spearman")
    frame = frame if frame.empty else _some_pairs(frame)
    if frame.empty or not len(known_rows(frame, "spearman")):
        return empty(ax)
    first, second = words(frame, "first"), words(frame, "second")
    found = list(dict.fromkeys([*first, *second]))
    places = {name: place for place, name in enumerate(found)}
    # Each pair has one field: estimators but the last from left to right, but the first from above.
    column = np.array([min(places[a], places[b]) for a, b in zip(first, second, strict=True)])
    row = np.array([max(places[a], places[b]) - 1 for a, b in zip(first, second, strict=True)])
    value = numbers(frame, "spearman")
    flips = numbers(frame, "sign_flip_share") if "sign_flip_share" in frame else np.full(len(frame), np.nan)
    # Correlations of estimators lie close to 1: the scale begins where they do.
    scale = Normalize(vmin=min(float(np.nanmin(value)), 0.9), vmax=1.0)
    colours = shades()
    grid = np.full((len(found) - 1, len(found) - 1), np.nan)
    grid[row, column] = value
    ax.imshow(grid, cmap=colours, norm=scale, aspect="auto", interpolation="nearest")
    for x, y, number, flip in zip(column, row, value, flips, strict=True):
        text = "?" if np.isnan(number) else ">0.999" if 0.9995 <= number < 1.0 else f"{number:.3f}"
        if not np.isnan(flip):
            text += f"\n{flip:.1%} flip"
        shade = colours(scale(0.0 if np.isnan(number) else number))
        light = 0.2126 * shade[0] + 0.7152 * shade[1] + 0.0722 * shade[2] > 0.5
        ink = colour("muted") if np.isnan(number) else "#111111" if light else "#F5F5F5"
        ax.text(
            x,
            y,
            text,
            ha="center",
            va="center",
            fontsize=7 if len(found) < 6 else 5.5,
            color=ink,
            gid=ON_SHADE,
        )
    few = len(found) <= 4
    slant: dict[str, Any] = {} if few else {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(np.arange(len(found) - 1), [_name(name, 13 if few else 16) for name in found[:-1]], **slant)
    ax.set_yticks(np.arange(len(found) - 1), [_name(name) for name in found[1:]])
    ax.tick_params(length=0)
    if not few:
        ax.tick_params(labelsize=6.0)
    colour_key(ax, colours, scale, "rank corr.", low=f"{scale.vmin:.2f}", high="1")
    return ax


@styled
def plot_estimator_lengths(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw which part of the gradient goes to short and to long traces, per estimator.

    A bar above its black line means that traces of this length pull harder than their tokens account for.
    The first 300 rows are drawn at most.

    Parameters
    ----------
    frame
        One row per estimator and length bin, such as `compare(run).lengths`: `estimator`, `length_low`,
        `length_high` (trainable tokens, both included), `weight_share`, `token_share` (fractions).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Gradient weight by length", "trainable tokens of the trace", "share")
    require(frame, "estimator", "length_low", "length_high", "weight_share", "token_share")
    names = ("length_low", "length_high", "weight_share")
    rows = known_rows(frame, *(names if len(frame) else ())).head(_MOST_BARS)
    if rows.empty:
        return empty(ax)
    low, high = numbers(rows, "length_low"), numbers(rows, "length_high")
    bins = sorted(set(zip(low.tolist(), high.tolist(), strict=True)))
    at = np.array([bins.index(pair) for pair in zip(low.tolist(), high.tolist(), strict=True)], dtype=float)
    estimator = words(rows, "estimator")
    found = list(dict.fromkeys(estimator))
    fills = colours_for(found)
    share = numbers(rows, "weight_share")
    width = 0.8 / len(found)
    entries: dict[str, Any] = {}
    for place, name in enumerate(found):
        own = estimator == name
        shift = (place - (len(found) - 1) / 2) * width
        bars(ax, at[own] + shift, np.zeros(own.sum()), share[own], width * 0.92, facecolor=fills[name])
        entries[name] = swatch(fills[name])
    tokens = numbers(rows, "token_share")
    _token_shares(ax, at, tokens)
    entries["of tokens"] = line(colour("ink"), linewidth=1.2)
    ax.set_ylim(0.0, float(np.nanmax([np.nanmax(share), *tokens[~np.isnan(tokens)]])) * 1.08)
    ax.set_xlim(-0.5, len(bins) - 0.5)
    ax.set_xticks(np.arange(len(bins)), [f"{int(a)}–{int(b)}" if a != b else f"{int(a)}" for a, b in bins])
    legend(ax, entries)
    return ax


def _name(estimator: str, width: int = 16) -> str:
    """Break a long name where its words end: some differ in the last one only."""
    return wrapped(estimator, width=width, limit=40, keep="_")


def _height(frame: pd.DataFrame, *names: str) -> float:
    """Give each estimator of a figure of its own room for a name of two lines."""
    count = len({word for name in names if name in frame for word in frame[name].dropna()})
    return max(HEIGHT, 0.8 + 0.32 * min(count, 2 * _MOST_ESTIMATORS))


def _some_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per pair of different estimators, of no more than fit into the figure."""
    first, second = words(frame, "first"), words(frame, "second")
    names = set(list(dict.fromkeys([*first, *second]))[:_MOST_ESTIMATORS])
    seen: set[frozenset[str]] = set()
    keep = []
    for place, pair in enumerate(map(frozenset, zip(first, second, strict=True))):
        if len(pair) == 2 and pair <= names and pair not in seen:
            seen.add(pair)
            keep.append(place)
    return frame.iloc[keep]


def _token_shares(ax: Axes, at: Floats, tokens: Floats) -> None:
    places, first = np.unique(at, return_index=True)
    ax.hlines(tokens[first], places - 0.44, places + 0.44, color=colour("ink"), linewidth=1.2)
