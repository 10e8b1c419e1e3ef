"""Whether numbers can be believed: zeros that are none, metrics computed twice, estimators tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots._canvas import begin, boxes, dots, empty, legend, line, note, styled, swatch
from analysis.plots._columns import known_rows, numbers, plain, require, words
from analysis.plots.style import HEIGHT, colour, colours_for

__all__ = ["plot_contamination", "plot_reconciliation", "plot_simulation"]

_VERDICTS = {"certain": "vermillion", "suspected": "orange", "no": "blue"}
_MOST_CAUSES = 20
_MOST_ESTIMATORS = 6
_NAMED = 5
_ROW = 0.24


@styled
def plot_contamination(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw where the zero rewards came from, by cause, and which of them were infrastructure.

    The pale part of a bar are sessions that entered no baseline. 20 causes are drawn at most.

    Parameters
    ----------
    frame
        One row per cause, such as `contamination(run).summary`: `cause`, `verdict` (``certain``,
        ``suspected``, ``no``), `sessions`, and optionally `counted` (those that entered a baseline).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    require(frame, "cause", "verdict", "sessions")
    rows = known_rows(frame, *(("sessions",) if len(frame) else ()))
    rows = rows[numbers(rows, "sessions") > 0] if len(rows) else rows
    causes = len(rows)
    rows = rows.head(_MOST_CAUSES)
    height = max(HEIGHT * 0.7, 0.95 + _ROW * len(rows))
    ax = begin(ax, "Zero rewards by cause", "sessions", "", grid="x", height=height)
    if rows.empty:
        return empty(ax)
    if causes > len(rows):
        note(ax, f"first {len(rows)} of {causes:,} causes")
    sessions = numbers(rows, "sessions")
    counted = numbers(rows, "counted") if "counted" in rows else sessions
    counted = np.minimum(np.nan_to_num(counted), sessions)
    verdict = words(rows, "verdict")
    y, start = np.arange(len(rows), dtype=float), np.zeros(len(rows))
    fills = [colour(_VERDICTS.get(word, "sky")) for word in verdict]
    boxes(ax, start, sessions, y - 0.3, y + 0.3, facecolor=fills, alpha=0.35, zorder=2)
    boxes(ax, start, counted, y - 0.3, y + 0.3, facecolor=fills, zorder=3)
    across = ax.get_yaxis_transform()
    for place in range(len(rows)):
        text = f"{counted[place]:,.0f} of {sessions[place]:,.0f}"
        ax.text(1.03, y[place], text, transform=across, va="center", fontsize=7, color=colour("ink"))
    ax.text(1.03, -0.75, "in baselines", transform=across, va="center", fontsize=7, color=colour("muted"))
    ax.set_xlim(0.0, 1.05 * float(sessions.max()))
    ax.set_yticks(y, [plain(name.replace("_", " "), 22) for name in words(rows, "cause")])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    labels = {"certain": "infrastructure", "suspected": "suspected", "no": "the task's own"}
    found = [word for word in _VERDICTS if word in set(verdict)]
    legend(ax, {labels[word]: swatch(colour(_VERDICTS[word])) for word in found}, side="right")
    return ax


@styled
def plot_reconciliation(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw recomputed metrics against those that the hook emitted; what agrees lies on the line.

    Both axes are logarithmic beyond 1 and linear below. The first five metrics that differ are named.

    Parameters
    ----------
    frame
        One row per rollout and metric, such as `reconcile(run).rows`: `name`, `emitted`, `recomputed`,
        `status` (``equal``, ``differs``, others, which have no second number).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Metrics computed twice", "emitted", "recomputed", grid="both", height=HEIGHT * 1.15)
    require(frame, "name", "emitted", "recomputed", "status")
    rows = known_rows(frame, *(("emitted", "recomputed") if len(frame) else ()))
    if rows.empty:
        return empty(ax)
    status, name = words(rows, "status"), words(rows, "name")
    emitted, recomputed = numbers(rows, "emitted"), numbers(rows, "recomputed")
    differs = status == "differs"
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set_yscale("symlog", linthresh=1.0)
    both = np.concatenate([emitted, recomputed])
    low, high = min(float(both.min()), 0.0), max(float(both.max()), 1.0)
    ax.plot([low, high], [low, high], color=colour("muted"), linewidth=0.8, zorder=1)
    entries: dict[str, Any] = {}
    for chosen, label, ink in ((~differs, "equal", "blue"), (differs, "differs", "vermillion")):
        if chosen.any():
            dots(ax, emitted[chosen], recomputed[chosen], color=colour(ink), zorder=3)
            entries[f"{label} ({chosen.sum():,})"] = line(
                colour(ink), marker="o", linestyle="none", markersize=4
            )
    _name_those_that_differ(ax, emitted, recomputed, name, differs)
    legend(ax, entries)
    return ax


def _name_those_that_differ(ax: Axes, x: Any, y: Any, name: Any, differs: Any) -> None:
    """List the names of metrics that differ, where the line is not."""
    found = list(dict.fromkeys(name[differs]))
    said = [plain(metric, 30) for metric in found[:_NAMED]]
    said += [f"and {len(found) - _NAMED:,} more"] if len(found) > _NAMED else []
    style: dict[str, Any] = {"fontsize": 6.0, "color": colour("ink"), "va": "bottom", "ha": "right"}
    said = ["differ:", *said] if said else []
    ax.text(0.98, 0.03, "\n".join(said), transform=ax.transAxes, **style)


@styled
def plot_simulation(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw which tasks an estimator favours: the gradient that each gets, against its true share.

    On the line at 1 a task pulls as hard as it should; what lies above is favoured over the others. Six
    estimators are drawn at most.

    Parameters
    ----------
    frame
        One row per task, such as `simulate(estimator).tasks`: `value` (expected reward, 0 to 1), `share`
        (of the gradient, over the true share), and optionally `estimator` (name).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Gradient by difficulty", "expected reward of the task", "gradient / true share", grid="y")
    require(frame, "value", "share")
    rows = known_rows(frame, *(("value", "share") if len(frame) else ()))
    if rows.empty:
        return empty(ax)
    names = words(rows, "estimator") if "estimator" in rows else np.full(len(rows), "", dtype=object)
    found = list(dict.fromkeys(names))
    if len(found) > _MOST_ESTIMATORS:
        note(ax, f"first {_MOST_ESTIMATORS} of {len(found):,}")
    shown = found[:_MOST_ESTIMATORS]
    value, share = numbers(rows, "value"), numbers(rows, "share")
    ax.axhline(1.0, color=colour("ink"), linewidth=0.6, zorder=1)
    fills = colours_for(shown)
    entries: dict[str, Any] = {}
    for name, marker in zip(shown, "oDs^vP", strict=False):
        own = names == name
        dots(ax, value[own], share[own], color=fills[name], marker=marker, zorder=3)
        if name:
            entries[plain(name.replace("_", " "), 24)] = line(
                fills[name], marker=marker, linestyle="none", markersize=4
            )
    legend(ax, entries)
    return ax
