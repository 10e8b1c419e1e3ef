"""Policy lag: over rollouts, as a histogram, by where it came from, and against rejections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from analysis.plots._canvas import (
    ON_SHADE,
    bars,
    begin,
    colour_key,
    empty,
    legend,
    line,
    styled,
    swatch,
    whole_numbers,
)
from analysis.plots._columns import Floats, Ints, known_rows, numbers, one_run, require, words
from analysis.plots._over_rollouts import band, curve
from analysis.plots.style import colour, shades

__all__ = ["plot_lag_histogram", "plot_lag_parts", "plot_policy_lag", "plot_rejection_by_lag"]

_PARTS = {"total": ("total", "blue"), "in_flight": ("in flight", "orange"), "in_queue": ("in queue", "green")}
_MOST_FIELDS = 40
_MOST_LAGS = 200


@styled
def plot_policy_lag(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how old the trained samples were, over rollouts.

    Parameters
    ----------
    frame
        One row per rollout, such as `lag(run).rollouts`: `rollout_id` (int), `lag_mean`, `lag_min`, `lag_max`
        (rollouts between submission and delivery), and optionally `token_lag_mean` (weighted by tokens),
        `in_flight_mean` (the part before the result came) and `bound` or `limit` (largest that is accepted).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Policy lag", "rollout", "lag (rollouts)")
    require(frame, "rollout_id", "lag_mean", "lag_min", "lag_max")
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id", "lag_mean") if len(frame) else ()))
    rows = rows if rows.empty else rows.sort_values("rollout_id", kind="stable")
    if rows.empty:
        return empty(ax)
    at = numbers(rows, "rollout_id")
    low, high, mean = (numbers(rows, name) for name in ("lag_min", "lag_max", "lag_mean"))
    entries: dict[str, Any] = {}
    top = float(np.nanmax(np.concatenate([high, mean])))
    if not np.isnan(high).all():
        entries["range"] = band(ax, at, low, high, color=colour("blue"), alpha=0.2, step="mid")
    entries["mean"] = curve(ax, at, mean, color=colour("blue"))
    for name, label, ink, form in (
        ("in_flight_mean", "in flight", "orange", "-."),
        ("token_lag_mean", "per token", "vermillion", "--"),
    ):
        if name in rows and not np.isnan(numbers(rows, name)).all():
            entries[label] = curve(ax, at, numbers(rows, name), form, color=colour(ink), linewidth=1.0)
    for name in ("bound", "limit"):
        if name in rows and not np.isnan(numbers(rows, name)).all():
            bound = numbers(rows, name)
            (entries["bound"],) = ax.step(at, bound, ":", where="mid", color=colour("ink"), linewidth=1.0)
            if len(at) == 1:
                ax.axhline(bound[0], linestyle=":", color=colour("ink"), linewidth=1.0)
            top = max(top, float(np.nanmax(bound)))
            break
    ax.set_ylim(0.0, max(1.0, top) * 1.06)
    whole_numbers(ax, "x")
    whole_numbers(ax, "y", most=5)
    legend(ax, entries)
    return ax


@styled
def plot_lag_histogram(frame: pd.DataFrame, *, bound: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw how many groups had which lag, in total and by where it came from.

    Parameters
    ----------
    frame
        One row per lag, such as `lag(run).histogram`: `lag` (rollouts), `groups` (count), and optionally
        `part` (``total``, ``in_flight``, ``in_queue``).
    bound
        Largest lag that is accepted, drawn as a line.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Lag of groups", "lag (rollouts)", "groups")
    require(frame, "lag", "groups")
    rows = known_rows(frame, *(("lag", "groups") if len(frame) else ()))
    if rows.empty:
        return empty(ax)
    part = words(rows, "part", "total") if "part" in rows else np.full(len(rows), "total", dtype=object)
    found = [name for name in _PARTS if name in set(part)]
    width = 0.84 / max(len(found), 1)
    entries: dict[str, Any] = {}
    for place, name in enumerate(found):
        own = rows[part == name]
        label, ink = _PARTS[name]
        shift = (place - (len(found) - 1) / 2) * width
        at, count = numbers(own, "lag"), numbers(own, "groups")
        bars(ax, at + shift, np.zeros(len(at)), count, width * 0.92, facecolor=colour(ink))
        entries[label] = swatch(colour(ink))
    if bound is not None:
        ax.axvline(bound + 0.5, color=colour("ink"), linestyle=":", linewidth=1.0)
        entries["bound"] = line(colour("ink"), linestyle=":", linewidth=1.0)
    ax.set_ylim(0.0, max(float(numbers(rows, "groups").max()), 1.0) * 1.06)
    ax.set_xlim(numbers(rows, "lag").min() - 0.6, max(numbers(rows, "lag").max(), bound or 0) + 0.6)
    whole_numbers(ax, "x", "y")
    if len(entries) > 1:
        legend(ax, entries)
    return ax


@styled
def plot_lag_parts(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the lag in flight against the lag in the queue, as counts of groups.

    Along a falling diagonal the total is the same; the dotted stairs are the bound.

    Parameters
    ----------
    frame
        One row per group, such as `lag(run).groups`, or per pair with a count `groups`: `in_flight`,
        `in_queue` (rollouts), and optionally `bound`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Where the lag came from", "in flight (rollouts)", "in queue (rollouts)", grid="none")
    require(frame, "in_flight", "in_queue")
    rows = known_rows(frame, *(("in_flight", "in_queue") if len(frame) else ()))
    rows = rows if rows.empty else rows[(numbers(rows, "in_flight") >= 0) & (numbers(rows, "in_queue") >= 0)]
    if rows.empty:
        return empty(ax)
    flight, queue = _whole(rows, "in_flight"), _whole(rows, "in_queue")
    weight = np.nan_to_num(numbers(rows, "groups")) if "groups" in rows else np.ones(len(rows))
    step = max(1, -(-(max(int(flight.max()), int(queue.max())) + 1) // _MOST_FIELDS))
    counts = np.zeros((int(queue.max()) // step + 1, int(flight.max()) // step + 1))
    np.add.at(counts, (queue // step, flight // step), weight)
    colours = shades()
    scale = PowerNorm(0.5, vmin=0.0, vmax=float(max(counts.max(), 1.0)))
    extent = (-0.5, counts.shape[1] * step - 0.5, -0.5, counts.shape[0] * step - 0.5)
    shown = np.where(counts > 0, counts, np.nan)
    style: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "cmap": colours, "norm": scale}
    ax.imshow(shown, origin="lower", extent=extent, **style)
    if counts.size <= 40 and step == 1:
        _write_counts(ax, counts, colours, scale)
    if "bound" in rows and not np.isnan(numbers(rows, "bound")).all():
        total = float(np.nanmax(numbers(rows, "bound")))
        stairs = np.arange(-1.0, total + 1.0) + 0.5
        ax.step(stairs, total - stairs, where="pre", color=colour("ink"), linestyle=":", linewidth=1.0)
    ax.set_xlim(*extent[:2])
    ax.set_ylim(*extent[2:])
    whole_numbers(ax, "x", "y")
    colour_key(ax, colours, scale, "groups")
    return ax


@styled
def plot_rejection_by_lag(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw which share of the groups of each lag was rejected, with intervals.

    200 lags are drawn at most, the smallest ones.

    Parameters
    ----------
    frame
        One row per lag, such as `lag(run).relations`: `lag` (rollouts), `rejected_share` (fraction), and
        optionally `low`, `high` (an interval of it) and `candidates` (groups, written above).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Rejections by lag", "lag (rollouts)", "rejected share")
    require(frame, "lag", "rejected_share")
    rows = known_rows(frame, *(("lag", "rejected_share") if len(frame) else ()))
    if rows.empty:
        return empty(ax)
    rows = rows.sort_values("lag", kind="stable").head(_MOST_LAGS)
    at, share = numbers(rows, "lag"), numbers(rows, "rejected_share")
    top = float(share.max())
    if {"low", "high"} <= set(rows):
        low, high = numbers(rows, "low"), numbers(rows, "high")
        ax.vlines(at, low, high, color=colour("blue"), linewidth=1.2)
        top = float(np.nanmax([top, *high]))
    ax.plot(at, share, "o", color=colour("blue"), markersize=4)
    top = min(1.0, top) if top <= 1.0 else top
    if "candidates" in rows and len(rows) <= 16:
        for place, count in zip(at, numbers(rows, "candidates"), strict=True):
            if not np.isnan(count):
                ax.text(place, top * 1.06, f"{count:,.0f}", ha="center", fontsize=6, color=colour("muted"))
    ax.set_ylim(-0.02 * max(top, 0.05), max(top, 0.05) * 1.16)
    ax.set_xlim(at.min() - 0.6, at.max() + 0.6)
    whole_numbers(ax, "x")
    return ax


def _whole(rows: pd.DataFrame, name: str) -> Ints:
    return np.rint(numbers(rows, name)).astype(np.int64)


def _write_counts(ax: Axes, counts: Floats, shades: Any, scale: Any) -> None:
    for (y, x), count in np.ndenumerate(counts):
        if count:
            shade = shades(scale(count))
            light = 0.2126 * shade[0] + 0.7152 * shade[1] + 0.0722 * shade[2] > 0.45
            ink = "#111111" if light else "#F5F5F5"
            ax.text(x, y, f"{count:,.0f}", ha="center", va="center", fontsize=7, color=ink, gid=ON_SHADE)
