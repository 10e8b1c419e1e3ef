"""What was thrown away: from drawn to delivered groups, over rollouts, at what cost, and who is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots._canvas import begin, boxes, empty, legend, line, say, styled, swatch, whole_numbers
from analysis.plots._columns import Floats, known_rows, numbers, one_run, plain, require, top_words, words
from analysis.plots._over_rollouts import columns_of, stack
from analysis.plots.style import HEIGHT, colour, colours_for

__all__ = ["plot_rejections", "plot_survivorship", "plot_waste", "plot_waterfall"]

_STAGES = ("infrastructure", "content", "lag", "returned", "abandoned", "open")
_MEASURES = (
    ("session_share", "sessions", "o", "blue"),
    ("second_share", "seconds", "D", "vermillion"),
    ("token_share", "tokens", "s", "green"),
)
_ROW = 0.19
_MOST_EFFECTS = 100


@styled
def plot_rejections(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how many groups were rejected in each rollout, stacked by reason.

    Parameters
    ----------
    frame
        One row per group, such as `ledger(run).groups`, or per rollout and reason with a count `groups`:
        `rollout_id` (int), `reason` (missing where nothing was rejected: such rows widen the axis), and
        optionally `stage` (only ``content`` and ``lag`` are rejections, and ``evaluation`` is left out).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Rejected groups", "rollout", "groups")
    require(frame, "rollout_id", "reason")
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id",) if len(frame) else ()))
    if "stage" in rows and len(rows):
        rows = rows[words(rows, "stage") != "evaluation"]
    if rows.empty:
        return empty(ax)
    at = numbers(rows, "rollout_id")
    counts = numbers(rows, "groups") if "groups" in rows else np.ones(len(rows))
    if "stage" in rows:
        counts = np.where(np.isin(words(rows, "stage"), ["content", "lag"]), counts, 0.0)
    first, last = at.min(), at.max()
    whole_numbers(ax, "x")
    there = rows["reason"].notna().to_numpy() & (counts > 0)
    if not there.any():
        ax.set_xlim(first - 0.8, last + 0.8)
        ax.set_ylim(0.0, 1.0)
        ax.set_yticks([0, 1])
        say(ax, "none rejected")
        return ax
    at, counts, reasons = at[there], counts[there], words(rows[there], "reason")
    shown = top_words(reasons, counts)
    labels = list(dict.fromkeys(shown.values()))
    fills = colours_for(labels)
    columns = columns_of(np.array([first, last]))
    heights, entries = {}, {}
    for label in labels:
        own = np.flatnonzero([shown[reason] == label for reason in reasons])
        heights[label] = columns.sums(at[own], counts[own])
        entries[f"{_said(label)} ({int(heights[label].sum())})"] = swatch(fills[label])
    stack(ax, columns, heights, fills)
    if columns.step > 1:
        ax.set_ylabel(f"groups per {columns.step} rollouts")
    whole_numbers(ax, "y")
    legend(ax, entries)
    return ax


@styled
def plot_waterfall(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw what became of the groups that were drawn, loss by loss, down to those that were delivered.

    Parameters
    ----------
    frame
        One row per group, such as `ledger(run).groups`, or per stage and reason with a count `groups`:
        `stage` (``delivered``, ``content``, ``lag``, ``infrastructure``, ``returned``, ``abandoned``,
        ``open``; rows of ``evaluation`` are left out), `reason` (may be missing).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    require(frame, "stage", "reason")
    steps = _steps(frame) if len(frame) else []
    ax = begin(ax, "Groups, from drawn to delivered", "groups", "", grid="x", height=_height(len(steps) + 2))
    if not steps:
        return empty(ax)
    drawn = sum(count for _, _, count in steps)
    delivered = sum(count for stage, _, count in steps if stage == "delivered")
    lost = [step for step in steps if step[0] != "delivered"]
    left, right = np.zeros(len(lost) + 2), np.zeros(len(lost) + 2)
    right[0], right[-1] = drawn, delivered
    rest = drawn
    for place, (_, _, count) in enumerate(lost, start=1):
        left[place], right[place] = rest - count, rest
        rest -= count
    y = np.arange(len(left), dtype=float)
    fills = [colour("grey"), *(_stage_colours(lost)), colour("blue")]
    boxes(ax, left, right, y - 0.36, y + 0.36, facecolor=fills, zorder=2)
    # Thin lines lead the eye from the end of one step to the beginning of the next.
    ends = np.append(left[1:-1], delivered)
    ax.vlines(np.append(drawn, ends[:-1]), y[:-1] + 0.36, y[1:] - 0.36, color=colour("muted"), linewidth=0.6)
    for place, end in enumerate(right):
        sign = "" if place in (0, len(right) - 1) else "−"
        text = f" {sign}{right[place] - left[place]:,.0f}"
        ax.text(end, y[place], text, va="center", fontsize=7, color=colour("ink"))
    ax.set_yticks(y, ["drawn", *(_said(reason or stage) for stage, reason, _ in lost), "delivered"])
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0.0, drawn * 1.18)
    ax.set_ylim(len(left) - 0.4, -0.6)
    whole_numbers(ax, "x", most=6)
    return ax


@styled
def plot_waste(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the effort that was not trained on, by what became of it and why.

    Parameters
    ----------
    frame
        One row per fate and reason, such as `waste(run).rows`: `fate`, `reason` (may be missing), and the
        shares (fractions of the whole) `session_share`, `second_share`, `token_share`. Rows of ``trained``
        and of ``evaluation`` are left out.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    require(frame, "fate", "reason", *(name for name, *_ in _MEASURES))
    labels, shares = _wasted(frame) if len(frame) else ([], np.zeros((3, 0)))
    title = "Effort not trained on"
    ax = begin(ax, title, "share of all effort (%)", "", grid="x", height=_height(1.3 * len(labels) + 2))
    if not labels:
        return empty(ax) if frame.empty else empty(ax, "nothing wasted")
    if np.isnan(shares).all():
        return empty(ax)
    y = np.arange(len(labels), dtype=float)
    top = np.nanmax(shares, axis=0, initial=0.0)
    ax.hlines(y, 0.0, 100 * top, color=colour("grid"), linewidth=2.0, zorder=1)
    entries: dict[str, Any] = {}
    for place, (values, (_, label, marker, ink)) in enumerate(zip(shares, _MEASURES, strict=True)):
        shift = (place - 1) * 0.2
        style: dict[str, Any] = {"marker": marker, "linestyle": "none", "color": colour(ink), "markersize": 4}
        ax.plot(100 * values, y + shift, zorder=3, clip_on=False, **style)
        entries[label] = line(colour(ink), marker=marker, linestyle="none", markersize=4)
    ax.set_yticks(y, labels)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0.0, max(100 * float(top.max()) * 1.08, 0.1))
    ax.set_ylim(len(labels) - 0.4, -0.6)
    legend(ax, entries, side="right")
    return ax


@styled
def plot_survivorship(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how removed sessions differ from the others, by mechanism and quantity, with intervals.

    Left of 0 the removed ones have less of it, right of 0 more. For tasks the distance between both mixtures
    stands in the place of a direction. The first four mechanisms of the first 100 rows are drawn at most.

    Parameters
    ----------
    frame
        One row per mechanism and quantity, such as `survivorship(run).effects`: `mechanism`, `quantity`,
        `effect` (-1 to 1), and optionally `effect_low`, `effect_high`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing.
    """
    require(frame, "mechanism", "quantity", "effect")
    rows = known_rows(frame, *(("effect",) if len(frame) else ())).head(_MOST_EFFECTS)
    quantities = list(dict.fromkeys(words(rows, "quantity"))) if len(rows) else []
    mechanisms = list(dict.fromkeys(words(rows, "mechanism")))[:4] if len(rows) else []
    height = _height(len(quantities) * max(len(mechanisms), 1) * 0.5 + 2)
    ax = begin(
        ax, "Who is missing from training", "effect (removed against others)", "", grid="x", height=height
    )
    if rows.empty:
        return empty(ax)
    ax.axvline(0.0, color=colour("ink"), linewidth=0.6)
    fills = colours_for(mechanisms)
    of, what = words(rows, "mechanism"), words(rows, "quantity")
    entries: dict[str, Any] = {}
    for place, (name, marker) in enumerate(zip(mechanisms, "oDs^", strict=False)):
        own = rows[of == name]
        shift = (place - (len(mechanisms) - 1) / 2) * 0.7 / len(mechanisms)
        y = np.array([quantities.index(word) for word in what[of == name]]) + shift
        effect = numbers(own, "effect")
        if {"effect_low", "effect_high"} <= set(own):
            ax.hlines(
                y, numbers(own, "effect_low"), numbers(own, "effect_high"), color=fills[name], linewidth=1.0
            )
        ax.plot(effect, y, marker=marker, linestyle="none", color=fills[name], markersize=4)
        entries[_said(name)] = line(fills[name], marker=marker, linestyle="none", markersize=4)
    ax.set_yticks(np.arange(len(quantities)), [_said(name) for name in quantities])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(quantities) - 0.5, -0.5)
    legend(ax, entries)
    return ax


