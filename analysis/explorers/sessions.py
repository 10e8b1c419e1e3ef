"""One session from every side: transcript, tokens, evaluation, stages over time, traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ipywidgets as W
import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import ExplorerError
from analysis.explorers.advantages import advantages_of_traces
from analysis.explorers.base import Explorer
from analysis.explorers.queries import query_pattern
from analysis.explorers.session_parts import evaluation_html, session_facts, stages_html
from analysis.explorers.session_scope import (
    SESSION_COLUMNS,
    TRACE_COLUMNS,
    session_advantages,
    sessions_in_scope,
    trace_advantage,
)
from analysis.explorers.table import Table
from analysis.explorers.token_view import TokenView
from analysis.explorers.transcript_view import TranscriptView
from analysis.run import Run
from analysis.token_glyphs import TokenGlyphs
from analysis.tokens import TokenArrays
from analysis.trace_tokens import TraceTokens, trace_tokens
from analysis.transcripts.model import SessionTranscript, Transcript
from analysis.transcripts.reading import read_transcript, session_arrays

__all__ = ["SessionExplorer"]

_TABS = ("Transcript", "Tokens", "Evaluation", "Time", "Traces")


class SessionExplorer(Explorer):
    """A session to read; ``selection`` is its row, its trace's, or the tokens of the chosen window.

    Parameters
    ----------
    sessions
        Whether a table of the sessions in scope comes first; without it the state alone decides.
    overlay
        What is laid over the tokens to begin with.
    **options
        As of `analysis.explorers.base.Explorer`.
    """

    kind = "session"

    def _build(self, *, sessions: bool = True, overlay: str = "mask") -> W.DOMWidget:
        self._glyphs: TokenGlyphs | None = None
        self._session: SessionTranscript | None = None
        self._arrays: TokenArrays | None = None
        self._read_as: tuple[Any, ...] | None = None
        self._stale = set(_TABS)
        self._shown_trace: int | None = None
        self._choosing = False
        self._listing = sessions
        self.sessions = Table(pd.DataFrame({"session_id": []}), caption="Sessions", rows_in_sight=6)
        self.head = W.HTML()
        self.trace = W.Dropdown(options=[("trace 0", 0)], layout=W.Layout(width="max-content"))
        self.transcript = TranscriptView()
        self.tokens = TokenView(overlay=overlay)
        self.evaluation, self.stages = W.HTML(), W.HTML()
        self.traces = Table(pd.DataFrame({"trace_index": []}), caption="Traces")
        self.tabs = W.Tab(
            [self.transcript, self.tokens, self.evaluation, self.stages, self.traces], titles=_TABS
        )
        self.observe(self.sessions, self._session_picked, "selected")
        self.observe(self.trace, self._trace_picked, "value")
        self.observe(self.traces, self._trace_row_picked, "selected")
        self.observe(self.tokens, self._window_chosen, "chosen")
        self.observe(self.tabs, self._tab_shown, "selected_index")
        self.on_message(self.transcript, self.transcript.on_turn(self._turn_picked))
        self.observe(self.state, self._scope_changed, ["rollouts", "group"])
        self.observe(self.state, self._session_changed, "session_id")
        self.observe(self.state, self._trace_changed, "trace_index")
        self.observe(self.state, self._window_changed, "window")
        self.observe(self.state, self._estimator_changed, "estimator")
        self.observe(self.state, self._query_changed, "query")
        self._scope: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(0, dtype=np.int64)
        self._show_scope()
        self._show_session()
        return W.VBox([*([self.sessions] if sessions else []), self.head, self.trace, self.tabs])

    # What is shown

    def view(self) -> dict[str, Any]:
        """Return the tab and the overlay."""
        return {"tab": self.tabs.selected_index, "overlay": self.tokens.overlay}

    def restore_view(self, view: Mapping[str, Any]) -> None:
        """Show the tab and the overlay that a predecessor showed."""
        self.tokens.overlay = view.get("overlay", self.tokens.overlay)
        self.tabs.selected_index = view.get("tab", 0)

    def refresh(self) -> None:
        """Show what the run has now, after `Run.refresh`."""
        self._read_as = None
        self._show_scope()
        self._show_session()

    def open_tab(self, title: str) -> None:
        """Show one of the tabs: Transcript, Tokens, Evaluation, Time or Traces.

        Raises
        ------
        ExplorerError
            If there is none of that name.
        """
        if title not in _TABS:
            raise ExplorerError(f"no tab is called {title!r}: there are {', '.join(_TABS)}")
        self.tabs.selected_index = _TABS.index(title)

    def _show_scope(self) -> None:
        if not self._listing:
            return
        places = sessions_in_scope(self.state)
        frame = self.state.tables.sessions.iloc[places].reset_index(drop=True)
        advantage = session_advantages(self.state)[places]
        frame["advantage"] = pd.arrays.FloatingArray(np.nan_to_num(advantage), np.isnan(advantage))
        self._scope = places
        self.sessions.set_frame(frame, SESSION_COLUMNS, self._own_row())

    def _own_row(self) -> list[int]:
        row = self._session_row()
        found = [] if row is None else np.flatnonzero(self._scope == row).tolist()
        return [int(place) for place in found]

    def _session_row(self) -> int | None:
        state = self.state
        if state.session_id is None:
            return None
        return state.tables.session_row(state.session_id, state.group.run if state.group else None)

    def _show_session(self) -> None:
        row = self._session_row()
        if row is None:
            note = "No session is chosen." if len(self.state.tables.sessions) else "The run has no sessions."
            self.head.value = str(Markup('<p class="wb-note">{}</p>').format(note))
            self._set_traces([])
            self.tabs.layout.display = "none"
            self._session, self._arrays, self._read_as = None, None, None
        else:
            self.tabs.layout.display = None
            self._show_head(row)
            places = np.flatnonzero(self.state.tables.session_of_trace == row)
            numbers = self.state.tables.traces["trace_index"].iloc[places]
            self._set_traces([int(number) for number in numbers.dropna()])
        self._stale = set(_TABS)
        self._fill()

    def _show_head(self, row: int) -> None:
        state = self.state
        key = state.group
        named = key is not None and (key.group, key.group_index) != (None, None)
        label = key.label() if key is not None and named else ""
        value = float(session_advantages(self.state)[row])
        estimator = state.estimator or "as trained"
        session = state.tables.sessions.iloc[row]
        self.head.value = str(session_facts(session, label, (value, estimator)))

    def _set_traces(self, numbers: list[int]) -> None:
        numbers = sorted(set(numbers))
        count = len(numbers)
        with self._quiet():
            self.trace.options = [(f"trace {n} of {count}", n) for n in numbers] or [("no trace", None)]
            self.trace.value = self._shown_trace = self._trace_index(numbers)
        self.trace.layout.display = None if len(numbers) > 1 else "none"

    def _trace_index(self, numbers: list[int]) -> int | None:
        chosen = self.state.trace_index
        return chosen if chosen in numbers else (numbers[0] if numbers else None)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Set what came from elsewhere: the handlers of what is set do nothing meanwhile."""
        before, self._choosing = self._choosing, True
        try:
            yield
        finally:
            self._choosing = before

    def _fill(self) -> None:
        """Make what the tab in sight shows; the others wait until they are looked at."""
        tab = _TABS[self.tabs.selected_index or 0]
        row = self._session_row()
        if tab not in self._stale or row is None:
            return
        makers: dict[str, Callable[[int], None]] = {
            "Transcript": self._fill_transcript,
            "Tokens": self._fill_tokens,
            "Evaluation": self._fill_evaluation,
            "Time": self._fill_stages,
            "Traces": self._fill_traces,
        }
        self._stale.discard(tab)
        makers[tab](row)

    def _read(self) -> SessionTranscript:
        """Read the session's files, once until another one is chosen."""
        state = self.state
        key = (state.session_id, state.group.run if state.group else None, state.tables.generation)
        if self._session is None or self._read_as != key:
            assert state.session_id is not None
            arrays = None
            if isinstance(state.run, Run):
                arrays = session_arrays(state.run, state.session_id, key[1])
            self._session = read_transcript(state.run, state.session_id, name=key[1], tokens=arrays)
            self._arrays, self._read_as = arrays, key
        return self._session

    def _transcript(self) -> Transcript | None:
        session = self._read()
        return session.trace(self.trace.value) or (session.traces[0] if len(session.traces) == 1 else None)

    def _fill_transcript(self, row: int) -> None:
        session = self._read()
        problems = "; ".join(str(problem) for problem in session.problems)
        note = problems or "No messages of this session were kept."
        self.transcript.show(self._transcript(), pattern=query_pattern(self.state.query), note=note)
        self._show_window()

    def _fill_tokens(self, row: int) -> None:
        transcript = self._transcript()
        tokens = self._trace_tokens(transcript)
        with self._quiet():
            self.tokens.show(tokens, note="No token ids of this trace were kept.")
        self._show_window()

    def _trace_tokens(self, transcript: Transcript | None) -> TraceTokens | None:
        arrays = self._arrays
        if arrays is None or not len(arrays.table):
            return None
        numbers = arrays.table.column("trace_index").to_pylist()
        if self.trace.value not in numbers:
            return None
        if self._glyphs is None:
            self._glyphs = TokenGlyphs(arrays.text)
        return trace_tokens(
            arrays,
            numbers.index(self.trace.value),
            transcript=transcript,
            glyphs=self._glyphs,
            advantage=self._other_advantage(),
        )

    def _other_advantage(self) -> float | None:
        """Return the trace's advantage under an estimator that was chosen; None where none was."""
        row = self._session_row()
        if self.state.estimator is None or row is None or self.trace.value is None:
            return None
        return trace_advantage(self.state, row, self.trace.value)

    def _fill_evaluation(self, row: int) -> None:
        self.evaluation.value = str(evaluation_html(self.state.tables.sessions.iloc[row]))

    def _fill_stages(self, row: int) -> None:
        tables = self.state.tables
        group = int(tables.group_of_session[row])
        places = np.flatnonzero(tables.group_of_session == group) if group >= 0 else np.array([row])
        self.stages.value = str(stages_html(tables.sessions.iloc[places], self.state.session_id))

    def _fill_traces(self, row: int) -> None:
        tables = self.state.tables
        places = np.flatnonzero(tables.session_of_trace == row)
        values, _ = advantages_of_traces(self.state)
        frame = tables.traces.iloc[places].reset_index(drop=True)
        own = values[places]
        frame["advantage"] = pd.arrays.FloatingArray(np.nan_to_num(own), np.isnan(own))
        chosen = frame.index[frame["trace_index"] == self.trace.value].tolist() if len(frame) else []
        self.traces.set_frame(frame, TRACE_COLUMNS, chosen)

    def _show_window(self) -> None:
        """Carry the state's window to the tokens, and the turn that it lies in to the transcript."""
        if self._choosing:
            return
        window = self.state.window
        transcript = None if self._session is None else self._transcript()
        turn = None if window is None or transcript is None else transcript.turn_at(window[0])
        self.transcript.focus = -1 if turn is None else turn.number
        if "Tokens" in self._stale or self.tokens.tokens is None:
            return
        if window is None:
            self.tokens.chosen = []
        elif list(window) != self.tokens.chosen:
            self.tokens.choose(*window)

    # From the state

    def _scope_changed(self, change: Any) -> None:
        self._show_scope()
        if change["name"] == "group" and self.state.session_id is not None:
            self._show_session()

    def _session_changed(self, change: Any) -> None:
        own = self._own_row()
        if own != self.sessions.selected:
            if own or self.state.session_id is None:
                self.sessions.pick(own)
            else:
                self._show_scope()
        self._show_session()

    def _trace_changed(self, change: Any) -> None:
        if self._session_row() is None:
            return
        numbers = [value for _, value in self.trace.options if value is not None]
        wanted = self._trace_index(numbers)
        if self._shown_trace != wanted:
            self.trace.value = self._shown_trace = wanted
            self._stale |= {"Transcript", "Tokens", "Traces"}
            self._fill()

    def _window_changed(self, change: Any) -> None:
        if self._session_row() is not None:
            self._show_window()

    def _estimator_changed(self, change: Any) -> None:
        self._show_scope()
        row = self._session_row()
        if row is not None:
            self._show_head(row)
            self._stale |= {"Tokens", "Traces"}
            self._fill()

    def _query_changed(self, change: Any) -> None:
        self._stale.add("Transcript")
        self._fill()

    # From the user

    def _session_picked(self, change: Any) -> None:
        picked = self.sessions.selected
        if not picked:
            if self.state.session_id is not None and self._own_row():
                self.state.session_id = None
            return
        if picked == self._own_row():
            return
        session_id = self.sessions.frame["session_id"].iloc[picked[0]]
        if not isinstance(session_id, str):
            raise ExplorerError("this session has no id: it was never started, or only a dump knows it")
        self.state.session_id = session_id

    def _trace_picked(self, change: Any) -> None:
        wanted = self.trace.value
        if self._choosing or wanted is None or self._session_row() is None:
            return
        first = min(value for _, value in self.trace.options)
        if self.state.trace_index is None and wanted == first:
            return  # shown without being chosen, so that the selection stays the session's row
        if wanted != self.state.trace_index:
            self.state.trace_index = wanted

    def _trace_row_picked(self, change: Any) -> None:
        picked = self.traces.selected
        if picked:
            number = self.traces.frame["trace_index"].iloc[picked[0]]
            if not pd.isna(number) and int(number) != self.state.trace_index:
                self.state.trace_index = int(number)

    def _window_chosen(self, change: Any) -> None:
        chosen = list(self.tokens.chosen)
        if self._choosing or chosen == list(self.state.window or ()):
            return
        with self._quiet():
            if chosen and self.state.trace_index is None:
                self.state.trace_index = self.trace.value
            self.state.window = (chosen[0], chosen[1]) if chosen else None
        self._show_window()

    def _turn_picked(self, number: int) -> None:
        """Choose the tokens of a turn, and show them."""
        transcript = self._transcript()
        turn = next((t for t in transcript.turns if t.number == number), None) if transcript else None
        if turn is None or turn.start is None or turn.stop is None:
            raise ExplorerError(f"nobody knows which tokens turn {number} sampled")
        if self.state.trace_index is None:
            self.state.trace_index = self.trace.value
        self.state.window = (turn.start, turn.stop)
        self.open_tab("Tokens")

    def _tab_shown(self, change: Any) -> None:
        self._fill()
