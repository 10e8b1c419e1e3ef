"""Rules about effort: sessions that fail, groups that are thrown away, and a trainer that waits."""

from __future__ import annotations

import numpy as np

from analysis.errors import StatsError
from analysis.report.findings import Finding, course, known, share_text
from analysis.report.measures import Measures
from analysis.stats.change import surge
from analysis.stats.columns import floats

__all__ = ["failure_surge", "rejection_surge", "trainer_waits", "waste_of_effort"]


def failure_surge(measures: Measures) -> Finding | None:
    """Look for rollouts in which many more sessions than usual failed or timed out."""
    series = measures.series
    values = known(series, "failed_share", "how sessions ended", 6)
    found = surge(values, floats(series, "sessions"), rise=0.08)
    if found is None:
        return None
    first, last = (int(series["rollout_id"].iloc[place]) for place in (found.start, found.stop - 1))
    late = float(np.nanmean(floats(series, "timeout_share")[found.start : found.stop]))
    timeouts = late >= 0.5 * found.inside
    return Finding(
        "failure surge",
        "serious" if found.inside >= 0.3 else "warning",
        f"{share_text(found.inside)} of the sessions of rollouts {first} to {last} failed"
        f"{', most of them by timeout' if timeouts else ''}; usual in this run are "
        f"{share_text(found.usual)}.",
        "Stage times say which stage took longer; see what the nodes and the engines did at that time."
        if timeouts
        else "Read the errors of these sessions (`run.sessions()`, columns status and error) and the logs "
        "of their "
        "nodes.",
        (found.stop - found.start) / len(series) * found.inside,
        course(series, ["failed_share", "timeout_share", "rejected_share"], found.start, found.stop),
        "truncation",
    )


def rejection_surge(measures: Measures) -> Finding | None:
    """Look for rollouts in which many more groups than usual were rejected."""
    series = measures.series
    values = known(series, "rejected_share", "verdicts", 6)
    found = surge(values, floats(series, "delivered") + floats(series, "rejected"), rise=0.12)
    if found is None:
        return None
    first, last = (int(series["rollout_id"].iloc[place]) for place in (found.start, found.stop - 1))
    groups = measures.ledger.groups
    here = (groups["state"] == "rejected") & (groups["rollout_id"] >= first) & (groups["rollout_id"] <= last)
    reasons = groups[here.fillna(False).to_numpy(dtype=bool)]["reason"].value_counts()
    named = ", ".join(f"{str(name).replace('_', ' ')} ({count:,})" for name, count in reasons.head(3).items())
    return Finding(
        "rejection surge",
        "serious" if found.inside >= 0.5 else "warning",
        f"{share_text(found.inside)} of the groups of rollouts {first} to {last} were rejected: {named}; "
        f"usual in "
        f"this run are {share_text(found.usual)}.",
        "stats.ledger(run) has the numbers that decided each; stats.replay(run, ...) says what other "
        "settings would have kept.",
        (found.stop - found.start) / len(series) * found.inside,
        course(series, ["rejected_share", "delivered", "rejected", "failed_share"], found.start, found.stop),
        "rejections",
    )


def waste_of_effort(measures: Measures) -> Finding | None:
    """Ask whether a large part of the gateways' time went into what was not trained on."""
    account = measures.waste
    shares = account.wasted_share
    values = {name: float(floats(shares, name)[0]) for name in ("seconds", "sessions")}
    unit = "seconds" if np.isfinite(values["seconds"]) else "sessions"
    share = values[unit]
    if not np.isfinite(share):
        raise StatsError("no training session is there")
    if share < 0.25:
        return None
    if set(account.rows["fate"]) <= {"unfinished", "evaluation"}:
        raise StatsError("no journal and no dump says what became of any session")
    rows = account.rows[~account.rows["fate"].isin(["trained", "evaluation"])]
    names = ["fate", "reason", "groups", "sessions", "seconds", "second_share", "response_tokens"]
    worst = rows.iloc[0]
    reason = "" if worst["reason"] is None or worst.isna()["reason"] else f" ({worst['reason']})"
    what = "of the gateways' time" if unit == "seconds" else "of the sessions"
    return Finding(
        "waste",
        "serious" if share >= 0.5 else "warning",
        f"{share_text(share)} {what} went into sessions that were not trained on; the largest part were "
        f"{worst['fate']}{reason}.".replace("_", " "),
        "See what becomes of the groups and the time by reason: the first row is where it pays to look.",
        share,
        rows[names].head(8).reset_index(drop=True),
        "waste",
    )


def trainer_waits(measures: Measures) -> Finding | None:
    """Ask whether the trainer stood still for most of the time."""
    series = measures.series
    share = known(series, "wait_share", "when rollouts were asked for and delivered", 5)
    mean = float(np.nanmean(share[1:]))  # the first one waits for an empty pipeline
    if mean < 0.5:
        return None
    return Finding(
        "waiting trainer",
        "warning" if mean >= 0.8 else "info",
        f"The trainer waited for {share_text(mean)} of the time.",
        "More groups in flight (polar_max_async_level) fill the gap at the price of lag: "
        "stats.whatif(run, ...) says how much of each.",
        mean,
        course(series, ["wait_share", "lag", "rejected_share"]),
        "idle",
    )
