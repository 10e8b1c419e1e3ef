"""Rules about what there is to learn from: rewards, their spread within groups, and prompts without any."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.report.findings import Finding, course, known, share_text
from analysis.report.measures import Measures
from analysis.stats.change import change_point, fall_from_best, longest_streak
from analysis.stats.columns import flags, floats

__all__ = ["held_out_drop", "reward_drop", "stuck_prompts", "variance_collapse", "zero_signal_streak"]

_CLEAR = 6.0  # standard errors; a split that was looked for reaches 4 on noise
_STREAK = 5  # rollouts in a row
_ATTEMPTS = 3  # groups on one prompt before it counts as stuck


def reward_drop(measures: Measures) -> Finding | None:
    """Ask whether training reward at the end lies far below its best stretch."""
    series = measures.series
    values = known(series, "reward", "training reward")
    fall = fall_from_best(values, width=max(5, len(values) // 20))
    rewards = floats(measures.frames.sessions, "reward")
    spread = float(np.nanstd(rewards)) if (~np.isnan(rewards)).any() else 0.0
    if fall is None or spread == 0 or fall.z > -5 or -fall.difference < 0.3 * spread:
        return None
    lost = -fall.difference / spread
    best = int(series["rollout_id"].iloc[fall.at])
    return Finding(
        "reward drop",
        "serious" if lost >= 0.8 else "warning",
        f"Training reward fell from {fall.before:.3g} before rollout {best} to {fall.after:.3g} at the end, "
        f"{lost:.1f} standard deviations of a session's reward.",
        "Look at what changed between the two: lag, rejections, truncation and the mismatch of logprobs "
        "below; "
        "a checkpoint from before the fall is worth keeping.",
        min(1.0, (len(values) - fall.at) / len(values)),
        course(series, ["reward", "spread", "lag", "failed_share"], max(0, fall.at - 10)),
        "reward",
    )


def held_out_drop(measures: Measures) -> Finding | None:
    """Ask whether the last evaluation lies clearly below an earlier one."""
    table = measures.frames.rollouts
    rows = table[flags(table, "evaluation") & table["reward_mean"].notna().to_numpy(dtype=bool)]
    if len(rows) < 2:
        raise StatsError("fewer than two evaluations have a reward")
    mean, size = floats(rows, "reward_mean"), floats(rows, "usable_sessions")
    error = floats(rows, "reward_std") / np.sqrt(np.maximum(size, 1))
    best = int(np.argmax(mean[:-1]))
    drop = float(mean[best] - mean[-1])
    scale = float(np.hypot(error[best], error[-1]))
    if not drop > max(0.02, 4 * scale):
        return None
    shown = rows[["rollout_id", "reward_mean", "reward_std", "usable_sessions"]].reset_index(drop=True)
    return Finding(
        "held-out drop",
        "serious",
        f"The held-out reward fell from {mean[best]:.3g} at rollout {int(rows['rollout_id'].iloc[best])} to "
        f"{mean[-1]:.3g} at rollout {int(rows['rollout_id'].iloc[-1])}.",
        "Compare with the training reward: where it rose meanwhile, the policy has fitted the training "
        "prompts "
        "or the checker; where it fell too, see what else is found here.",
        min(1.0, drop / max(float(mean[best]), 1e-9)),
        shown.tail(8),
        "evaluations",
    )


def variance_collapse(measures: Measures) -> Finding | None:
    """Ask whether the spread of rewards within groups has fallen to less than half."""
    series = measures.series
    change = change_point(known(series, "spread", "the spread within groups"))
    if change is None or change.z > -_CLEAR or change.after > 0.5 * change.before:
        return None
    left = change.after / change.before
    kinds = measures.zero_signal.rollouts
    since = kinds[kinds["rollout_id"] >= series["rollout_id"].iloc[change.at]]
    return Finding(
        "collapse of variance",
        "serious" if left <= 0.25 else "warning",
        f"The spread of rewards within groups fell from {change.before:.3g} to {change.after:.3g} with "
        f"rollout "
        f"{int(series['rollout_id'].iloc[change.at])}: {share_text(left)} of the signal is left.",
        _what_kind(since)
        + " More sessions per group, or a filter on groups without variance, buy signal back.",
        min(1.0, 1 - left),
        course(series, ["spread", "zero_share", "reward"]),
        "signal",
    )


def zero_signal_streak(measures: Measures) -> Finding | None:
    """Look for rollouts in a row in which at least half of the groups had no variance."""
    series = measures.series
    share = known(series, "zero_share", "the share of groups without signal")
    start, stop = longest_streak(np.nan_to_num(share) >= 0.5)
    if stop - start < _STREAK:
        return None
    mean = float(np.mean(share[start:stop]))
    first, last = (int(series["rollout_id"].iloc[place]) for place in (start, stop - 1))
    ongoing = stop == len(share)
    kinds = measures.zero_signal.rollouts
    within = kinds[(kinds["rollout_id"] >= first) & (kinds["rollout_id"] <= last)]
    return Finding(
        "zero-signal streak",
        "serious" if mean >= 0.8 and ongoing else "warning" if ongoing else "info",
        f"In {stop - start} rollouts in a row ({first} to {last}{', the last' if ongoing else ''}) at "
        f"least half "
        f"of the groups taught nothing, {share_text(mean)} on average.",
        _what_kind(within),
        mean * (stop - start) / len(share),
        course(series, ["zero_share", "spread", "reward", "delivered"], start, stop),
        "signal",
    )


def stuck_prompts(measures: Measures) -> Finding | None:
    """Look for prompts that were tried several times and never solved, and take many of the groups."""
    prompts = measures.zero_signal.prompts
    if not len(prompts):
        raise StatsError("no source says which prompt a group had")
    attempts = floats(prompts, "attempts")
    stuck = (attempts >= _ATTEMPTS) & (floats(prompts, "all_wrong") == attempts)
    share = float(attempts[stuck].sum() / attempts.sum())
    if share < 0.1:
        return None
    rows = prompts[stuck].sort_values("attempts", ascending=False, kind="stable")
    names = ["prompt_preview", "attempts", "reward_mean", "first_rollout", "last_rollout"]
    return Finding(
        "stuck prompts",
        "serious" if share >= 0.4 else "warning",
        f"{int(stuck.sum()):,} of {len(prompts):,} prompts were tried {_ATTEMPTS} times or more and never "
        f"solved; "
        f"they took {share_text(share)} of the groups.",
        "Check their evaluator on a solution that is known to be right. Where it is sound, leave them out "
        "for now "
        "or draw them less often.",
        share,
        rows[names].head(8).reset_index(drop=True),
        "zero_signal",
    )


def _what_kind(rollouts: pd.DataFrame) -> str:
    """Say what most groups without signal have in common, and what that calls for."""
    counts = {name: float(rollouts[name].sum()) for name in ("all_correct", "all_wrong", "constant", "lone")}
    most = max(counts, key=lambda name: counts[name])
    total = sum(counts.values())
    if not total:
        return "No group without signal was counted."
    share = share_text(counts[most] / total)
    return {
        "all_correct": f"{share} of the groups without signal are all correct: the prompts have become "
        f"too easy; "
        "draw harder ones.",
        "all_wrong": f"{share} of the groups without signal are all wrong: the prompts are too hard, or the "
        "evaluator never pays; draw easier ones and check it.",
        "constant": f"{share} of the groups without signal have one reward between right and wrong: look "
        f"at the "
        "evaluator.",
        "lone": f"{share} of the groups without signal have one rated session: look at why the others "
        f"failed.",
    }[most]
