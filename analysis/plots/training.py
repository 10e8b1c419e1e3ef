"""The four figures of a training run: reward, advantages, rejections, policy lag.

Each function takes a frame and draws what is in it; the statistics are the caller's. Missing values are left
out, never drawn as zero, and an empty frame gives axes that say "no data".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.plots.style import PALETTE, axes_or_new, colour_for, empty, house_style

__all__ = ["plot_advantages", "plot_policy_lag", "plot_rejections", "plot_reward"]

_OUTCOMES = {"success": "blue", "failure": "orange", "partial": "green", "unusable": "grey"}


@house_style()
def plot_reward(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the mean reward per rollout, and held-out evaluations where there are any.

    Parameters
    ----------
    frame
        One row per point: `series` (``"training"`` or ``"held-out"``), `rollout_id` (int), `reward_mean`, and
        optionally `reward_low` and `reward_high` (an interval of the mean). Rewards in the task's unit.
    ax
        Where to draw; new axes if None.
    """
    ax = _prepare(ax, "Reward", "rollout", "mean reward")
    points = _known(frame, ["rollout_id", "reward_mean"])
    if points.empty:
        return empty(ax)
    training = points[points["series"] == "training"].sort_values("rollout_id")
    held_out = points[points["series"] != "training"].sort_values("rollout_id")
    if not training.empty:
        _band(ax, training, "reward_low", "reward_high", PALETTE["blue"])
        ax.plot(training["rollout_id"], training["reward_mean"], color=PALETTE["blue"], label="training")
    if not held_out.empty:
        mean = held_out["reward_mean"].to_numpy(float)
        errors = None
        if {"reward_low", "reward_high"} <= set(held_out):
            low, high = (held_out[name].to_numpy(float) for name in ("reward_low", "reward_high"))
            errors = np.nan_to_num(np.clip(np.vstack([mean - low, high - mean]), 0.0, None))
        ax.errorbar(
            held_out["rollout_id"],
            mean,
            yerr=errors,
            fmt="D",
            color=PALETTE["vermillion"],
            elinewidth=1.0,
            capsize=2.0,
            label="held-out",
            zorder=3,
        )
    drawn = points["reward_mean"]
    if drawn.between(0.0, 1.0).all():
        ax.set_ylim(0.0, 1.03)
    ax.legend(loc="lower right")
    return ax


