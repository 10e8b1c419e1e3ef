"""One group taken apart: from rewards over baselines and spread to each trace's advantage and its tokens.

For the estimators that compare a trajectory with its siblings the arithmetic is ``(reward - baseline) /
spread``, and each step of it is a column. For the others the advantage is shown with the estimator's own
formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats._autopsy_members import (
    expected_sessions,
    group_facts,
    members_of,
    sessions_of,
    trajectory_frame,
)
from analysis.stats._autopsy_text import Autopsy
from analysis.stats.batches import AnyEstimator, Batch, MissingReward, batches, per_trace, resolve
from analysis.stats.columns import Floats, Ints, floats, integers, nullable, texts
from analysis.stats.configuration import estimator_in_use
from analysis.stats.frames import Frames, as_frames, group_rows
from analysis.stats.token_tables import TokenTable
from slime_bridge.advantages import (
    GRPO,
    GSPO,
    RLOO,
    SPREAD_FLOOR,
    DrGRPO,
    LeaveOneTrajectoryOut,
    RewardBatch,
    checked_advantages,
    explained_formula,
    group_spreads,
)
from slime_bridge.advantages.statistics import group_means, means_of_the_others

__all__ = ["TOKEN_MEANS", "Autopsy", "GroupInBatch", "autopsy", "taken_apart"]

TOKEN_MEANS = "advantages are means over each trace's trainable tokens"
"""What is said beside numbers of an estimator that gives one per token."""


def autopsy(
    run: Any,
    group: int,
    estimator: AnyEstimator | None = None,
    *,
    by: str = "group",
    rollout_id: int | None = None,
    worker: str | None = None,
    missing_reward: MissingReward = "zero",
) -> Autopsy:
    """Take one group apart.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    group
        Its number.
    estimator
        As in `recompute`. It sees the whole rollout. None takes the one that the run was trained with, as far
        as its files say, else leave-one-trajectory-out. Of one that gives numbers per token, tables hold the
        mean over each trace's trainable tokens, and `Autopsy.tokens` what each token gets.
    by
        What the number is: ``"group"``, the scheduler's, or ``"group_index"``, Slime's.
    rollout_id, worker
        Tell groups of the same number apart.
    missing_reward
        As in `recompute`.

    Raises
    ------
    StatsError
        If there is no such group, or more than one; the message names them.
    """
    frames = as_frames(run)
    function = estimator_in_use(frames) if estimator is None else resolve(estimator)
    row = _find_group(_groups(frames), group, by, rollout_id, worker)
    batch, table, places = _batch_of(frames, row, function, missing_reward)
    found = GroupInBatch(row, sessions_of(frames, row), batch, table, places)
    return taken_apart(found, function, frames.tokens_of)


@dataclass(frozen=True, eq=False)
class GroupInBatch:
    """One group, found: what belongs to it, and what an estimator sees with it.

    Parameters
    ----------
    group
        Its row of the table of groups.
    sessions
        Its rows of the table of sessions, by position.
    batch
        Of its rollout; None if nothing of the group takes part in any.
    table
        The traces that the batch counts in, with their rows in the whole table as ``at_row``.
    places
        Where the group's traces stand in the batch.
    """

    group: pd.DataFrame
    sessions: pd.DataFrame
    batch: Batch | None
    table: pd.DataFrame
    places: Ints


def taken_apart(
    found: GroupInBatch,
    function: Callable[[RewardBatch], Any],
    tokens: Callable[[Ints], TokenTable] = lambda rows: TokenTable.empty(),
) -> Autopsy:
    """Take a group apart that was found before.

    Parameters
    ----------
    found
        The group.
    function
        The estimator, on batches.
    tokens
        Gives the token arrays of some rows of the table of traces; none by default.
    """
    batch, table, sessions = found.batch, found.table, found.sessions
    steps = _Steps.of(function, batch.rewards) if batch is not None else None
    traces, key = _trace_rows(table, found.places, batch, steps)
    expected = expected_sessions(found.group)
    members = members_of(
        sessions,
        table.iloc[batch.rows[found.places]] if batch is not None else table.iloc[:0],
        key,
        {name: floats(traces, name) for name in ("baseline", "spread", "advantage")}
        | {"trainable": integers(traces, "trainable_tokens")},
        batch.rewards.grouping.valid if batch is not None else np.zeros(0, dtype=bool),
        steps.means if steps is not None else np.zeros(0),
    )
    trajectories = trajectory_frame(sessions, members, expected)
    return Autopsy(
        ids=_ids(found.group),
        estimator=repr(function),
        formula=_formula(function),
        facts=group_facts(trajectories, expected),
        trajectories=trajectories,
        traces=traces.drop(columns=["row", "place", "owner"]),
        tokens=_token_rows(tokens, traces, steps),
    )


def _formula(function: Callable[[RewardBatch], Any]) -> str:
    said = explained_formula(str(getattr(function, "formula", "") or "given by the function itself"))
    return f"{said}; {TOKEN_MEANS}" if getattr(function, "level", "trace") == "token" else said


def _ids(row: pd.DataFrame) -> dict[str, Any]:
    names = (
        "run",
        "rollout_id",
        "worker",
        "group",
        "group_index",
        "state",
        "reject_reason",
        "prompt_preview",
    )
    values = {name: row.iloc[0][name] for name in names if name in row}
    return {name: None if pd.isna(value) else value for name, value in values.items()}


def _groups(frames: Frames) -> pd.DataFrame:
    if len(frames.groups):
        return frames.groups
    names = ["run", "rollout_id", "evaluation", "worker", "group", "group_index"]
    known = pd.concat([frames.sessions[[*names, "task_id"]], frames.traces[[*names, "task_id"]]])
    return known.drop_duplicates(names).reset_index(drop=True)


def _find_group(
    groups: pd.DataFrame, number: int, by: str, rollout_id: int | None, worker: str | None
) -> pd.DataFrame:
    if by not in ("group", "group_index"):
        raise StatsError(f"by is 'group' or 'group_index', got {by!r}")
    chosen = (groups[by] == number).fillna(False)
    for name, wanted in (("rollout_id", rollout_id), ("worker", worker)):
        if wanted is not None:
            chosen &= (groups[name] == wanted).fillna(False)
    found = groups[chosen.to_numpy(dtype=bool)]
    if found.empty:
        raise StatsError(f"no group with {by} {number} in this run, which has {len(groups)} groups")
    if len(found) > 1:
        shown = found[["run", "rollout_id", "worker", "evaluation"]].head(5).to_dict("records")
        raise StatsError(f"{len(found)} groups have {by} {number}; name rollout_id or worker: {shown}")
    return found


def _batch_of(
    frames: Frames, row: pd.DataFrame, function: Callable[[RewardBatch], Any], missing_reward: MissingReward
) -> tuple[Batch | None, pd.DataFrame, Ints]:
    """Return the batch that holds the group, the table its rows count in, and the group's places in it."""
    near = frames.traces
    for name in ("run", "rollout_id"):
        value = row.iloc[0][name]
        same = near[name].isna() if pd.isna(value) else (near[name] == value).fillna(False)
        near = near[same.to_numpy(dtype=bool)]
    origin = frames.traces.index.get_indexer(near.index)
    near = near.reset_index(drop=True)
    mine = group_rows(row, near) == 0
    components: Iterable[str] = getattr(function, "components", ())
    tokens = None
    if getattr(function, "level", "trace") == "token":
        read = frames.tokens_of(origin)
        place_of = np.full(len(frames.traces), -1, dtype=np.int64)
        place_of[origin] = np.arange(len(origin))
        tokens = TokenTable(place_of[read.rows], read.arrays)
    for batch in batches(
        near,
        sessions=frames.sessions,
        tokens=tokens,
        components=tuple(components),
        missing_reward=missing_reward,
    ):
        places = np.flatnonzero(mine[batch.rows])
        if len(places):
            return batch, near.assign(**{"at_row": origin}), places
    return None, near.assign(**{"at_row": origin}), np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Steps:
    """The estimator's answer on a batch, and its steps per trajectory where it has such."""

    advantage: Floats
    means: Floats
    baseline: Floats
    spread: Floats
    per_token: Mapping[int, Floats] | None = None
    """By place in the batch, for an estimator that gives numbers per token."""

    @classmethod
    def of(cls, function: Callable[[RewardBatch], Any], batch: RewardBatch) -> _Steps:
        grouping = batch.grouping
        means = grouping.trajectory_means(batch.reward)
        baseline = np.full(len(means), np.nan)
        spread = np.full(len(means), np.nan)
        if type(function) in (LeaveOneTrajectoryOut, RLOO):
            baseline, spread = means_of_the_others(grouping, means), np.ones(len(means))
        elif type(function) in (GRPO, GSPO, DrGRPO):
            baseline, spread = group_means(grouping, means)[grouping.group], np.ones(len(means))
        if getattr(function, "std_normalization", False) and type(function) is not DrGRPO:
            spreads = group_spreads(grouping, means)
            divisor = np.where(spreads < SPREAD_FLOOR, 1.0, spreads + getattr(function, "epsilon", 0.0))
            spread = divisor[grouping.group]
        answer = checked_advantages(function, batch)
        advantage, _, _ = per_trace(answer, batch)
        per_token = None
        if batch.tokens is not None and getattr(function, "level", "trace") == "token":
            per_token = dict(enumerate(np.split(answer, batch.tokens.offsets[1:-1])))
        return cls(advantage, means, baseline, spread, per_token)


