"""What several sources tell about a run becomes one row per thing, with the ids of everything around it.

First groups, then sessions, then traces: each is found by the ids that its sources have in common
(`analysis.schema.IDENTITY`), joined column by column, and takes the ids and the fate of what it belongs to.
Then numbers are computed upwards: advantages, counts, means. What contradicts is noted, never smoothed over.

A pure function of the rows: the same rows give the same tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis import _derive, _link
from analysis._coalesce import SOURCE_COLUMN, coalesce
from analysis._identity import Ints, codes, identify, occurrences, with_occurrence
from analysis._link import Linked
from analysis._recompute import Recomputation
from analysis._slices import join_slices
from analysis._tables import counterparts, integers, one_array, set_columns, take_rows, take_table
from analysis.problems import Problem, Skipped
from analysis.records import Records, inner_schema
from analysis.schema import GRAINS, IDENTITY, SOURCES, columns_of
from analysis.sources.base import SourceKind
from slime_bridge.metrics import find_metric

__all__ = ["OWNER", "Merged", "merge"]

OWNER = "__owner"
"""Column beside the declared ones: place of the row that this one belongs to, missing for none.

Groups and metrics belong to rollouts, sessions and events to groups, traces and completions to sessions.
"""

SOURCE_OF_KIND: Mapping[SourceKind, str] = MappingProxyType(
    {
        SourceKind.POLAR_SESSION: "polar",
        SourceKind.POLAR_TASK: "polar",
        SourceKind.COMPLETION: "completion",
        SourceKind.ROLLOUT_DUMP: "rollout_dump",
        SourceKind.TRAIN_DUMP: "train_dump",
        SourceKind.JOURNAL: "journal",
        SourceKind.REJECTED: "rejected",
        SourceKind.WEIGHT_PUSHES: "weight_pushes",
        SourceKind.METRICS: "metrics",
        SourceKind.WANDB: "wandb",
        SourceKind.PARQUET: "parquet",
    }
)
"""Under which name a kind of file is an authority for columns; our own Parquet files come last."""

_SOURCE_NAMES = (*SOURCES, "parquet")


@dataclass(frozen=True)
class Merged:
    """The joined tables of a run (`analysis.records.inner_schema` and `OWNER`), and what was wrong."""

    tables: Mapping[str, pa.Table]
    problems: tuple[Problem, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def merge(records: Records, run_names: Mapping[str, str], *, trusted: bool = False) -> Merged:
    """Join all rows.

    Parameters
    ----------
    records
        What was read.
    run_names
        The run that each file belongs to, by path.
    trusted
        Whether an advantage estimator of the user's, as a journal names it, may be imported.
    """
    rows = partial(_rows, records, run_names)
    groups, events, session_rows = rows("group"), rows("event"), rows("session")
    problems, skipped = _copies(session_rows)
    groups = _joined(groups, "group")
    source = integers(session_rows, SOURCE_COLUMN)
    journal, polar = (source == _SOURCE_NAMES.index(name) for name in ("journal", "polar"))
    session_rows = _link.found_again(session_rows, journal, polar)
    session_rows = _link.place_by_group(session_rows, groups)
    linked = _link.link_sessions(_joined(session_rows, "session"), groups, _link.task_owners(events))
    linked, groups = _link.with_groups_of_sessions(linked, groups)
    groups, linked = _sorted_groups(groups, linked)
    linked = _sorted_sessions(linked)
    traces = _sorted_traces(_link.link_traces(_joined(join_slices(rows("trace")), "trace"), linked.table))
    metrics = rows("metric").drop_columns([SOURCE_COLUMN])
    rollouts = _rollouts(_joined(rows("rollout"), "rollout"), groups, traces.table, metrics)
    tables, unanswered = _with_numbers(rollouts, groups, linked, traces, events, trusted)
    completions = _link.link_completions(_joined(rows("completion"), "completion"), linked.table)
    tables["completion"] = _derive.sort_rows(completions, "completion")
    tables["event"] = _derive.sort_rows(events.drop_columns([SOURCE_COLUMN]), "event")
    tables["metric"] = _derive.sort_rows(_with_units(metrics), "metric")
    owners = _owners(tables, linked.owner, traces.owner)
    complete = {
        grain: tables[grain]
        .cast(inner_schema(grain))
        .combine_chunks()
        .append_column(OWNER, pa.array(owners[grain], pa.int64(), mask=owners[grain] < 0))
        for grain in GRAINS
    }
    return Merged(complete, (*problems, *unanswered), skipped)


def _owners(tables: Mapping[str, pa.Table], sessions: Ints, traces: Ints) -> dict[str, Ints]:
    def owner(grain: str, outer: str, *keys: tuple[str, ...]) -> Ints:
        return counterparts(tables[grain], tables[outer], keys)

    rollout = _derive.ROLLOUT_KEY
    return {
        "rollout": np.full(len(tables["rollout"]), -1, dtype=np.int64),
        "group": owner("group", "rollout", rollout),
        "session": sessions,
        "trace": traces,
        "event": owner("event", "group", ("run", "worker", "group")),
        "completion": owner("completion", "session", ("run", "session_id")),
        "metric": owner("metric", "rollout", rollout),
    }


def _rows(records: Records, run_names: Mapping[str, str], grain: str) -> pa.Table:
    """Return the rows of a grain with the run's name and the number of their source."""
    table = records.table(grain)
    if not len(table):
        return table.append_column(SOURCE_COLUMN, pa.array([], pa.int8()))
    paths = one_array(records.tables[grain].column("path"))
    known = [path for path in paths.dictionary.to_pylist()]
    places = paths.indices.to_numpy()
    sources = [_SOURCE_NAMES.index(SOURCE_OF_KIND[records.files[path].kind]) for path in known]
    names = pa.array([run_names[path] for path in known], pa.string())
    run = pa.DictionaryArray.from_arrays(paths.indices, names).cast(pa.string())
    table = set_columns(table, run=pc.coalesce(one_array(table.column("run")), run))
    return table.append_column(SOURCE_COLUMN, pa.array(np.array(sources, dtype=np.int8)[places]))


