"""Tokens of one trace as a strip: what was sampled, how likely it was, and what it is trained towards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from analysis.errors import PlotError
from analysis.plots._canvas import begin, boxes, empty, legend, note, styled, swatch
from analysis.plots._columns import Bools, Floats, numbers, plain, require, words
from analysis.plots.style import colour, current_theme, shades

__all__ = ["plot_tokens"]

_LANES = ("mask", "logprob", "advantage")
_PER_LINE = 58
_MOST_LINES = 24
_MOST_WRITTEN = 2000
"""Tokens with a text that are looked at; 24 lines hold fewer."""
_LONGEST_TEXT = 24
_TEXT_HEIGHT = 1.7
_GAP = 0.8
_LOWEST = -5.0
"""Nats; rarer tokens have the same shade, so that the scale keeps its detail for the others."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where each token stands: its line, its left and right side, in characters; and lines in all."""

    line: np.ndarray
    left: Floats
    right: Floats
    lines: int
    pitch: float


@styled
def plot_tokens(
    frame: pd.DataFrame, *, per_line: int | None = None, texts: bool = True, ax: Axes | None = None
) -> Axes:
    """Draw the tokens of one trace as a strip with three lanes: mask, logprob and advantage.

    Lines follow each other like lines of text, and each begins with the position of its first token. Where
    nobody knows a value its field is empty.

    Parameters
    ----------
    frame
        One row per token, in order, such as `Run.tokens` of one trace: `position` (place in the trace),
        `mask` (1: sampled, 0: not), `logprob` (nats), `advantage`, and optionally `text`. Of longer traces
        pass a part: 24 lines are drawn at most, and the title's line says how much that is.
    per_line
        Width of a line: characters (58 by default) with texts; without them tokens, by default as many as it
        takes to draw all.
    texts
        Whether to write the texts above the lanes, where there are some.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or tokens are of several traces.
    """
    require(frame, "position", *_LANES)
    _one_trace(frame)
    written = texts and "text" in frame and bool(frame["text"].notna().any())
    tokens, frame = len(frame), frame.head(_MOST_WRITTEN) if written else frame
    labels = _labels(frame) if written else None
    layout = _flow(labels, per_line or _PER_LINE) if labels is not None else _even(len(frame), per_line)
    lines = min(max(layout.lines, 1), _MOST_LINES)
    ax = begin(ax, "Tokens", "", "", grid="none", height=0.65 + 0.072 * layout.pitch * lines)
    if frame.empty:
        return empty(ax)
    there = layout.line < _MOST_LINES
    shown = frame[there]
    if len(shown) < tokens:
        note(ax, f"first {len(shown):,} of {tokens:,} tokens")
    sampled = numbers(shown, "mask") == 1.0
    lanes, entries = _colours(shown)
    if labels is None:
        _draw_pictures(ax, lanes, layout)
    else:
        _draw_cells(ax, lanes, layout, there)
        _write(ax, labels[there], sampled, layout)
    _frame(ax, numbers(shown, "position"), layout, lines)
    legend(ax, entries)
    return ax


def _one_trace(frame: pd.DataFrame) -> None:
    for name in ("session_id", "trace_index"):
        if name in frame and len(set(frame[name].dropna())) > 1:
            raise PlotError(f"the frame holds tokens of several traces ({name}), the strip shows one")


def _labels(frame: pd.DataFrame) -> np.ndarray:
    return np.array([plain(text, _LONGEST_TEXT) for text in words(frame, "text", "?")], dtype=object)


def _flow(labels: np.ndarray, width: int) -> _Layout:
    """Lay texts out like words on a page."""
    line, left, right = [], [], []
    at, row = 0.0, 0
    for label in labels:
        size = max(len(label.replace(r"\$", "$")), 1) + 0.3
        if at > 0 and at + size > width:
            at, row = 0.0, row + 1
        line.append(row)
        left.append(at)
        right.append(at + size)
        at += size
    pitch = len(_LANES) + _TEXT_HEIGHT + _GAP
    return _Layout(np.array(line, dtype=np.int64), np.array(left), np.array(right), row + 1, pitch)


