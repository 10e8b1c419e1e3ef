"""Frames as HTML tables: missing values are dashes, numbers line up, and text does nothing but stand there.

Numbers of a column share their decimals, enough for three significant digits of a typical value. Ids get no
thousands separators. A table that is wider than its place scrolls, by keyboard too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.html.text import escaped, template

__all__ = ["MISSING", "cells", "facts", "table", "writer"]

MISSING = Markup('<span class="wb-na" aria-label="missing">—</span>')
"""A value that is not there."""

_CELL_CHARACTERS = 400
_LONG = 32  # characters beyond which a cell may break anywhere, in a column that keeps some width
_ID_NAMES = frozenset(
    {"rollout", "group", "trajectory", "item", "seq", "step", "position", "attempt", "path", "worker", "run"}
)
_MAX_DECIMALS = 6

_TABLE = template(
    """
<div class="wb-scroll" role="region" aria-label="{{ caption or 'table' }}" tabindex="0">
<table class="wb-table">
{% if caption %}<caption>{{ caption }}</caption>
{% endif %}
<thead><tr>{% for head in heads %}<th scope="col"{% if head.classes %} class="{{ head.classes }}"{% endif %}
{%- if head.title %} title="{{ head.title }}"{% endif %}>{{ head.label }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for cell in row %}{% set head = heads[loop.index0] %}<{{ head.tag }}
{%- if head.tag == "th" %} scope="row"{% endif %}{% if head.classes %} class="{{ head.classes }}"{% endif %}
{%- if head.lang %} dir="auto"{% endif %}>{{ cell }}</{{ head.tag }}>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{%- if note %}<p class="wb-note">{{ note }}</p>{% endif %}
"""
)
_FACTS = template(
    '<dl class="wb-facts">'
    "{% for label, text in pairs %}<dt>{{ label }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>"
)


def table(
    frame: pd.DataFrame,
    *,
    caption: str = "",
    columns: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    titles: Mapping[str, str] | None = None,
    formats: Mapping[str, Callable[[Any], str | Markup]] | None = None,
    limit: int | None = 50,
    row_header: bool = True,
) -> Markup:
    """Return a frame as an HTML table.

    Parameters
    ----------
    frame
        One row per row. Its index is not shown.
    caption
        What the table holds; also the name of its scrolling region.
    columns
        Which columns, in this order; all by default.
    labels
        Headings by column; by default the name with spaces for underscores.
    titles
        What a heading means, by column, shown when the pointer rests on it.
    formats
        How to write a column's values, by column: a value that is not missing to text or markup.
    limit
        Rows that are shown, from the first; None for all. A note says how many there are.
    row_header
        Whether the first column names its row.

    Raises
    ------
    KeyError
        If the frame has no such column.
    """
    names = list(frame.columns if columns is None else columns)
    unknown = [str(name) for name in names if name not in frame.columns]
    if unknown:
        raise KeyError(f"the frame has no columns {', '.join(unknown)}")
    shown = frame[names] if limit is None else frame[names].iloc[:limit]
    written = [cells(shown[name], (formats or {}).get(name)) for name in names]
    heads = [
        {
            "label": (labels or {}).get(name, str(name).replace("_", " ")),
            "title": (titles or {}).get(name, ""),
            "classes": _classes(frame[name], name, column),
            "tag": "th" if row_header and place == 0 else "td",
            "lang": not pd.api.types.is_numeric_dtype(frame[name].dtype),
        }
        for place, (name, column) in enumerate(zip(names, written, strict=True))
    ]
    note = f"The first {len(shown):,} of {len(frame):,} rows." if len(shown) < len(frame) else ""
    note = note or ("No rows." if not len(frame) else "")
    rows = list(zip(*written, strict=True))
    return Markup(_TABLE.render(caption=caption, heads=heads, rows=rows, note=note).strip())


def facts(pairs: Collection[tuple[str, str | Markup]]) -> Markup:
    """Return pairs of label and text as a list of definitions."""
    return Markup(_FACTS.render(pairs=pairs))


def cells(values: pd.Series, write: Callable[[Any], str | Markup] | None = None) -> list[Markup]:
    """Return the values of a column as HTML.

    Parameters
    ----------
    values
        Of any dtype; its name decides whether whole numbers are ids.
    write
        How to write a value that is not missing; by default as its dtype suggests.
    """
    if write is None:
        write = writer(values)
    return [MISSING if _is_missing(value) else escaped(write(value), _CELL_CHARACTERS) for value in values]


def writer(values: pd.Series) -> Callable[[Any], str | Markup]:
    """Return how values of a column are written where nothing else is said; missing ones are the caller's."""
    dtype = values.dtype
    if pd.api.types.is_bool_dtype(dtype):
        return lambda value: "yes" if value else "no"
    if pd.api.types.is_integer_dtype(dtype):
        return str if _is_id(values.name) else lambda value: f"{value:,}"
    if pd.api.types.is_float_dtype(dtype):
        return _float_writer(values)
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return lambda value: f"{value:%Y-%m-%d %H:%M:%S}"
    return str


def _float_writer(values: pd.Series) -> Callable[[float], str]:
    numbers = np.abs(values.dropna().to_numpy(dtype=np.float64))
    sizes = numbers[np.isfinite(numbers) & (numbers > 0)]
    typical = float(np.median(sizes)) if len(sizes) else 1.0
    decimals = int(np.clip(2 - np.floor(np.log10(typical)), 0, _MAX_DECIMALS))
    if len(sizes) and np.all(sizes == np.rint(sizes)):
        decimals = 0

    def write(value: float) -> str:
        if not np.isfinite(value):
            return "∞" if value > 0 else "−∞"
        size = abs(value)
        if size >= 1e9 or 0 < size < 0.5 * 10.0**-_MAX_DECIMALS:
            return f"{value:.2e}".replace("-", "−")
        return f"{value:,.{decimals}f}".replace("-", "−")

    return write


def _is_missing(value: Any) -> bool:
    missing = pd.isna(value)
    return missing is True or (isinstance(missing, (bool, np.bool_)) and bool(missing))


def _is_id(name: Any) -> bool:
    text = str(name)
    return text in _ID_NAMES or text.endswith(("_id", "_index"))


def _classes(values: pd.Series, name: str, written: Sequence[Markup]) -> str:
    if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype):
        return "wb-num"
    found = ["wb-id"] if _is_id(name) else []
    seen = (text.striptags() for text in written if text is not MISSING and len(text) > _LONG)
    found += ["wb-long"] if any(len(text) > _LONG for text in seen) else []
    return " ".join(found)
