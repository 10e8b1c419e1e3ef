"""Where the time went: sessions on their nodes, stages, nodes, and what the trainer waited for."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from analysis.plots._canvas import (
    MANY,
    begin,
    boxes,
    empty,
    legend,
    note,
    styled,
    swatch,
    whole_numbers,
)
from analysis.plots._columns import (
    Floats,
    Ints,
    known_rows,
    numbered,
    numbers,
    one_run,
    plain,
    require,
    seconds,
    words,
)
from analysis.plots._over_rollouts import band, columns_of, stack
from analysis.plots.style import HEIGHT, colour, colours_for

__all__ = [
    "plot_idle",
    "plot_nodes",
    "plot_running",
    "plot_stage_spread",
    "plot_stage_times",
    "plot_timeline",
]

_MOST_STAGES = 12
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_WIDE = 50.0
_MOST_NODES = 24
_QUEUES = ("queue", "ready", "postrun_wait")


@styled
def plot_timeline(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw sessions as bars over time, divided into stages, on the lanes of the node that ran them.

    Sessions of a node that run at the same time stand on different lanes, so that the height of a node shows
    how many there were at most.

    Parameters
    ----------
    frame
        One row per session and stage, such as `timeline(run)`: `session_id`, `stage` (name), `start`, `end`
        (moments, or seconds from any origin), and optionally `node_id`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Sessions by node and stage", "time (s)", "", grid="x")
    require(frame, "session_id", "stage", "start", "end")
    one_run(frame)
    rows = frame if frame.empty else frame[frame["session_id"].notna().to_numpy()]
    start, end = seconds(rows, "start", "end") if len(rows) else (np.zeros(0), np.zeros(0))
    there = ~(np.isnan(start) | np.isnan(end)) & (end >= start)
    if not there.any():
        return empty(ax)
    rows, start, end = rows[there], start[there], end[there]
    node = words(rows, "node_id") if "node_id" in rows else np.full(len(rows), "unknown", dtype=object)
    lane, first_lane = _lanes(rows, node, start, end)
    stage = words(rows, "stage")
    stages = list(dict.fromkeys(stage))
    fills = colours_for(stages)
    inset = 0.1 if lane.max() < 60 else 0.0
    for name in stages:
        own = stage == name
        ends = lane[own] + inset, lane[own] + 1.0 - inset
        boxes(ax, start[own], end[own], *ends, facecolor=fills[name], zorder=2)
    top = float(lane.max()) + 1.0
    bounds = [*first_lane.values(), top]
    ax.hlines(bounds[1:-1], 0.0, float(end.max()), color=colour("ink"), linewidth=0.5)
    middles = [(low + high) / 2 for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
    step = max(1, -(-len(middles) // 24))
    ax.set_yticks(middles[::step], [plain(name, 16) for name in list(first_lane)[::step]])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(top, 0.0)
    ax.set_xlim(0.0, max(float(end.max()), 1e-9) * 1.01)
    note(ax, f"{len(set(words(rows, 'session_id'))):,} sessions")
    legend(ax, _stage_entries(stages, fills))
    return ax


@styled
def plot_stage_times(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how long sessions took on average, by stage and rollout, stacked.

    Parameters
    ----------
    frame
        One row per rollout and stage, such as `timing(run).stages`: `rollout_id` (int), `stage` (name),
        `mean` (seconds). Stages are stacked in the order of the frame.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Mean time of a session", "rollout", "seconds")
    require(frame, "rollout_id", "stage", "mean")
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id", "mean") if len(frame) else ()))
    if rows.empty:
        return empty(ax)
    stage, at, mean = words(rows, "stage"), numbers(rows, "rollout_id"), numbers(rows, "mean")
    fills = colours_for(list(dict.fromkeys(stage)))
    parts = {name: (at[stage == name], mean[stage == name]) for name in fills}
    _stack_means(ax, parts, fills)
    legend(ax, _stage_entries(list(fills), fills))
    return ax


@styled
def plot_stage_spread(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how much the time in each stage varies: median, middle half, and the range from 5 to 95 %.

    Stages stand in the order of the frame. Times that span more than a factor of 50 get a logarithmic axis.

    Parameters
    ----------
    frame
        One row per session and stage, such as `timeline(run)`: `stage` (name), and `seconds`, or else `start`
        and `end`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    require(frame, "stage", *(("start", "end") if "start" in frame else ("seconds",)))
    took = _durations(frame)
    stage = words(frame, "stage")[~np.isnan(took)] if len(frame) else np.zeros(0, dtype=object)
    took = took[~np.isnan(took)]
    found = list(dict.fromkeys(stage))
    kept = found[:_MOST_STAGES]
    height = max(HEIGHT * 0.8, 0.7 + 0.19 * len(kept))
    ax = begin(ax, "Time per stage", "seconds", "", grid="x", height=height)
    if not len(took):
        return empty(ax)
    if len(found) > len(kept):
        note(ax, f"first {len(kept)} of {len(found)} stages")
    marks = np.array([np.quantile(took[stage == name], _QUANTILES) for name in kept])
    y = np.arange(len(kept), dtype=float)
    log = _is_wide(marks)
    shown = np.maximum(marks, _smallest(marks) / 2) if log else marks
    fills = colours_for(kept)
    ax.hlines(y, shown[:, 0], shown[:, 4], color=colour("ink"), linewidth=0.8, zorder=1)
    boxes(ax, shown[:, 1], shown[:, 3], y - 0.3, y + 0.3, facecolor=[fills[name] for name in kept], zorder=2)
    ax.vlines(shown[:, 2], y - 0.38, y + 0.38, color=colour("ink"), linewidth=1.4, zorder=3)
    ax.set_yticks(y, [_said(name) for name in kept])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(kept) - 0.4, -0.6)
    if log:
        ax.set_xscale("log")
        ax.set_xlim(shown.min() / 1.3, shown.max() * 1.3)
        ax.xaxis.set_major_locator(LogLocator(numticks=7))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda number, _: _time(number)))
        ax.minorticks_off()
        ax.set_xlabel("time")
    else:
        ax.set_xlim(0.0, max(float(shown.max()) * 1.04, 1e-9))
    return ax


@styled
def plot_idle(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how long the trainer waited for each rollout, and how long it was busy with it.

    Parameters
    ----------
    frame
        One row per rollout, such as `timing(run).rollouts`: `rollout_id` (int), `wait_seconds`,
        `busy_seconds` (missing where no later call tells).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Time of the trainer", "rollout", "seconds")
    require(frame, "rollout_id", "wait_seconds", "busy_seconds")
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id",) if len(frame) else ()))
    took = {name: numbers(rows, f"{name}_seconds") for name in ("busy", "wait")} if len(rows) else {}
    if not took or all(np.isnan(values).all() for values in took.values()):
        return empty(ax)
    at = numbers(rows, "rollout_id")
    fills = {"busy": colour("blue"), "waiting": colour("vermillion")}
    parts = {"busy": (at, took["busy"]), "waiting": (at, took["wait"])}
    _stack_means(ax, parts, fills)
    legend(ax, {name: swatch(fill) for name, fill in fills.items()})
    return ax


@styled
def plot_nodes(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how long each node ran sessions and how long it stood idle between its first and last one.

    Parameters
    ----------
    frame
        One row per node, such as `timing(run).nodes`: `node_id`, `busy_seconds`, `idle_seconds`, and
        optionally `mean_running` (sessions at once, written at the right). 24 nodes are drawn at most, those
        that were idle longest.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    require(frame, "node_id", "busy_seconds", "idle_seconds")
    rows = known_rows(frame, *(("busy_seconds", "idle_seconds") if len(frame) else ()))
    if len(rows) > _MOST_NODES:
        rows = rows.iloc[np.argsort(-numbers(rows, "idle_seconds"), kind="stable")[:_MOST_NODES]]
    ax = begin(ax, "Nodes", "seconds", "", grid="x", height=max(HEIGHT * 0.6, 0.8 + 0.17 * len(rows)))
    if rows.empty:
        return empty(ax)
    busy, idle = numbers(rows, "busy_seconds"), numbers(rows, "idle_seconds")
    y = np.arange(len(rows), dtype=float)
    boxes(ax, np.zeros(len(y)), busy, y - 0.36, y + 0.36, facecolor=colour("blue"), zorder=2)
    boxes(ax, busy, busy + idle, y - 0.36, y + 0.36, facecolor=colour("vermillion"), zorder=2)
    if "mean_running" in rows:
        note(ax, "sessions at once")
        for place, count in enumerate(numbers(rows, "mean_running")):
            text = "?" if np.isnan(count) else f"{count:.1f}"
            across = ax.get_yaxis_transform()
            ax.text(1.02, place, text, transform=across, va="center", fontsize=7, color=colour("ink"))
    ax.set_yticks(y, [plain(name, 16) for name in words(rows, "node_id")])
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0.0, max(float((busy + idle).max()) * 1.02, 1e-9))
    ax.set_ylim(len(rows) - 0.4, -0.6)
    legend(ax, {"busy": swatch(colour("blue")), "idle": swatch(colour("vermillion"))})
    return ax


@styled
def plot_running(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how many sessions ran at once over time.

    Parameters
    ----------
    frame
        One row per change, such as `timing(run).running`: `at` (seconds, or moments), `sessions` (that run
        from then on).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Sessions at once", "time (s)", "sessions")
    require(frame, "at", "sessions")
    if frame.empty:
        return empty(ax)
    (at,) = seconds(frame, "at")
    count = numbers(frame, "sessions")
    there = ~(np.isnan(at) | np.isnan(count))
    if not there.any():
        return empty(ax)
    order = np.argsort(at[there], kind="stable")
    at, count = at[there][order], count[there][order]
    style: dict[str, Any] = {"step": "post", "rasterized": len(at) > MANY}
    band(ax, at, np.zeros(len(at)), count, color=colour("blue"), alpha=0.25, **style)
    ax.step(at, count, where="post", color=colour("blue"), linewidth=0.7, rasterized=len(at) > MANY)
    ax.set_ylim(0.0, max(float(count.max()), 1.0) * 1.06)
    ax.set_xlim(0.0, max(float(at.max()), 1e-9))
    whole_numbers(ax, "y")
    return ax


def _stack_means(ax: Axes, parts: dict[str, tuple[Floats, Floats]], fills: dict[str, str]) -> None:
    """Draw mean seconds per rollout, one part on the other; each part has its own rollouts and seconds."""
    rollouts = np.unique(np.concatenate([at for at, _ in parts.values()]))
    columns = columns_of(rollouts)
    count = np.maximum(columns.sums(rollouts, np.ones(len(rollouts))), 1.0)
    stack(ax, columns, {name: columns.sums(at, took) / count for name, (at, took) in parts.items()}, fills)


def _durations(frame: pd.DataFrame) -> Floats:
    if frame.empty:
        return np.zeros(0)
    if "start" in frame:
        start, end = seconds(frame, "start", "end")
        return np.where(end >= start, end - start, np.nan)
    return numbers(frame, "seconds")


def _lanes(rows: pd.DataFrame, node: np.ndarray, start: Floats, end: Floats) -> tuple[Ints, dict[str, float]]:
    """Return each row's lane, and the first lane of each node, in the order of their names."""
    number, sessions = numbered(zip(node, words(rows, "session_id"), strict=True))
    begins, ends = np.full(len(sessions), np.inf), np.full(len(sessions), -np.inf)
    np.minimum.at(begins, number, start)
    np.maximum.at(ends, number, end)
    of_node = np.array([key[0] for key in sessions], dtype=object)
    lane = np.zeros(len(sessions), dtype=np.int64)
    first_lane: dict[str, float] = {}
    used = 0
    for name in sorted(set(of_node)):
        own = np.flatnonzero(of_node == name)
        own = own[np.argsort(begins[own], kind="stable")]
        first_lane[name] = float(used)
        busy: list[tuple[float, int]] = []  # until when, and which lane
        free: list[int] = []
        count = 0
        for place in own:
            while busy and busy[0][0] <= begins[place]:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                chosen = heapq.heappop(free)
            else:
                chosen, count = count, count + 1
            heapq.heappush(busy, (float(ends[place]), chosen))
            lane[place] = used + chosen
        used += count
    return lane[number], first_lane


def _stage_entries(stages: list[str], fills: dict[str, str]) -> dict[str, Any]:
    """Return what the legend shows; queues have one colour, and one entry if there are several."""
    waits = [name for name in stages if name in _QUEUES]
    shown = [name for name in stages if name not in waits] if len(waits) > 1 else stages
    entries = {_said(name): swatch(fills[name]) for name in shown}
    return entries | ({"in queues": swatch(fills[waits[0]])} if len(waits) > 1 else {})


def _time(number: float) -> str:
    """Return seconds in the unit in which they are a short number."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if number >= size * 0.999:
            return f"{number / size:g} {unit}"
    return f"{number / 1e-9:g} ns"


def _smallest(marks: Floats) -> float:
    positive = marks[marks > 0]
    return float(positive.min()) if len(positive) else 1.0


def _is_wide(marks: Floats) -> bool:
    medians = marks[:, 2][marks[:, 2] > 0]
    return len(medians) > 1 and float(medians.max() / medians.min()) > _WIDE


def _said(name: str) -> str:
    return plain(name.replace("_", " "), 22)