@house_style()
def plot_advantages(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw each trajectory's advantage as a dot, by rollout and outcome.

    Dots on the zero line are trajectories without a learning signal: all of their group did equally well.

    Parameters
    ----------
    frame
        One row per trajectory: `rollout_id` (int), `advantage` (float), `outcome` (``"success"``,
        ``"failure"``, ``"partial"`` or ``"unusable"``).
    ax
        Where to draw; new axes if None.
    """
    ax = _prepare(ax, "Advantages", "rollout", "advantage")
    dots = _known(frame, ["rollout_id", "advantage"])
    if dots.empty:
        return empty(ax)
    ax.axhline(0.0, color=PALETTE["ink"], linewidth=0.6, zorder=1)
    # A fixed seed: the same run gives the same picture. Jitter shows how many dots share a place.
    spread = np.random.default_rng(0).uniform(-0.38, 0.38, len(dots))
    places = dots["rollout_id"].to_numpy(float) + spread
    for outcome, colour in _OUTCOMES.items():
        chosen = (dots["outcome"] == outcome).to_numpy()
        if chosen.any():
            ax.scatter(
                places[chosen],
                dots["advantage"].to_numpy(float)[chosen],
                s=3.0,
                alpha=0.45,
                linewidths=0,
                color=PALETTE[colour],
                label=outcome,
                rasterized=True,
                zorder=2,
            )
    low, high = float(dots["advantage"].min()), float(dots["advantage"].max())
    room = max(high - low, 1e-3)
    ax.set_ylim(low - 0.06 * room, high + 0.22 * room)
    legend = ax.legend(loc="upper center", ncols=4, markerscale=2.5, handletextpad=0.1, columnspacing=1.0)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    return ax


@house_style()
def plot_rejections(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how many groups were rejected in each rollout, stacked by reason.

    Parameters
    ----------
    frame
        One row per rollout and reason: `rollout_id` (int), `reason` (str), `groups` (count). Rollouts without
        a rejection may have a row with `reason` missing; they widen the axis.
    ax
        Where to draw; new axes if None.
    """
    ax = _prepare(ax, "Rejected groups", "rollout", "groups")
    if frame.empty or "reason" not in frame:
        return empty(ax)
    counts = frame.dropna(subset=["reason"])
    counts = counts[counts["groups"] > 0]
    first, last = int(frame["rollout_id"].min()), int(frame["rollout_id"].max())
    ax.set_xlim(first - 0.8, last + 0.8)
    if counts.empty:
        ax.set_ylim(0.0, 1.0)
        ax.set_yticks([0, 1])
        ax.text(0.5, 0.5, "none rejected", transform=ax.transAxes, ha="center", color=PALETTE["grey"])
        return ax
    table = counts.pivot_table(
        index="rollout_id", columns="reason", values="groups", aggfunc="sum", fill_value=0
    )
    reasons = list(table.sum().sort_values(ascending=False, kind="stable").index)
    base = np.zeros(len(table))
    for reason in reasons:
        height = table[reason].to_numpy(float)
        label = f"{reason.replace('_', ' ')} ({int(height.sum())})"
        ax.bar(table.index, height, 0.8, bottom=base, color=colour_for(reason, reasons), label=label)
        base += height
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(0.0, base.max() * 1.05 + 0.25 * max(1, len(reasons)) * max(base.max(), 1.0) * 0.45)
    ax.legend(loc="upper left", ncols=1)
    return ax


@house_style()
def plot_policy_lag(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how many updates old the trained samples were.

    Parameters
    ----------
    frame
        One row per rollout: `rollout_id` (int), `lag_mean`, `lag_min`, `lag_max` (updates between the version
        at submission and the version at delivery), and optionally `token_lag_mean` (from the versions that
        the engine reported per token) and `limit` (largest lag that is accepted).
    ax
        Where to draw; new axes if None.
    """
    ax = _prepare(ax, "Policy lag", "rollout", "updates behind")
    rows = _known(frame, ["rollout_id", "lag_mean"]).sort_values("rollout_id") if not frame.empty else frame
    if rows.empty:
        return empty(ax)
    _band(ax, rows, "lag_min", "lag_max", PALETTE["blue"], label="range", step="mid")
    ax.plot(rows["rollout_id"], rows["lag_mean"], color=PALETTE["blue"], label="mean, at submission")
    if "token_lag_mean" in rows and rows["token_lag_mean"].notna().any():
        ax.plot(
            rows["rollout_id"],
            rows["token_lag_mean"],
            "--",
            color=PALETTE["vermillion"],
            label="mean, oldest token",
        )
    top = float(np.nanmax(rows[[name for name in ("lag_mean", "lag_max") if name in rows]].to_numpy(float)))
    if "limit" in rows and rows["limit"].notna().any():
        limit = float(rows["limit"].dropna().iloc[-1])
        top = max(top, limit)
        ax.axhline(limit, color=PALETTE["grey"], linestyle=":", label="limit")
    ax.set_ylim(0.0, max(1.0, top) * 1.35)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    ax.legend(loc="upper left", ncols=2, columnspacing=1.0)
    return ax


def _prepare(ax: Axes | None, title: str, x_label: str, y_label: str) -> Axes:
    ax = axes_or_new(ax)
    ax.set_title(title)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _known(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Rows in which all of `columns` are known; an empty frame may lack the columns altogether."""
    return frame if frame.empty else frame.dropna(subset=columns)


def _band(
    ax: Axes,
    rows: pd.DataFrame,
    low: str,
    high: str,
    colour: str,
    label: str | None = None,
    step: Any = None,
) -> None:
    if low in rows and high in rows and rows[low].notna().any():
        ax.fill_between(
            rows["rollout_id"].to_numpy(float),
            rows[low].to_numpy(float),
            rows[high].to_numpy(float),
            color=colour,
            alpha=0.2,
            linewidth=0,
            label=label,
            step=step,
        )
