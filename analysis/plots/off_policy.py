"""How far the trained policy was from the one that sampled: ratios, effective samples, logprobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.plots._canvas import bars, begin, colour_key, dots, empty, legend, line, styled, swatch
from analysis.plots._columns import Floats, known_rows, numbers, require
from analysis.plots.style import colour, shades

__all__ = ["plot_ess", "plot_logprobs", "plot_ratio"]

_LABELS = {"lag": "lag (rollouts)", "turn": "turn", "position": "position in the response (tokens)"}
_FEW = 1500
_BINS = 90
_MOST_NAMES = 12
_MOST_ROWS = 200


@styled
def plot_ratio(frame: pd.DataFrame, *, by: str = "lag", ax: Axes | None = None) -> Axes:
    """Draw the ratio between trained and sampling policy, by lag, turn or position.

    The dot is the mean over tokens, the bar reaches as far as the mean absolute logarithm in both directions,
    the triangle is the largest ratio of a single token. The row of lag 0 shows what engine and trainer differ
    by numerically. 200 rows are drawn at most, those with the smallest values.

    Parameters
    ----------
    frame
        One row per value of `by`, such as `off_policy(run).by_lag`, ``.by_turn`` or ``.by_position``: the
        column named by `by`, `ratio_mean`, and optionally `log_ratio_abs_mean` (nats), `ratio_max` and
        `tokens` (written below).
    by
        ``"lag"``, ``"turn"``, ``"position"`` or another column of the frame.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, f"Ratio by {by}", _LABELS.get(by, by), "ratio")
    require(frame, by, "ratio_mean")
    rows = _rows(frame, by, "ratio_mean")
    if rows.empty:
        return empty(ax)
    place, mean = np.arange(len(rows), dtype=float), numbers(rows, "ratio_mean")
    entries: dict[str, Any] = {}
    ax.axhline(1.0, color=colour("ink"), linewidth=0.6)
    reach = [*mean]
    if "log_ratio_abs_mean" in rows:
        spread = np.clip(numbers(rows, "log_ratio_abs_mean"), None, 50.0)
        ax.vlines(place, np.exp(-spread), np.exp(spread), color=colour("blue"), alpha=0.4, linewidth=5)
        entries["mean |log|"] = swatch(colour("blue"), alpha=0.4)
        reach += [*np.exp(-spread), *np.exp(spread)]
    ax.plot(place, mean, "o", color=colour("blue"), markersize=4)
    entries = {"mean": line(colour("blue"), marker="o", linestyle="none"), **entries}
    if "ratio_max" in rows:
        largest = numbers(rows, "ratio_max")
        ax.plot(place, largest, "^", color=colour("vermillion"), markersize=4)
        entries["largest"] = line(colour("vermillion"), marker="^", linestyle="none")
        reach += [*largest]
    _ratio_scale(ax, np.array(reach))
    _name_rows(ax, rows, by)
    legend(ax, entries)
    return ax


