"""Summaries of token arrays: counts, turns and logprobs of many traces in a few array operations.

What is known of a trace's tokens is a `TraceTokens`; `summaries` turns a list of them into cells of the trace
table. The arrays themselves are dropped afterwards. Also reads the arrays from JSON text without making an
object of each number: ids are only counted, masks stay bytes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

__all__ = [
    "COUNTS",
    "LOGPROB_SUMMARY",
    "logprob_columns",
    "count_cells",
    "all_packed",
    "count_all_ids",
    "SUMMARY",
    "TraceTokens",
    "count_ids",
    "logprob_cells",
    "mask_from_json",
    "mask_from_numbers",
    "packed",
    "summaries",
    "tokens_digest",
    "turn_count",
]

Floats = np.ndarray[Any, np.dtype[np.float64]]

_NUMBER_BYTES = b'0123456789, \n\r\t-+.eE"'
_NINE = ord("9")
_BLANKS = b", \n\r\t"
_TO_FLAGS = bytes.maketrans(b"01", b"\x00\x01")
_ANY_LIST = msgspec.json.Decoder(list[Any])


COUNTS = (
    "prompt_tokens",
    "response_tokens",
    "has_mask",
    "has_logprobs",
    "sampled_tokens",
    "masked_tokens",
    "turns",
)
"""Columns of the trace table that `count_cells` fills, in its order."""

LOGPROB_SUMMARY = ("logprob_mean", "logprob_min", "logprob_sum", "logprob_zero_share", "logprob_missing")
"""Columns of the trace table that summarise logprobs, in the order of `logprob_cells`."""

SUMMARY = COUNTS + LOGPROB_SUMMARY
"""Columns of the trace table that `summaries` fills, in its order."""

_NOTHING = (None, None, None, None, None)


@dataclass(slots=True)
class TraceTokens:
    """What is known of the tokens of one trace.

    Parameters
    ----------
    prompt, response
        Number of tokens before and after the end of the prompt; None where ids are missing or no ids.
    flags
        The mask, one byte of 0 or 1 per response token; None where there is none that can be read.
    has_mask
        Whether there is a mask at all.
    logprobs
        One per response token, NaN where missing; None where there are none.
    """

    prompt: int | None = None
    response: int | None = None
    flags: bytes | None = None
    has_mask: bool = False
    logprobs: Floats | None = None

    def mismatch(self) -> str | None:
        """Say which array does not fit the response, None if all do."""
        if self.flags is not None and self.response is not None and len(self.flags) != self.response:
            return f"{len(self.flags):,} mask entries for {self.response:,} response tokens"
        if self.has_mask and self.flags is None:
            return "a mask entry that is neither 0 nor 1"
        if self.logprobs is not None and self.response is not None and len(self.logprobs) != self.response:
            return f"{len(self.logprobs):,} logprobs for {self.response:,} response tokens"
        return None


def count_ids(text: bytes) -> int | None:
    """Return how many numbers a flat JSON array holds, None if it is none. Numbers as text count."""
    if text == b"[]":
        return 0
    if text.translate(None, _NUMBER_BYTES) != b"[]":
        return None
    count = text.count(b",") + 1
    return count if count > 1 or text.strip(b"[] \n\r\t") else 0


def count_all_ids(texts: Sequence[bytes]) -> list[int | None]:
    """Return `count_ids` of many arrays, looking at ordinary ones all at once."""
    everything = np.frombuffer(b"".join(texts), dtype=np.uint8)
    # Beside numbers and what stands between them there is one bracket at either end, and nothing else.
    if np.count_nonzero(everything > _NINE) != 2 * len(texts):
        return [count_ids(text) for text in texts]
    return [
        text.count(b",") + 1 if text[:1] == b"[" and text[1:2].isdigit() else count_ids(text)
        for text in texts
    ]


def all_packed(lists: Sequence[list[float]]) -> list[Floats]:
    """Return lists of floats as arrays that share one buffer."""
    numbers: list[float] = []
    for part in lists:
        numbers += part
    values = np.frombuffer(struct.pack(f"{len(numbers)}d", *numbers), dtype=np.float64)
    ends = accumulate(map(len, lists))
    return [values[end - len(part) : end] for end, part in zip(ends, lists, strict=True)]


def mask_from_json(text: bytes) -> bytes | None:
    """Return a mask as bytes of 0 and 1 from a JSON array, None if it is no such array."""
    bare = text.translate(_TO_FLAGS, _BLANKS)
    flags = bare[1:-1]
    if not flags.translate(None, b"\x00\x01") and bare[:1] + bare[-1:] == b"[]":
        # In the compact form every entry but the last is followed by one comma.
        if len(text) == 2 * len(flags) + 1 or text.count(b",") + 1 == len(flags):
            return flags
    try:
        return mask_from_numbers([_flag(value) for value in _ANY_LIST.decode(text)])
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _flag(value: Any) -> int:
    """Return the integer that a boolean, a float or a text stands for, as servers accept them."""
    if not isinstance(value, int | float | str) or value != value:
        raise ValueError("no flag")
    number = float(value)
    if not number.is_integer():
        raise ValueError("no flag")
    return int(number)


def mask_from_numbers(values: Any) -> bytes | None:
    """Return a mask as bytes of 0 and 1 from a sequence or an array, None if it holds anything else."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or not np.isin(values, (0, 1)).all():
            return None
        return values.astype(np.uint8).tobytes()
    if not isinstance(values, list | tuple):
        return None  # a number would become so many zeros
    try:
        # A bytearray reads a list several times faster than bytes does.
        flags = bytes(bytearray(values))
    except (TypeError, ValueError):
        return None
    return flags if flags.count(0) + flags.count(1) == len(flags) else None


