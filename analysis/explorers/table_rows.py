"""A frame as a table on a screen, without the screen: what is shown of which rows, in which order.

Everything is done on whole columns, and only the rows in sight are written out, so that the cost of looking
at a table does not grow with it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.errors import ExplorerError
from analysis.html.tables import writer
from analysis.html.text import clipped, visible
from analysis.stats.columns import Bools, Floats, Ints

__all__ = ["Column", "SortKey", "TableRows", "scale_of", "short_id"]

SortKey = tuple[str, bool]
"""A column and whether it descends."""

_CELL_CHARACTERS = 160
_TITLE_CHARACTERS = 2_000
_WIDTHS = (5, 36)
_WIDTH_SAMPLE = 200
_PICTURES = {"bar": 12, "strip": 12, "dumbbell": 16}
_LISTS = ("strip", "dumbbell")
_SEPARATOR = "\x1f"

_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_TERM = re.compile(r"(-?)([^\W\d]\w*)(<=|>=|!=|=|<|>|:)(.+)", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """How a column of a frame is shown.

    Attributes
    ----------
    name
        In the frame.
    label, title
        Heading, and what it means; by default the name with spaces.
    kind
        ``number``, ``text``, ``id``, ``badge`` (a word on a coloured ground), ``bar`` (a number with a bar
        from zero), ``strip`` (a list of numbers, a mark for each), ``dumbbell`` (a list of two numbers, from
        a mark to a dot); by default as the dtype suggests.
    write
        How to write a value that is not missing.
    badges
        Colour by word, of `analysis.html.style.SEVERITIES`.
    width
        In characters; by default as the first rows need it.
    domain
        Ends of the scale of bars and strips; by default those of the column.
    sort_by
        Column of the frame that is sorted by instead; lists are not sortable without.
    """

    name: str
    label: str = ""
    title: str = ""
    kind: str = ""
    write: Callable[[Any], str] | None = None
    badges: Mapping[str, str] = field(default_factory=dict)
    width: int | None = None
    domain: tuple[float, float] | None = None
    sort_by: str = ""


def short_id(value: str) -> str:
    """Return what tells an id from others of its kind: the first digits of a UUID, all of anything else."""
    digits = re.search(r"[0-9a-f]{8}(?=-[0-9a-f]{4}-)", value)
    return digits.group() + "…" if digits else value


class TableRows:
    """Rows of a frame to look at.

    Parameters
    ----------
    frame
        Its index is not used.
    columns
        Which columns, in this order, by name or with more to say about them; all by default.

    Raises
    ------
    ExplorerError
        If the frame has no such column.
    """

    def __init__(self, frame: pd.DataFrame, columns: Sequence[str | Column] | None = None) -> None:
        self.frame = frame.reset_index(drop=True)
        wanted: Sequence[str | Column] = list(map(str, frame.columns)) if columns is None else columns
        given = [Column(name) if isinstance(name, str) else name for name in wanted]
        missing = [c.name for c in given if c.name not in frame or (c.sort_by and c.sort_by not in frame)]
        if missing:
            raise ExplorerError(f"the frame has no columns {', '.join(missing)}: {', '.join(frame.columns)}")
        self.columns = tuple(self._completed(column) for column in given)
        self._write = {c.name: c.write or writer(self.frame[c.name]) for c in self.columns}
        self._ranks: dict[str, Floats] = {}

    def __len__(self) -> int:
        return len(self.frame)

    # Order

    def order(self, sort: Sequence[SortKey] = (), query: str = "") -> Ints:
        """Return which rows are shown, in order.

        Parameters
        ----------
        sort
            Most important first. Missing values come last, and equal rows keep their order.
        query
            Words that a row must all have, whatever their case. ``column:word`` looks in one column,
            ``column<0.5`` (``<=``, ``>``, ``>=``, ``=``, ``!=``) compares, and ``-word`` excludes.

        Raises
        ------
        ExplorerError
            If a column to sort by is not there.
        """
        shown = np.flatnonzero(self._matches(query)).astype(np.int64)
        keys = [self._key(name, descending)[shown] for name, descending in reversed(list(sort))]
        return shown[np.lexsort(keys)] if keys and len(shown) else shown

    def _key(self, name: str, descending: bool) -> Floats:
        column = next((c for c in self.columns if c.name == name), None)
        if column is None or not self.sortable(column):
            raise ExplorerError(f"the table cannot be sorted by {name!r}")
        source = column.sort_by or name
        if source not in self._ranks:
            self._ranks[source] = _ranks(self.frame[source])
        return -self._ranks[source] if descending else self._ranks[source]  # NaN sorts last either way

    @staticmethod
    def sortable(column: Column) -> bool:
        """Tell whether rows can be sorted by a column."""
        return bool(column.sort_by) or column.kind not in _LISTS

    # Search

    def _matches(self, query: str) -> Bools:
        keep = np.ones(len(self), dtype=bool)
        for term in query.split():
            keep &= self._term(term)
        return keep

    def _term(self, term: str) -> Bools:
        parts = _TERM.fullmatch(term)
        name = self._named(parts.group(2)) if parts else None
        if parts is not None and name is not None:
            found: Bools = self._compared(name, parts.group(3), parts.group(4))
            return np.logical_not(found) if parts.group(1) else found
        if len(term) > 1 and term.startswith("-") and not term[1].isdigit():
            return ~_contains(self._texts, term[1:])
        return _contains(self._texts, term)

    def _named(self, text: str) -> str | None:
        wanted = text.lower()
        for name in map(str, self.frame.columns):
            if name.lower() == wanted:
                return name
        return next((c.name for c in self.columns if c.label.lower().replace(" ", "_") == wanted), None)

    def _compared(self, name: str, sign: str, value: str) -> Bools:
        values = self.frame[name]
        if sign == ":":
            return _contains(_strings(values), value)
        if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype):
            try:
                number = float(value)
            except ValueError:
                return np.zeros(len(self), dtype=bool)
            own = values.to_numpy(dtype=np.float64, na_value=np.nan)
            return np.asarray(_COMPARISONS[sign](own, number) & ~np.isnan(own))
        own_text = _strings(values).to_numpy(zero_copy_only=False).astype(str)
        wanted = {"yes": "true", "no": "false"}.get(value.lower(), value.lower())
        answer = np.asarray(_COMPARISONS[sign](own_text, wanted), dtype=bool)
        answer[values.isna().to_numpy()] = False
        return answer

    @cached_property
    def _texts(self) -> pa.Array:
        """All that can be read in a row, in lower case; fractions are found by comparing them."""
        parts = []
        for column in self.columns:
            values = self.frame[column.name]
            if column.kind not in _LISTS and not pd.api.types.is_float_dtype(values.dtype):
                parts.append(_strings(values))
        if not parts:
            return pa.array([""] * len(self), pa.string())
        return pc.binary_join_element_wise(*parts, _SEPARATOR)

    # Cells

    def cells(self, rows: Ints) -> list[list[Any]]:
        """Return what is shown of some rows, ready for JSON.

        Returns
        -------
        list
            One list per row, with a cell per column: None for a missing value, a text, or a mapping of
            ``t`` (text), ``f`` (full text, where `t` is cut), ``m`` (a badge's colour), ``x`` (a bar's
            number, or those of a strip with None for missing ones).
        """
        part = self.frame.iloc[rows]
        columns = [self._column_cells(column, part[column.name]) for column in self.columns]
        return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in rows]

    def _column_cells(self, column: Column, values: pd.Series) -> list[Any]:
        if column.kind in _LISTS:
            return [_strip(value) for value in values]
        write = self._write[column.name]
        missing = values.isna().to_numpy()
        return [
            None if gone else self._cell(column, value, visible(str(write(value))).replace("\n", " ⏎ "))
            for value, gone in zip(values, missing, strict=True)
        ]

    @staticmethod
    def _cell(column: Column, value: Any, text: str) -> Any:
        if column.kind == "badge":
            return {"t": text, "m": column.badges.get(str(value), "")}
        if column.kind == "bar":
            number = float(value)
            return {"t": text, "x": number if np.isfinite(number) else None}
        if column.kind == "id" and text != str(value):
            return {"t": text, "f": clipped(visible(str(value)), _TITLE_CHARACTERS)}
        if len(text) > _CELL_CHARACTERS:
            return {"t": text[:_CELL_CHARACTERS] + "…", "f": clipped(text, _TITLE_CHARACTERS)}
        return text

    def head(self) -> list[dict[str, Any]]:
        """Return what a browser has to know of the columns, ready for JSON."""
        return [
            {
                "name": column.name,
                "label": column.label,
                "title": column.title,
                "kind": column.kind,
                "width": column.width,
                "domain": list(column.domain) if column.domain else None,
                "sortable": self.sortable(column),
            }
            for column in self.columns
        ]

    def _completed(self, column: Column) -> Column:
        values = self.frame[column.name]
        label = column.label or column.name.replace("_", " ")
        kind = column.kind or _kind(values, column.name)
        domain = column.domain
        if domain is None and kind in _PICTURES:
            domain = _domain(values, kind)
        if column.width is not None:
            width = column.width
        elif kind in _PICTURES:
            width = max(_PICTURES[kind], min(len(label) + 2, _WIDTHS[1]))
        else:
            write = column.write or writer(values)
            texts = [len(str(write(v))) for v in values.iloc[:_WIDTH_SAMPLE].dropna()]
            room = 1 if kind == "number" and len(label) > 5 else 2  # bold letters are wider than digits
            width = int(np.clip(max([*texts, len(label) + room]), *_WIDTHS))
        return replace(column, label=label, kind=kind, domain=domain, width=width)


def _kind(values: pd.Series, name: str) -> str:
    dtype = values.dtype
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype):
        return "number"
    return "id" if name.endswith("_id") or name in ("run", "worker") else "text"


def _domain(values: pd.Series, kind: str) -> tuple[float, float]:
    if kind == "bar":
        numbers = np.abs(values.to_numpy(dtype=np.float64, na_value=np.nan))
        numbers = numbers[np.isfinite(numbers)]
        top = float(numbers.max(initial=0.0)) or 1.0
        return -top, top
    flat = [x for cell in values if isinstance(cell, Sequence) for x in cell if x is not None]
    return scale_of(np.array(flat, dtype=np.float64))


def scale_of(numbers: Floats) -> tuple[float, float]:
    """Return the ends of a scale on which numbers can be told apart; NaN and infinite ones are left out."""
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _strip(cell: Any) -> dict[str, Any] | None:
    if not isinstance(cell, Sequence):
        return None
    numbers = [None if x is None or not np.isfinite(x) else float(x) for x in cell]
    return {"x": numbers, "f": ", ".join("—" if x is None else f"{x:.4g}" for x in numbers)}


def _strings(values: pd.Series) -> pa.Array:
    """Return a column as lower-case text, empty where it is missing."""
    try:
        array = pa.array(values, from_pandas=True)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        text = pc.cast(array, pa.string())
    except pa.ArrowException:  # what Arrow has no type for is searched as Python writes it
        text = pa.array([None if gone else str(v) for v, gone in zip(values, values.isna(), strict=True)])
        text = text.cast(pa.string())
    return pc.utf8_lower(pc.fill_null(text, ""))


def _contains(texts: pa.Array, word: str) -> Bools:
    found = pc.match_substring(texts, word.lower())
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)


def _ranks(values: pd.Series) -> Floats:
    """Return numbers that sort as the values do; NaN where they are missing."""
    dtype = values.dtype
    if pd.api.types.is_numeric_dtype(dtype):
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)
    if pd.api.types.is_datetime64_any_dtype(dtype):
        known = values.notna().to_numpy()
        moments = values.to_numpy(dtype="datetime64[ns]").astype(np.int64).astype(np.float64)
        return np.where(known, moments, np.nan)
    ranks = pc.rank(_strings(values), tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(values.notna().to_numpy(), ranks, np.nan)
