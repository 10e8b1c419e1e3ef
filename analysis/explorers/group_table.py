"""Groups as rows to look at: their fate, the numbers behind it, their rewards and their advantages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis.explorers.lookup import RunTables
from analysis.explorers.table_rows import Column, scale_of
from analysis.html.prompts import prompt_text
from analysis.stats.columns import Bools, Floats, Ints, flags, floats, integers, known, texts

__all__ = [
    "GROUP_COLUMNS",
    "SCOPES",
    "group_columns",
    "group_frame",
    "rewards_by_group",
    "scope",
]

SCOPES = ("all", "delivered", "rejected", "unfinished", "evaluation")
"""Which groups are shown: ``all`` of training, those that ended so, and those of evaluations."""

_FATES = {
    "delivered": "good",
    "rejected": "serious",
    "returned": "warning",
    "abandoned": "warning",
    "given_up": "serious",
}


def _words(reason: str) -> str:
    return reason.replace("_", " ")


GROUP_COLUMNS = (
    Column("rollout_id", "rollout"),
    Column("number", "group", "the scheduler's number, else Slime's", write=str),
    Column("fate", "fate", "how it ended", "badge", badges=_FATES),
    Column("reason", "reason", "why it was rejected, or why it went back", width=14, write=_words),
    Column(
        "sessions",
        "complete",
        "complete and usable sessions of those expected, and how many are required at least",
        sort_by="complete_usable_sessions",
    ),
    Column(
        "rewards",
        "rewards",
        "a bar per session, by position; a dash where there is none",
        "strip",
        sort_by="reward_mean",
    ),
    Column("reward_mean", "mean", "mean reward of the usable sessions"),
    Column("reward_std", "sd", "population standard deviation of the same; 0 means no gradient"),
    Column("advantage", "max |A|", "largest absolute advantage of its traces under the chosen estimator"),
    Column("trainable_tokens", "tokens", "tokens with mask 1"),
    Column("staleness", "lag", "rollouts between the policy that sampled it and its delivery"),
    Column("attempts", "attempts", "submissions, all flights counted"),
    Column("prompt", "prompt", "the last message of the user, as far as it was kept"),
)
"""What the table of groups shows."""


def group_columns(tables: RunTables, groups: pd.DataFrame) -> list[Column]:
    """Return the columns that say anything in a table of groups; rewards on the scale of the whole run."""
    several = ["run"] if groups["run"].nunique(dropna=False) > 1 else []
    dull = {
        name
        for name in ("staleness", "attempts", "reason", "advantage")
        if len(groups) and groups[name].isna().all()
    }
    if (groups["attempts"].fillna(1) == 1).all():
        dull.add("attempts")
    scale: tuple[float, float] = tables.once(
        "reward_scale", lambda: scale_of(floats(tables.sessions, "reward"))
    )
    shown = [c for c in GROUP_COLUMNS if c.name not in dull]
    return [
        *(Column(name, width=14) for name in several),
        *(replace(c, domain=scale) if c.name == "rewards" else c for c in shown),
    ]


def group_frame(tables: RunTables, rows: Ints, advantages: Floats) -> pd.DataFrame:
    """Return the groups of some rows as the table shows them.

    Parameters
    ----------
    tables
        Of the run.
    rows
        Places in the table of groups.
    advantages
        Largest absolute advantage of each group of the run, NaN for none.

    Returns
    -------
    DataFrame
        One row per group: the names of `GROUP_COLUMNS`, ``run``, ``complete_usable_sessions``, and ``row``,
        the place in the table of groups.
    """
    groups = tables.groups.iloc[rows]
    number = groups["group"].fillna(groups["group_index"])
    fate = groups["state"].astype(object).where(groups["state"].notna(), None)
    fate = fate.where(~groups["evaluation"].fillna(False).to_numpy(dtype=bool), "evaluation")
    reason = groups["reject_reason"].fillna(groups["requeue_reason"])
    rewards = rewards_by_group(tables)
    prompts: list[str | None] = tables.once(
        "prompts", lambda: [prompt_text(text) for text in texts(tables.groups, "prompt_preview")]
    )
    frame = groups[
        [
            "run",
            "rollout_id",
            "reward_mean",
            "reward_std",
            "trainable_tokens",
            "staleness",
            "attempts",
            "complete_usable_sessions",
        ]
    ].reset_index(drop=True)
    own = advantages[rows]
    return frame.assign(
        number=number.to_numpy(),
        fate=pd.array(fate.where(fate.notna(), "unfinished").to_numpy(), dtype="string"),
        reason=reason.to_numpy(),
        sessions=pd.array(_completeness(groups), dtype="string"),
        rewards=pd.Series([rewards[row] for row in rows], dtype=object),
        advantage=pd.arrays.FloatingArray(np.where(np.isnan(own), 0.0, own), np.isnan(own)),
        prompt=pd.array([prompts[row] for row in rows], dtype="string"),
        row=rows,
    )


def scope(tables: RunTables, rows: Ints, wanted: str) -> Ints:
    """Return the rows whose groups are in a scope of `SCOPES`."""
    groups = tables.groups
    evaluation = flags(groups, "evaluation")[rows]
    if wanted == "evaluation":
        return rows[evaluation]
    rows = rows[~evaluation]
    if wanted == "all":
        return rows
    state = texts(groups, "state")[rows]
    chosen: Bools = (
        ~np.isin(state.astype(str), ("delivered", "rejected")) if wanted == "unfinished" else state == wanted
    )
    return rows[chosen]


def rewards_by_group(tables: RunTables) -> list[list[float | None]]:
    """Return the rewards of each group's last attempt, in order of position; None where there is none."""

    def make() -> list[list[float | None]]:
        sessions = tables.sessions
        owner, count = tables.group_of_session, len(tables.groups)
        attempt = integers(sessions, "attempt", missing=0)
        last = np.zeros(count, dtype=np.int64)
        there = owner >= 0
        np.maximum.at(last, owner[there], attempt[there])
        own = np.flatnonzero(there)
        own = own[attempt[own] == last[owner[own]]]
        own = own[np.lexsort((integers(sessions, "position", missing=0)[own], owner[own]))]
        values = floats(sessions, "reward")[own].tolist()
        edges = [0, *np.cumsum(np.bincount(owner[own], minlength=count)).tolist()]
        plain = [None if value != value else value for value in values]
        return [plain[a:b] for a, b in pairwise(edges)]

    found: list[list[float | None]] = tables.once("rewards_by_group", make)
    return found


def _completeness(groups: pd.DataFrame) -> list[str | None]:
    there = known(groups, "complete_usable_sessions") & known(groups, "expected_sessions")
    complete, expected = integers(groups, "complete_usable_sessions"), integers(groups, "expected_sessions")
    required, asked = integers(groups, "required_sessions"), known(groups, "required_sessions")
    return [
        (f"{complete[k]}/{expected[k]}" + (f" ≥{required[k]}" if asked[k] else "")) if there[k] else None
        for k in range(len(groups))
    ]
