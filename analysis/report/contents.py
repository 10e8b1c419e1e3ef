"""What the sections of a report hold: which figures and which tables, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from analysis.report.measures import Measures

__all__ = ["SECTIONS", "SectionSpec"]


@dataclass(frozen=True)
class SectionSpec:
    """A section of figures and tables.

    Attributes
    ----------
    name, title, intro
        As in `Section`.
    figures
        Names of its figures.
    tables
        Caption and frame of each table; None where there is nothing to show.
    """

    name: str
    title: str
    intro: str
    figures: tuple[str, ...] = ()
    tables: tuple[tuple[str, Callable[[Measures], pd.DataFrame | None]], ...] = ()


def _rejected(measures: Measures) -> pd.DataFrame:
    groups = measures.ledger.groups
    lost = groups[groups["stage"].isin(["content", "filter", "lag", "infrastructure"])]
    names = [
        "rollout_id",
        "group",
        "stage",
        "reason",
        "deciding",
        "attempts",
        "completed_sessions",
        "session_seconds",
    ]
    return lost.sort_values("session_seconds", ascending=False, kind="stable")[names]


def _largest(measures: Measures) -> pd.DataFrame:
    groups = measures.frames.groups
    rows = groups[(groups["state"] == "delivered") & ~groups["evaluation"].fillna(False)]
    names = [
        "rollout_id",
        "group",
        "prompt_preview",
        "advantage_abs_max",
        "reward_mean",
        "reward_std",
        "usable_sessions",
        "staleness",
    ]
    order = ["advantage_abs_max", "rollout_id"]
    return rows.sort_values(order, ascending=[False, True], kind="stable")[names].head(8)


def _prompts(measures: Measures) -> pd.DataFrame:
    names = [
        "prompt_preview",
        "attempts",
        "share",
        "reward_mean",
        "mixed",
        "all_correct",
        "all_wrong",
        "streak",
    ]
    rows = measures.zero_signal.prompts.sort_values("attempts", ascending=False, kind="stable")
    return rows[names].rename(columns={"share": "zero_signal_share"}).head(15)


def _waste(measures: Measures) -> pd.DataFrame:
    names = [
        "fate",
        "reason",
        "groups",
        "sessions",
        "seconds",
        "response_tokens",
        "session_share",
        "second_share",
    ]
    return measures.waste.rows[names]


def _nodes(measures: Measures) -> pd.DataFrame | None:
    nodes = measures.timing.nodes
    return nodes if len(nodes) > 1 else None


SECTIONS: tuple[SectionSpec, ...] = (
    SectionSpec(
        "learning",
        "Learning",
        "Whether reward rises, and what there is left to learn from.",
        ("reward", "evaluations", "advantages", "autopsy"),
    ),
    SectionSpec(
        "prompts",
        "Groups and prompts",
        "Where the signal is, and where it is not.",
        ("signal", "zero_signal"),
        (("Groups with the largest advantage", _largest), ("Prompts by number of attempts", _prompts)),
    ),
    SectionSpec(
        "rejections",
        "Rejections and waste",
        "What was not trained on, why, and what that does to the rest.",
        ("waterfall", "rejections", "contamination", "waste", "survivorship"),
        (("Where the effort went", _waste), ("Groups that were thrown away, the dearest first", _rejected)),
    ),
    SectionSpec(
        "lag",
        "Policy lag",
        "How old the data was, and how far the policy had moved.",
        ("policy_lag", "lag_histogram", "ratio", "ess", "logprobs"),
    ),
    SectionSpec(
        "lengths", "Lengths", "How long sessions are, and how many are cut off.", ("lengths", "truncation")
    ),
    SectionSpec(
        "time",
        "Time",
        "Where sessions and the trainer spend it.",
        ("idle", "stage_times", "running", "timeline"),
        (("Gateways", _nodes),),
    ),
)
"""Sections of figures and tables, in order."""