def _even(count: int, per_line: int | None) -> _Layout:
    """Give all tokens the same width."""
    width = per_line or max(2 * _PER_LINE, -(-count // _MOST_LINES))
    place = np.arange(count)
    left = (place % width).astype(float)
    return _Layout(place // width, left, left + 1.0, -(-count // width), len(_LANES) + _GAP)


def _colours(shown: pd.DataFrame) -> tuple[Floats, dict[str, Any]]:
    """Return the colours of the lanes, shape (3, n, 4), and what the legend shows."""
    theme = current_theme()
    mask, logprob, advantage = (numbers(shown, name) for name in _LANES)
    nothing = colors.to_rgba(theme.ground, 0.0)
    own = mask == 1.0
    sampled = np.empty((len(mask), 4))
    sampled[:] = colors.to_rgba(theme.muted)
    sampled[mask == 0.0] = colors.to_rgba(theme.grid)
    sampled[np.isnan(mask)] = nothing
    entries: dict[str, Any] = {"sampled": swatch(theme.muted), "given": swatch(theme.grid)}

    known = logprob[own & ~np.isnan(logprob)]
    lowest = min(max(float(known.min(initial=0.0)), _LOWEST), -1e-3)
    shade = shades()
    rarity = 1.0 - Normalize(vmin=lowest, vmax=0.0, clip=True)(logprob)  # 0: certain, 1: rarest
    rare = np.array(shade(rarity))
    rare[~own | np.isnan(logprob)] = nothing
    if len(known):
        entries["likely"] = swatch(colors.to_hex(shade(0.0)))
        entries[f"logprob ≤ {lowest:.2g}".replace("-", "−")] = swatch(colors.to_hex(shade(1.0)))

    reach = float(np.abs(np.nan_to_num(advantage[own])).max(initial=0.0)) or 1.0
    pull = np.empty((len(mask), 4))
    pull[:] = colors.to_rgba(theme.palette["blue"])
    pull[advantage < 0] = colors.to_rgba(theme.palette["vermillion"])
    pull[:, 3] = 0.2 + 0.8 * np.minimum(np.abs(np.nan_to_num(advantage)) / reach, 1.0)
    pull[advantage == 0] = colors.to_rgba(theme.grid)
    pull[~own | np.isnan(advantage)] = nothing
    trained = advantage[own & ~np.isnan(advantage)]
    for chosen, ink, sign in ((trained > 0, "blue", "+"), (trained < 0, "vermillion", "−")):
        if chosen.any():
            entries[f"advantage {sign}{np.abs(trained[chosen]).max():.2g}"] = swatch(colour(ink))
    return np.stack([sampled, rare, pull]), entries


def _draw_pictures(ax: Axes, lanes: Floats, layout: _Layout) -> None:
    """Draw each line as one picture of three rows, with thin gaps between the lanes."""
    width = float(layout.right.max())
    for number in range(min(layout.lines, _MOST_LINES)):
        own = np.flatnonzero(layout.line == number)
        top = number * layout.pitch
        smoothing = "nearest" if len(own) <= 400 else "auto"
        extent = (0.0, float(len(own)), top + 3.0, top)
        ax.imshow(lanes[:, own], extent=extent, aspect="auto", interpolation=smoothing, zorder=1)
        ax.hlines([top + 1.0, top + 2.0], 0.0, width, color=colour("ground"), linewidth=1.0)


def _draw_cells(ax: Axes, lanes: Floats, layout: _Layout, there: Bools) -> None:
    """Draw each lane of all lines as one artist."""
    left, right = layout.left[there] + 0.08, layout.right[there] - 0.08
    top = layout.line[there] * layout.pitch + _TEXT_HEIGHT
    for number, fills in enumerate(lanes):
        boxes(ax, left, right, top + number + 0.06, top + number + 0.94, facecolor=fills)


def _write(ax: Axes, labels: np.ndarray, sampled: Bools, layout: _Layout) -> None:
    ink, muted = colour("ink"), colour("muted")
    # They stand inside the axes: to measure hundreds of them for the layout takes longer than to draw them.
    style: dict[str, Any] = {
        "fontfamily": ["DejaVu Sans Mono", "DejaVu Sans"],
        "fontsize": 5.0,
        "in_layout": False,
    }
    for place, (label, own) in enumerate(zip(labels, sampled, strict=True)):
        bottom = layout.line[place] * layout.pitch + _TEXT_HEIGHT - 0.3
        ax.text(layout.left[place] + 0.15, bottom, label, color=ink if own else muted, **style)


def _frame(ax: Axes, position: Floats, layout: _Layout, lines: int) -> None:
    """Name the lanes of the first line, and give the others the position of their first token."""
    for spine in ax.spines.values():
        spine.set_visible(False)
    over = layout.pitch - _GAP - len(_LANES)
    ticks = [over + number + 0.5 for number in range(len(_LANES))]
    names = list(_LANES)
    for number in range(1, lines):
        start = position[int(np.flatnonzero(layout.line == number)[0])]
        ticks.append(number * layout.pitch + over + 1.5)
        names.append("?" if np.isnan(start) else f"{start:,.0f}")
    ax.set_xticks([])
    ax.set_yticks(ticks, names, fontsize=5.5)
    ax.tick_params(length=0)
    ax.set_xlim(-0.3, max(float(layout.right.max()), 20.0) + 0.3)
    ax.set_ylim(lines * layout.pitch - _GAP + 0.1, -0.1)
