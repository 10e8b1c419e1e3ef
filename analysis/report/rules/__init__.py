"""The rules, each a small pure function of a run's statistics, in the order in which equals are ranked."""

from __future__ import annotations

from analysis.report.findings import Rule
from analysis.report.rules.cost import failure_surge, rejection_surge, trainer_waits, waste_of_effort
from analysis.report.rules.data import (
    audit_errors,
    incomplete_data,
    infrastructure_zeros,
    mask_drift,
    survivor_bias,
    truncation_surge,
)
from analysis.report.rules.policy import ess_collapse, lag_creep, logprob_mismatch
from analysis.report.rules.signal import (
    held_out_drop,
    reward_drop,
    stuck_prompts,
    variance_collapse,
    zero_signal_streak,
)

__all__ = ["RULES"]

RULES: tuple[tuple[str, Rule], ...] = (
    ("reward drop", reward_drop),
    ("held-out drop", held_out_drop),
    ("audit of the data", audit_errors),
    ("infrastructure zeros", infrastructure_zeros),
    ("logprob mismatch", logprob_mismatch),
    ("effective sample size", ess_collapse),
    ("mask drift", mask_drift),
    ("collapse of variance", variance_collapse),
    ("zero-signal streak", zero_signal_streak),
    ("stuck prompts", stuck_prompts),
    ("truncation surge", truncation_surge),
    ("failure surge", failure_surge),
    ("rejection surge", rejection_surge),
    ("lag creep", lag_creep),
    ("survivorship", survivor_bias),
    ("waste", waste_of_effort),
    ("waiting trainer", trainer_waits),
    ("incomplete data", incomplete_data),
)
"""Name and function of every rule."""
