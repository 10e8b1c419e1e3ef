"""Off-policy diagnostics from the sampler's and the trainer's logprobs of the same tokens.

With ``mu`` the policy that sampled a token and ``pi`` the one that recomputed its logprob before training,
let ``d = log pi - log mu`` and ``r = exp(d)``. Over tokens drawn from ``mu``:

=================  =====================================================================================
kl_k1, k2, k3      estimates of ``KL(mu || pi)``: means of ``-d``, ``d^2 / 2`` and ``r - 1 - d``; the first
and
                   third are unbiased, the third is never negative (Schulman 2020, "Approximating KL
                   divergence")
chi_square         ``E (r - 1)^2``, the chi-square divergence of ``pi`` from ``mu``
ess                ``(sum r)^2 / (n sum r^2)``: the share of the tokens that is left as effective sample
sequence_ess       the same over traces, with the product of the ratios of a trace (Kong 1992)
tis_*              what truncated importance sampling would do: weights ``clip(r, low, high)``; the share of
                   tokens cut at either bound, the mean weight, and the share of the weight that is lost
=================  =====================================================================================

Lag and numerical differences between engine and trainer both end up in ``d``: the row of lag 0 shows the
second alone. Only tokens that are trained on and have both logprobs are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats.columns import Bools, Floats, Ints, floats, nullable, sums
from analysis.stats.frames import TRACE_IDS, Frames, as_frames, ids_of, session_rows

__all__ = ["OffPolicy", "off_policy", "ratio_statistics"]

_POSITIONS = (0, 16, 64, 256, 1024, 4096, 16384, 65536)
_LAST_TURN = 16
_TIS_BOUNDS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


@dataclass(frozen=True, eq=False)
class OffPolicy:
    """How far the trained policy was from the one that sampled.

    Attributes
    ----------
    overall
        One row: `traces`, `tokens`, `ratio_mean`, `ratio_max`, `log_ratio_mean`, `log_ratio_abs_mean`,
        `kl_k1`, `kl_k2`, `kl_k3`, `chi_square`, `ess`, `sequence_ess`, `tis_high_share`, `tis_low_share`,
        `tis_mean_weight`, `tis_lost_share`.
    by_lag, by_turn, by_position
        The same columns per `lag` (rollouts), `turn` (from 0; the last row holds all later ones) and
        `position` in the response (lower edge of the bin, with `position_end`).
    sequences
        One row per trace: ids, `lag`, `tokens`, `log_ratio_sum`, `log_ratio_mean` (the logarithm of GSPO's
        ratio), `ratio` (of the sequence), `ratio_max`, `kl_k3`.
    tis
        One row per upper bound: `tis_high`, `tis_high_share`, `tis_mean_weight`, `tis_lost_share`, `ess` of
        the clipped weights.
    """

    overall: pd.DataFrame
    by_lag: pd.DataFrame
    by_turn: pd.DataFrame
    by_position: pd.DataFrame
    sequences: pd.DataFrame
    tis: pd.DataFrame


def off_policy(
    run: Any, *, tis_low: float = 0.0, tis_high: float = 2.0, tis_bounds: Sequence[float] = _TIS_BOUNDS
) -> OffPolicy:
    """Compare the sampler's logprobs with the trainer's.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames with ``tokens``.
    tis_low, tis_high
        Bounds of truncated importance sampling, as Slime's ``--tis-clip-low`` and ``--tis-clip``.
    tis_bounds
        Upper bounds to compare.

    Raises
    ------
    StatsError
        If the bounds are out of order.
    """
    if not 0 <= tis_low <= 1 <= tis_high:
        raise StatsError(f"bounds must satisfy 0 <= low <= 1 <= high, got {tis_low} and {tis_high}")
    frames = as_frames(run)
    tokens = frames.tokens
    difference = tokens.aligned("train_logprob") - tokens.aligned("logprob")
    used = tokens.learnt & np.isfinite(difference)
    d, owner = difference[used], tokens.response.owner[used]
    lag = _lags(frames)[tokens.rows]
    bounds = (tis_low, tis_high)
    turn = np.minimum(tokens.turns[used], _LAST_TURN)
    edges = np.asarray(_POSITIONS)
    place = np.searchsorted(edges, tokens.response.position[used], side="right") - 1
    position = _grouped(d, owner, place, "position", bounds)
    position["position_end"] = pd.array([_end(int(p)) for p in position["position"]], dtype="Int64")
    position["position"] = pd.array(edges[position["position"].to_numpy(dtype=np.int64)], dtype="Int64")
    by_lag = lag[owner]
    there = ~np.isnan(by_lag)
    return OffPolicy(
        overall=ratio_statistics(d, owner, np.zeros(len(d), np.int64), min(len(d), 1), bounds),
        by_lag=_grouped(d[there], owner[there], by_lag[there].astype(np.int64), "lag", bounds),
        by_turn=_grouped(d, owner, turn, "turn", bounds),
        by_position=position,
        sequences=_sequences(frames, d, owner, lag),
        tis=_clipping(d, tis_low, tis_bounds),
    )


def ratio_statistics(
    d: Floats, trace: Ints, group: Ints, count: int, tis: tuple[float, float] = (0.0, 2.0)
) -> pd.DataFrame:
    """Return the statistics of log ratios, one row per group of tokens.

    Parameters
    ----------
    d
        Shape (n,): trainer's minus sampler's logprob.
    trace
        Shape (n,): trace of each token, for the effective number of sequences.
    group
        Shape (n,): 0 to `count` - 1.
    count
        Rows of the result.
    tis
        Bounds of truncated importance sampling.
    """
    ratio = np.exp(np.clip(d, -60, 60))
    clipped = np.clip(ratio, *tis)
    n = sums(group, count)
    top = np.full(count, np.nan)
    np.fmax.at(top, group, ratio)

    def mean(values: Floats | Bools) -> Floats:
        result: Floats = np.divide(sums(group, count, values), n, out=np.full(count, np.nan), where=n > 0)
        return result

    first, second = sums(group, count, ratio), sums(group, count, ratio * ratio)
    whole, kept = mean(ratio), mean(clipped)
    traces, sequence_ess = _sequence_ess(d, trace, group, count)
    return nullable(
        {
            "traces": traces.astype(np.int64),
            "tokens": n.astype(np.int64),
            "ratio_mean": whole,
            "ratio_max": top,
            "log_ratio_mean": mean(d),
            "log_ratio_abs_mean": mean(np.abs(d)),
            "kl_k1": mean(-d),
            "kl_k2": mean(d * d / 2),
            "kl_k3": mean(ratio - 1 - d),
            "chi_square": mean((ratio - 1) ** 2),
            "ess": np.divide(first * first, n * second, out=np.full(count, np.nan), where=n * second > 0),
            "sequence_ess": sequence_ess,
            "tis_high_share": mean(ratio > tis[1]),
            "tis_low_share": mean(ratio < tis[0]),
            "tis_mean_weight": kept,
            "tis_lost_share": np.divide(whole - kept, whole, out=np.full(count, np.nan), where=whole > 0),
        }
    )


def _sequence_ess(d: Floats, trace: Ints, group: Ints, count: int) -> tuple[Floats, Floats]:
    """Return the traces per group, and the effective share of them under the products of their ratios."""
    if not len(d):
        return np.zeros(count), np.full(count, np.nan)
    width = int(trace.max()) + 1
    pairs, inverse = np.unique(group * width + trace, return_inverse=True)
    logs = np.bincount(inverse.reshape(-1), weights=d)
    owner = pairs // width
    top = np.full(count, -np.inf)
    np.maximum.at(top, owner, logs)
    # Relative to the largest: products over thousands of tokens leave the range of floats.
    weight = np.exp(logs - top[owner])
    number = sums(owner, count)
    first, second = sums(owner, count, weight), sums(owner, count, weight * weight)
    share = np.divide(first * first, number * second, out=np.full(count, np.nan), where=number > 0)
    return number, share


def _grouped(d: Floats, owner: Ints, key: Ints, name: str, tis: tuple[float, float]) -> pd.DataFrame:
    values, inverse = np.unique(key, return_inverse=True)
    frame = ratio_statistics(d, owner, inverse.reshape(-1).astype(np.int64), len(values), tis)
    frame.insert(0, name, pd.array(values.astype(np.int64), dtype="Int64"))
    return frame


def _end(place: int) -> int | None:
    return _POSITIONS[place + 1] if place + 1 < len(_POSITIONS) else None


def _lags(frames: Frames) -> Floats:
    """Return the lag of each trace in rollouts, NaN where its session has none."""
    rows = session_rows(frames.sessions, frames.traces) if len(frames.sessions) else None
    result = np.full(len(frames.traces), np.nan)
    if rows is not None:
        own = rows >= 0
        result[own] = floats(frames.sessions, "staleness")[rows[own]]
    return result


def _sequences(frames: Frames, d: Floats, owner: Ints, lag: Floats) -> pd.DataFrame:
    count = len(frames.tokens)
    number, total = sums(owner, count), sums(owner, count, d)
    ratio = np.exp(np.clip(d, -60, 60))
    top = np.full(count, np.nan)
    np.fmax.at(top, owner, ratio)
    used = number > 0
    mean = np.divide(total, number, out=np.full(count, np.nan), where=used)
    k3 = np.divide(sums(owner, count, ratio - 1 - d), number, out=np.full(count, np.nan), where=used)
    ids = ids_of(frames.traces.iloc[frames.tokens.rows], TRACE_IDS).reset_index(drop=True)
    numbers = nullable(
        {
            "lag": lag,
            "tokens": number.astype(np.int64),
            "log_ratio_sum": np.where(used, total, np.nan),
            "log_ratio_mean": mean,
            "ratio": np.where(used, np.exp(np.clip(total, -700, 700)), np.nan),
            "ratio_max": top,
            "kl_k3": k3,
        }
    )
    return pd.concat([ids, numbers], axis=1)[used].reset_index(drop=True)


def _clipping(d: Floats, low: float, bounds: Sequence[float]) -> pd.DataFrame:
    ratio = np.exp(np.clip(d, -60, 60))
    rows = []
    for high in bounds if len(ratio) else ():
        kept = np.clip(ratio, low, high)
        ess = float(kept.sum() ** 2 / (len(kept) * (kept * kept).sum()))
        lost = float(1 - kept.mean() / ratio.mean())
        rows.append((float(high), float((ratio > high).mean()), float(kept.mean()), lost, ess))
    names = ("tis_high", "tis_high_share", "tis_mean_weight", "tis_lost_share", "ess")
    columns = np.array(rows, dtype=np.float64).T if rows else np.zeros((len(names), 0))
    return nullable(dict(zip(names, columns, strict=True)))
