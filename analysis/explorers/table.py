"""A table for tens of thousands of rows: sorted and searched in Python, drawn as its rows come in sight.

Keys, with the focus on the rows: the arrows, Page Up and Down, Home and End move the cursor; Enter picks its
row; Escape lets go; ``/`` goes to the search field. Where many rows can be picked, moves with Shift pick a
range, Space adds or removes a row, and Control-A picks all.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import traitlets

from analysis.errors import ExplorerError
from analysis.explorers.assets import WorkbenchWidget, script
from analysis.explorers.table_rows import Column, SortKey, TableRows
from analysis.stats.columns import Ints

__all__ = ["Table"]

logger = logging.getLogger(__name__)

_FIRST_ROWS = 60
_LONGEST_ANSWER = 400


class Table(WorkbenchWidget):
    """A frame to look at, and to pick rows from.

    Parameters
    ----------
    frame
        Its index is not shown; rows are called by their place in it, from 0.
    columns
        As in `analysis.explorers.table_rows.TableRows`.
    caption
        What the table holds, for screen readers and above its rows.
    many
        Whether several rows can be picked.
    rows_in_sight
        Its height; shorter tables are as high as they need.
    sort, query
        To begin with; see `TableRows.order`.

    Attributes
    ----------
    selected
        Places of the picked rows in the frame, as a list; observe it to follow the user.
    """

    _esm = script("table.js")

    caption = traitlets.Unicode("").tag(sync=True)
    many = traitlets.Bool(False).tag(sync=True)
    rows_in_sight = traitlets.Int(12).tag(sync=True)
    head: Any = traitlets.List().tag(sync=True)
    count = traitlets.Int(0).tag(sync=True)
    total = traitlets.Int(0).tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    sort: Any = traitlets.List().tag(sync=True)
    query = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    cursor = traitlets.Int(-1).tag(sync=True)
    problem = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        frame: pd.DataFrame,
        columns: Sequence[str | Column] | None = None,
        *,
        caption: str = "",
        many: bool = False,
        rows_in_sight: int = 12,
        sort: Sequence[SortKey] = (),
        query: str = "",
    ) -> None:
        self._rows = TableRows(frame, columns)
        self._order: Ints = np.zeros(0, dtype=np.int64)
        self._version = 0
        super().__init__(
            caption=caption,
            many=many,
            rows_in_sight=rows_in_sight,
            sort=[list(key) for key in sort],
            query=query,
        )
        self.on_msg(self._answer)
        self.observe(self._arranged, ["sort", "query"])
        self._show()

    @property
    def frame(self) -> pd.DataFrame:
        """What is shown."""
        return self._rows.frame

    @property
    def order(self) -> Ints:
        """Places in the frame of the rows that the search left, as they are sorted."""
        return self._order

    @property
    def selection(self) -> pd.DataFrame:
        """The picked rows, in the order of the frame."""
        return self.frame.iloc[sorted(self.selected)].reset_index(drop=True)

    def set_frame(
        self, frame: pd.DataFrame, columns: Sequence[str | Column] | None = None, selected: Sequence[int] = ()
    ) -> None:
        """Show another frame, under the same sorting and search as far as its columns allow.

        Parameters
        ----------
        frame, columns
            As in the constructor.
        selected
            Places of the rows that are picked in it.
        """
        self._rows = TableRows(frame, columns)
        self._show(selected=[int(place) for place in selected])

    def pick(self, places: Sequence[int]) -> None:
        """Pick rows by their places, and bring the first into sight.

        Raises
        ------
        ExplorerError
            If there is no such row, or only one can be picked.
        """
        wanted = [int(place) for place in places]
        if any(not 0 <= place < len(self._rows) for place in wanted):
            raise ExplorerError(f"the table has {len(self._rows)} rows, and none at {wanted}")
        if len(wanted) > 1 and not self.many:
            raise ExplorerError("only one row of this table can be picked")
        with self.hold_sync():
            self.selected = wanted
            self.cursor = self._place_in_order(wanted)

    # Arranging

    def _arranged(self, change: Any) -> None:
        try:
            self._show()
            self.problem = ""
        except Exception as exc:  # it was caused in the browser, where nobody would see it raised
            logger.exception("the table could not be arranged")
            self.problem = "".join(traceback.format_exception_only(exc)).strip()

    def _show(self, selected: list[int] | None = None) -> None:
        keys = [(str(name), bool(down)) for name, down in self.sort]
        known = {c.name for c in self._rows.columns if self._rows.sortable(c)}
        self._order = self._rows.order([key for key in keys if key[0] in known], self.query)
        self._version += 1
        with self.hold_sync():
            self.head = self._rows.head()
            self.count, self.total = len(self._rows), len(self._order)
            if selected is not None:
                self.selected = selected
            self.page = self._page(0, _FIRST_ROWS)
            self.cursor = self._place_in_order(self.selected)

    def _place_in_order(self, selected: Sequence[int]) -> int:
        if not selected:
            return -1
        found = np.flatnonzero(self._order == selected[0])
        return int(found[0]) if len(found) else -1

    def _page(self, start: int, stop: int) -> dict[str, Any]:
        start = max(0, min(start, len(self._order)))
        rows = self._order[start : min(stop, start + _LONGEST_ANSWER)]
        return {
            "version": self._version,
            "start": start,
            "rows": rows.tolist(),
            "cells": self._rows.cells(rows),
        }

    # Messages

    def _answer(self, widget: Any, content: Any, buffers: Any) -> None:
        try:
            kind = content.get("type")
            if kind == "rows" and content.get("version") == self._version:
                self.send({"type": "rows", **self._page(int(content["start"]), int(content["stop"]))})
            elif kind == "range":
                first, last = sorted((int(content["first"]), int(content["last"])))
                self.selected = self._order[max(first, 0) : last + 1].tolist() if self.many else self.selected
            elif kind == "all" and self.many:
                self.selected = self._order.tolist()
        except Exception as exc:  # as above
            logger.exception("the table could not answer")
            self.problem = "".join(traceback.format_exception_only(exc)).strip()