def _steps(frame: pd.DataFrame) -> list[tuple[str, str, float]]:
    """Return stage, reason and groups of every step, in the order of a group's life, larger ones first."""
    stage, reason = words(frame, "stage", "open"), words(frame, "reason", "")
    weight = numbers(frame, "groups") if "groups" in frame else np.ones(len(frame))
    counts: dict[tuple[str, str], float] = {}
    for key in zip(stage, reason, np.nan_to_num(weight), strict=True):
        place = (key[0], "" if key[0] == "delivered" else key[1])
        counts[place] = counts.get(place, 0.0) + float(key[2])
    rank = {name: place for place, name in enumerate(_STAGES)}
    chosen = [(*key, count) for key, count in counts.items() if key[0] != "evaluation" and count > 0]
    return sorted(chosen, key=lambda step: (rank.get(step[0], len(rank)), -step[2]))


def _stage_colours(steps: list[tuple[str, str, float]]) -> list[str]:
    inks = {"content": "vermillion", "lag": "purple", "infrastructure": "orange"}
    return [colour(inks.get(stage, "sky")) for stage, _, _ in steps]


def _wasted(frame: pd.DataFrame) -> tuple[list[str], Floats]:
    """Return the labels and the three shares of what was not trained on; small ones are put together."""
    fate, reason = words(frame, "fate"), words(frame, "reason", "")
    kept = ~np.isin(fate, ["trained", "evaluation"])
    shares = np.stack([numbers(frame, name) for name, *_ in _MEASURES])[:, kept]
    labels = [
        f"{_said(a)}:\n{_said(b)}" if b else _said(a) for a, b in zip(fate[kept], reason[kept], strict=True)
    ]
    shown = top_words(labels, np.nan_to_num(shares).max(axis=0, initial=0.0), most=8)
    names = [name for name in dict.fromkeys(shown.values()) if name != "other"]
    names += ["other"] if "other" in shown.values() else []
    own = np.array([names.index(shown[label]) for label in labels], dtype=np.int64)
    sums = [np.bincount(own, weights=np.nan_to_num(row), minlength=len(names)) for row in shares]
    known = [np.bincount(own, weights=~np.isnan(row), minlength=len(names)) > 0 for row in shares]
    return names, np.where(np.array(known), np.array(sums), np.nan).reshape(3, len(names))


def _said(name: str) -> str:
    return plain(name.replace("_", " "), 32)


def _height(rows: float) -> float:
    return max(HEIGHT * 0.8, 0.75 + _ROW * rows)
