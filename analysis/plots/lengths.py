"""Lengths of what was sampled, by how it ended, and how much of it was cut off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.plots._canvas import begin, empty, legend, line, styled, whole_numbers
from analysis.plots._columns import Floats, known_rows, numbers, one_run, require, top_words, words
from analysis.plots._over_rollouts import band, curve
from analysis.plots.style import colour, colours_for

__all__ = ["plot_lengths", "plot_truncation"]

_BINS = 40
_WIDE = 100.0
_KINDS = (
    ("truncated_share", "at the length limit", "vermillion", "-"),
    ("clipped_share", "cut by the bridge", "purple", "--"),
    ("timeout_share", "out of time", "orange", "-."),
)


@styled
def plot_lengths(
    frame: pd.DataFrame, *, value: str = "response_tokens", by: str = "status", ax: Axes | None = None
) -> Axes:
    """Draw how long sessions or traces are, by how they ended.

    Each outline shows shares of its own kind, so that rare endings can be compared with frequent ones; their
    numbers are in the legend. Lengths that span more than a factor of 100 get a logarithmic axis.

    Parameters
    ----------
    frame
        One row per session or trace, such as `Run.sessions` or `Run.traces`: the columns named by `value` and
        `by`.
    value
        Column of lengths, in tokens.
    by
        Column of words: `status` (Polar's, of sessions), `sample_status` or `finish_reason` (of traces).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, f"Lengths by {by.replace('_', ' ')}", value.replace("_", " "), "share of its kind")
    require(frame, value, by)
    rows = known_rows(frame, *((value,) if len(frame) else ()))
    if rows.empty:
        return empty(ax)
    lengths, ended = numbers(rows, value), words(rows, by)
    shown = top_words(ended, np.ones(len(ended)), most=5)
    ended = np.array([shown[word] for word in ended], dtype=object)
    kinds = list(dict.fromkeys(shown.values()))
    sides = _sides(lengths)
    fills = colours_for(kinds)
    entries: dict[str, Any] = {}
    for place, (kind, form) in enumerate(zip(kinds, ("-", "--", "-.", ":", "-"), strict=False)):
        own = lengths[ended == kind]
        counts, _ = np.histogram(own, bins=sides)
        shares = counts / len(own)
        if place == 0:
            ax.stairs(shares, sides, fill=True, color=fills[kind], alpha=0.2, linewidth=0)
        ax.stairs(shares, sides, color=fills[kind], linestyle=form, linewidth=1.2)
        entries[f"{kind} ({len(own):,})"] = line(fills[kind], linestyle=form)
    ax.set_ylim(bottom=0.0)
    if _is_wide(lengths):
        ax.set_xlim(sides[0] / 1.1, sides[-1] * 1.1)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,), numticks=8))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        room = 0.02 * (sides[-1] - sides[0])
        ax.set_xlim(sides[0] - room, sides[-1] + room)
    legend(ax, entries)
    return ax


@styled
def plot_truncation(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw which share of each rollout was cut off: by length, by the bridge, by time.

    Parameters
    ----------
    frame
        One row per rollout: `rollout_id` (int), and at least one of the shares (fractions)
        `truncated_share` (stopped at the length limit), `clipped_share` (cut to fit the trainer) and
        `timeout_share` (out of time); optionally `truncated_low`, `truncated_high` (interval of the first).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Truncation", "rollout", "share")
    present = [name for name, *_ in _KINDS if name in frame]
    require(frame, "rollout_id", *(() if present else ("truncated_share",)))
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id",) if len(frame) else ()))
    rows = rows if rows.empty else rows.sort_values("rollout_id", kind="stable")
    entries: dict[str, Any] = {}
    top = 0.0
    for name, label, ink, form in _KINDS:
        if rows.empty or name not in rows or np.isnan(numbers(rows, name)).all():
            continue
        at, share = numbers(rows, "rollout_id"), numbers(rows, name)
        if name == "truncated_share" and {"truncated_low", "truncated_high"} <= set(rows):
            low, high = numbers(rows, "truncated_low"), numbers(rows, "truncated_high")
            band(ax, at, low, high, color=colour(ink), alpha=0.2)
            top = max(top, float(np.nanmax(high, initial=0.0)))
        entries[label] = curve(ax, at, share, form, color=colour(ink), linewidth=1.1)
        top = max(top, float(np.nanmax(share)))
    if not entries:
        return empty(ax)
    ax.set_ylim(0.0, min(max(top * 1.08, 0.02), 1.02))
    whole_numbers(ax, "x")
    legend(ax, entries)
    return ax


def _is_wide(lengths: Floats) -> bool:
    positive = lengths[lengths > 0]
    return bool(len(positive)) and float(positive.max() / positive.min()) > _WIDE and lengths.min() > 0


def _sides(lengths: Floats) -> Floats:
    """Return the edges of bins; each of whole tokens where there are few."""
    low, high = float(lengths.min()), float(lengths.max())
    if _is_wide(lengths):
        return np.geomspace(low * 0.98, high * 1.02, _BINS + 1)
    step = max(1.0, float(np.ceil((high - low + 1) / _BINS)))
    return np.arange(low - 0.5, high + 0.5 + step, step)
