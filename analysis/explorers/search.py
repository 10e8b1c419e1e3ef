"""Search over texts, ids and reasons of a run; choosing a hit moves the shared selection there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as W
import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import ExplorerError
from analysis.explorers.base import Explorer
from analysis.explorers.queries import compiled
from analysis.explorers.session_scope import sessions_in_scope
from analysis.explorers.table import Table
from analysis.explorers.table_rows import Column, short_id
from analysis.explorers.text_search import Hit, SearchTexts, column_hits, hits_frame, text_hits
from analysis.stats.columns import Ints

__all__ = ["SearchExplorer"]

MOST_HITS = 5_000
"""A search stops here, and says so."""

_REPORT_EVERY = 0.25  # seconds


def _nearest(before: str) -> str:
    """Return the end of a text, which is what stands next to the hit."""
    return before if len(before) <= _BEFORE else "…" + before[-_BEFORE:]


_BEFORE = 20  # characters
_COLUMNS = (
    Column("session_id", "session", kind="id", write=short_id, width=11),
    Column("rollout_id", "rollout"),
    Column("where"),
    Column("turn"),
    Column("reward"),
    Column("hits", title="How often it is in this message"),
    Column("before", kind="text", width=22, write=_nearest),
    Column("hit", kind="badge", width=12),
    Column("after", kind="text"),
)


class SearchExplorer(Explorer):
    """Looks for a text; ``selection`` is the table of hits, or the hit that is chosen.

    Parameters
    ----------
    query
        To begin with; nothing is searched before Enter or the button.
    on_hit
        Called with a hit's row of the table when it has been chosen and selected.
    **options
        As of `analysis.explorers.base.Explorer`.
    """

    kind = "search"

    def _build(self, *, query: str = "", on_hit: Callable[[Any], Any] | None = None) -> W.DOMWidget:
        self._on_hit = on_hit
        self._store = SearchTexts(self.state.run)
        self._search: _Search | None = None
        self._shown: list[Hit] = []
        narrow = {"indent": False, "layout": W.Layout(width="max-content")}
        self.query = W.Text(
            value=query or self.state.query,
            placeholder="text, or /expression/",
            continuous_update=False,
            layout=W.Layout(width="24em"),
        )
        self.regex = W.Checkbox(description="expression", **narrow)
        self.case = W.Checkbox(description="Aa", tooltip="Capitals count", **narrow)
        self.where = W.Dropdown(
            options=[("texts, ids, reasons", "all"), ("texts", "texts"), ("ids and reasons", "columns")],
            layout=W.Layout(width="max-content"),
        )
        self.scope = W.Dropdown(
            options=[("the whole run", "run"), ("what is selected", "selected")],
            layout=W.Layout(width="max-content"),
        )
        self.start = W.Button(description="Search", layout=W.Layout(width="max-content"))
        self.stop = W.Button(description="Stop", disabled=True, layout=W.Layout(width="max-content"))
        self.progress = W.IntProgress(layout=W.Layout(width="10em", display="none"))
        self.said = W.HTML()
        self.hits = Table(hits_frame(self.state.tables, []), _COLUMNS, caption="Hits", rows_in_sight=10)
        self.on_click(self.start, self._asked)
        self.on_click(self.stop, self._stopped)
        self.observe(self.query, self._asked, "value")
        self.observe(self.hits, self._hit_picked, "selected")
        self.cleanup.callback(self.cancel)
        bar = W.HBox(
            [self.query, self.regex, self.case, self.where, self.scope, self.start, self.stop, self.progress],
            layout=W.Layout(flex_flow="row wrap", align_items="center"),
        )
        return W.VBox([bar, self.said, self.hits])

    @property
    def selection(self) -> pd.DataFrame:
        """The hit that is chosen, else all of them."""
        return self.hits.selection if self.hits.selected else self.hits.frame.copy()

    @property
    def running(self) -> bool:
        """Whether a search is under way."""
        return self._search is not None and not self._search.done.is_set()

    def view(self) -> dict[str, Any]:
        """Return what is searched for, and how."""
        return {name: getattr(self, name).value for name in ("query", "regex", "case", "where", "scope")}

    def restore_view(self, view: Mapping[str, Any]) -> None:
        """Search for what a predecessor searched for."""
        for name in ("regex", "case", "where", "scope", "query"):
            if name in view:
                getattr(self, name).value = view[name]

    # Searching

    def search(self, query: str | None = None) -> None:
        """Start a search; one that is under way ends.

        Ids and reasons are there at once. Texts are read in a thread, and hits come as they are found.

        Parameters
        ----------
        query
            What to look for; by default what stands in the field.

        Raises
        ------
        ExplorerError
            If it is an expression that Python does not understand.
        """
        if query is not None and query != self.query.value:
            self.query.value = query  # which starts the search
            return
        self.cancel()
        pattern = compiled(self.query.value, regex=self.regex.value, case=self.case.value)
        self.state.query = _as_query(self.query.value, self.regex.value) if pattern is not None else ""
        if pattern is None:
            self._show([], 0, 0, "")
            return
        tables = self.state.tables
        places = self._places()
        found = column_hits(tables.sessions, places, pattern) if self.where.value != "texts" else []
        if self.where.value == "columns" or not len(places):
            self._show(found, len(places), len(places), "")
            return
        search = _Search(lambda: text_hits(tables, self._store, places, pattern), found, len(places))
        self._search = search
        self._show(found, 0, len(places), "searching")
        deliver = _in_this_loop(self.guarded(self._progressed, "search"))
        search.start(deliver)

    def cancel(self) -> None:
        """End a search that is under way, and wait until it has ended; what it found stays."""
        if self._search is not None:
            self._search.stop()
            self._search = None
            if not self.closed:
                self.stop.disabled = True
                self.progress.layout.display = "none"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a search to end, and show what it found: for scripts and tests.

        Parameters
        ----------
        timeout
            In seconds; None for as long as it takes.

        Returns
        -------
        bool
            Whether it ended.
        """
        search = self._search
        if search is None:
            return True
        ended = search.done.wait(timeout)
        if ended:
            self._progressed(search)
        return ended

    def _places(self) -> Ints:
        if self.scope.value == "selected":
            return sessions_in_scope(self.state)
        return np.arange(len(self.state.tables.sessions), dtype=np.int64)

    def _progressed(self, search: _Search) -> None:
        if search is not self._search:
            return  # a later one has taken its place
        ended = search.done.is_set()
        hits, looked = search.so_far()
        self._show(hits, looked, search.total, "" if ended else "searching")
        if ended:
            self._search = None
            if search.error is not None:
                raise search.error

    def _show(self, hits: list[Hit], looked: int, total: int, state: str) -> None:
        shown = hits[:MOST_HITS]
        if shown != self._shown:  # the table stands still while nothing is found
            chosen = [place for place in self.hits.selected if place < len(shown)]
            self.hits.set_frame(hits_frame(self.state.tables, shown), _COLUMNS, chosen)
            self._shown = shown
        sessions = len({hit.session for hit in shown})
        parts = [f"{_count(len(shown), 'hit')} in {_count(sessions, 'session')}"]
        parts = parts if self.query.value.strip() else []
        if len(hits) > MOST_HITS:
            parts.append("stopped at so many: ask for less")
        if state:
            parts.append(f"{looked:,} of {total:,} sessions read")
        self.said.value = str(Markup('<p class="wb-note" role="status">{}</p>').format(" · ".join(parts)))
        self.stop.disabled = not state
        self.progress.max, self.progress.value = max(1, total), looked
        self.progress.layout.display = None if state else "none"

    def _asked(self, change: Any) -> None:
        self.search()

    def _stopped(self, button: Any) -> None:
        self.cancel()

    def _hit_picked(self, change: Any) -> None:
        picked = self.hits.selected
        if not picked:
            return
        row = self.hits.frame.iloc[picked[0]]
        if pd.isna(row["session_id"]):
            raise ExplorerError("this session has no id, so it cannot be selected")
        self.state.session_id = str(row["session_id"])
        if not pd.isna(row["trace_index"]):
            self.state.trace_index = int(row["trace_index"])
        if self._on_hit is not None:
            self._on_hit(row)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


