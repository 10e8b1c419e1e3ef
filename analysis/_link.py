"""Who belongs to whom across tables: sessions to groups, traces to sessions, and what each takes over.

Each source knows some of the ids. Polar's file knows its task, the journal knows which group the task was
for, the group knows which rollout took it: so ids travel along these links until every row has all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis._identity import Ints, codes, identify, occurrences
from analysis._tables import (
    Bools,
    codes_of_both,
    counterparts,
    fill,
    flags,
    known,
    one_array,
    set_columns,
)
from analysis.records import inner_schema

__all__ = [
    "Linked",
    "found_again",
    "link_completions",
    "link_sessions",
    "link_traces",
    "place_by_group",
    "task_owners",
    "with_groups_of_sessions",
]

_GROUP_KEYS = (
    ("run", "worker", "group"),
    ("run", "evaluation", "group", "group_index", "rollout_id"),
    ("run", "evaluation", "group", "group_index"),
    ("run", "evaluation", "rollout_id", "group_index"),
)
_OUTER_IDS = ("rollout_id", "evaluation", "dataset", "worker", "group", "group_index")
_STAMPS = ("policy_version", "rollout_step", "staleness")


@dataclass(frozen=True)
class Linked:
    """A table, and the place of each row's owner in the next outer table (-1 for none)."""

    table: pa.Table
    owner: Ints


def task_owners(events: pa.Table) -> pa.Table:
    """Return which group each task was submitted for: the columns run, task_id, worker, group, attempt."""
    chosen = pc.and_kleene(
        pc.equal(events.column("event"), "task_submitted"), events.column("task_id").is_valid()
    )
    names = ["run", "task_id", "worker", "group", "group_index", "attempt", "evaluation"]
    return events.filter(chosen).select(names)


def place_by_group(sessions: pa.Table, groups: pa.Table) -> pa.Table:
    """Give the journal's sessions the rollout of their group, which was not settled when they were noted."""
    owner = counterparts(sessions, groups, _GROUP_KEYS[:1])
    names = ("rollout_id", "evaluation", "dataset", "group_index")
    return fill(sessions, groups, owner, names, replace=True)


def found_again(sessions: pa.Table, journal: Bools, polar: Bools) -> pa.Table:
    """Give submitted sessions that the bridge never heard of again the ids of results that the server kept.

    A group that was returned or abandoned leaves results behind that nobody fetched. They are of its tasks,
    but nothing says which is which: so each takes the place of one, without a position.

    Parameters
    ----------
    sessions
        Rows as they were read.
    journal, polar
        Which rows these sources told.
    """
    named = known(sessions, "session_id")
    unheard = ~np.asarray(pc.fill_null(sessions.column("finished"), True).to_numpy(), dtype=bool)
    lost = np.flatnonzero(journal & ~named & unheard & known(sessions, "task_id"))
    if not len(lost):
        return sessions
    session = codes([sessions.column("run"), sessions.column("session_id")])
    heard = np.isin(session, session[journal & named])
    task = codes([sessions.column("run"), sessions.column("task_id")])
    left = np.flatnonzero(polar & named & ~heard & (task >= 0))
    left = left[occurrences(session[left]) == 0]
    width = int(task.max()) + 1
    mine = task[lost] + width * occurrences(task[lost])
    theirs = task[left] + width * occurrences(task[left])
    place = np.full(len(sessions), -1, dtype=np.int64)
    order = np.argsort(theirs)
    at = np.searchsorted(theirs[order], mine)
    hit = at < len(order)
    hit[hit] = theirs[order][at[hit]] == mine[hit]
    place[lost[hit]] = left[order][at[hit]]
    gone = pa.array(place >= 0)
    blank = {
        name: pc.if_else(gone, None, one_array(sessions.column(name))) for name in ("position", "trajectory")
    }
    return set_columns(fill(sessions, sessions, place, ("session_id",)), **blank)


def link_sessions(sessions: pa.Table, groups: pa.Table, tasks: pa.Table) -> Linked:
    """Find each session's group, and give the session the group's ids and fate.

    Parameters
    ----------
    sessions, groups
        Joined tables.
    tasks
        From `task_owners`.
    """
    by_task = _last_task(sessions, tasks)
    sessions = fill(sessions, tasks, by_task, ("worker", "group", "group_index", "attempt", "evaluation"))
    owner = counterparts(sessions, groups, _GROUP_KEYS)
    sessions = fill(sessions, groups, owner, _OUTER_IDS, replace=True)
    return Linked(_with_fate(sessions, groups, owner), owner)


def _last_task(sessions: pa.Table, tasks: pa.Table) -> Ints:
    """Find each session's task; of a record that was written twice the last one counts."""
    if not len(tasks):
        return np.full(len(sessions), -1, dtype=np.int64)
    names = ("run", "task_id")
    both = codes_of_both(
        [one_array(sessions.column(name)) for name in names],
        [one_array(tasks.column(name)) for name in names],
    )
    ours, theirs = both[: len(sessions)], both[len(sessions) :]
    last = np.full(int(both.max(initial=0)) + 1, -1, dtype=np.int64)
    last[theirs] = np.arange(len(theirs))
    return np.where(ours < 0, -1, last[ours])


