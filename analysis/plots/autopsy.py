"""One group taken apart: rewards, baselines and advantages of its trajectories, and who is absent and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots._canvas import begin, boxes, empty, legend, line, note, styled, swatch
from analysis.plots._columns import Floats, flags, numbers, plain, require, words
from analysis.plots.style import HEIGHT, colour

__all__ = ["plot_autopsy"]

_ROW = 0.17
_MOST_ROWS = 64


@styled
def plot_autopsy(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the arithmetic of one group: from each trajectory's baseline to its reward.

    A bar reaches from the baseline to the reward, its advantage stands at the right; trajectories that are
    not counted have the reason instead. 64 trajectories are drawn at most.

    Parameters
    ----------
    frame
        One row per trajectory, such as `autopsy(run, group).trajectories`: `counted` (bool), `reward`,
        `baseline`, `advantage`, and optionally `position` (place in the group) and `absent` (why it is not
        counted).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    members, frame = len(frame), frame.head(_MOST_ROWS)
    height = max(HEIGHT, 1.0 + _ROW * len(frame))
    ax = begin(ax, "Autopsy of a group", "reward", "trajectory", grid="x", height=height)
    require(frame, "counted", "reward", "baseline", "advantage")
    if frame.empty:
        return empty(ax)
    note(ax, "advantage" if members == len(frame) else f"first {len(frame)} of {members:,}")
    counted = flags(frame, "counted")
    reward, baseline = numbers(frame, "reward"), numbers(frame, "baseline")
    advantage = numbers(frame, "advantage")
    y = np.arange(len(frame), dtype=float)
    entries: dict[str, Any] = {}
    for chosen, fill, label in (
        (counted & (reward > baseline), "blue", "above"),
        (counted & (reward < baseline), "vermillion", "below"),
    ):
        if chosen.any():
            ends = np.minimum(reward, baseline)[chosen], np.maximum(reward, baseline)[chosen]
            boxes(ax, *ends, y[chosen] - 0.22, y[chosen] + 0.22, facecolor=colour(fill), alpha=0.85, zorder=2)
            entries[label] = swatch(colour(fill))
    ax.vlines(
        baseline[counted], y[counted] - 0.38, y[counted] + 0.38, color=colour("ink"), linewidth=1.2, zorder=3
    )
    ax.scatter(reward[counted], y[counted], s=12, color=colour("ink"), linewidths=0, zorder=4)
    ax.scatter(
        reward[~counted], y[~counted], s=14, marker="x", color=colour("muted"), linewidths=0.9, zorder=3
    )
    entries = {"reward": line(colour("ink"), marker="o", linestyle="none"), **entries}
    entries["baseline"] = line(colour("ink"), marker="|", linestyle="none", markersize=7, markeredgewidth=1.2)
    if (~counted).any():
        entries["not counted"] = line(colour("muted"), marker="x", linestyle="none")
    _limits(ax, np.concatenate([reward, baseline]), len(frame))
    _right_hand(ax, frame, counted, advantage, y)
    legend(ax, entries)
    return ax


def _right_hand(ax: Axes, frame: pd.DataFrame, counted: Any, advantage: Floats, y: Floats) -> None:
    """Write each advantage, or why there is none, and name the rows."""
    absent = words(frame, "absent", "not counted") if "absent" in frame else ["not counted"] * len(frame)
    across = ax.get_yaxis_transform()
    for place in range(len(frame)):
        if counted[place]:
            known = not np.isnan(advantage[place])
            number = f"{advantage[place]:+.3f}".replace("-", "−") if known else "?"
            ax.text(1.02, y[place], number, transform=across, va="center", fontsize=7, color=colour("ink"))
        else:
            # What follows the colon is the session's own message, and longer than a line.
            why = plain(absent[place].partition(": ")[0], 44)
            ax.text(
                0.98,
                y[place],
                why,
                transform=across,
                va="center",
                ha="right",
                fontsize=6,
                color=colour("muted"),
            )
    names = words(frame, "position", "?") if "position" in frame else np.arange(len(frame)).astype(object)
    ax.set_yticks(y, [plain(name, 10) for name in names])


def _limits(ax: Axes, values: Floats, rows: int) -> None:
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    room = 0.06 * (high - low) if high > low else 0.5
    ax.set_xlim(low - room, high + room)
    ax.set_ylim(rows - 0.4, -0.6)