def _joined(rows: pa.Table, grain: str) -> pa.Table:
    keys = [partial(_key, rows, ("run", *names)) for names in IDENTITY[grain]]
    return coalesce(rows, identify(len(rows), keys), columns_of(grain), _SOURCE_NAMES)


def _key(rows: pa.Table, names: Sequence[str]) -> Ints:
    key = codes([rows.column(name) for name in names])
    if "tokens_hash" not in names:
        return key
    return with_occurrence(key, codes([rows.column("path")]))


def _sorted_groups(groups: pa.Table, sessions: Linked) -> tuple[pa.Table, Linked]:
    order = _derive.sort_order(groups, "group")
    if order is None:
        return groups, sessions
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    return take_table(groups, order), Linked(sessions.table, place[sessions.owner])


def _sorted_sessions(sessions: Linked) -> Linked:
    order = _derive.sort_order(sessions.table, "session")
    return sessions if order is None else Linked(take_table(sessions.table, order), sessions.owner[order])


def _sorted_traces(traces: Linked) -> Linked:
    order = _derive.trace_order(traces)
    return Linked(take_table(traces.table, order), traces.owner[order])


def _rollouts(rollouts: pa.Table, *inner: pa.Table) -> pa.Table:
    """Add rows for rollouts that only rows of inner tables tell of."""
    names = ["run", "evaluation", "rollout_id"]
    wanted = pa.concat_tables([table.select(names) for table in inner])
    valid = pc.and_(wanted.column("evaluation").is_valid(), wanted.column("rollout_id").is_valid())
    both = pa.concat_tables([rollouts.select(names), wanted.filter(valid)])
    key = codes([both.column(name) for name in names])
    fresh = np.flatnonzero((occurrences(key) == 0) & (np.arange(len(key)) >= len(rollouts)))
    if len(fresh):
        head = both.take(fresh)
        schema = inner_schema("rollout")
        columns: dict[str, Any] = {name: one_array(head.column(name)) for name in names}
        columns["sources"] = pa.array(["derived"] * len(fresh), pa.string())
        arrays = [columns.get(field.name, pa.nulls(len(fresh), field.type)) for field in schema]
        rollouts = pa.concat_tables([rollouts.cast(schema), pa.Table.from_arrays(arrays, schema=schema)])
    return _derive.sort_rows(rollouts, "rollout")


