"""What the overview of rollouts draws: small multiples over one axis, from frames to numbers to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import traitlets

from analysis.explorers.assets import WorkbenchWidget, script
from analysis.plots.style import PALETTE, colours_for, theme
from analysis.stats.columns import Floats, flags, floats, integers, texts

__all__ = ["OverviewChart", "evaluations", "overview", "panels", "rejections", "trained"]

_RUN_COLOURS = ("blue", "vermillion", "green", "orange", "purple", "sky")
_MOST_REASONS = 5


class OverviewChart(WorkbenchWidget):
    """Panels over the rollouts of one or several runs, with a brush over all of them.

    Brush with the mouse (its edges and its middle can be dragged), or with Shift and the arrows; a click or
    Enter takes one rollout, Escape all.

    Attributes
    ----------
    panels, ids, legend
        As `panels` returns them.
    trained
        Those of `ids` that are rollouts of the training; at the others there was an evaluation only.
    brush
        First and last brushed rollout, or None.
    """

    _esm = script("overview.js")

    panels: Any = traitlets.List().tag(sync=True)
    ids: Any = traitlets.List().tag(sync=True)
    legend: Any = traitlets.List().tag(sync=True)
    trained: Any = traitlets.List().tag(sync=True)
    brush: Any = traitlets.List(allow_none=True, default_value=None).tag(sync=True)
    panel_height = traitlets.Int(66).tag(sync=True)


def overview(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of each training rollout that an overview shows.

    Returns
    -------
    DataFrame
        Sorted by run and rollout: `run`, `rollout_id`, `reward_mean`, `reward_std`, `lag_mean`, `lag_max`
        (rollouts), `delivered_groups`, `rejected_groups`, `yield` (delivered among those that were judged).
    """
    known = rollouts[(~flags(rollouts, "evaluation")) & rollouts["rollout_id"].notna().to_numpy()]
    known = known.sort_values(["run", "rollout_id"], kind="stable", ignore_index=True)
    delivered, rejected = floats(known, "delivered_groups"), floats(known, "rejected_groups")
    judged = delivered + rejected
    share = np.divide(delivered, judged, out=np.full(len(known), np.nan), where=judged > 0)
    result = known[["run", "rollout_id", "reward_mean", "reward_std"]].copy()
    result["lag_mean"], result["lag_max"] = known["staleness_mean"], known["staleness_max"]
    result["delivered_groups"], result["rejected_groups"] = (
        known["delivered_groups"],
        known["rejected_groups"],
    )
    result["yield"] = pd.array(share, dtype="Float64")
    result.loc[np.isnan(share), "yield"] = pd.NA
    return result


