"""Rules about the policy that sampled and the one that is trained: lag, and how far apart they are."""

from __future__ import annotations

import math

import numpy as np

from analysis.errors import StatsError
from analysis.report.findings import Finding, course, known, share_text
from analysis.report.measures import Measures
from analysis.stats.change import change_point, longest_streak
from analysis.stats.columns import flags, floats
from analysis.stats.frames import session_rows
from analysis.stats.numbers import weighted_mean

__all__ = ["ess_collapse", "lag_creep", "logprob_mismatch"]

_CLEAR = 6.0
_WARM_UP = 3  # rollouts until a pipeline that starts empty is full
_NOISY, _WRONG = 0.05, 0.2  # nats per token between engine and trainer on fresh samples


def lag_creep(measures: Measures) -> Finding | None:
    """Look for policy lag that has risen for good."""
    series = measures.series
    values = known(series, "lag", "policy lag", 10 + _WARM_UP)
    values = np.where(np.arange(len(values)) < _WARM_UP, np.nan, values)
    change = change_point(values)
    if change is None or change.z < _CLEAR or change.difference < 0.5:
        return None
    parts = {}
    for name, words in (("in_flight", "in flight"), ("in_queue", "in the queue")):
        part = floats(series, name)
        parts[words] = float(np.nanmean(part[change.at :]) - np.nanmean(part[_WARM_UP : change.at]))
    where = max(parts, key=lambda words: parts[words])
    bounds = floats(series, "bound")
    bound = float(np.nanmax(bounds)) if (~np.isnan(bounds)).any() else math.nan
    close = change.after >= 0.8 * bound
    advice = {
        "in flight": "Sessions take longer, or more of them share the engines: see stage times; fewer "
        "groups in "
        "flight (polar_max_async_level) bring the lag down.",
        "in the queue": "Groups wait for the trainer: it has become slower, or more is finished than it "
        "takes. A "
        "lower polar_max_async_level costs nothing here.",
    }[where]
    return Finding(
        "lag creep",
        "serious" if close else "warning",
        f"Mean policy lag rose from {change.before:.2f} to {change.after:.2f} rollouts with rollout "
        f"{int(series['rollout_id'].iloc[change.at])}, most of it {where}"
        + (f"; groups older than {bound:.0f} are thrown away." if math.isfinite(bound) else "."),
        advice,
        (len(values) - change.at) / len(values),
        course(series, ["lag", "in_flight", "in_queue", "bound", "rejected_share"]),
        "policy_lag",
    )


def logprob_mismatch(measures: Measures) -> Finding | None:
    """Ask whether engine and trainer disagree on the logprobs of samples that the current policy drew."""
    frames = measures.frames
    traces = frames.traces[~flags(frames.traces, "evaluation")]
    difference = floats(traces, "train_logprob_abs_diff")
    rows = session_rows(frames.sessions, traces)
    fresh = ~np.isnan(difference) & (rows >= 0)  # -1 is none: dumps alone know no session
    fresh[fresh] = floats(frames.sessions, "staleness")[rows[fresh]] == 0
    if not fresh.any():
        raise StatsError("no trace without lag has logprobs of both engine and trainer")
    weights = floats(traces, "trainable_tokens")
    mean = weighted_mean(difference[fresh], weights[fresh])
    if not mean >= _NOISY:
        return None
    order = np.argsort(-np.where(fresh, difference, -np.inf))[:8]
    names = ["rollout_id", "session_id", "trace_index", "trainable_tokens"]
    names += ["train_logprob_abs_diff", "train_logprob_max_diff"]
    return Finding(
        "logprob mismatch",
        "serious" if mean >= _WRONG else "warning",
        f"On samples without lag, engine and trainer disagree by {mean:.3g} nats per token on average: "
        f"that is "
        "arithmetic, not policy lag.",
        "Compare precision, sampling temperature, attention kernels and the chat template of the two; "
        "importance "
        "ratios are off by this much everywhere.",
        float(fresh.sum() / max(len(traces), 1)),
        traces[names].iloc[order].reset_index(drop=True),
        "logprobs",
    )


def ess_collapse(measures: Measures) -> Finding | None:
    """Look for rollouts in a row in which few traces carry most of the importance weight."""
    series = measures.series
    share = known(series, "sequence_ess", "logprobs of engine and trainer", 3)
    start, stop = longest_streak(np.nan_to_num(share, nan=1.0) < 0.6)
    if stop - start < 3:
        return None
    mean = float(np.nanmean(share[start:stop]))
    first, last = (int(series["rollout_id"].iloc[place]) for place in (start, stop - 1))
    return Finding(
        "effective sample size",
        "serious" if mean < 0.4 else "warning",
        f"In rollouts {first} to {last}, {share_text(mean)} of the traces are left as effective sample "
        f"once they "
        "are weighted by the ratio of trained to sampling policy.",
        "Less lag, a smaller learning rate, or truncated importance sampling; the ratios by lag show which.",
        (stop - start) / len(share),
        course(series, ["sequence_ess", "mismatch", "lag"], start, stop),
        "ess",
    )