def packed(values: Any) -> Floats | None:
    """Return a sequence of numbers as an array, NaN for None; None if it holds anything else."""
    if isinstance(values, np.ndarray):
        return (
            np.asarray(values, dtype=np.float64) if values.ndim == 1 and values.dtype.kind in "fiu" else None
        )
    if not isinstance(values, list | tuple):
        return None  # bytes would be taken for the numbers' own bytes
    try:
        # Faster than letting NumPy look at each object.
        return np.frombuffer(array("d", values), dtype=np.float64)
    except (TypeError, OverflowError):
        pass
    numbers = [np.nan if value is None else value for value in values]
    if any(isinstance(value, bool) or not isinstance(value, int | float | np.number) for value in numbers):
        return None
    return np.array(numbers, dtype=np.float64)


def tokens_digest(ids: Any) -> str | None:
    """Return 16 hex digits, equal for equal token ids however they are stored; None if they are no ids."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            return None
        raw = ids.astype("<i8").tobytes()
    elif not isinstance(ids, list | tuple):
        return None
    else:
        try:
            raw = struct.pack(f"<{len(ids)}q", *ids)
        except (struct.error, TypeError):
            return None
    return blake2b(raw, digest_size=8).hexdigest()


def turn_count(flags: bytes) -> int:
    """Return the number of stretches of 1."""
    return flags.count(b"\x00\x01") + (flags[:1] == b"\x01")


def summaries(traces: Sequence[TraceTokens]) -> list[tuple[Any, ...]]:
    """Return cells of the trace table for each trace, in the order of `SUMMARY`.

    Counts stand where the arrays are there and fit; a logprob summary covers the tokens with mask 1, or all
    response tokens where there is no mask.
    """
    counts = [count_cells(trace) for trace in traces]
    chosen = [trace for trace, cells in zip(traces, counts, strict=True) if cells[3]]
    arrays = [(trace.flags, trace.logprobs) for trace in chosen if trace.logprobs is not None]
    found = iter(logprob_cells(*_selected(arrays)))
    return [(*cells, *(next(found) if cells[3] else _NOTHING)) for cells in counts]


def count_cells(trace: TraceTokens) -> tuple[Any, ...]:
    """Return the counts of one trace, in the order of `COUNTS`."""
    flags, response = trace.flags, trace.response
    fits = trace.logprobs is not None and len(trace.logprobs) == response
    if flags is None or len(flags) != response:
        return (trace.prompt, response, trace.has_mask, fits and not trace.has_mask, None, None, None)
    sampled = flags.count(1)
    # A server masks all tokens of a session that failed, whose turns nobody can tell then.
    turns = turn_count(flags) if sampled or not flags else None
    return (trace.prompt, response, True, fits, sampled, response - sampled, turns)


def _selected(traces: Sequence[tuple[bytes | None, Floats]]) -> tuple[Floats, list[int]]:
    """Return the logprobs of sampled tokens, trace after trace, and their number in each."""
    if not traces:
        return np.zeros(0), []
    masks = [b"\x01" * len(array) if flags is None else flags for flags, array in traces]
    values = np.concatenate([array for _, array in traces])
    return values[np.frombuffer(b"".join(masks), dtype=np.bool_)], [mask.count(1) for mask in masks]


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Summaries of those stretches that are not empty."""

    filled: np.ndarray[Any, Any]
    sums: np.ndarray[Any, Any]
    least: np.ndarray[Any, Any]
    zeros: np.ndarray[Any, Any]
    missing: np.ndarray[Any, Any]
    known: np.ndarray[Any, Any]

    @classmethod
    def of(cls, values: Floats, counts: Sequence[int]) -> _Stretches:
        lengths = np.array(counts, dtype=np.int64)
        filled = np.flatnonzero(lengths)
        if not len(filled):
            nothing = np.zeros(0)
            return cls(filled, nothing, nothing, nothing, filled, filled)
        starts = (np.cumsum(lengths) - lengths)[filled]
        finite = np.isfinite(values)
        if finite.all():
            missing = np.zeros(len(filled), dtype=np.int64)
            sums, least = np.add.reduceat(values, starts), np.minimum.reduceat(values, starts)
        else:
            missing = np.add.reduceat(~finite, starts, dtype=np.int64)
            sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
            least = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
        zeros = np.add.reduceat(values == 0.0, starts, dtype=np.int64)
        return cls(filled, sums, least, zeros, missing, lengths[filled] - missing)


