"""Checks of one trace's token arrays, and the ids as shared int objects.

Everything goes through flat buffers, because a rollout holds tens of millions of tokens: a check costs a few
nanoseconds per token and no Python object. Arrays come as lists, or as memoryviews of 64-bit numbers where
the decoder could fill those. The module knows arrays and positions; which session and trace they belong to,
and what a problem means for them, is the caller's business.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slime_bridge.errors import ConversionError, RolloutLogprobError

__all__ = [
    "LOGPROB_FLOOR",
    "LOGPROB_SENTINEL",
    "checked_logprobs",
    "checked_mask",
    "joined_ids",
    "trainable_spans",
]

LOGPROB_FLOOR = -1e4
"""Nothing below this is a logprob: engines write such values for minus infinity."""

LOGPROB_SENTINEL = -9999.0
"""What vLLM writes for minus infinity. No softmax over a vocabulary gives exactly this number."""

_MAX_SHARED_IDS = 1 << 20
_ZERO_STRETCH = 16
"""Zeros in a row below which sharing their float object is not worth the time."""

_TRAINABLE_RUN = re.compile(b"\x01+")


class _SharedIds:
    """Int objects by value, made on demand."""

    def __init__(self) -> None:
        self._table: NDArray[np.object_] = np.empty(0, dtype=object)

    def take(self, codes: NDArray[np.integer[Any]], largest: int) -> list[int]:
        """Return the int objects of `codes`, of which `largest` is the largest."""
        table = self._table
        if largest >= len(table):
            table = np.empty(max(1 << 12, 1 << largest.bit_length()), dtype=object)
            table[:] = range(len(table))
            # Two threads may both get here: either table is complete, and each uses its own.
            self._table = table
        shared: list[int] = table.take(codes).tolist()
        return shared


_shared_ids = _SharedIds()


def joined_ids(prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[int]:
    """Return prompt and response ids as one list whose int objects are shared by all lists made here.

    A decoder makes a new 28-byte int for every token above 256; sharing them leaves the 8-byte reference. Ids
    of 1,048,576 and above are not shared.

    Raises
    ------
    ConversionError
        If an id is not an int, or is negative, or does not fit in 32 bits.
    """
    codes = _id_codes(prompt_ids, response_ids)
    largest = int(codes.max(initial=0))
    if largest >= _MAX_SHARED_IDS:
        return [*prompt_ids, *response_ids]
    return _shared_ids.take(codes, largest)


def _id_codes(prompt_ids: Sequence[int], response_ids: Sequence[int]) -> NDArray[np.integer[Any]]:
    if isinstance(prompt_ids, memoryview) and isinstance(response_ids, memoryview):
        codes = np.concatenate((np.asarray(prompt_ids), np.asarray(response_ids)))
        # Seen as unsigned, negative numbers are the largest.
        if int(codes.view(np.uint64).max(initial=0)) < 1 << 32:
            return codes
    else:
        try:
            return np.frombuffer(array("I", [*prompt_ids, *response_ids]), dtype=np.uintc)
        except (TypeError, OverflowError):
            pass
    for field, ids in (("prompt_ids", prompt_ids), ("response_ids", response_ids)):
        for position, value in enumerate(ids):
            if not isinstance(value, int) or not 0 <= value < 1 << 32:
                raise ConversionError(f"{field}[{position}] is {repr(value)[:40]}, which is no token id")
    raise ConversionError("the token ids are not a list of ints")


def checked_mask(loss_mask: Sequence[int], response_length: int) -> bytes:
    """Return the mask as bytes of 0 and 1.

    Raises
    ------
    RolloutLogprobError
        If the mask has another length than the response, or another value than 0 and 1.
    """
    if len(loss_mask) != response_length:
        raise RolloutLogprobError(
            f"loss_mask has {len(loss_mask)} entries for {response_length} response ids"
        )
    if isinstance(loss_mask, memoryview):
        values = np.asarray(loss_mask)
        if values.min(initial=0) == 0 and values.max(initial=0) <= 1:
            return values.astype(np.uint8).tobytes()
    try:
        # A bytearray reads a list several times faster than bytes does.
        flags = bytes(bytearray(loss_mask))
    except (TypeError, ValueError):
        flags = b""
    if flags.count(0) + flags.count(1) == response_length:
        return flags
    position, value = next(
        (i, v) for i, v in enumerate(loss_mask) if v not in (0, 1) or not isinstance(v, int)
    )
    raise RolloutLogprobError(f"loss_mask[{position}] is {repr(value)[:40]}, not 0 or 1")


def trainable_spans(flags: bytes) -> list[tuple[int, int]]:
    """Return the runs of 1 in a mask as (start, end) pairs, end excluded."""
    return [run.span() for run in _TRAINABLE_RUN.finditer(flags)]


def checked_logprobs(logprobs: Sequence[float] | None, flags: bytes) -> list[float]:
    """Return one usable logprob per response token.

    A value that is NaN, infinite, below `LOGPROB_FLOOR` or equal to `LOGPROB_SENTINEL` is no logprob: at a
    masked token it becomes 0.0, at a trainable one it is an error. Everything else is kept as it is, exact
    zeros included. Without any logprobs the values are 0.0, which is only allowed where no token is
    trainable.

    Parameters
    ----------
    logprobs
        As received; a list is returned itself where no value had to change.
    flags
        The mask, one byte per response token.

    Raises
    ------
    RolloutLogprobError
        If the lengths differ, or a trainable token has no usable logprob.
    """
    if logprobs is None:
        if 1 in flags:
            raise RolloutLogprobError(
                f"no logprobs, but {flags.count(1)} trainable tokens (the first at response position"
                f" {flags.index(1)})"
            )
        return [0.0] * len(flags)
    if len(logprobs) != len(flags):
        raise RolloutLogprobError(f"{len(logprobs)} logprobs for {len(flags)} response ids")
    values = _as_floats(logprobs)
    # NaN makes both comparisons false.
    if not len(values) or (values.min() > LOGPROB_SENTINEL and values.max() < np.inf):
        return _with_shared_zeros(logprobs, values)
    unusable = ~np.isfinite(values) | (values < LOGPROB_FLOOR) | (values == LOGPROB_SENTINEL)
    wrong = np.flatnonzero(unusable & (np.frombuffer(flags, dtype=np.uint8) == 1))
    if len(wrong):
        position = int(wrong[0])
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise RolloutLogprobError(
            f"logprob {float(values[position])!r} at the trainable response position {position}{more}"
        )
    if not unusable.any():
        return _with_shared_zeros(logprobs, values)
    return _listed(np.where(unusable, 0.0, values))


def _with_shared_zeros(logprobs: Sequence[float], values: NDArray[np.float64]) -> list[float]:
    if not isinstance(logprobs, list):
        return _listed(values)
    for start, end in _zero_stretches(values):
        logprobs[start:end] = [0.0] * (end - start)
    return logprobs


def _listed(values: NDArray[np.float64]) -> list[float]:
    listed = [0.0] * len(values)
    done = 0
    for start, end in [*_zero_stretches(values), (len(values), len(values))]:
        listed[done:start] = values[done:start].tolist()
        done = end
    return listed


def _zero_stretches(values: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the long runs of 0.0 as (start, end) pairs.

    In them, such as tool output, one float object does instead of thousands.
    """
    zero = np.zeros(len(values) + 2, dtype=bool)
    # By their bits, because -0.0 is another number.
    zero[1:-1] = values.view(np.int64) == 0
    edges = np.flatnonzero(zero[1:] != zero[:-1]).reshape(-1, 2)
    stretches: list[tuple[int, int]] = edges[edges[:, 1] - edges[:, 0] >= _ZERO_STRETCH].tolist()
    return stretches


def _as_floats(logprobs: Sequence[float]) -> NDArray[np.float64]:
    if isinstance(logprobs, memoryview):
        return np.asarray(logprobs)
    try:
        # Several times faster than letting NumPy look at each object.
        return np.frombuffer(struct.pack(f"{len(logprobs)}d", *logprobs), dtype=np.float64)
    except struct.error:
        pass
    for position, value in enumerate(logprobs):
        if value is not None and not isinstance(value, int | float):
            raise RolloutLogprobError(f"logprob {position} is a {type(value).__name__}")
    return np.array([np.nan if value is None else value for value in logprobs], dtype=np.float64)
