"""Reward: over training rollouts, and of held-out evaluations.

Missing values are left out, never drawn as zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots._canvas import begin, empty, legend, line, styled, whole_numbers
from analysis.plots._columns import Floats, flags, known_rows, numbers, one_run, require, words
from analysis.plots._over_rollouts import band, curve
from analysis.plots.style import colour, colours_for

__all__ = ["plot_evaluations", "plot_reward"]

_TRAINING = "training"
_COMPLETED = "completed"
_MARKERS = "Dos^vP"
_MOST_BARS = 300


@styled
def plot_reward(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the mean reward per rollout with its spread, and held-out evaluations where there are any.

    Parameters
    ----------
    frame
        One row per rollout or evaluation, such as `Run.rollouts`: `rollout_id` (int), `reward_mean` (the
        task's unit), and optionally

        - `series` (``"training"``, or another name for evaluations), or `evaluation` (bool); all rows are
          training without either;
        - `reward_low`, `reward_high`: an interval of the mean, a band or error bars;
        - `reward_std`: the spread over sessions, a pale band around the training line;
        - `reward_mean_completed`: the mean over completed sessions only, a dashed line.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Reward", "rollout", "mean reward")
    require(frame, "rollout_id", "reward_mean")
    one_run(frame)
    points = known_rows(frame, *(("rollout_id", "reward_mean") if len(frame) else ()))
    if points.empty:
        return empty(ax)
    in_training = _is_training(points)
    training = points[in_training].sort_values("rollout_id", kind="stable")
    held_out = points[~in_training].sort_values("rollout_id", kind="stable")
    entries: dict[str, Any] = {}
    if not training.empty:
        entries |= _training_lines(ax, training)
    if not held_out.empty:
        marks = _error_bars(ax, held_out, colour("vermillion"), "D", connect=False)
        entries["held-out"] = marks
    _reward_limits(ax, points)
    whole_numbers(ax, "x")
    if len(entries) > 1:
        legend(ax, entries)
    return ax


def _training_lines(ax: Axes, rows: pd.DataFrame) -> dict[str, Any]:
    """Draw the training rollouts; return what the legend shows."""
    at, mean = numbers(rows, "rollout_id"), numbers(rows, "reward_mean")
    blue = colour("blue")
    entries: dict[str, Any] = {}
    if "reward_std" in rows:
        spread = numbers(rows, "reward_std")
        if not np.isnan(spread).all():
            entries["±1 sd"] = band(ax, at, mean - spread, mean + spread, color=blue, alpha=0.13)
    if {"reward_low", "reward_high"} <= set(rows):
        low, high = numbers(rows, "reward_low"), numbers(rows, "reward_high")
        band(ax, at, low, high, color=blue, alpha=0.28)
    entries = {_TRAINING: curve(ax, at, mean, color=blue)} | entries
    if "reward_mean_completed" in rows:
        completed = numbers(rows, "reward_mean_completed")
        if not np.isnan(completed).all():
            entries[_COMPLETED] = curve(ax, at, completed, "--", color=colour("ink"), linewidth=0.9)
    return entries


@styled
def plot_evaluations(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw evaluations with their intervals, one line per data set.

    Parameters
    ----------
    frame
        One row per evaluation: `rollout_id` (int), `reward_mean` (the task's unit), and optionally `dataset`,
        `reward_low` and `reward_high` (an interval of the mean), and `evaluation` (rows where it is false are
        left out).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Held-out evaluations", "rollout", "mean reward")
    require(frame, "rollout_id", "reward_mean")
    one_run(frame)
    rows = frame[flags(frame, "evaluation", missing=True)] if "evaluation" in frame else frame
    rows = known_rows(rows, *(("rollout_id", "reward_mean") if len(rows) else ()))
    if rows.empty:
        return empty(ax)
    names = words(rows, "dataset", "unnamed") if "dataset" in rows else np.full(len(rows), "unnamed", object)
    found = list(dict.fromkeys(names))
    colours = colours_for(found)
    gap = _smallest_step(numbers(rows, "rollout_id"))
    entries: dict[str, Any] = {}
    for place, name in enumerate(found):
        own = rows[names == name].sort_values("rollout_id", kind="stable")
        # Data sets evaluated at the same rollout stand side by side.
        shift = (place - (len(found) - 1) / 2) * 0.06 * gap
        marker = _MARKERS[place % len(_MARKERS)]
        entries[name] = _error_bars(ax, own, colours[name], marker, connect=True, shift=shift)
    _reward_limits(ax, rows)
    whole_numbers(ax, "x")
    if found != ["unnamed"]:
        legend(ax, entries)
    return ax


def _is_training(points: pd.DataFrame) -> np.ndarray:
    if "series" in points:
        return np.asarray(words(points, "series", _TRAINING) == _TRAINING, dtype=bool)
    if "evaluation" in points:
        return ~flags(points, "evaluation")
    return np.ones(len(points), dtype=bool)


def _error_bars(
    ax: Axes, rows: pd.DataFrame, ink: str, marker: str, *, connect: bool, shift: float = 0.0
) -> Any:
    """Draw means with their intervals, as far as these are known; return the legend's mark."""
    at, mean = numbers(rows, "rollout_id") + shift, numbers(rows, "reward_mean")
    if {"reward_low", "reward_high"} <= set(rows):
        low, high = numbers(rows, "reward_low"), numbers(rows, "reward_high")
        there = ~(np.isnan(low) | np.isnan(high))
        ends = np.clip(np.stack([mean - low, high - mean]), 0.0, None)[:, there]
        style: dict[str, Any] = {"fmt": "none", "ecolor": ink, "elinewidth": 1.0, "capsize": 2.0, "zorder": 3}
        if there.sum() <= _MOST_BARS:
            ax.errorbar(at[there], mean[there], yerr=ends, **style)
        else:  # a forest of bars says less than their outline
            band(ax, at, low, high, color=ink, alpha=0.2)
    joined = "-" if connect else "none"
    marker = marker if len(at) <= _MOST_BARS else "None" if connect else "."
    ax.plot(at, mean, marker=marker, linestyle=joined, color=ink, markersize=3.5, linewidth=0.9, zorder=4)
    return line(ink, marker=marker, linestyle=joined, markersize=3.5)


def _reward_limits(ax: Axes, rows: pd.DataFrame) -> None:
    """Show the whole range of rewards that lie between 0 and 1."""
    drawn = numbers(rows, "reward_mean")
    if drawn.min() >= 0.0 and drawn.max() <= 1.0:
        ax.set_ylim(0.0, 1.03)


def _smallest_step(at: Floats) -> float:
    steps = np.diff(np.unique(at))
    return float(steps.min()) if len(steps) else 1.0