def _with_fate(sessions: pa.Table, groups: pa.Table, owner: Ints) -> pa.Table:
    """Give sessions what became of their group; results that nobody used share no acceptance."""
    if not len(groups) or not len(sessions):
        return sessions
    rows = pa.array(owner, mask=owner < 0)
    state = one_array(groups.column("state")).take(rows)
    reason = one_array(groups.column("reject_reason")).take(rows)
    accepted = one_array(groups.column("accepted")).take(rows)
    spare = unused_results(sessions, owner, len(groups))
    accepted = pc.if_else(pa.array(spare), pc.if_else(accepted.is_valid(), False, None), accepted)
    sessions = set_columns(
        sessions,
        group_state=pc.coalesce(one_array(sessions.column("group_state")), state),
        reject_reason=pc.coalesce(one_array(sessions.column("reject_reason")), reason),
        accepted=pc.coalesce(one_array(sessions.column("accepted")), accepted),
    )
    sessions = fill(sessions, groups, np.where(spare, -1, owner), _STAMPS)
    taken = np.where(flags(sessions, "accepted"), owner, -1)
    return fill(sessions, groups, taken, ("staleness_in_flight", "staleness_in_queue"))


def unused_results(sessions: pa.Table, owner: Ints, groups: int) -> np.ndarray:
    """Tell which sessions are results that the bridge did not use: of an attempt that came to nothing.

    A group whose result the bridge saw has sessions in the journal, a dump or among the rejected samples; its
    other sessions, which only Polar's files know, belong to attempts that were given up.
    """
    seen = pc.match_substring_regex(sessions.column("sources"), "journal|dump|rejected")
    used = np.asarray(pc.fill_null(seen, False).to_numpy(), dtype=bool)
    settled = np.zeros(groups + 1, dtype=bool)
    settled[owner[used & (owner >= 0)]] = True
    settled[-1] = False
    return ~used & settled[owner]


def with_groups_of_sessions(sessions: Linked, groups: pa.Table) -> tuple[Linked, pa.Table]:
    """Make rows for the groups that only their sessions tell of: the server's files without a journal."""
    orphans = np.flatnonzero(sessions.owner < 0)
    if not len(orphans):
        return sessions, groups
    table = sessions.table.take(orphans)
    keys = [
        partial(codes, [table.column(name) for name in names])
        for names in (
            ("run", "evaluation", "dataset", "rollout_id", "group_index"),
            ("run", "evaluation", "rollout_id", "group_index"),
            ("run", "task_id"),
            ("run", "session_id"),
        )
    ]
    entity = identify(len(orphans), keys)
    _, first = np.unique(entity, return_index=True)
    fresh = _group_rows(table, entity, first)
    owner = sessions.owner.copy()
    owner[orphans] = entity + len(groups)
    return Linked(sessions.table, owner), pa.concat_tables([groups, fresh])


def _group_rows(sessions: pa.Table, entity: Ints, first: Ints) -> pa.Table:
    count = len(first)
    head = sessions.take(first)
    attempted = np.bincount(entity[flags(sessions, "attempted")], minlength=count) > 0
    names: list[set[str]] = [set() for _ in range(count)]
    for number, sources in zip(entity.tolist(), sessions.column("sources").to_pylist(), strict=True):
        names[number].update(sources.split("+"))
    columns = {
        name: one_array(head.column(name)) for name in ("run", *_OUTER_IDS, "policy_version", "rollout_step")
    }
    columns["attempted"] = pa.array(attempted, mask=~attempted)
    columns["sources"] = pa.array(["+".join(sorted(found)) for found in names], pa.string())
    schema = inner_schema("group")
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def link_traces(traces: pa.Table, sessions: pa.Table) -> Linked:
    """Find each trace's session, and give the trace the session's ids and fate."""
    keys = (
        ("run", "session_id"),
        ("run", "evaluation", "rollout_id", "group_index", "trajectory"),
        ("run", "evaluation", "rollout_id", "trajectory"),
    )
    owner = counterparts(traces, sessions, keys)
    names = (*_OUTER_IDS, "task_id", "attempt", "trajectory", "position", "session_id")
    traces = fill(traces, sessions, owner, names[:6], replace=True)
    traces = fill(traces, sessions, owner, names[6:])
    taken = np.where(known(traces, "accepted"), -1, owner)
    return Linked(fill(traces, sessions, taken, ("accepted",)), owner)


def link_completions(completions: pa.Table, sessions: pa.Table) -> pa.Table:
    """Give captured calls the ids of their sessions."""
    return fill(
        completions,
        sessions,
        counterparts(completions, sessions, (("run", "session_id"),)),
        ("rollout_id", "evaluation", "group_index", "task_id"),
        replace=True,
    )
