"""The figures of a report: which frame each draws, what it asks, and words for who cannot see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes

from analysis import plots
from analysis.html.figures import figure
from analysis.report.measures import Measures
from analysis.report.redaction import Redactor
from analysis.stats.advantages import autopsy
from analysis.stats.columns import flags, floats, nullable, texts
from analysis.stats.timing import timeline

__all__ = ["FIGURES", "FigureSpec", "figure_html"]

_NOTHING = ("no data", "nothing wasted")
_LONGEST_TIMELINE = 200


@dataclass(frozen=True)
class FigureSpec:
    """One figure of a report.

    Attributes
    ----------
    name
        Its anchor on the page is ``fig-<name>``.
    question
        What it answers.
    reading
        How to read it, where that is not plain.
    frame
        From the statistics to what is drawn.
    draw
        A function of `analysis.plots`.
    words
        From what is drawn to what is to be seen, with numbers.
    """

    name: str
    question: str
    reading: str
    frame: Callable[[Measures], pd.DataFrame]
    draw: Callable[..., Axes]
    words: Callable[[pd.DataFrame], str]


def figure_html(spec: FigureSpec, measures: Measures, redactor: Redactor) -> Markup | None:
    """Return a figure as HTML; None where there is nothing to draw.

    Raises
    ------
    AnalysisError
        If its statistic cannot be computed.
    """
    frame = redactor.drawn(spec.frame(measures))
    if frame.empty:
        return None
    with plots.theme("paper"):
        light = spec.draw(frame)
    if any(text.get_text() in _NOTHING for text in light.texts):
        return None
    with plots.theme("dark"):
        dark = spec.draw(frame)
    caption = Markup("<strong>{}</strong> {}").format(spec.question, spec.reading)
    return figure(light, dark=dark, alt=spec.words(frame), caption=caption)


def _course(what: str, column: str, form: str, frame: pd.DataFrame) -> str:
    """Describe a series: where it starts, where it ends, and its extremes."""
    rows = frame if "evaluation" not in frame else frame[~flags(frame, "evaluation")]
    values, at = floats(rows, column), floats(rows, "rollout_id")
    there = ~np.isnan(values) & ~np.isnan(at)
    if not there.any():
        return f"{what}: nothing is known."
    order = np.argsort(at[there], kind="stable")
    values, at = values[there][order], at[there][order]
    first, last, low, high = (format(v, form) for v in (values[0], values[-1], values.min(), values.max()))
    ends = f"{first} at first, {last} at last, between {low} and {high}"
    return f"{what} over rollouts {at[0]:.0f} to {at[-1]:.0f}: {ends}."


def _counts(what: str, column: str, frame: pd.DataFrame) -> str:
    """Describe how many rows there are of each word, the most frequent first."""
    words = pd.Series(texts(frame, column)).dropna()
    counted = ", ".join(
        f"{str(name).replace('_', ' ')} {count:,}" for name, count in words.value_counts().head(6).items()
    )
    return f"{what}: {counted or 'none'}."


def _table(what: str, label: str, value: str, form: str, frame: pd.DataFrame) -> str:
    """Describe the first rows of a small table."""
    rows = frame.dropna(subset=[value]).head(8)
    parts = [
        f"{name} {format(number, form)}"
        for name, number in zip(rows[label], floats(rows, value), strict=True)
    ]
    return f"{what}: {', '.join(str(part).replace('_', ' ') for part in parts) or 'none'}."


def _training_sessions(measures: Measures) -> pd.DataFrame:
    table = measures.frames.sessions
    return table[~flags(table, "evaluation")]


def _held_out(measures: Measures) -> pd.DataFrame:
    rows = measures.frames.rollouts
    rows = rows[flags(rows, "evaluation")]
    half = 1.96 * floats(rows, "reward_std") / np.sqrt(np.maximum(floats(rows, "usable_sessions"), 1.0))
    mean = floats(rows, "reward_mean")
    bounds = nullable({"low": mean - half, "high": mean + half}, index=rows.index)
    return rows.assign(reward_low=bounds["low"], reward_high=bounds["high"])


def _failures(measures: Measures) -> pd.DataFrame:
    names = {"cut_share": "truncated_share", "timeout_share": "timeout_share"}
    return measures.series[["rollout_id", *names]].rename(columns=names)


def _tokens(measures: Measures) -> pd.DataFrame:
    """Return the logprobs of the sampled tokens, as the figure of logprobs wants them."""
    table = measures.token_frames.tokens
    names = ("logprob", "train_logprob")
    return (
        nullable({name: table.aligned(name)[table.learnt] for name in names})
        if len(table)
        else pd.DataFrame()
    )


def _busiest(measures: Measures) -> pd.DataFrame:
    """Return the timeline of the rollout that took longest of those that are small enough to be read."""
    rows = measures.timing.rollouts
    step = floats(rows, "step_seconds")
    sessions = floats(
        measures.series.set_index("rollout_id").reindex(rows["rollout_id"]).reset_index(), "sessions"
    )
    step = np.where(sessions <= _LONGEST_TIMELINE, step, np.nan)
    if np.isnan(step).all():
        return pd.DataFrame()
    number = int(rows["rollout_id"].iloc[int(np.nanargmax(step))])
    return timeline(measures.frames, rollouts=(number, number))


def _most_telling(measures: Measures) -> pd.DataFrame:
    """Return the trajectories of the first accepted group with the largest advantage, as in the notebooks."""
    groups = measures.frames.groups
    there = flags(groups, "accepted") & ~flags(groups, "evaluation") & ~np.isnan(floats(groups, "group"))
    size = np.where(there, floats(groups, "advantage_abs_max"), np.nan)
    if not (size > 0).any():
        return pd.DataFrame()
    row = groups.iloc[int(np.nanargmax(size))]
    worker = None if pd.isna(row["worker"]) else str(row["worker"])
    return autopsy(measures.frames, int(row["group"]), worker=worker).trajectories


def _stage_words(frame: pd.DataFrame) -> str:
    means = frame.groupby("stage", sort=False)["mean"].mean()
    return (
        "Mean seconds per session by stage: "
        + ", ".join(f"{name} {value:.2g}" for name, value in means.items())
        + "."
    )


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "reward",
        "Does it learn?",
        "Mean reward of training sessions with their spread, and held-out evaluations.",
        lambda m: m.frames.rollouts,
        plots.plot_reward,
        partial(_course, "Mean training reward", "reward_mean", ".3g"),
    ),
    FigureSpec(
        "evaluations",
        "How sure are the held-out scores?",
        "Bars are 95 % intervals over sessions.",
        _held_out,
        plots.plot_evaluations,
        partial(_table, "Held-out reward by rollout", "rollout_id", "reward_mean", ".3g"),
    ),
    FigureSpec(
        "signal",
        "Which groups teach something?",
        "Shares of the delivered groups; only mixed ones have a signal.",
        lambda m: m.zero_signal.rollouts,
        plots.plot_signal,
        partial(_course, "Share of groups without signal", "share", ".0%"),
    ),
    FigureSpec(
        "advantages",
        "Does the signal collapse?",
        "Each column is the distribution of one rollout; a dark field at zero taught nothing.",
        _training_sessions,
        plots.plot_advantage_distribution,
        partial(_course, "Advantages of trajectories", "advantage", ".2f"),
    ),
    FigureSpec(
        "autopsy",
        "Where does the largest advantage come from?",
        "The first group that has it: from each trajectory's baseline to its reward.",
        _most_telling,
        plots.plot_autopsy,
        partial(_table, "Advantages by position", "position", "advantage", ".2f"),
    ),
    FigureSpec(
        "zero_signal",
        "Which prompts teach, and until when?",
        "One row per prompt, one column per rollout.",
        lambda m: m.zero_signal.groups,
        plots.plot_zero_signal,
        partial(_counts, "Groups by what their rewards are like", "kind"),
    ),
    FigureSpec(
        "waterfall",
        "What became of the groups?",
        "From those that were drawn to those that were trained on.",
        lambda m: m.ledger.groups,
        plots.plot_waterfall,
        partial(_counts, "Groups by where they ended", "stage"),
    ),
    FigureSpec(
        "rejections",
        "When were groups rejected, and why?",
        "",
        lambda m: m.ledger.groups,
        plots.plot_rejections,
        partial(_counts, "Rejected groups by reason", "reason"),
    ),
    FigureSpec(
        "waste",
        "What did it cost that was not trained on?",
        "Shares of all sessions, gateway seconds and response tokens.",
        lambda m: m.waste.rows,
        plots.plot_waste,
        partial(_table, "Shares of seconds by fate", "fate", "second_share", ".1%"),
    ),
    FigureSpec(
        "contamination",
        "Which zeros were the infrastructure's?",
        "Sessions without reward by cause; the pale part entered no baseline.",
        lambda m: m.contamination.summary,
        plots.plot_contamination,
        partial(_table, "Sessions without reward by cause", "cause", "sessions", ",.0f"),
    ),
    FigureSpec(
        "survivorship",
        "Is what is missing like what is there?",
        "Cliff's delta of removed sessions against all others, with 95 % intervals.",
        lambda m: m.survivorship.effects,
        plots.plot_survivorship,
        partial(_table, "Effects by quantity", "quantity", "effect", ".2f"),
    ),
    FigureSpec(
        "policy_lag",
        "How old was the data?",
        "Rollouts between submission and delivery; the line above is the bound.",
        lambda m: m.lag.rollouts,
        plots.plot_policy_lag,
        partial(_course, "Mean policy lag", "lag_mean", ".2f"),
    ),
    FigureSpec(
        "lag_histogram",
        "How many groups had which lag?",
        "In total, and by where it came from.",
        lambda m: m.lag.histogram,
        plots.plot_lag_histogram,
        partial(_table, "Groups by lag", "lag", "groups", ",.0f"),
    ),
    FigureSpec(
        "ratio",
        "How far did the policy move meanwhile?",
        "Ratios of trained to sampling policy by lag; lag 0 shows the numerical difference alone.",
        lambda m: m.off_policy.by_lag,
        plots.plot_ratio,
        partial(_table, "Mean absolute log ratio by lag", "lag", "log_ratio_abs_mean", ".2g"),
    ),
    FigureSpec(
        "ess",
        "How many of the samples still count?",
        "Effective share of tokens and traces under importance weights.",
        lambda m: m.off_policy.by_lag,
        plots.plot_ess,
        partial(_table, "Effective share of traces by lag", "lag", "sequence_ess", ".0%"),
    ),
    FigureSpec(
        "logprobs",
        "Do engine and trainer agree on the tokens?",
        "Each sampled token; those on the diagonal agree.",
        _tokens,
        plots.plot_logprobs,
        lambda frame: f"Logprobs of {len(frame):,} sampled tokens under engine and trainer.",
    ),
    FigureSpec(
        "lengths",
        "Are failures long or short?",
        "Response tokens of sessions by status.",
        _training_sessions,
        plots.plot_lengths,
        partial(_counts, "Sessions by status", "status"),
    ),
    FigureSpec(
        "truncation",
        "Is more and more cut off?",
        "Shares of traces that ended for length, and of sessions that ran out of time.",
        _failures,
        plots.plot_truncation,
        partial(_course, "Share of traces cut off for length", "truncated_share", ".1%"),
    ),
    FigureSpec(
        "stage_times",
        "Which stage takes the time?",
        "Mean seconds per session.",
        lambda m: m.timing.stages,
        plots.plot_stage_times,
        _stage_words,
    ),
    FigureSpec(
        "idle",
        "How long did the trainer wait?",
        "",
        lambda m: m.timing.rollouts,
        plots.plot_idle,
        partial(_course, "Seconds that the trainer waited", "wait_seconds", ".2g"),
    ),
    FigureSpec(
        "running",
        "How many sessions ran at once?",
        "",
        lambda m: m.timing.running,
        plots.plot_running,
        lambda frame: f"Sessions at once: {int(floats(frame, 'sessions').max(initial=0)):,} at most.",
    ),
    FigureSpec(
        "timeline",
        "Where did sessions wait?",
        "The sessions of the slowest rollout, by stage, on the lanes of their node.",
        _busiest,
        plots.plot_timeline,
        partial(_counts, "Stages on the timeline", "stage"),
    ),
)
"""Every figure, in order."""


def by_name(name: str) -> FigureSpec:
    """Return one figure by its name.

    Raises
    ------
    KeyError
        If there is none.
    """
    return _BY_NAME[name]


_BY_NAME = {spec.name: spec for spec in FIGURES}
