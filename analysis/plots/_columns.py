"""What a figure takes from a frame: columns that must be there, as plain arrays, and text fit to draw."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import ft2font
from numpy.typing import NDArray

from analysis.errors import PlotError

__all__ = [
    "Bools",
    "Floats",
    "Ints",
    "flags",
    "known_rows",
    "numbered",
    "numbers",
    "one_run",
    "plain",
    "require",
    "seconds",
    "top_words",
    "words",
    "wrapped",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LARGEST = 1e100
"""Beyond this no axis can be divided into ticks without overflow."""


def require(frame: pd.DataFrame, *names: str) -> None:
    """Check that a frame has columns; one without rows may lack them.

    Raises
    ------
    PlotError
        If it lacks some; the message names them.
    """
    if not isinstance(frame, pd.DataFrame):
        inside = [name for name in getattr(frame, "__dataclass_fields__", ()) if not name.startswith("_")]
        hint = f": pass one of its frames, such as .{inside[0]}" if inside else ""
        raise PlotError(f"a figure takes a DataFrame, got {type(frame).__name__}{hint}")
    missing = tuple(name for name in names if name not in frame.columns)
    if missing and len(frame):
        there = ", ".join(str(name) for name in frame.columns[:12])
        more = ", ..." if len(frame.columns) > 12 else ""
        raise PlotError(f"the frame lacks the columns {', '.join(missing)}; it has {there}{more}", missing)


def one_run(frame: pd.DataFrame) -> None:
    """Check that rows are of one run: lines over rollouts would jump between several.

    Raises
    ------
    PlotError
        If there are several; the message names them.
    """
    if "run" in frame.columns:
        names = [str(name) for name in frame["run"].dropna().unique()]
        if len(names) > 1:
            raise PlotError(
                f"the frame holds {len(names)} runs, the figure shows one: {', '.join(names[:5])}"
            )


def numbers(frame: pd.DataFrame, name: str) -> Floats:
    """Return a column as float64; NaN where a value is missing, infinite or beyond 1e100.

    Raises
    ------
    PlotError
        If the column holds no numbers.
    """
    column = frame[name]
    try:
        if column.dtype == object:
            column = column.astype("Float64")
        values: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan).copy()
    except (TypeError, ValueError) as error:
        raise PlotError(f"the column {name} holds no numbers but {column.dtype}: {error}") from error
    with np.errstate(invalid="ignore"):
        values[~(np.abs(values) <= _LARGEST)] = np.nan
    return values


def seconds(frame: pd.DataFrame, *names: str) -> tuple[Floats, ...]:
    """Return columns of moments, or of seconds, as seconds since the earliest of all of them."""
    columns = []
    for name in names:
        column = frame[name]
        if pd.api.types.is_datetime64_any_dtype(column.dtype):
            since = pd.to_datetime(column, utc=True) - pd.Timestamp(0, tz="UTC")
            column = since.dt.total_seconds()
        columns.append(numbers(pd.DataFrame({name: column}), name))
    known = np.concatenate(columns)
    known = known[~np.isnan(known)]
    start = known.min() if len(known) else 0.0
    return tuple(column - start for column in columns)


def words(frame: pd.DataFrame, name: str, missing: str = "unknown") -> NDArray[np.object_]:
    """Return a column as strings, with a word for what is missing; shape (n,), objects."""
    values = frame[name].astype(object).to_numpy()
    found = np.array([str(value) for value in values], dtype=object)
    found[frame[name].isna().to_numpy()] = missing
    return found


def numbered(values: Iterable[Any]) -> tuple[Ints, list[Any]]:
    """Return the number of each value in order of appearance, shape (n,), and the distinct values.

    Takes text that no other column type would, such as lone surrogates.
    """
    found: dict[Any, int] = {}
    numbers_of = [found.setdefault(value, len(found)) for value in values]
    return np.array(numbers_of, dtype=np.int64), list(found)


def flags(frame: pd.DataFrame, name: str, missing: bool = False) -> Bools:
    """Return a yes-or-no column, with an answer for what is missing."""
    return np.asarray([missing if pd.isna(value) else bool(value) for value in frame[name]], dtype=bool)


def known_rows(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the rows in which all columns of numbers have a value that can be drawn."""
    if frame.empty:
        return frame
    keep = np.ones(len(frame), dtype=bool)
    for name in names:
        keep &= ~np.isnan(numbers(frame, name))
    return frame[keep]


def top_words(values: Iterable[Any], weights: Sequence[float] | Floats, most: int = 6) -> dict[str, str]:
    """Map each word to itself if it is among the heaviest, else to ``other``; heaviest first.

    Parameters
    ----------
    values
        Words, repeated or not.
    weights
        One per word.
    most
        How many words stay, ``other`` included.
    """
    totals: dict[str, float] = {}
    for word, weight in zip(values, weights, strict=True):
        totals[word] = totals.get(word, 0.0) + (0.0 if np.isnan(weight) else float(weight))
    ranked = sorted(totals, key=lambda word: -totals[word])
    kept = ranked if len(ranked) <= most else ranked[: most - 1]
    return {word: word if word in kept else "other" for word in ranked}


def plain(text: Any, limit: int = 32) -> str:
    """Return text that is drawn as it stands: no mathematics, missing glyphs or line breaks, cut to length.

    Parameters
    ----------
    text
        Anything; model output and names of other programs included.
    limit
        Characters.
    """
    raw = str(text)[: limit + 1]
    clean = "".join(_glyph(character) for character in raw)
    if len(clean) > limit:
        clean = clean[: limit - 1] + "…"
    # Matplotlib leaves labels that begin with an underscore out of legends, and reads $...$ as mathematics.
    return (" " + clean if clean.startswith("_") else clean).replace("$", r"\$")


def wrapped(text: Any, *, width: int = 10, limit: int = 30, keep: str = "") -> str:
    """Break a name of several words into lines, as `plain` text.

    Parameters
    ----------
    text
        The name; its words are joined by underscores or blanks.
    width
        Characters beyond which no further word joins a line.
    limit
        Characters of the whole.
    keep
        What is drawn for an underscore; a blank by default.
    """
    lines = [""]
    for word in plain(str(text).replace("_", f"{keep} "), limit).split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append(word)
        else:
            lines[-1] += word if keep and lines[-1].endswith(keep) else f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _glyph(character: str) -> str:
    if character in "\n\r\t":
        return {"\n": "↵", "\r": "␍", "\t": "→"}[character]
    if not character.isprintable():
        return "·"
    return character if ord(character) in _glyphs() else "□"


@functools.cache
def _glyphs() -> frozenset[int]:
    """Return the characters that the font of all figures has; it comes with Matplotlib."""
    path = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return frozenset(ft2font.FT2Font(str(path)).get_charmap())
