"""Who was left out of training, and how the rest differs for it: length, time, reward, task, by mechanism.

Mechanism by mechanism, the sessions that it removed are set against all others that were attempted:

- ``effect`` is Cliff's delta, ``P(removed > other) - P(removed < other)``: 0.33 is a medium difference;
- ``bias`` is how far leaving them out moves the mean: mean of the others minus mean of all.

Intervals are 95 % percentiles of a bootstrap over groups, since sessions of one prompt are alike; where fewer
than three groups lost a session there is none. For tasks
the effect is the total variation distance between the tasks of the removed sessions and of all, less what a
random removal of as many sessions gives on average; the interval comes from random removals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import Bools, Floats, Ints, first_known, floats, nullable, only, texts
from analysis.stats.frames import Frames, as_frames, group_codes, group_rows
from analysis.stats.numbers import cliffs_delta, cluster_bootstrap, total_variation
from analysis.stats.sessions import fates, session_seconds

__all__ = ["Survivorship", "survivorship"]

_FEW_LEVELS = 512
_CELLS = 20_000_000
_LEAST_GROUPS = 3
_QUANTITIES = ("response_tokens", "trainable_tokens", "turns", "seconds", "reward")


@dataclass(frozen=True, eq=False)
class Survivorship:
    """Attempted against accepted.

    Attributes
    ----------
    effects
        One row per mechanism and quantity: `mechanism` (``all`` for everything that was not trained on;
        ``session: <reason>`` for sessions of delivered groups; ``group: <reason>`` for rejected groups;
        ``superseded``, ``given_up``, ...), `quantity` (``response_tokens``, ``trainable_tokens``, ``turns``,
        ``seconds``, ``reward``, ``task``), `removed` and `others` (sessions with a value), `removed_mean`,
        `others_mean`, `effect` with `effect_low`, `effect_high`, `bias` with `bias_low`, `bias_high`. A
        quantity that nobody measured for removed sessions is missing, never 0; and so are the
        `trainable_tokens` of sessions that were removed because they had none.
    sessions
        One row per attempted training session: `mechanism` (missing for those that were trained on) and the
        quantities, for figures.
    """

    effects: pd.DataFrame
    sessions: pd.DataFrame


def survivorship(run: Any, *, replicates: int = 500, seed: int = 0) -> Survivorship:
    """Compare what was trained on with what was attempted.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    replicates, seed
        Of the bootstrap.
    """
    frames = as_frames(run)
    table = frames.sessions
    mechanism = _mechanisms(frames)
    fate = fates(frames)
    attempted = ~np.isin(fate, ["evaluation", "unfinished"])
    values = {name: floats(table, name)[attempted] for name in _QUANTITIES if name != "seconds"}
    # That nothing was left to train on is what removed these, not what they were like.
    values["trainable_tokens"][fate[attempted] == "unusable"] = np.nan
    values["seconds"] = session_seconds(table)[attempted]
    removed_by = mechanism[attempted]
    group = group_codes(table)[0][attempted]
    task = _tasks(frames)[attempted]
    rows = []
    for name, removed in _removals(removed_by).items():
        for quantity in _QUANTITIES:
            rows.append(
                {
                    "mechanism": name,
                    "quantity": quantity,
                    **_compare(values[quantity], removed, group, replicates, seed),
                }
            )
        rows.append({"mechanism": name, "quantity": "task", **_task_effect(task, removed, replicates, seed)})
    sessions = nullable({"mechanism": removed_by, "task": task, **{q: values[q] for q in _QUANTITIES}})
    return Survivorship(_effects_frame(rows), sessions)


def _mechanisms(frames: Frames) -> np.ndarray:
    """Return what removed each session, None where it was trained on."""
    table, fate = frames.sessions, fates(frames)
    own = texts(table, "reason")
    group = texts(table, "reject_reason")
    if len(frames.groups):
        rows = group_rows(frames.groups, table)
        group = first_known(group, only(texts(frames.groups, "reject_reason")[rows], rows >= 0))
    result = np.array([None if word == "trained" else word for word in fate], dtype=object)
    for place in np.flatnonzero(fate == "unusable"):
        result[place] = f"session: {own[place] or 'nothing to train on'}"
    for place in np.flatnonzero(fate == "rejected"):
        result[place] = f"group: {group[place] or 'unspecified'}"
    return result


def _removals(mechanism: np.ndarray) -> dict[str, Bools]:
    removed = ~pd.isna(mechanism)
    if not removed.any():
        return {}
    names = sorted(set(mechanism[removed]))
    return {"all": removed, **{name: mechanism == name for name in names}}


def _tasks(frames: Frames) -> np.ndarray:
    """Return the prompt of each session, None where no journal says."""
    table = frames.sessions
    if not len(frames.groups):
        return np.full(len(table), None, dtype=object)
    rows = group_rows(frames.groups, table)
    return only(texts(frames.groups, "prompt_sha256")[rows], rows >= 0)


def _compare(values: Floats, removed: Bools, group: Ints, replicates: int, seed: int) -> dict[str, Any]:
    there = ~np.isnan(values)
    a, b = values[there & removed], values[there & ~removed]
    result: dict[str, Any] = {
        "removed": len(a),
        "others": len(b),
        "removed_mean": float(a.mean()) if len(a) else np.nan,
        "others_mean": float(b.mean()) if len(b) else np.nan,
        "effect": cliffs_delta(a, b),
        "bias": float(b.mean() - values[there].mean()) if len(a) and len(b) else np.nan,
    }
    draws = np.full((2, 1), np.nan)
    if len(np.unique(group[there & removed])) >= _LEAST_GROUPS and len(b):
        draws = _bootstrap(values[there], removed[there], group[there], replicates, seed)
    for place, name in enumerate(("effect", "bias")):
        known_draws = draws[place][~np.isnan(draws[place])]
        low, high = np.quantile(known_draws, [0.025, 0.975]) if len(known_draws) else (np.nan, np.nan)
        result |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return result


def _bootstrap(values: Floats, removed: Bools, group: Ints, replicates: int, seed: int) -> np.ndarray:
    """Draw whole groups and return effect and bias of each draw, shape (2, B)."""
    clusters = np.unique(group, return_inverse=True)[1].reshape(-1).astype(np.int64)
    count = max(20, min(replicates, _CELLS // max(len(values), 1)))
    groups = int(clusters.max(initial=-1)) + 1
    times = cluster_bootstrap(np.arange(groups), count, seed).astype(np.float64)
    levels, level = np.unique(values, return_inverse=True)
    level = level.reshape(-1)
    first = _drawn(times, clusters[removed], level[removed], len(levels))
    second = _drawn(times, clusters[~removed], level[~removed], len(levels))
    everyone = first + second
    with np.errstate(invalid="ignore", divide="ignore"):  # a draw may hold no removed session at all
        delta = _weighted_delta(first, second)
        bias = second @ levels / second.sum(axis=1) - everyone @ levels / everyone.sum(axis=1)
    return np.stack([delta, bias])


def _drawn(times: Floats, clusters: Ints, level: Ints, levels: int) -> Floats:
    """Return how often each draw holds each level of a quantity, shape (B, levels).

    Few levels are counted per group and multiplied; where nearly every value is its own level, the draws of
    each value are added up, since most of that product would be zeros.
    """
    if levels <= _FEW_LEVELS:
        counts = np.bincount(clusters * levels + level, minlength=times.shape[1] * levels)
        return np.asarray(times @ counts.reshape(times.shape[1], levels).astype(np.float64))
    order = np.argsort(level, kind="stable")
    result = np.zeros((len(times), levels))
    found, starts = np.unique(level[order], return_index=True)
    if len(found):
        result[:, found] = np.add.reduceat(times[:, clusters[order]], starts, axis=1)
    return result


def _weighted_delta(a: Floats, b: Floats) -> Floats:
    """Return Cliff's delta of two weighted samples over the same ascending values; weights (B, n)."""
    below = np.cumsum(b, axis=1) - b
    total_a, total_b = a.sum(axis=1), b.sum(axis=1)
    above = total_b[:, None] - below - b
    delta: Floats = (a * (below - above)).sum(axis=1) / (total_a * total_b)
    return delta


