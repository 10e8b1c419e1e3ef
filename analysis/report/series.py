"""The course of a run: one row per training rollout with what findings look at over time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.stats.columns import Bools, Floats, Ints, flags, floats, nullable, sums, texts
from analysis.stats.frames import Frames, session_rows
from analysis.stats.lag import Lag
from analysis.stats.numbers import weighted_mean
from analysis.stats.prompts import ZeroSignal
from analysis.stats.timing import Timing

__all__ = ["rollout_series"]

_MOST_TURNS = 8
_WHOLE = ("rollout_id", "delivered", "rejected", "sessions", "traces")
_CUT = ("length", "max_tokens")


def rollout_series(frames: Frames, lag: Lag, signal: ZeroSignal, timing: Timing) -> pd.DataFrame:
    """Return one row per training rollout, in order.

    Parameters
    ----------
    frames
        Of one run.
    lag, signal, timing
        Of the same run.

    Returns
    -------
    DataFrame
        ``rollout_id``; ``delivered``, ``rejected`` (groups that were judged in it), ``rejected_share``;
        ``sessions``, ``traces`` (attempted in it, real ones);
        ``reward`` (mean over usable sessions), ``spread`` (mean over delivered groups of the standard
        deviation of their rewards), ``zero_share`` (of delivered groups, without signal); ``lag``,
        ``in_flight``, ``in_queue`` (means, rollouts), ``bound``; ``failed_share`` (of attempted sessions:
        error, timeout or no result), ``timeout_share``; ``cut_share`` (of real traces: ended for length);
        ``trainable_share`` (of response tokens, each trace set against all traces of as many turns);
        ``mismatch`` (mean absolute difference of the trainer's and the sampler's logprob, nats per token);
        ``sequence_ess`` (share of traces that is left as effective sample); ``tokens`` (response tokens per
        trace); ``wait_share`` (of the step, the trainer waited).
    """
    groups = frames.groups[~flags(frames.groups, "evaluation")]
    rollout = floats(groups, "rollout_id")
    ids = np.unique(rollout[~np.isnan(rollout)])
    count = len(ids)
    owner = _places(ids, rollout)
    delivered, rejected = texts(groups, "state") == "delivered", texts(groups, "state") == "rejected"
    spread = np.where(
        delivered & (floats(groups, "rated_sessions") > 1), floats(groups, "reward_std"), np.nan
    )
    columns: dict[str, Floats] = {
        "rollout_id": ids,
        "delivered": sums(owner, count, delivered),
        "rejected": sums(owner, count, rejected),
        "rejected_share": _mean(owner, count, rejected.astype(np.float64), delivered | rejected),
        "spread": _mean(owner, count, spread),
    }
    columns |= _of_sessions(frames, ids) | _of_traces(frames, ids)
    result = nullable(columns).astype(dict.fromkeys(_WHOLE, "Int64"))
    for table, names in (
        (
            lag.rollouts,
            {"lag_mean": "lag", "in_flight_mean": "in_flight", "in_queue_mean": "in_queue", "bound": "bound"},
        ),
        (signal.rollouts, {"share": "zero_share"}),
        (timing.rollouts, {"wait_share": "wait_share"}),
    ):
        renamed = table[["rollout_id", *names]].rename(columns=names).drop_duplicates("rollout_id")
        result = result.merge(renamed, on="rollout_id", how="left")
    return result


def _of_sessions(frames: Frames, ids: Floats) -> dict[str, Floats]:
    table = frames.sessions[~flags(frames.sessions, "evaluation")]
    owner, count = _places(ids, floats(table, "rollout_id")), len(ids)
    counted = flags(table, "attempted", missing=True) & ~flags(table, "early_stopped")
    status = texts(table, "status")
    failed = ~np.isin(status, ["COMPLETED"]) & (pd.notna(status) | flags(table, "finished"))
    trained = flags(table, "usable") & (texts(table, "group_state") == "delivered")
    return {
        "sessions": sums(owner, count, counted),
        "reward": _mean(owner, count, floats(table, "reward"), trained),
        "failed_share": _mean(owner, count, failed.astype(np.float64), counted),
        "timeout_share": _mean(owner, count, (status == "TIMEOUT").astype(np.float64), counted),
    }


def _of_traces(frames: Frames, ids: Floats) -> dict[str, Floats]:
    table = frames.traces[~flags(frames.traces, "evaluation") & ~flags(frames.traces, "placeholder")]
    owner, count = _places(ids, floats(table, "rollout_id")), len(ids)
    ended = texts(table, "finish_reason")
    cut = np.isin(ended, _CUT).astype(np.float64)
    tokens, learnt = floats(table, "response_tokens"), floats(table, "trainable_tokens")
    used = _in_delivered(frames, table) & (tokens > 0) & (learnt > 0)
    share = np.divide(learnt, tokens, out=np.full(len(table), np.nan), where=used)
    return {
        "traces": sums(owner, count),
        "cut_share": _mean(owner, count, cut, pd.notna(ended)),
        "trainable_share": _standardised(owner, count, share, floats(table, "turns"), tokens),
        "mismatch": _mean(owner, count, floats(table, "train_logprob_abs_diff"), used, learnt),
        "sequence_ess": _sequence_ess(owner, count, floats(table, "train_logprob_diff") * learnt),
        "tokens": _mean(owner, count, tokens, used),
    }


def _in_delivered(frames: Frames, traces: pd.DataFrame) -> Bools:
    if not len(frames.sessions):
        return flags(traces, "accepted", missing=True)
    rows = session_rows(frames.sessions, traces)
    state = texts(frames.sessions, "group_state")[rows]
    return np.where(rows >= 0, state == "delivered", flags(traces, "accepted", missing=True)).astype(bool)


def _places(ids: Floats, rollout: Floats) -> Ints:
    place = np.searchsorted(ids, rollout)
    found = ~np.isnan(rollout) & (place < len(ids))
    found[found] = ids[place[found]] == rollout[found]
    return np.where(found, place, -1).astype(np.int64)


def _mean(
    owner: Ints, count: int, values: Floats, where: Bools | None = None, weights: Floats | None = None
) -> Floats:
    there = ~np.isnan(values) if where is None else where & ~np.isnan(values)
    weight = np.where(there, 1.0 if weights is None else np.nan_to_num(weights), 0.0)
    total = sums(owner, count, weight)
    result: Floats = np.divide(
        sums(owner, count, np.nan_to_num(values) * weight),
        total,
        out=np.full(count, np.nan),
        where=total > 0,
    )
    return result


def _standardised(owner: Ints, count: int, share: Floats, turns: Floats, tokens: Floats) -> Floats:
    """Return the mean share per rollout, each trace set against all traces of as many turns.

    Agents that need fewer turns see fewer tool results, which changes the share of sampled tokens without
    anything being wrong with the mask.
    """
    kind = np.where(np.isnan(turns), 0, np.clip(turns, 0, _MOST_TURNS)).astype(np.int64)
    there = ~np.isnan(share) & (owner >= 0)
    if not there.any():
        return np.full(count, np.nan)
    usual = _mean(kind, _MOST_TURNS + 1, share, there, tokens)
    return _mean(
        owner, count, share - usual[kind] + weighted_mean(share[there], tokens[there]), there, tokens
    )


def _sequence_ess(owner: Ints, count: int, log_ratio: Floats) -> Floats:
    """Return ``(sum w)^2 / (n sum w^2)`` with the product of ratios `w` of each trace, per rollout."""
    there = ~np.isnan(log_ratio) & (owner >= 0)
    place, logs = owner[there], log_ratio[there]
    top = np.full(count, -np.inf)
    np.maximum.at(top, place, logs)
    weight = np.exp(logs - top[place])
    number, first, second = sums(place, count), sums(place, count, weight), sums(place, count, weight**2)
    result: Floats = np.divide(first**2, number * second, out=np.full(count, np.nan), where=number > 1)
    return result