def logprob_cells(values: Floats, counts: Sequence[int]) -> list[tuple[Any, ...]]:
    """Summarise consecutive stretches of logprobs.

    Parameters
    ----------
    values
        Logprobs of sampled tokens, stretch after stretch.
    counts
        Length of each stretch.

    Returns
    -------
    list of tuple
        Mean, minimum, sum, share of exact zeros and number of missing ones; five times None for an empty
        stretch. Null, NaN and infinite ones are missing and left out of the others.
    """
    cells: list[tuple[Any, ...]] = [_NOTHING] * len(counts)
    found = _Stretches.of(values, counts)
    columns = (found.filled, found.sums, found.least, found.zeros, found.missing, found.known)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for place, total, least, zeros, missing, known in rows:
        if known:
            cells[place] = (total / known, least, total, zeros / known, missing)
        else:
            cells[place] = (None, None, None, None, missing)
    return cells


def logprob_columns(traces: Sequence[tuple[bytes | None, Floats] | None]) -> list[pa.Array]:
    """Summarise the logprobs of very many traces at once, as columns.

    Parameters
    ----------
    traces
        Mask and logprobs of each, as long as each other; without a mask all count. None for a trace whose
        logprobs cannot be summarised.

    Returns
    -------
    list of Array
        One column per name of `LOGPROB_SUMMARY`, as `logprob_cells` defines them.
    """
    places = np.array([place for place, trace in enumerate(traces) if trace is not None], dtype=np.int64)
    found = _Stretches.of(*_selected([trace for trace in traces if trace is not None]))
    rows, any_known = places[found.filled], found.known > 0
    known = np.where(any_known, found.known, 1)
    summaries = (found.sums / known, found.least, found.sums, found.zeros / known)
    columns = [_column(len(traces), rows[any_known], values[any_known], pa.float64()) for values in summaries]
    return [*columns, _column(len(traces), rows, found.missing, pa.int64())]


def _column(
    size: int, rows: np.ndarray[Any, Any], values: np.ndarray[Any, Any], kind: pa.DataType
) -> pa.Array:
    """Return a column that holds values in some rows and is missing in the others."""
    cells, missing = np.zeros(size, dtype=values.dtype), np.ones(size, dtype=np.bool_)
    cells[rows], missing[rows] = values, False
    return pa.array(cells, kind, mask=missing)