def _trace_rows(
    table: pd.DataFrame, rows: Ints, batch: Batch | None, steps: _Steps | None
) -> tuple[pd.DataFrame, Ints]:
    """Return the group's traces, and the trajectory of each."""
    if batch is None or steps is None:
        chosen, own = table.iloc[:0], np.zeros(0, dtype=np.int64)
        advantage = baseline = spread = np.zeros(0)
        counted = np.zeros(0, dtype=bool)
        trainable = key = own
    else:
        own = batch.rows[rows]
        chosen = table.iloc[own]
        key = batch.rewards.grouping.trajectory[rows]
        advantage = steps.advantage[rows]
        baseline, spread = steps.baseline[key], steps.spread[key]
        counted = batch.rewards.grouping.counted[rows]
        assert batch.rewards.trainable_tokens is not None
        trainable = batch.rewards.trainable_tokens[rows]
    totals = np.bincount(key, weights=trainable) if len(key) else np.zeros(0)
    raw, final = floats(chosen, "advantage_raw"), floats(chosen, "advantage")
    trained = np.where(np.isnan(final), raw, final)
    weight = advantage / np.maximum(totals[key], 1.0) if len(key) else np.zeros(0)
    columns = nullable(
        {
            "session_id": texts(chosen, "session_id"),
            "trace_index": chosen["trace_index"],
            "reward": floats(chosen, "reward"),
            "in_mean": counted,
            "baseline": np.where(counted, baseline, np.nan),
            "spread": np.where(counted, spread, np.nan),
            "advantage": advantage,
            "trained": trained,
            "difference": trained - advantage,
            "trainable_tokens": trainable,
            "token_weight": np.where(trainable > 0, weight, 0.0),
            "pull": weight * trainable,
            "row": integers(chosen, "at_row"),
            "place": rows if len(chosen) else own,
            "owner": key,
        }
    )
    return columns, key