def _with_numbers(
    rollouts: pa.Table, groups: pa.Table, sessions: Linked, traces: Linked, events: pa.Table, trusted: bool
) -> tuple[dict[str, pa.Table], tuple[Problem, ...]]:
    trace_table = _derive.derive_traces(traces.table, rollouts)
    traces = Linked(trace_table, traces.owner)
    session_table = _derive.derive_sessions(sessions.table, traces)
    sessions = Linked(session_table, sessions.owner)
    own = Recomputation(groups, sessions, traces, events, trusted=trusted)
    traces = Linked(own.traces(), traces.owner)
    sessions = Linked(own.sessions(), sessions.owner)
    groups = _derive.derive_groups(groups, sessions, traces)
    rollouts = _derive.derive_rollouts(rollouts, groups, sessions)
    tables = {"rollout": rollouts, "group": groups, "session": sessions.table, "trace": traces.table}
    return tables, tuple(own.problems)


def _with_units(metrics: pa.Table) -> pa.Table:
    """Give the bridge's own metrics their units."""
    names = one_array(metrics.column("name").cast(pa.string())).dictionary_encode()
    metrics_by_name = [find_metric(name) for name in names.dictionary.to_pylist()]
    known = pa.array([None if metric is None else metric.unit for metric in metrics_by_name], pa.string())
    own = take_rows(known, np.asarray(pc.fill_null(names.indices, -1).to_numpy(), dtype=np.int64))
    return set_columns(metrics, unit=pc.coalesce(one_array(metrics.column("unit")), own))


def _copies(sessions: pa.Table) -> tuple[tuple[Problem, ...], tuple[Skipped, ...]]:
    """Find results of one session in several of the server's files: equal ones, and those that differ."""
    polar = _SOURCE_NAMES.index("polar")
    said = ("status", "error", "reward", "traces", "prompt_tokens", "response_tokens", "masked_tokens")
    chosen = pc.and_(
        pc.equal(sessions.column(SOURCE_COLUMN), polar), sessions.column("session_id").is_valid()
    )
    rows = sessions.select(["run", "session_id", "path", *said]).filter(chosen)
    key = codes([rows.column("run"), rows.column("session_id")])
    again = np.flatnonzero(occurrences(key) > 0)
    if not len(again):
        return (), ()
    first = {code: place for place, code in reversed(list(enumerate(key.tolist())))}
    problems: list[Problem] = []
    equal: Counter[tuple[str, str]] = Counter()
    for place in again.tolist():
        one, other = (rows.slice(p, 1).to_pylist()[0] for p in (first[int(key[place])], place))
        differing = [name for name in said if one[name] != other[name]]
        if differing:
            problems.append(_changed_copy(one, other, differing))
        else:
            equal[other["path"], one["path"]] += 1
    skipped = [
        Skipped(path, f"{count:,} result{'s' if count > 1 else ''} again, as in {before}")
        for (path, before), count in equal.items()
    ]
    return tuple(problems), tuple(skipped)


def _changed_copy(one: Mapping[str, Any], other: Mapping[str, Any], differing: Sequence[str]) -> Problem:
    return Problem(
        other["path"],
        f"session {other['session_id']} is also in {one['path']}, and they differ in {', '.join(differing)}",
        "two results of one session: one was changed, or two runs wrote to one folder",
        "the last file counts; remove the one that is wrong",
    )
