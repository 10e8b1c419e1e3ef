"""Two sessions, groups, rollouts or runs side by side: aligned numbers, transcripts from where they part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as W
import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import ExplorerError
from analysis.explorers.advantages import advantages_of_traces
from analysis.explorers.base import Explorer
from analysis.explorers.comparison import KINDS, Part, beside_html, compare_frame, part_of
from analysis.explorers.estimators import estimator_switch
from analysis.explorers.lookup import GroupKey
from analysis.explorers.session_scope import sessions_in_scope
from analysis.explorers.table_rows import short_id
from analysis.html.tables import table
from analysis.html.text import escaped, visible
from analysis.stats.columns import texts
from analysis.transcripts.model import Transcript
from analysis.transcripts.reading import read_transcript

__all__ = ["CompareExplorer", "numbers_html"]

_MOST_CHOICES = 400
_TOLERANCE = 1e-12


class CompareExplorer(Explorer):
    """Puts two of a kind side by side; ``selection`` is the table of their numbers.

    The first one follows the shared selection, and choosing it selects it; the second one stays.

    Parameters
    ----------
    of
        What is compared: ``session``, ``group``, ``rollout`` or ``run``.
    first, second
        The two: ids of sessions, keys or numbers of groups, ids of rollouts, names of runs.
    **options
        As of `analysis.explorers.base.Explorer`.
    """

    kind = "compare"

    def _build(self, *, of: str = "session", first: Any = None, second: Any = None) -> W.DOMWidget:
        if of not in KINDS:
            raise ExplorerError(f"{of!r} cannot be compared: there are {', '.join(KINDS)}")
        self._frame = pd.DataFrame()
        self._filling = False
        narrow = W.Layout(width="max-content")
        self.of = W.ToggleButtons(options=KINDS, value=of, style={"button_width": "max-content"})
        self.first = W.Dropdown(layout=W.Layout(width="auto", max_width="19em"))
        self.second = W.Dropdown(layout=W.Layout(width="auto", max_width="19em"))
        self.swap = W.Button(description="⇄", tooltip="Swap the two", layout=narrow)
        self.estimator = estimator_switch(self)
        self.numbers, self.texts = W.HTML(), W.HTML()
        self._offer(first, second)
        self._show()
        self.observe(self.of, self._kind_changed, "value")
        self.observe(self.first, self._first_picked, "value")
        self.observe(self.second, self._second_picked, "value")
        self.on_click(self.swap, self._swap)
        self.observe(self.state, self._selected, ["rollouts", "group", "session_id"])
        self.observe(self.state, self._estimator_changed, "estimator")
        bar = W.HBox(
            [self.of, self.first, self.swap, self.second, self.estimator],
            layout=W.Layout(flex_flow="row wrap", align_items="center"),
        )
        return W.VBox([bar, self.numbers, self.texts])

    @property
    def selection(self) -> pd.DataFrame:
        """The numbers side by side; see `analysis.explorers.comparison.compare_frame`."""
        return self._frame.copy()

    def view(self) -> dict[str, Any]:
        """Return what is compared."""
        return {"of": self.of.value, "first": self.first.value, "second": self.second.value}

    def restore_view(self, view: Mapping[str, Any]) -> None:
        """Compare what a predecessor compared, as far as it is still there."""
        self.of.value = view.get("of", self.of.value)
        self._offer(view.get("first"), view.get("second"))
        self._show()

    # What is offered

    def _offer(self, first: Any = None, second: Any = None) -> None:
        """Offer what is in scope; keep what is chosen, and begin with the selection and its neighbour."""
        chosen = first if first is not None else self._of_selection()
        choices = self._choices([chosen, second])
        keys = [key for _, key in choices]
        before = second if second is not None else self.second.value
        self._filling = True
        try:
            for field in (self.first, self.second):
                field.options = choices or [("nothing", None)]
            self.first.value = chosen if chosen in keys else (keys[0] if keys else None)
            others = [key for key in keys if key != self.first.value]
            fallback = others[0] if others else (keys[0] if keys else None)
            self.second.value = before if before in keys else fallback
        finally:
            self._filling = False

    def _of_selection(self) -> Any:
        state = self.state
        if self.of.value == "session":
            return state.session_id
        if self.of.value == "group":
            return state.group
        if self.of.value == "rollout":
            return state.rollouts[0] if state.rollouts else (state.group.rollout_id if state.group else None)
        return state.group.run if state.group else None

    def _choices(self, wanted: list[Any]) -> list[tuple[str, Any]]:
        tables = self.state.tables
        if self.of.value == "session":
            ids = texts(tables.sessions, "session_id")[sessions_in_scope(self.state)]
            found = [(self._session_label(name), name) for name in ids[:_MOST_CHOICES] if name is not None]
            wanted = [
                name for name in wanted if isinstance(name, str) and tables.session_row(name) is not None
            ]
            extra = [(self._session_label(name), name) for name in wanted]
        elif self.of.value == "group":
            places = tables.rows_in_rollouts("group", self.state.rollouts)[:_MOST_CHOICES]
            found = [(tables.group_keys[place].label(), tables.group_keys[place]) for place in places]
            keys = [tables.find_group(key) for key in wanted if key is not None]
            extra = [(key.label(), key) for key in keys]
        elif self.of.value == "rollout":
            training = ~tables.rollouts["evaluation"].fillna(False).to_numpy(dtype=bool)
            numbers = tables.rollouts["rollout_id"][training].dropna().unique()
            found, extra = [(f"rollout {number}", int(number)) for number in sorted(numbers)], []
        else:
            names = sorted({name for name in texts(tables.sessions, "run") if name is not None})
            found, extra = [(visible(name), name) for name in names], []
        known = {key for _, key in found}
        return [*[item for item in extra if item[1] not in known], *found]

    def _session_label(self, name: str) -> str:
        row = self.state.tables.session_row(name)
        reward = self.state.tables.sessions["reward"].iloc[row] if row is not None else pd.NA
        return visible(short_id(name)) + ("" if pd.isna(reward) else f", reward {reward:.3g}")

    # What is shown

    def _show(self) -> None:
        first, second = self.first.value, self.second.value
        if first is None or second is None:
            self._frame = pd.DataFrame()
            self.numbers.value = str(Markup('<p class="wb-note">{}</p>').format("Nothing to compare."))
            self.texts.value = ""
            return
        parts = [part_of(self.state, self.of.value, key) for key in (first, second)]
        self._frame = compare_frame(self.state, *parts)
        _, why = advantages_of_traces(self.state)
        self.numbers.value = str(numbers_html(self._frame, parts[0], parts[1], note=why))
        self.texts.value = str(self._transcripts(first, second)) if self.of.value == "session" else ""

    def _transcripts(self, first: str, second: str) -> Markup:
        found = [self._transcript(name) for name in (first, second)]
        if found[0] is None or found[1] is None:
            lacking = first if found[0] is None else second
            return Markup('<p class="wb-note">No messages of {} were kept.</p>').format(escaped(lacking, 80))
        return beside_html(found[0], found[1], (first, second))

    def _transcript(self, session_id: str) -> Transcript | None:
        return read_transcript(self.state.run, session_id).trace(None)

    # From the state and from the user

    def _kind_changed(self, change: Any) -> None:
        self._offer()
        self._show()

    def _selected(self, change: Any) -> None:
        if self._filling:
            return
        wanted = self._of_selection()
        if wanted is not None and wanted != self.first.value:
            self._offer(wanted, self.second.value)
            self._show()

    def _first_picked(self, change: Any) -> None:
        if self._filling:
            return
        self._filling = True  # the state's answer is what was picked here
        try:
            self._select(self.first.value)
        finally:
            self._filling = False
        self._show()

    def _second_picked(self, change: Any) -> None:
        if not self._filling:
            self._show()

    def _estimator_changed(self, change: Any) -> None:
        self._show()

    def _select(self, key: Any) -> None:
        if isinstance(key, GroupKey):
            self.state.group = key
        elif self.of.value == "session" and key is not None:
            self.state.session_id = key
        elif self.of.value == "rollout" and key is not None:
            self.state.rollouts = [key]

    def _swap(self, button: Any) -> None:
        first, second = self.second.value, self.first.value
        self._filling = True
        try:
            self.first.value, self.second.value = first, second
            self._select(first)
        finally:
            self._filling = False
        self._show()


def numbers_html(frame: pd.DataFrame, first: Part, second: Part, *, note: str = "") -> Markup:
    """Return numbers side by side as a table.

    Parameters
    ----------
    frame
        As `analysis.explorers.comparison.compare_frame` gives it.
    first, second
        Whose they are.
    note
        What to say below, such as why there are no advantages.
    """
    units = zip(frame["quantity"], frame["unit"], strict=True)
    written = frame.assign(quantity=[f"{name} ({unit})" if unit else name for name, unit in units])
    shown = table(
        written,
        columns=["quantity", "first", "second", "difference"],
        labels={"first": _heading(first), "second": _heading(second), "difference": "second − first"},
        formats={"first": _number, "second": _number, "difference": _difference},
        limit=None,
    )
    below = Markup('<p class="wb-note">{}</p>').format(escaped(note, 300)) if note else Markup("")
    return shown + below


def _heading(part: Part) -> str:
    label = short_id(part.label)
    return label if len(label) <= 24 else f"{label[:22]}…"


def _number(value: float) -> str:
    if not np.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < _TOLERANCE:
        return "0"
    if value == round(value) and abs(value) < 1e12:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:,.3g}".replace("-", "−") if abs(value) < 1e-3 else f"{value:,.4g}".replace("-", "−")


def _difference(value: float) -> str | Markup:
    if abs(value) < _TOLERANCE:
        return Markup('<span class="wb-muted">0</span>')
    shown = _number(value)
    return shown if value < 0 else f"+{shown}"
