"""From traces to what advantage estimators take: one `RewardBatch` per rollout, and the way back.

A batch holds what the bridge handed over, or would have handed over, for one rollout: the traces of its
delivered groups, placeholders included. Rejected groups of the rollout form a batch of their own, so that
they can be asked what they would have brought. Evaluations have no advantages and are in no batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats.columns import Bools, Floats, Ints, flags, floats, integers, json_cells, known, texts
from analysis.stats.frames import batch_codes, group_codes, session_rows, trajectory_codes
from analysis.stats.token_tables import TokenTable
from slime_bridge.advantages import RewardBatch, TokenArrays, from_function, get_estimator

__all__ = [
    "AnyEstimator",
    "Batch",
    "MissingReward",
    "batches",
    "labelled",
    "per_trace",
    "resolve",
    "takes_part",
]

AnyEstimator = str | Callable[..., Any]
"""A name, a path, an estimator, or a plain function of (rewards, groups, trajectories)."""

MissingReward = Literal["zero", "exclude"]
"""What a usable trace without a reward counts as: 0, as the bridge hands it over, or not at all."""

_FAILED = ("failed", "aborted")


@dataclass(frozen=True, eq=False)
class Batch:
    """What one call of an estimator sees.

    Parameters
    ----------
    rows
        Shape (n,): position of each of its traces in the table.
    rewards
        The traces as arrays; groups and trajectories are numbered over the whole table.
    """

    rows: Ints
    rewards: RewardBatch


def resolve(estimator: AnyEstimator) -> Callable[[RewardBatch], Any]:
    """Return a callable on batches.

    Parameters
    ----------
    estimator
        A name or path as `slime_bridge.advantages.get_estimator` takes it, an estimator, or a plain function
        of (rewards, groups, trajectories).

    Raises
    ------
    AdvantageError
        If the name is unknown.
    StatsError
        If it is nothing that can be called.
    """
    if isinstance(estimator, str):
        return get_estimator(estimator)
    if not callable(estimator):
        raise StatsError(f"{estimator!r} is no estimator: neither a name nor something that can be called")
    if hasattr(estimator, "level"):
        return estimator
    try:
        required = [
            p
            for p in inspect.signature(estimator).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except ValueError:  # some builtins have no signature
        return from_function(estimator)
    return estimator if len(required) == 1 else from_function(estimator)


def labelled(
    estimators: Sequence[AnyEstimator] | Mapping[str, AnyEstimator],
) -> dict[str, Callable[[RewardBatch], Any]]:
    """Return estimators by label: the mapping's key, the name that was asked for, or the representation.

    Raises
    ------
    StatsError
        If there is none, or two have the same label.
    """
    if isinstance(estimators, str) or not estimators:
        raise StatsError(f"expected a list of estimators, or a mapping of them by label, got {estimators!r}")
    if isinstance(estimators, Mapping):
        return {str(label): resolve(estimator) for label, estimator in estimators.items()}
    result: dict[str, Callable[[RewardBatch], Any]] = {}
    for estimator in estimators:
        label = estimator if isinstance(estimator, str) else _name(estimator)
        if label in result:
            raise StatsError(f"two estimators are called {label!r}; give a mapping with a label for each")
        result[label] = resolve(estimator)
    return result


def _name(estimator: Callable[..., Any]) -> str:
    plain = inspect.isroutine(estimator)
    return getattr(estimator, "__name__", repr(estimator)) if plain else repr(estimator)


def takes_part(traces: pd.DataFrame) -> Bools:
    """Tell which traces the bridge handed over, or would have: shape (n,).

    Where a group's samples are in a dump these are all that count; what Polar's files hold beside them
    belongs to attempts that nobody used, or was dropped on conversion.
    """
    dumped = known(traces, "sample_status")
    group = group_codes(traces)[0]
    has_dump = np.bincount(group[dumped], minlength=int(group.max(initial=-1)) + 1) > 0
    training = ~flags(traces, "evaluation")
    return training & (dumped | ~has_dump[group]) if len(traces) else training


def batches(
    traces: pd.DataFrame,
    *,
    sessions: pd.DataFrame | None = None,
    tokens: TokenTable | None = None,
    components: Sequence[str] = (),
    missing_reward: MissingReward = "zero",
) -> Iterator[Batch]:
    """Go through the batches of a table of traces.

    Parameters
    ----------
    traces
        With the declared columns.
    sessions
        Tell which sessions failed where the traces are in no dump, and hold the evaluators' reports.
    tokens
        For estimators that give numbers per token.
    components
        Further rewards to look up: in the trace's reward, then in the evaluator's report.
    missing_reward
        See `MissingReward`.
    """
    if missing_reward not in ("zero", "exclude"):
        raise StatsError(f"missing_reward is 'zero' or 'exclude', got {missing_reward!r}")
    if traces.empty:
        return
    owner = np.full(len(traces), -1, np.int64) if sessions is None else session_rows(sessions, traces)
    group = group_codes(traces)[0]
    trajectory = trajectory_codes(traces, group)
    valid = _valid(traces, sessions, owner)
    reward = _rewards(traces, missing_reward)
    trainable = _trainable(traces)
    response = integers(traces, "response_tokens")
    lag = _lag(traces, sessions, owner)
    further = {name: _component(traces, sessions, owner, name) for name in components}
    chosen = takes_part(traces)
    batch = np.where(chosen, batch_codes(traces), -1)
    order = np.argsort(batch, kind="stable")
    starts = np.flatnonzero(np.diff(batch[order], prepend=-1)) if len(order) else order
    for rows in np.split(order, starts):
        if not len(rows) or batch[rows[0]] < 0:
            continue
        yield Batch(
            rows,
            RewardBatch(
                reward=reward[rows],
                group=group[rows],
                trajectory=trajectory[rows],
                trace=integers(traces, "trace_index")[rows],
                valid=valid[rows],
                trainable_tokens=trainable[rows],
                response_tokens=response[rows],
                staleness=lag[rows],
                components={name: values[rows] for name, values in further.items()},
                tokens=_token_arrays(tokens, rows) if tokens is not None and len(tokens) else None,
            ),
        )


def per_trace(values: Floats, batch: RewardBatch) -> tuple[Floats, Floats, Floats]:
    """Return mean, smallest and largest advantage over each trace's trainable tokens, shape (n,) each.

    Numbers per trace are returned as they are. A trace without a trainable token has 0.
    """
    if batch.tokens is None or len(values) == len(batch):
        return values, values, values
    tokens, n = batch.tokens, len(batch)
    of, kept = tokens.trace_of[tokens.mask], values[tokens.mask]
    counts = np.bincount(of, minlength=n)
    mean = np.divide(np.bincount(of, weights=kept, minlength=n), counts, out=np.zeros(n), where=counts > 0)
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, of, kept)
    np.maximum.at(high, of, kept)
    return mean, np.where(counts > 0, low, 0.0), np.where(counts > 0, high, 0.0)


def _valid(traces: pd.DataFrame, sessions: pd.DataFrame | None, owner: Ints) -> Bools:
    status = texts(traces, "sample_status")
    failed = np.isin(status.astype(str), _FAILED) | flags(traces, "placeholder")
    failed |= flags(traces, "masked_by_server")
    if sessions is not None and len(sessions):
        undumped = ~known(traces, "sample_status") & (owner >= 0)
        finished = flags(sessions, "completed", missing=True)[owner]
        failed |= undumped & ~finished & ~flags(traces, "trainable_by_server")
    return ~failed


def _rewards(traces: pd.DataFrame, missing_reward: MissingReward) -> Floats:
    reward = floats(traces, "reward")
    reward = np.where(flags(traces, "trainable_by_server"), 0.0, reward)
    return np.where(np.isfinite(reward), reward, 0.0) if missing_reward == "zero" else reward


def _trainable(traces: pd.DataFrame) -> Ints:
    sampled = integers(traces, "sampled_tokens")
    count = np.where(known(traces, "trainable_tokens"), integers(traces, "trainable_tokens"), sampled)
    return np.where(flags(traces, "removed") | flags(traces, "placeholder"), 0, count).astype(np.int64)


def _lag(traces: pd.DataFrame, sessions: pd.DataFrame | None, owner: Ints) -> Floats:
    if sessions is None or sessions.empty:
        return np.full(len(traces), np.nan)
    return np.where(owner >= 0, floats(sessions, "staleness")[owner], np.nan)


def _component(traces: pd.DataFrame, sessions: pd.DataFrame | None, owner: Ints, name: str) -> Floats:
    own = np.array([_number(cell.get(name)) for cell in json_cells(traces, "reward_components")])
    if sessions is None or sessions.empty:
        return own
    reported = np.array([_number(cell.get(name)) for cell in json_cells(sessions, "evaluation_report")])
    return np.where(np.isnan(own) & (owner >= 0), reported[owner], own)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


def _token_arrays(tokens: TokenTable, rows: Ints) -> TokenArrays:
    place = np.full(int(max(rows.max(), tokens.rows.max(initial=0))) + 1, -1, dtype=np.int64)
    place[tokens.rows] = np.arange(len(tokens))
    items = place[rows]
    lengths = np.where(items >= 0, tokens.response.lengths[items], 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    there = tokens.select_items(items[items >= 0])
    arrays: dict[str, Any] = {"mask": there.learnt}
    for name, source in (("kl", "kl"), ("values", "value")):
        if tokens.has(source):
            arrays[name] = there.aligned(source)
    return TokenArrays(offsets, **arrays)