def _task_effect(task: np.ndarray, removed: Bools, replicates: int, seed: int) -> dict[str, Any]:
    there = ~pd.isna(task)
    code = pd.factorize(task[there])[0]
    gone = removed[there]
    size, kinds = int(gone.sum()), int(code.max(initial=-1)) + 1
    nothing = dict.fromkeys(("removed_mean", "others_mean", "bias", "bias_low", "bias_high"), np.nan)
    counts = {"removed": size, "others": int((~gone).sum())}
    if not size or kinds < 2:
        return {**counts, **nothing, "effect": np.nan, "effect_low": np.nan, "effect_high": np.nan}
    every = np.bincount(code, minlength=kinds).astype(np.float64)
    actual = total_variation(np.bincount(code[gone], minlength=kinds).astype(np.float64), every)
    rng = np.random.default_rng(seed)
    drawn = rng.multivariate_hypergeometric(every.astype(np.int64), size, size=replicates)
    by_chance = np.abs(drawn / size - every / every.sum()).sum(axis=1) / 2
    low, high = np.quantile(by_chance, [0.025, 0.975])
    return {
        **counts,
        **nothing,
        "effect": actual - float(by_chance.mean()),
        "effect_low": actual - float(high),
        "effect_high": actual - float(low),
    }


_EFFECT_COLUMNS = {
    "mechanism": "string",
    "quantity": "string",
    "removed": "Int64",
    "others": "Int64",
    "removed_mean": "Float64",
    "others_mean": "Float64",
    "effect": "Float64",
    "effect_low": "Float64",
    "effect_high": "Float64",
    "bias": "Float64",
    "bias_low": "Float64",
    "bias_high": "Float64",
}


def _effects_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(_EFFECT_COLUMNS)).astype(_EFFECT_COLUMNS)
