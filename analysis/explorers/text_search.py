"""Search over everything that can be read of a run: messages, ids, reasons. Knows no widget.

Ids and reasons are columns and are looked through at once. Texts are read session by session, when asked for,
and remembered up to a limit, so that the next query over the same sessions costs no reading.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.explorers.lookup import RunTables
from analysis.html.text import TextPattern, visible
from analysis.run import Run
from analysis.stats.columns import Ints, texts
from analysis.transcripts.reading import read_transcript

__all__ = ["FIELDS", "HITS", "Hit", "SearchTexts", "column_hits", "hits_frame", "snippet", "text_hits"]

FIELDS = (
    "session_id",
    "task_id",
    "status",
    "error",
    "reason",
    "detail",
    "reject_reason",
    "evaluation_report",
)
"""Columns of the session table that are looked through."""

HITS = {
    "run": "string",
    "rollout_id": "Int64",
    "session_id": "string",
    "trace_index": "Int64",
    "message": "Int64",
    "turn": "Int64",
    "where": "string",
    "hits": "Int64",
    "before": "string",
    "hit": "string",
    "after": "string",
    "reward": "Float64",
}
"""Columns of a table of hits."""

KEPT_CHARACTERS = 64 * 2**20
"""Texts are remembered up to this much."""

_AROUND = 60
_HIT_CHARACTERS = 160
_MOST_MATCHES = 10_000


@dataclass(frozen=True, slots=True)
class Hit:
    """One place that was found.

    Parameters
    ----------
    session
        Row of the session in the session table.
    where
        ``system``, ``user``, ``assistant``, ``tool`` and other roles, or the name of a column.
    trace_index, message, turn
        Where in the session; None for columns.
    hits
        How often it was found there.
    before, hit, after
        The first of these, with some text around it.
    """

    session: int
    where: str
    trace_index: int | None
    message: int | None
    turn: int | None
    hits: int
    before: str
    hit: str
    after: str


@dataclass(frozen=True, slots=True)
class _Text:
    role: str
    trace_index: int | None
    message: int
    turn: int | None
    text: str


class SearchTexts:
    """Texts of sessions, read when asked for and remembered up to a limit.

    Parameters
    ----------
    run
        A loaded run. Of a mapping of frames there are no texts.
    limit
        Characters that are remembered.
    """

    def __init__(self, run: Any, limit: int = KEPT_CHARACTERS) -> None:
        self._run = run
        self._limit = limit
        self._kept: OrderedDict[tuple[Any, ...], tuple[int, list[_Text]]] = OrderedDict()
        self._size = 0

    @property
    def kept_characters(self) -> int:
        """How much is remembered now."""
        return self._size

    def of(self, session_id: str, run: str | None = None) -> list[_Text]:
        """Return the texts of a session's messages; empty where nobody kept any."""
        if not isinstance(self._run, Run):
            return []
        key = (session_id, run, self._run.store.generation)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        session = read_transcript(self._run, session_id, name=run, tokens=False)
        found = [
            _Text(message.role, trace.trace_index, number, message.turn, message.text)
            for trace in session.traces
            for number, message in enumerate(trace.messages)
        ]
        size = sum(len(item.text) for item in found)
        self._kept[key] = (size, found)
        self._size += size
        while self._size > self._limit and len(self._kept) > 1:
            _, (gone, _) = self._kept.popitem(last=False)
            self._size -= gone
        return found


def column_hits(
    sessions: pd.DataFrame, places: Ints, pattern: TextPattern, fields: Sequence[str] = FIELDS
) -> list[Hit]:
    """Return the hits in ids and reasons.

    Parameters
    ----------
    sessions
        The session table.
    places
        Rows that are looked through.
    pattern
        What is looked for.
    fields
        Columns that are looked through.
    """
    found: list[Hit] = []
    for name in fields:
        column = texts(sessions, name)
        # A reason is shared by hundreds of sessions: each distinct text is searched once.
        known: dict[str, tuple[int, str, str, str] | None] = {}
        for place in places.tolist():
            value = column[place]
            if value is None:
                continue
            if value not in known:
                known[value] = snippet(value, pattern)
            if (parts := known[value]) is not None:
                found.append(Hit(place, name, None, None, None, *parts))
    return sorted(found, key=lambda hit: hit.session)


def text_hits(
    tables: RunTables, store: SearchTexts, places: Ints, pattern: TextPattern
) -> Iterator[tuple[int, list[Hit]]]:
    """Look through the texts of sessions, one after the other.

    Parameters
    ----------
    tables
        Of the run.
    store
        Gives the texts.
    places
        Rows of the sessions.
    pattern
        What is looked for.

    Yields
    ------
    done, hits
        How many sessions were looked through, and what the last of them held.
    """
    ids, runs = texts(tables.sessions, "session_id"), texts(tables.sessions, "run")
    for done, place in enumerate(places.tolist(), 1):
        hits = []
        for item in store.of(ids[place], runs[place]) if ids[place] is not None else ():
            if (parts := snippet(item.text, pattern)) is not None:
                hits.append(Hit(place, item.role, item.trace_index, item.message, item.turn, *parts))
        yield done, hits


def snippet(text: str, pattern: TextPattern) -> tuple[int, str, str, str] | None:
    """Return how often a pattern is in a text, and the first place with what is around it; None if nowhere.

    Empty matches do not count, and counting stops at ten thousand.
    """
    first, count = None, 0
    for match in pattern.finditer(text):
        if match.end() > match.start():
            first = first or match
            count += 1
            if count == _MOST_MATCHES:
                break
    if first is None:
        return None
    start, end = first.span()
    before = ("…" if start > _AROUND else "") + text[max(0, start - _AROUND) : start]
    hit = first[0][:_HIT_CHARACTERS] + ("…" if end - start > _HIT_CHARACTERS else "")
    after = text[end : end + _AROUND] + ("…" if len(text) > end + _AROUND else "")
    return count, _line(before), _line(hit), _line(after)


def hits_frame(tables: RunTables, hits: Sequence[Hit]) -> pd.DataFrame:
    """Return hits as a frame with the columns of `HITS`.

    Parameters
    ----------
    tables
        Of the run.
    hits
        In any order, which is kept.
    """
    rows = np.array([hit.session for hit in hits], dtype=np.int64)
    own = tables.sessions.iloc[rows].reset_index(drop=True)
    columns = {name: own[name] for name in ("run", "rollout_id", "session_id", "reward")}
    for name in ("trace_index", "message", "turn", "where", "hits", "before", "hit", "after"):
        columns[name] = pd.Series([getattr(hit, name) for hit in hits], dtype=HITS[name])
    return pd.DataFrame({name: columns[name] for name in HITS}).astype(HITS)


def _line(text: str) -> str:
    """Return a text on one line in which everything can be seen."""
    return visible(text).replace("\n", "↵").replace("\t", "⇥")
