"""Advantages of one run: over rollouts, by group, as a distribution, and how much of a step is noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from analysis.plots._canvas import begin, boxes, colour_key, dots, empty, legend, line, styled, whole_numbers
from analysis.plots._columns import (
    Bools,
    Floats,
    Ints,
    known_rows,
    numbered,
    numbers,
    one_run,
    plain,
    require,
    words,
)
from analysis.plots._over_rollouts import curve
from analysis.plots.style import colour, colours_for, shades

__all__ = ["plot_advantage_distribution", "plot_advantages", "plot_group_advantages", "plot_noise"]

_OUTCOMES = ("success", "failure", "partial", "unusable")
_LEVELS = 41
_MOST_COLUMNS = 400
_MOST_GROUP_NAMES = 24


@styled
def plot_advantages(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw each trajectory's advantage as a dot, by rollout and outcome.

    Dots on the zero line are trajectories without a learning signal: all of their group did equally well.

    Parameters
    ----------
    frame
        One row per trajectory, such as `Run.sessions`: `rollout_id` (int), `advantage` (float), and
        optionally `outcome` (``"success"``, ``"failure"``, ``"partial"``, ``"unusable"`` or another word).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Advantages", "rollout", "advantage")
    rows = _known(frame)
    if rows.empty:
        return empty(ax)
    advantage, places = numbers(rows, "advantage"), _spread_out(numbers(rows, "rollout_id"), 0.38)
    ax.axhline(0.0, color=colour("ink"), linewidth=0.6, zorder=1)
    if "outcome" in rows:
        outcomes = words(rows, "outcome")
        present = list(dict.fromkeys([w for w in _OUTCOMES if w in set(outcomes)] + sorted(set(outcomes))))
        fills, entries = colours_for(present), {}
        for word in present:
            chosen = outcomes == word
            dots(
                ax,
                places[chosen],
                advantage[chosen],
                s=_size(len(rows)),
                color=fills[word],
                label=word,
                zorder=2,
            )
            entries[word] = line(fills[word], marker="o", linestyle="none")
        legend(ax, entries)
    else:
        dots(ax, places, advantage, s=_size(len(rows)), color=colour("blue"), zorder=2)
    _room_around(ax, advantage)
    whole_numbers(ax, "x")
    return ax


@styled
def plot_group_advantages(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the advantages of each group as a strip of dots; groups without a signal stand on a grey field.

    Parameters
    ----------
    frame
        One row per trajectory or trace, such as `Run.sessions` of one rollout or `compare(run).traces` of one
        estimator: `group` or else `group_index` (what names the group), and `advantage`. Groups are drawn in
        the order of the frame.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Advantages by group", "group", "advantage")
    name = "group" if "group" in frame else "group_index"
    require(frame, name, "advantage")
    one_run(frame)
    rows = known_rows(frame, *(("advantage",) if len(frame) else ()))
    rows = rows if rows.empty else rows[rows[name].notna().to_numpy()]
    if rows.empty:
        return empty(ax)
    advantage = numbers(rows, "advantage")
    owner, groups = numbered(rows[name])
    still = _without_signal(owner, advantage, len(groups))
    _room_around(ax, advantage)
    ax.set_xlim(-0.7, len(groups) - 0.3)
    low, high = ax.get_ylim()
    at = np.flatnonzero(still).astype(float)
    ends = np.full(len(at), low), np.full(len(at), high)
    boxes(ax, at - 0.5, at + 0.5, *ends, facecolor=colour("grid"), alpha=0.6, zorder=0.5)
    ax.set_ylim(low, high)
    ax.axhline(0.0, color=colour("ink"), linewidth=0.6, zorder=1)
    signs = np.sign(advantage)
    places = _spread_out(owner.astype(float), 0.3)
    entries: dict[str, Any] = {}
    for sign, fill, label in ((1, "blue", "above"), (-1, "vermillion", "below"), (0, "grey", "zero")):
        if (signs == sign).any():
            ink = colour(fill) if sign else colour("muted")
            dots(ax, places[signs == sign], advantage[signs == sign], color=ink, zorder=2)
            entries[label] = line(ink, marker="o", linestyle="none")
    if still.any():
        entries["no signal"] = line(colour("grid"), marker="s", linestyle="none", markersize=6)
    _name_groups(ax, groups)
    legend(ax, entries)
    return ax


@styled
def plot_advantage_distribution(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how the advantages of each rollout are distributed, as columns of shades.

    Each column shows the shares of its rollout's trajectories and adds up to 1. The field at zero is centred
    on it: a dark one means that much of the rollout taught nothing.

    Parameters
    ----------
    frame
        One row per trajectory, such as `Run.sessions`: `rollout_id` (int), `advantage`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Distribution of advantages", "rollout", "advantage", grid="none")
    rows = _known(frame)
    if rows.empty:
        return empty(ax)
    at, advantage = numbers(rows, "rollout_id"), numbers(rows, "advantage")
    reach = max(float(np.abs(advantage).max()), 1e-3) * (1 + 1 / _LEVELS)
    step = int(np.ceil((at.max() - at.min() + 1) / _MOST_COLUMNS))
    columns = int((at.max() - at.min()) // step) + 1
    sides = at.min() - 0.5 + step * np.arange(columns + 1)
    counts, _, _ = np.histogram2d(at, advantage, bins=(sides, np.linspace(-reach, reach, _LEVELS + 1)))
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=counts > 0).T
    scale = PowerNorm(0.5, vmin=0.0, vmax=float(np.nanmax(shares)))
    colours = shades()
    ax.imshow(
        shares,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(sides[0], sides[-1], -reach, reach),
        cmap=colours,
        norm=scale,
    )
    low, high = float(advantage.min()), float(advantage.max())
    room = 0.08 * max(high - low, 1e-3) + reach / _LEVELS
    ax.set_ylim(max(low - room, -reach), min(high + room, reach))
    whole_numbers(ax, "x")
    colour_key(ax, colours, scale, "share")
    return ax


@styled
def plot_noise(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how much of each step's advantages is noise, and how often their signs are wrong.

    Parameters
    ----------
    frame
        One row per rollout, such as `uncertainty(run).steps`: `rollout_id` (int), `noise_share` (a fraction
        of the mean square), and optionally `p_sign_wrong` (probability).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Noise in the advantages", "rollout", "fraction")
    require(frame, "rollout_id", "noise_share")
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id",) if len(frame) else ()))
    rows = rows if rows.empty else rows.sort_values("rollout_id", kind="stable")
    entries: dict[str, Any] = {}
    top = 0.0
    for name, label, ink, form in (
        ("noise_share", "noise, of the square", "vermillion", "-"),
        ("p_sign_wrong", "wrong signs", "blue", "--"),
    ):
        if rows.empty or name not in rows:
            continue
        values = numbers(rows, name)
        if np.isnan(values).all():
            continue
        entries[label] = curve(ax, numbers(rows, "rollout_id"), values, form, color=colour(ink))
        top = max(top, float(np.nanmax(values)))
    if not entries:
        return empty(ax)
    ax.set_ylim(0.0, max(top * 1.08, 0.05))
    whole_numbers(ax, "x")
    legend(ax, entries)
    return ax


def _known(frame: pd.DataFrame) -> pd.DataFrame:
    require(frame, "rollout_id", "advantage")
    one_run(frame)
    return known_rows(frame, *(("rollout_id", "advantage") if len(frame) else ()))


def _spread_out(places: Floats, width: float) -> Floats:
    """Move dots sideways at random, so that it shows how many share a place; the same for the same frame."""
    moved: Floats = places + np.random.default_rng(0).uniform(-width, width, len(places))
    return moved


def _size(count: int) -> float:
    return 3.0 if count > 500 else 8.0


def _without_signal(owner: Ints, advantage: Floats, count: int) -> Bools:
    top = np.zeros(count)
    np.maximum.at(top, owner, np.abs(advantage))
    return np.asarray(top == 0.0, dtype=bool)


def _room_around(ax: Axes, values: Floats) -> None:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    room = 0.08 * max(high - low, 1e-3)
    ax.set_ylim(low - room, high + room)


def _name_groups(ax: Axes, groups: Any) -> None:
    step = max(1, -(-len(groups) // _MOST_GROUP_NAMES))
    shown = np.arange(0, len(groups), step)
    names = [plain(groups[place], 10) for place in shown]
    long = sum(len(name) + 1 for name in names) > 50
    ax.set_xticks(shown, names, rotation=90 if long else 0)
