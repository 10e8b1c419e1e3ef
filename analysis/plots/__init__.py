"""Figures as functions: ``f(frame, *, ax=None) -> Axes``, no statistics of their own.

Each function takes a tidy frame: a table of a run, or a frame that `analysis.stats` returns, as its docstring
says. Missing values are left out, never drawn as zero; a frame without any gives axes that say "no data", and
a frame that lacks a column raises `PlotError` with its name.

Without `ax` a figure of its own is made, one text column wide, which a notebook shows and no registry holds:
there is nothing to close. Save it with ``ax.figure.savefig(...)``. With `ax` nothing but these axes is drawn
upon, in colours that suit their ground; `theme` chooses ``"paper"`` or ``"dark"`` for new ones.
"""

from __future__ import annotations

from analysis.plots.advantages import (
    plot_advantage_distribution,
    plot_advantages,
    plot_group_advantages,
    plot_noise,
)
from analysis.plots.autopsy import plot_autopsy
from analysis.plots.estimators import plot_estimator_agreement, plot_estimator_lengths, plot_estimators
from analysis.plots.lag import plot_lag_histogram, plot_lag_parts, plot_policy_lag, plot_rejection_by_lag
from analysis.plots.lengths import plot_lengths, plot_truncation
from analysis.plots.off_policy import plot_ess, plot_logprobs, plot_ratio
from analysis.plots.rejections import plot_rejections, plot_survivorship, plot_waste, plot_waterfall
from analysis.plots.replay import plot_replay, plot_verdicts
from analysis.plots.signal import plot_signal, plot_zero_signal
from analysis.plots.style import house_style, new_figure, theme
from analysis.plots.timing import (
    plot_idle,
    plot_nodes,
    plot_running,
    plot_stage_spread,
    plot_stage_times,
    plot_timeline,
)
from analysis.plots.tokens import plot_tokens
from analysis.plots.training import plot_evaluations, plot_reward
from analysis.plots.trust import plot_contamination, plot_reconciliation, plot_simulation

__all__ = [
    "house_style",
    "new_figure",
    "plot_advantage_distribution",
    "plot_advantages",
    "plot_autopsy",
    "plot_contamination",
    "plot_ess",
    "plot_estimator_agreement",
    "plot_estimator_lengths",
    "plot_estimators",
    "plot_evaluations",
    "plot_group_advantages",
    "plot_idle",
    "plot_lag_histogram",
    "plot_lag_parts",
    "plot_lengths",
    "plot_logprobs",
    "plot_nodes",
    "plot_noise",
    "plot_policy_lag",
    "plot_ratio",
    "plot_reconciliation",
    "plot_rejection_by_lag",
    "plot_rejections",
    "plot_replay",
    "plot_reward",
    "plot_running",
    "plot_signal",
    "plot_simulation",
    "plot_stage_spread",
    "plot_stage_times",
    "plot_survivorship",
    "plot_timeline",
    "plot_tokens",
    "plot_truncation",
    "plot_verdicts",
    "plot_waste",
    "plot_waterfall",
    "plot_zero_signal",
    "theme",
]