def _token_rows(
    read: Callable[[Ints], TokenTable], traces: pd.DataFrame, steps: _Steps | None
) -> pd.DataFrame:
    row_of = {int(row): place for place, row in enumerate(traces["row"])}
    tokens = read(np.array(list(row_of), dtype=np.int64))
    places = np.array([row_of[int(row)] for row in tokens.rows], dtype=np.int64)[tokens.response.owner]
    mask = tokens.learnt
    weight = floats(traces, "token_weight")[places]
    if steps is not None and steps.per_token is not None:
        weight = _weights_per_token(steps.per_token, traces, tokens, places)
    return nullable(
        {
            "session_id": texts(traces, "session_id")[places],
            "trace_index": integers(traces, "trace_index", missing=-1)[places],
            "position": tokens.response.position,
            "token_id": tokens.response.values.astype(np.int64),
            "mask": mask,
            "weight": np.where(mask, weight, 0.0),
        }
    )


def _weights_per_token(
    per_token: Mapping[int, Floats], traces: pd.DataFrame, tokens: TokenTable, places: Ints
) -> Floats:
    """Return each response token's own advantage over its trajectory's trainable tokens; shape (n,)."""
    own = [per_token.get(int(place), np.zeros(0)) for place in traces["place"]]
    starts = np.concatenate([[0], np.cumsum([len(values) for values in own])]).astype(np.int64)
    at = starts[places] + tokens.response.position
    trainable = floats(traces, "trainable_tokens")
    owner = integers(traces, "owner")
    totals = np.bincount(owner, weights=trainable)[owner]
    values = np.concatenate([*own, np.zeros(1)])
    return np.asarray(values[np.minimum(at, len(values) - 1)] / np.maximum(totals[places], 1.0))
