"""Rules about the data itself: masks, truncation, rewards that the task did not give, and what is missing."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.report.findings import Finding, course, known, share_text
from analysis.report.measures import Measures
from analysis.stats.change import change_point, surge
from analysis.stats.columns import floats, texts

__all__ = [
    "audit_errors",
    "incomplete_data",
    "infrastructure_zeros",
    "mask_drift",
    "survivor_bias",
    "truncation_surge",
]

_CLEAR = 6.0


def mask_drift(measures: Measures) -> Finding | None:
    """Look for a change of the share of response tokens that is trained on, at equal numbers of turns."""
    series = measures.series
    change = change_point(known(series, "trainable_share", "masks"))
    if change is None or abs(change.z) < _CLEAR:
        return None
    relative = change.difference / change.before
    if abs(relative) < 0.1:
        return None
    return Finding(
        "mask drift",
        "serious" if abs(relative) >= 0.3 else "warning",
        f"The share of response tokens that are trained on went from {share_text(change.before)} to "
        f"{share_text(change.after)} with rollout {int(series['rollout_id'].iloc[change.at])}, at the "
        f"same number "
        "of turns.",
        "Open a session from before and one from after in the token view: a template, a builder or a tool "
        "whose "
        "output changed moves the mask; so does a policy that writes more per turn.",
        min(1.0, abs(relative)) * (len(series) - change.at) / len(series),
        course(series, ["trainable_share", "tokens", "reward"]),
        "",
    )


def truncation_surge(measures: Measures) -> Finding | None:
    """Look for rollouts in which many more traces than usual ended because they were too long."""
    series = measures.series
    values = known(series, "cut_share", "finish reasons", 6)
    found = surge(values, floats(series, "traces"), rise=0.08)
    if found is None:
        return None
    first, last = (int(series["rollout_id"].iloc[place]) for place in (found.start, found.stop - 1))
    return Finding(
        "truncation surge",
        "serious" if found.inside >= 0.3 else "warning",
        f"{share_text(found.inside)} of the traces of rollouts {first} to {last} were cut off for length; "
        f"usual in "
        f"this run are {share_text(found.usual)}.",
        "Responses grow, or a limit has shrunk: see lengths. A cut answer is seldom paid, so that the "
        "policy is "
        "taught to be short.",
        (found.stop - found.start) / len(series) * found.inside,
        course(series, ["cut_share", "tokens", "reward"], found.start, found.stop),
        "truncation",
    )


def infrastructure_zeros(measures: Measures) -> Finding | None:
    """Look for zero rewards in baselines that the infrastructure gave."""
    found = measures.contamination
    counted = floats(found.summary, "counted")
    if not counted.sum():
        return None
    certain = (texts(found.summary, "verdict") == "certain") & (counted > 0)
    share = float(counted[certain].sum() / counted.sum())
    shift = float(floats(found.effect, "relative_shift")[0]) if len(found.effect) else np.nan
    if not certain.any() or (share < 0.02 and not shift >= 0.01):
        return None
    rows = found.sessions
    chosen = (texts(rows, "verdict") == "certain") & rows["counted"].to_numpy(dtype=bool, na_value=False)
    causes = ", ".join(str(name).replace("_", " ") for name in found.summary["cause"][certain])
    moved = f" They moved advantages by {share_text(shift)} on average." if np.isfinite(shift) else ""
    names = ["rollout_id", "session_id", "status", "reward", "cause", "evidence"]
    return Finding(
        "infrastructure zeros",
        "serious" if share >= 0.1 else "warning",
        f"{int(counted[certain].sum()):,} zero rewards ({share_text(share)} of those in baselines) came "
        f"from the "
        f"infrastructure and not from the task: {causes}.{moved}",
        "Let such sessions count as failed, so that they enter no baseline; find what fails in the "
        "sessions below.",
        min(1.0, float(floats(found.effect, "affected_groups")[0]) / max(len(measures.frames.groups), 1)),
        rows[chosen][names].head(8).reset_index(drop=True),
        "contamination",
    )


def survivor_bias(measures: Measures) -> Finding | None:
    """Ask whether what was left out of training differs from the rest, enough to move a mean."""
    effects = measures.survivorship.effects
    if not len(effects):
        raise StatsError("no session was attempted")
    lasting = effects[
        (effects["mechanism"] == "all") & effects["quantity"].isin(["response_tokens", "reward"])
    ]
    bias, low, high = (floats(lasting, name) for name in ("bias", "bias_low", "bias_high"))
    mean = np.abs(floats(lasting, "others_mean"))
    relative = np.divide(np.abs(bias), mean, out=np.full(len(bias), np.nan), where=mean > 0)
    clear = (np.sign(low) == np.sign(high)) & (relative >= 0.05)
    if not clear.any():
        return None
    place = int(np.nanargmax(np.where(clear, relative, -1)))
    what = {"response_tokens": "response length", "reward": "reward"}[str(lasting["quantity"].iloc[place])]
    names = ["mechanism", "quantity", "removed", "others", "removed_mean", "others_mean", "bias"]
    shown = effects[(effects["quantity"] == lasting["quantity"].iloc[place])][
        [*names, "bias_low", "bias_high"]
    ]
    return Finding(
        "survivorship",
        "warning" if relative[place] >= 0.1 else "info",
        f"What was left out of training moves the mean {what} by {share_text(float(relative[place]))}: "
        f"what is "
        "missing is not like what is there.",
        "Read trends of this quantity with that in mind; the table says which mechanism removes what.",
        float(min(1.0, relative[place])),
        shown[shown["removed"] > 0].head(8).reset_index(drop=True),
        "survivorship",
    )


def audit_errors(measures: Measures) -> Finding | None:
    """Hand on what the audit of tokens, masks, logprobs and rewards found."""
    found = measures.audit
    if not len(measures.token_frames.traces):
        raise StatsError("there are no traces")
    wrong = found.findings[found.findings["severity"] != "note"]
    if not len(wrong):
        return None
    errors = int((wrong["severity"] == "error").sum())
    kinds = wrong["check"].value_counts()
    named = ", ".join(f"{str(name).replace('_', ' ')} ({count:,})" for name, count in kinds.head(4).items())
    traces = max(len(measures.token_frames.traces), 1)
    names = ["check", "severity", "detail", "rollout_id", "session_id", "trace_index", "position"]
    return Finding(
        "audit of the data",
        "serious" if errors else "warning",
        f"The audit found {errors:,} errors and {len(wrong) - errors:,} warnings in the tokens and "
        f"numbers that it "
        f"looked at: {named}.",
        "stats.audit(run) lists each with its place; nothing that is computed from such traces "
        "can be trusted.",
        min(1.0, len(wrong) / traces),
        wrong[names].head(8).reset_index(drop=True),
        "",
    )


def incomplete_data(measures: Measures) -> Finding | None:
    """Say which files could not be read, and whether dumps match."""
    problems = getattr(measures.run, "problems", None)
    if problems is None:
        raise StatsError("these frames were not loaded from files")
    coverage = measures.run.coverage
    dumped, matched = (float(coverage[name].sum()) for name in ("dumped", "matched"))
    trained = float(coverage["trained"].sum()) if len(coverage) else 0.0
    share = matched / dumped if dumped and trained else 1.0
    if not len(problems) and share >= 0.99:
        return None
    met = "problem was" if len(problems) == 1 else "problems were"
    said = [f"{len(problems):,} {met} met while loading"] if len(problems) else []
    said += [f"train dumps match {share_text(share)} of the dumped samples"] if share < 0.99 else []
    statement = f"{' and '.join(said)}: this page is about what was read and matched."
    rows: pd.DataFrame = problems if len(problems) else coverage[coverage["fraction"] < 1]
    return Finding(
        "incomplete data",
        "warning",
        statement[:1].upper() + statement[1:],
        "run.problems lists each file with what is wrong and what helps; run.coverage has the dumps by "
        "rollout.",
        min(1.0, max(1 - share, len(problems) / max(len(problems) + len(measures.frames.sessions), 1))),
        rows.head(8).reset_index(drop=True),
        "",
    )
