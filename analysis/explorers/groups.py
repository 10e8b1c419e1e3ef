"""The table of groups, accepted and rejected, with verdicts and numbers; the picked one is taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as W
import numpy as np
import pandas as pd

from analysis.explorers.advantages import advantages_note, advantages_of_traces, largest_by_group, prepare
from analysis.explorers.autopsy import AutopsyExplorer
from analysis.explorers.base import Explorer
from analysis.explorers.estimators import estimator_switch
from analysis.explorers.group_table import SCOPES, group_columns, group_frame, scope
from analysis.explorers.table import Table
from analysis.stats.columns import Ints

__all__ = ["GroupExplorer"]


class GroupExplorer(Explorer):
    """Groups to pick from, and the autopsy of the picked one.

    ``selection`` is the picked groups' rows of ``run.groups()``; all that are listed where none is picked.
    """

    kind = "groups"

    def _build(self, *, rows_in_sight: int = 10) -> W.DOMWidget:
        self.scope = W.ToggleButtons(options=SCOPES, value="all", style={"button_width": "auto"})
        self.scope.add_class("wb-scope")
        self.estimator = estimator_switch(self)
        self.note = W.HTML()
        self._counting = False
        self._places: Ints = np.zeros(0, dtype=np.int64)
        self.table = Table(pd.DataFrame(), caption="Groups", many=True, rows_in_sight=rows_in_sight)
        self.autopsy = AutopsyExplorer(self.run, part_of=self)
        self.refresh()
        self.observe(self.scope, self._relist, "value")
        self.observe(self.state, self._relist, ["rollouts", "estimator"])
        self.observe(self.table, self._picked, "selected")
        self.observe(self.state, self._show_group, "group")
        bar = W.HBox(
            [self.scope, self.estimator],
            layout=W.Layout(justify_content="space-between", flex_flow="row wrap"),
        )
        return W.VBox([bar, self.note, self.table, self.autopsy.widget])

    @property
    def selection(self) -> pd.DataFrame:
        """The picked groups; all that are listed where none is picked."""
        picked = self.table.selected
        places = self._places[picked] if picked else self._places[self.table.order]
        return self.state.tables.groups.iloc[places].reset_index(drop=True)

    def view(self) -> dict[str, Any]:
        """Return scope, sorting and search."""
        return {"scope": self.scope.value, "sort": self.table.sort, "query": self.table.query}

    def restore_view(self, view: Mapping[str, Any]) -> None:
        """Set scope, sorting and search as they were."""
        self.scope.value = view.get("scope", self.scope.value)
        self.table.sort = view.get("sort", [])
        self.table.query = view.get("query", "")

    def refresh(self) -> None:
        """List what the run has now, after `Run.refresh`."""
        tables = self.state.tables
        prepare(tables)
        brushed = tables.rows_in_rollouts("group", self.state.rollouts)
        counts = {name: len(scope(tables, brushed, name)) for name in SCOPES}
        wanted = self.scope.value
        self._counting = True  # new options move the choice to the first of them, and back
        self.scope.options = [(f"{name} {counts[name]:,}", name) for name in SCOPES]
        self.scope.value = wanted
        self._counting = False
        self._places = scope(tables, brushed, wanted)
        advantages, why = advantages_of_traces(self.state)
        self.note.value = str(advantages_note(self.state, why))
        self.note.layout.display = None if self.note.value else "none"
        frame = group_frame(tables, self._places, largest_by_group(tables, advantages))
        self.table.set_frame(frame, group_columns(tables, frame), selected=self._selected_rows())

    def _relist(self, change: Any) -> None:
        if not self._counting:
            self.refresh()

    def _selected_rows(self) -> list[int]:
        key = self.state.group
        row = None if key is None else self.state.tables.group_row(key)
        found = np.flatnonzero(self._places == row) if row is not None else np.zeros(0, dtype=np.int64)
        return [int(place) for place in found]

    def _picked(self, change: Any) -> None:
        picked = change["new"]
        if not picked:
            if self.state.group is not None and self._selected_rows():
                self.state.group = None
            return
        key = self.state.tables.group_keys[int(self._places[picked[-1]])]
        if key != self.state.group:
            self.state.group = key

    def _show_group(self, change: Any) -> None:
        rows = self._selected_rows()
        if not rows and self.state.group is not None:
            self.scope.value = "evaluation" if self.state.group.evaluation else "all"
            rows = self._selected_rows()
        if rows and rows[0] in self.table.selected:
            return
        self.table.pick(rows)
