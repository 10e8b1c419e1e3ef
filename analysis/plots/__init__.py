"""Figures as functions: a frame in, axes out, no statistics of their own."""

from __future__ import annotations

from analysis.plots.training import plot_advantages, plot_policy_lag, plot_rejections, plot_reward

__all__ = ["plot_advantages", "plot_policy_lag", "plot_rejections", "plot_reward"]