def evaluations(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Return `run`, `rollout_id` and `reward_mean` of each evaluation that has one."""
    chosen = flags(rollouts, "evaluation") & rollouts["reward_mean"].notna().to_numpy()
    chosen &= rollouts["rollout_id"].notna().to_numpy()
    return rollouts.loc[chosen, ["run", "rollout_id", "reward_mean"]].reset_index(drop=True)


def rejections(groups: pd.DataFrame) -> pd.DataFrame:
    """Return how many groups were rejected per rollout and reason: `rollout_id`, `reason`, `groups`."""
    chosen = (groups["state"] == "rejected").fillna(False).to_numpy(dtype=bool)
    chosen &= ~flags(groups, "evaluation") & groups["rollout_id"].notna().to_numpy()
    rows = groups.loc[chosen, ["rollout_id"]].assign(
        reason=groups.loc[chosen, "reject_reason"].astype(object).fillna("unknown")
    )
    counts = rows.groupby(["rollout_id", "reason"], sort=True).size()
    return counts.rename("groups").reset_index()


def trained(numbers: pd.DataFrame, rejected: pd.DataFrame) -> list[int]:
    """Return the rollouts of the training, ascending: those that have numbers, or rejected groups.

    Parameters
    ----------
    numbers, rejected
        From `overview` and `rejections`.
    """
    found = set(integers(numbers, "rollout_id").tolist())
    return sorted(found | set(integers(rejected, "rollout_id").tolist()))


def panels(
    numbers: pd.DataFrame, evaluated: pd.DataFrame, rejected: pd.DataFrame
) -> tuple[list[int], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the chart draws.

    Parameters
    ----------
    numbers, evaluated, rejected
        From `overview`, `evaluations` and `rejections`.

    Returns
    -------
    ids
        Rollouts on the axis, ascending.
    panels
        Reward, lag, yield and rejections, ready for JSON.
    legend
        Colours of the runs; empty if there is only one.
    """
    names = list(dict.fromkeys(texts(numbers, "run")))
    ids = sorted({*trained(numbers, rejected), *integers(evaluated, "rollout_id").tolist()})
    colour = {name: _RUN_COLOURS[place % len(_RUN_COLOURS)] for place, name in enumerate(names)}
    alone = len(names) <= 1
    reasons = _reasons(rejected)
    drawn = [
        _reward(numbers, evaluated, ids, colour),
        _lag(numbers, ids, colour if not alone else dict.fromkeys(names, "purple")),
        _yield(numbers, ids, colour if not alone else dict.fromkeys(names, "green")),
        _rejected(rejected, ids, reasons),
    ]
    legend = [] if alone else [{"label": name, "colour": own} for name, own in colour.items()]
    return ids, drawn, legend


def _by_run(frame: pd.DataFrame, column: str, ids: Sequence[int]) -> dict[str, Floats]:
    """Return a column by run, aligned with the rollouts on the axis."""
    at = np.searchsorted(np.asarray(ids, dtype=np.int64), integers(frame, "rollout_id"))
    values, runs = floats(frame, column), texts(frame, "run")
    result = {}
    for name in dict.fromkeys(runs):
        own = runs == name
        aligned = np.full(len(ids), np.nan)
        aligned[at[own]] = values[own]
        result[name] = aligned
    return result


def _series(
    frame: pd.DataFrame, column: str, ids: Sequence[int], colour: Mapping[Any, str], **more: Any
) -> list[dict[str, Any]]:
    return [
        {"label": name, "x": list(ids), "y": _plain(values), "colour": colour[name], **more}
        for name, values in _by_run(frame, column, ids).items()
    ]


def _reward(
    numbers: pd.DataFrame, evaluated: pd.DataFrame, ids: Sequence[int], colour: Mapping[Any, str]
) -> dict[str, Any]:
    series = _series(numbers, "reward_mean", ids, colour)
    spread = _by_run(numbers, "reward_std", ids)
    means = _by_run(numbers, "reward_mean", ids)
    if len(series) == 1:  # several bands on top of each other tell nothing
        name = series[0]["label"]
        series[0]["low"] = _plain(means[name] - spread[name])
        series[0]["high"] = _plain(means[name] + spread[name])
    points = [
        {
            "x": int(x),
            "y": float(y),
            "label": f"evaluation at {x}",
            "colour": colour[run] if len(colour) > 1 and run in colour else "ink",
        }
        for run, x, y in zip(
            texts(evaluated, "run"),
            integers(evaluated, "rollout_id"),
            floats(evaluated, "reward_mean"),
            strict=True,
        )
    ]
    seen = [floats(numbers, "reward_mean"), floats(evaluated, "reward_mean")]
    if len(series) == 1:
        seen += [means[name] - spread[name], means[name] + spread[name]]
    readout = _readout(means, ids, spread)
    panel = _panel("reward", "mean over usable sessions of delivered groups, ±1 sd", seen, series, readout)
    return panel | {
        "points": points,
        "legend": [{"mark": "◆", "colour": "ink", "label": "evaluation"}] if points else [],
    }


def _lag(numbers: pd.DataFrame, ids: Sequence[int], colour: Mapping[Any, str]) -> dict[str, Any]:
    thin = _series(numbers, "lag_max", ids, colour, thin=True)
    series = thin + _series(numbers, "lag_mean", ids, colour)
    means, most = _by_run(numbers, "lag_mean", ids), _by_run(numbers, "lag_max", ids)
    readout = _readout(means, ids, most, sign=", max ")
    seen = [np.zeros(1), floats(numbers, "lag_max"), floats(numbers, "lag_mean")]
    return _panel("policy lag", "rollouts; mean, and dashed the largest", seen, series, readout)


def _yield(numbers: pd.DataFrame, ids: Sequence[int], colour: Mapping[Any, str]) -> dict[str, Any]:
    series = _series(numbers, "yield", ids, colour)
    readout = _readout(_by_run(numbers, "yield", ids), ids)
    lowest = floats(numbers, "yield")
    floor = float(np.nanmin(lowest)) if np.isfinite(lowest).any() else 0.0
    seen = [np.array([min(floor, 0.8), 1.0])]
    panel = _panel("yield", "delivered groups among those that were judged", seen, series, readout)
    return panel | {"note": panel["note"] or ("" if np.isfinite(lowest).any() else "no verdicts")}


def _rejected(rejected: pd.DataFrame, ids: Sequence[int], reasons: Mapping[str, str]) -> dict[str, Any]:
    at = np.searchsorted(np.asarray(ids, dtype=np.int64), integers(rejected, "rollout_id"))
    counts, names = floats(rejected, "groups"), texts(rejected, "reason")
    named = np.array([name if name in reasons else "other" for name in names], dtype=object)
    series = []
    for reason, colour in reasons.items():
        own = named == reason
        heights = np.bincount(at[own], weights=counts[own], minlength=len(ids))
        series.append({"label": reason, "x": list(ids), "y": heights.tolist(), "colour": colour})
    total = np.sum([s["y"] for s in series], axis=0) if series else np.zeros(len(ids))
    readout = [
        ", ".join(f"{int(s['y'][k])} {s['label'].replace('_', ' ')}" for s in series if s["y"][k]) or "none"
        for k in range(len(ids))
    ]
    top = max(float(np.max(total, initial=0.0)), 1.0)
    return {
        "label": "rejected groups",
        "title": "by reason",
        "kind": "bars",
        "domain": [0.0, top * 1.08],
        "series": series,
        "legend": [
            {"mark": "■", "colour": name, "label": reason.replace("_", " ")}
            for reason, name in reasons.items()
        ],
        "readout": readout,
        "note": "" if series or not ids else "none rejected",
    }


def _reasons(rejected: pd.DataFrame) -> dict[str, str]:
    """Return the colour of each reason, the most frequent first; the rest is called other."""
    totals = rejected.groupby("reason")["groups"].sum().sort_values(ascending=False, kind="stable")
    shown = list(totals.index[:_MOST_REASONS]) + (["other"] if len(totals) > _MOST_REASONS else [])
    with theme("paper"):
        hexes = colours_for(map(str, shown))
    names = {value: name for name, value in PALETTE.items()}
    return {reason: names[value] for reason, value in hexes.items()}


def _panel(
    label: str, title: str, seen: Sequence[Floats], series: list[dict[str, Any]], readout: list[str]
) -> dict[str, Any]:
    values = np.concatenate([np.asarray(part, dtype=np.float64) for part in seen])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if high <= low:
        low, high = min(low, 0.0), max(high, low + 1.0)
    there = any(v is not None for s in series for v in s["y"])
    return {
        "label": label,
        "title": title,
        "kind": "line",
        "domain": [low, high + (high - low) * 0.05],
        "series": series,
        "legend": [],
        "readout": readout,
        "note": "" if there else "not recorded",
    }


def _readout(
    values: Mapping[Any, Floats],
    ids: Sequence[int],
    more: Mapping[Any, Floats] | None = None,
    sign: str = " ±",
) -> list[str]:
    """Return what the cursor reads at each rollout."""
    lines = []
    for place in range(len(ids)):
        parts = []
        for name, own in values.items():
            if np.isnan(own[place]):
                continue
            text = f"{own[place]:.3g}"
            if more is not None and not np.isnan(more[name][place]):
                text += f"{sign}{more[name][place]:.3g}"
            parts.append(text if len(values) == 1 else f"{name} {text}")
        lines.append("   ".join(parts))
    return lines


def _plain(values: Floats) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