class _Search:
    """A search in a thread of its own.

    Parameters
    ----------
    results
        Makes the pairs of `text_hits`, in the thread.
    found
        What was found before.
    total
        Sessions to look through.
    """

    def __init__(self, results: Callable[[], Any], found: list[Hit], total: int) -> None:
        self.total = total
        self.done = threading.Event()
        self.error: Exception | None = None
        self._results = results
        self._found = list(found)
        self._looked = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, deliver: Callable[[_Search], None]) -> None:
        """Begin; `deliver` is called from the thread now and then, and at the end."""
        self._thread = threading.Thread(
            target=self._run, args=(deliver,), name="workbench-search", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end: at most one session is still read."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def so_far(self) -> tuple[list[Hit], int]:
        """Return the hits, and how many sessions were looked through."""
        with self._lock:
            return list(self._found), self._looked

    def _run(self, deliver: Callable[[_Search], None]) -> None:
        told, pause = time.monotonic(), _REPORT_EVERY
        try:
            for looked, hits in self._results():
                with self._lock:
                    self._found += hits
                    self._looked = looked
                    full = len(self._found) > MOST_HITS
                if full or self._stopped.is_set():
                    break
                if time.monotonic() - told > pause:
                    told, pause = time.monotonic(), 1.5 * pause  # showing many hits takes longer than few
                    deliver(self)
        except Exception as exc:  # it belongs to who asked, and is raised there
            self.error = exc
        finally:
            self.done.set()
        if not self._stopped.is_set():
            deliver(self)


def _in_this_loop(function: Callable[[_Search], None]) -> Callable[[_Search], None]:
    """Return a function that calls another one in the running event loop, as widgets want to be changed.

    Without a loop, as in a script, nothing is delivered: there `SearchExplorer.wait` shows the results.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return lambda search: None

    def deliver(search: _Search) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(function, search)

    return deliver


def _as_query(written: str, regex: bool) -> str:
    """Return a query as others understand it: an expression between slashes."""
    wanted = written.strip()
    return f"/{wanted}/" if regex and not wanted.startswith("/") else wanted