@styled
def plot_ess(frame: pd.DataFrame, *, by: str = "lag", ax: Axes | None = None) -> Axes:
    """Draw the effective share of samples under importance weights, by lag, turn or position.

    200 rows are drawn at most, those with the smallest values.

    Parameters
    ----------
    frame
        One row per value of `by`, such as `off_policy(run).by_lag`: the column named by `by`, `ess`
        (fraction of tokens), and optionally `sequence_ess` (fraction of traces) and `tokens` (written below).
    by
        ``"lag"``, ``"turn"``, ``"position"`` or another column of the frame.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, f"Effective samples by {by}", _LABELS.get(by, by), "effective share")
    require(frame, by, "ess")
    rows = _rows(frame, by, "ess")
    if rows.empty:
        return empty(ax)
    place = np.arange(len(rows), dtype=float)
    entries: dict[str, Any] = {}
    both = "sequence_ess" in rows and not np.isnan(numbers(rows, "sequence_ess")).all()
    columns = (("ess", "tokens", "blue"), ("sequence_ess", "traces", "orange"))[: 2 if both else 1]
    width = 0.8 / len(columns)
    for number, (name, label, ink) in enumerate(columns):
        shift = (number - (len(columns) - 1) / 2) * width
        values = numbers(rows, name)
        bars(ax, place + shift, np.zeros(len(rows)), values, width * 0.94, facecolor=colour(ink))
        entries[label] = swatch(colour(ink))
    ax.set_ylim(0.0, 1.02)
    _name_rows(ax, rows, by)
    if both:
        legend(ax, entries)
    return ax


@styled
def plot_logprobs(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw each token's logprob under the policy that sampled against the trainer's.

    Few tokens are dots, many are shades that count them. What lies off the diagonal was sampled by another
    policy than the one that is trained, or computed in another precision.

    Parameters
    ----------
    frame
        One row per token, such as `Run.tokens`: `logprob`, `train_logprob` (nats), and optionally `mask`
        (tokens with a mask other than 1 are left out: nobody sampled them).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    ax = begin(ax, "Logprobs of tokens", "when sampled (nats)", "in training (nats)", grid="both")
    require(frame, "logprob", "train_logprob")
    rows = known_rows(frame, *(("logprob", "train_logprob") if len(frame) else ()))
    if "mask" in rows and len(rows):
        rows = rows[numbers(rows, "mask") == 1.0]
    if rows.empty:
        return empty(ax)
    x, y = numbers(rows, "logprob"), numbers(rows, "train_logprob")
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    room = max(0.03 * (high - low), 1e-3)
    low, high = low - room, high + room
    if len(rows) <= _FEW:
        dots(ax, x, y, color=colour("blue"), zorder=2)
    else:
        _density(ax, x, y, low, high)
    ax.plot([low, high], [low, high], color=colour("ink"), linewidth=0.6, zorder=3)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6))
    return ax


def _density(ax: Axes, x: Floats, y: Floats, low: float, high: float) -> None:
    sides = np.linspace(low, high, _BINS + 1)
    counts, _, _ = np.histogram2d(x, y, bins=(sides, sides))
    scale = LogNorm(vmin=1.0, vmax=float(max(counts.max(), 2.0)))
    colours = shades()
    shown = np.where(counts > 0, counts, np.nan).T
    style: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "cmap": colours, "norm": scale}
    ax.imshow(shown, origin="lower", extent=(low, high, low, high), zorder=2, **style)
    colour_key(ax, colours, scale, "tokens (log)", low="1", high=f"{scale.vmax:,.0f}")


def _rows(frame: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """Return the rows that can be drawn, by ascending `by`, no more than can be told apart."""
    rows = known_rows(frame, *((by, value) if len(frame) else ()))
    return rows if rows.empty else rows.sort_values(by, kind="stable").head(_MOST_ROWS)


def _ratio_scale(ax: Axes, reach: Floats) -> None:
    """Give ratios a logarithmic axis with plain numbers, wide enough to tell equal from almost equal."""
    known = reach[~np.isnan(reach) & (reach > 0)]
    low, high = float(known.min(initial=1.0)), float(known.max(initial=1.0))
    low, high = min(low, 0.9), max(high, 1.1)
    room = (high / low) ** 0.06
    ax.set_yscale("log")
    ax.set_ylim(low / room, high * room)
    wide = high / low > 8
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,), numticks=8))
    if not wide:
        ax.set_yticks(_round_ratios(low, high))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.minorticks_off()


def _round_ratios(low: float, high: float) -> list[float]:
    candidates = (0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0)
    kept = [1.0]
    for value in sorted(candidates, key=lambda value: abs(np.log(value))):
        apart = min(abs(np.log(value / other)) for other in kept)
        if low <= value <= high and apart > np.log(high / low) / 9:  # no closer than labels are high
            kept.append(value)
    return sorted(kept)


def _name_rows(ax: Axes, rows: pd.DataFrame, by: str) -> None:
    values = numbers(rows, by)
    ends = numbers(rows, f"{by}_end") if f"{by}_end" in rows else np.full(len(rows), np.nan)
    names = [f"{value:,.0f}" if value == round(value) else f"{value:g}" for value in values]
    if f"{by}_end" in rows:
        names = [f"{name}+" if np.isnan(end) or end > value + 1 else name
                 for name, value, end in zip(names, values, ends, strict=True)]  # fmt: skip
    if "tokens" in rows and len(rows) <= 8:
        counts = [_count(number) for number in numbers(rows, "tokens")]
        names = [f"{name}\n{count}" for name, count in zip(names, counts, strict=True)]
        ax.set_xlabel(f"{ax.get_xlabel()}, tokens below")
    step = max(1, -(-len(names) // _MOST_NAMES))
    ax.set_xticks(np.arange(0, len(names), step), names[::step])
    ax.set_xlim(-0.6, len(rows) - 0.4)


def _count(number: float) -> str:
    if np.isnan(number):
        return "?"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
