"""What the run's own advantage estimator gives for the rewards in the tables.

Which estimator that is stands in the journal: its name and hyper-parameters in the bridge's configuration,
Slime's switches beside it. A journal is data from anywhere: a class that it names is imported only where the
run is trusted. Without a journal the bridge's default is taken; whether that divides by the group's spread is
read from the dumped advantages where no journal says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis._identity import Ints, codes
from analysis._link import Linked, unused_results
from analysis._tables import Bools, Floats, as_floats, flags, floats, integers, known, one_array, set_columns
from analysis.problems import Problem
from slime_bridge.advantages import LeaveOneTrajectoryOut, RewardBatch, get_estimator
from slime_bridge.advantages import checked_advantages as checked
from slime_bridge.errors import AdvantageError
from slime_bridge.reward_post_process import NORMALIZED_ESTIMATORS

__all__ = ["Recomputation"]

_COLUMN = "advantage_recomputed"
_CLOSE = 1e-4
_DIVIDING = ("grpo", "gspo")


@dataclass(frozen=True)
class _Choice:
    """What one journal says about advantages; `divided` is None where it does not say."""

    name: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    divided: bool | None = None
    raw: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Choice:
        """Read the configuration of a journal."""
        name, given = config.get("advantage_estimator"), config.get("advantage_estimator_kwargs")
        kwargs = dict(given) if isinstance(given, Mapping) else {}
        for candidate in ("gdpo", "dvao"):
            keys = config.get(f"{candidate}_reward_keys")
            if isinstance(keys, list) and keys:
                name = candidate
                kwargs.setdefault("keys", tuple(map(str, keys)))
        slime = config.get("slime")
        if not isinstance(slime, Mapping):
            return cls(name and str(name), kwargs)
        trainer = slime.get("advantage_estimator")
        raw = slime.get("rewards_normalization") is False or trainer not in NORMALIZED_ESTIMATORS
        divided = bool(slime.get("grpo_std_normalization")) and trainer in _DIVIDING
        return cls(name and str(name), kwargs, divided, raw)


class Recomputation:
    """Gives traces and sessions the advantages of the run's estimator.

    Parameters
    ----------
    groups, sessions, traces
        The joined tables.
    events
        Where journals say how they were configured.
    trusted
        Whether classes that a journal names may be imported.

    Attributes
    ----------
    problems
        Estimators that cannot be had, and those that refuse the rewards; complete after both tables.
    """

    def __init__(
        self, groups: pa.Table, sessions: Linked, traces: Linked, events: pa.Table, *, trusted: bool
    ) -> None:
        self._groups = groups
        self._sessions = sessions
        self._traces = traces
        self._trusted = trusted
        self._choices, self._choice_of_group, self._paths = _choices(groups, events)
        self._chosen: dict[int, Callable[[RewardBatch], Any] | None] = {}
        self.problems: list[Problem] = []

    def traces(self) -> pa.Table:
        """Return the table of traces with its column filled in."""
        table, owner, sessions = self._traces.table, self._traces.owner, self._sessions
        if not len(table) or not len(sessions.table):
            return table
        usable = flags(sessions.table, "usable")[owner] & (owner >= 0)
        usable &= ~(flags(table, "removed") | flags(table, "placeholder"))
        tokens = np.where(
            known(table, "trainable_tokens"),
            integers(table, "trainable_tokens"),
            integers(table, "sampled_tokens"),
        )
        group = np.where(owner >= 0, sessions.owner[owner], -1)
        rows = _Rows(floats(table, "reward"), group, owner, usable, tokens, table)
        return self._filled(rows, ~self._spare[owner])

    def sessions(self) -> pa.Table:
        """Return the table of sessions with its column filled in."""
        table, owner = self._sessions.table, self._sessions.owner
        if not len(table):
            return table
        count = len(table)
        rows = _Rows(
            floats(table, "reward"), owner, np.arange(count), flags(table, "usable"), np.ones(count), table
        )
        rows.of_traces = self._traces
        return self._filled(rows, ~self._spare)

    @cached_property
    def _spare(self) -> Bools:
        return unused_results(self._sessions.table, self._sessions.owner, len(self._groups))

    def _filled(self, rows: _Rows, used: Bools) -> pa.Table:
        # Evaluations have no advantages, and what belongs to no group has nothing to be compared with.
        compared = (rows.group >= 0) & ~flags(rows.table, "evaluation") & used
        values = np.full(len(rows.table), np.nan)
        for number in range(len(self._choices)):
            chosen = np.flatnonzero(compared & (self._choice_of_group[rows.group] == number))
            if len(chosen):
                self._fill(values, rows, chosen, number)
        own = one_array(rows.table.column(_COLUMN))
        return set_columns(rows.table, **{_COLUMN: pc.coalesce(own, as_floats(values))})

    def _fill(self, values: Floats, rows: _Rows, chosen: Ints, number: int) -> None:
        if self._choices[number].raw:
            values[chosen] = rows.reward[chosen]
            return
        if number not in self._chosen:
            self._chosen[number] = self._estimator(number, rows, chosen)
        estimator = self._chosen[number]
        if estimator is None:
            return
        if self._choices[number].name is None:
            batches = [chosen]  # the default looks at one group at a time: all rollouts are one batch
        else:
            batches = _split(chosen, self._batch_of_group[rows.group[chosen]])
        for batch in batches:
            try:
                values[batch] = rows.advantages(estimator, batch)
            except Exception as error:  # the estimator may be anybody's: whatever it raises is its answer
                self._note(number, "refuses the recorded rewards", f"{type(error).__name__}: {error}", "")
                self._chosen[number] = None
                return

    @cached_property
    def _batch_of_group(self) -> Ints:
        return codes([self._groups.column(name) for name in ("run", "rollout_id", "accepted")])

    def _estimator(self, number: int, rows: _Rows, chosen: Ints) -> Callable[[RewardBatch], Any] | None:
        choice = self._choices[number]
        if choice.name is None:
            divided = choice.divided
            return LeaveOneTrajectoryOut(
                std_normalization=_looks_divided(rows, chosen) if divided is None else divided
            )
        if ":" in choice.name and not self._trusted:
            why = "it is no estimator of the bridge, and a journal's word is no reason to import anything"
            self._note(number, "is not imported", why, "trusted=True imports what the journal names")
            return None
        try:
            return get_estimator(choice.name, choice.kwargs)
        except Exception as error:  # importing somebody's module may raise anything
            why = str(error) if isinstance(error, AdvantageError) else f"{type(error).__name__}: {error}"
            self._note(number, "cannot be had here", why, "install the package that holds it")
            return None

    def _note(self, number: int, what: str, why: str, fix: str) -> None:
        name = self._choices[number].name or "loo"
        path = self._paths.get(number, "")
        what = f"{_COLUMN} is missing: the run's estimator {name!r} {what}"
        self.problems.append(Problem(path, what[:300], why[:300], fix))


@dataclass
class _Rows:
    """What an estimator is asked about: one entry per row of `table`."""

    reward: Floats
    group: Ints
    trajectory: Ints
    valid: Bools
    tokens: Any
    table: pa.Table
    of_traces: Linked | None = None

    def advantages(self, estimator: Callable[[RewardBatch], Any], rows: Ints) -> Floats:
        """Return the advantages of some rows.

        NaN in groups without a usable trajectory that has a reward, and where a component is missing.
        """
        parts = self._components(tuple(getattr(estimator, "components", ())))
        batch = RewardBatch(
            reward=self.reward[rows],
            group=self.group[rows],
            trajectory=self.trajectory[rows],
            valid=self.valid[rows],
            trainable_tokens=np.asarray(self.tokens)[rows],
            components={name: values[rows] for name, values in parts.items()},
        )
        answered = batch.grouping.sizes[batch.grouping.group_of_trace] > 0
        for values in batch.components.values():
            answered &= ~np.isnan(values)
        return np.where(answered, checked(estimator, batch), np.nan)

    def _components(self, names: tuple[str, ...]) -> dict[str, Floats]:
        if self.of_traces is None:
            return _components(self.table, names)
        found = {}
        for name, values in _components(self.of_traces.table, names).items():
            there = (self.of_traces.owner >= 0) & ~np.isnan(values)
            owner, size = self.of_traces.owner[there], len(self.table)
            sums = np.bincount(owner, weights=values[there], minlength=size)
            counts = np.bincount(owner, minlength=size)
            found[name] = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
        return found


def _choices(groups: pa.Table, events: pa.Table) -> tuple[list[_Choice], Ints, dict[int, str]]:
    """Return what journals chose, which choice each group falls under, and the file of each choice."""
    opened = events.filter(pc.fill_null(pc.equal(events.column("event"), "journal_opened"), False))
    choices: list[_Choice] = [_Choice()]
    numbers: dict[str, int] = {json.dumps(None): 0}
    by_worker: dict[tuple[str | None, str | None], int] = {}
    by_run: dict[str | None, int] = {}
    paths: dict[int, str] = {}
    for row in opened.select(["run", "worker", "path", "data"]).to_pylist():
        config = _config(row["data"])
        text = json.dumps(config, sort_keys=True, default=str)
        if text not in numbers:
            numbers[text] = len(choices)
            choices.append(_Choice.of(config or {}))
            paths[numbers[text]] = row["path"] or ""
        by_worker[row["run"], row["worker"]] = by_run[row["run"]] = numbers[text]
    runs, workers = groups.column("run").to_pylist(), groups.column("worker").to_pylist()
    of_group = [by_worker.get(key, by_run.get(key[0], 0)) for key in zip(runs, workers, strict=True)]
    return choices, np.array([*of_group, 0], dtype=np.int64), paths


_KEYS = (
    *("advantage_estimator", "advantage_estimator_kwargs", "gdpo_reward_keys", "dvao_reward_keys", "slime"),
)


def _config(data: str | None) -> Mapping[str, Any] | None:
    try:
        config = json.loads(data or "{}").get("config")
    except (ValueError, AttributeError, RecursionError):
        return None
    return {key: config.get(key) for key in _KEYS} if isinstance(config, Mapping) else None


def _looks_divided(rows: _Rows, chosen: Ints) -> bool:
    """Tell from dumped advantages whether differences were divided by the group's spread."""
    if "advantage_raw" not in rows.table.column_names:
        return False
    raw = floats(rows.table, "advantage_raw")[chosen]
    there = ~np.isnan(raw) & (raw != 0)  # both forms agree on groups without variance
    if not there.any():
        return False
    off = [
        np.abs(rows.advantages(LeaveOneTrajectoryOut(std_normalization=divided), chosen) - raw)[there]
        for divided in (False, True)
    ]
    plain, divided = (float(np.nanmedian(part)) if not np.isnan(part).all() else np.inf for part in off)
    return divided < plain - _CLOSE


def _split(rows: Ints, keys: Ints) -> list[Ints]:
    order = np.argsort(keys, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(keys[order])) + 1)


def _components(table: pa.Table, names: tuple[str, ...]) -> dict[str, Floats]:
    """Return further rewards of traces, NaN where they are missing."""
    found = {name: np.full(len(table), np.nan) for name in names}
    for row, text in enumerate(table.column("reward_components").to_pylist() if names else ()):
        try:
            entries = json.loads(text) if text else {}
        except ValueError:
            continue
        for name in names:
            value = entries.get(name)
            if isinstance(value, int | float):
                found[name][row] = value
    return found
