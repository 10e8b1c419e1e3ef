"""History under other settings: what changes in amount, and which groups get another verdict."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots._canvas import begin, boxes, empty, note, styled
from analysis.plots._columns import (
    Bools,
    flags,
    known_rows,
    numbers,
    plain,
    require,
    top_words,
    words,
    wrapped,
)
from analysis.plots.style import HEIGHT, colour

__all__ = ["plot_replay", "plot_verdicts"]

_ROW = 0.22
_MOST_ROWS = 30


@styled
def plot_replay(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how much each quantity changes under other settings, relative to history.

    30 quantities are drawn at most.

    Parameters
    ----------
    frame
        One row per quantity, such as `replay(run, settings).summary` or `.shift`: `quantity`, `before`,
        `after`, `difference`, and optionally `low`, `high` (an interval of the difference).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    require(frame, "quantity", "before", "after", "difference")
    rows = known_rows(frame, *(("before", "after", "difference") if len(frame) else ()))
    quantities, rows = len(rows), rows.head(_MOST_ROWS)
    height = max(HEIGHT * 0.8, 0.75 + _ROW * len(rows))
    ax = begin(ax, "Replay", "change (%)", "", grid="x", height=height)
    if rows.empty:
        return empty(ax)
    note(ax, "before → after" if quantities == len(rows) else f"first {len(rows)} of {quantities:,}")
    before, after = numbers(rows, "before"), numbers(rows, "after")
    base = np.where(before == 0.0, np.nan, np.abs(before))
    change = 100 * numbers(rows, "difference") / base
    y = np.arange(len(rows), dtype=float)
    fills = [colour("blue" if value >= 0 else "vermillion") for value in np.nan_to_num(change)]
    ends = np.nan_to_num(np.minimum(change, 0.0)), np.nan_to_num(np.maximum(change, 0.0))
    boxes(ax, *ends, y - 0.28, y + 0.28, facecolor=fills, zorder=2)
    reach = [*change[~np.isnan(change)]]
    if {"low", "high"} <= set(rows):
        low, high = 100 * numbers(rows, "low") / base, 100 * numbers(rows, "high") / base
        ax.hlines(y, low, high, color=colour("ink"), linewidth=1.0, zorder=3)
        reach += [*low[~np.isnan(low)], *high[~np.isnan(high)]]
    ax.axvline(0.0, color=colour("ink"), linewidth=0.6)
    across = ax.get_yaxis_transform()
    for place in range(len(rows)):
        text = f"{_short(before[place])} → {_short(after[place])}"
        ax.text(1.03, y[place], text, transform=across, va="center", fontsize=7, color=colour("ink"))
    lowest, highest = min(reach, default=0.0), max(reach, default=0.0)
    room = 0.06 * max(max(highest, 0.0) - min(lowest, 0.0), 1.0)
    ax.set_xlim(min(lowest, 0.0) - room, max(highest, 0.0) + room)
    ax.set_yticks(y, [plain(name.replace("_", " "), 22) for name in words(rows, "quantity")])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    return ax


@styled
def plot_verdicts(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how many groups had which verdict in history (rows) and get which one now (columns).

    Fields with a frame hold the groups whose verdict changes.

    Parameters
    ----------
    frame
        One row per judged group, such as `replay(run, settings).groups`: `accepted` (bool), `reason`,
        `replayed_accepted` (bool, missing where it cannot be judged), `replayed_reason`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Verdicts of groups", "replayed", "history", grid="none")
    require(frame, "accepted", "reason", "replayed_accepted", "replayed_reason")
    if frame.empty:
        return empty(ax)
    old = _verdicts(flags(frame, "accepted"), words(frame, "reason", "no reason"))
    new = _verdicts(flags(frame, "replayed_accepted"), words(frame, "replayed_reason", "no reason"))
    new[frame["replayed_accepted"].isna().to_numpy()] = "unknown"
    both = top_words([*old, *new], np.ones(2 * len(old)), most=7)
    names = ["accepted"] + [
        name for name in dict.fromkeys(both.values()) if name not in ("accepted", "other")
    ]
    names += ["other"] if "other" in both.values() else []
    rows = [name for name in names if name in {both[word] for word in old}]
    columns = [name for name in names if name in {both[word] for word in new}]
    counts = np.zeros((len(rows), len(columns)))
    for a, b in zip(old, new, strict=True):
        counts[rows.index(both[a]), columns.index(both[b])] += 1
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            _field(ax, x, y, counts[y, x], moved=row != column and column != "unknown")
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xticks(np.arange(len(columns)), [wrapped(name) for name in columns])
    ax.set_yticks(np.arange(len(rows)), [wrapped(name) for name in rows])
    ax.tick_params(length=0)
    return ax


def _field(ax: Axes, x: int, y: int, count: float, *, moved: bool) -> None:
    fill = colour("grid") if count == 0 else colour("vermillion" if moved else "blue")
    strength = 0.25 if count == 0 else 0.3
    sides = (np.array([x - 0.47]), np.array([x + 0.47]), np.array([y - 0.46]), np.array([y + 0.46]))
    boxes(ax, *sides, facecolor=fill, alpha=strength)
    if moved and count:
        boxes(ax, *sides, facecolor="none", edgecolor=colour("vermillion"), linewidths=1.2)
    ink = colour("ink" if count else "muted")
    ax.text(x, y, f"{count:,.0f}", ha="center", va="center", fontsize=8, color=ink)


def _verdicts(accepted: Bools, reason: np.ndarray) -> np.ndarray:
    return np.where(accepted, "accepted", reason).astype(object)


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value / 1e6:.2f}M"
    return f"{value:.4g}"
