"""Session results whose traces hold their numbers in flat buffers instead of lists.

Millions of tokens come as JSON numbers, and making an int object for each of them takes longer than all other
work on a result. Here the number arrays are left as text by the typed decoder and read by simdjson into
buffers of 64-bit values, which NumPy checks and converts without a Python object in between.

Only the plain form is read: arrays of integers within 64 bits for token ids and masks, of numbers for
logprobs, or null. For everything else the decoder raises, and the caller decodes into lists instead, where
the patient path and its error messages are.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec
import simdjson

from slime_bridge.protocol.results import SessionResult, Trace, Trajectory

__all__ = ["FlatSession"]


class _Parser(threading.local):
    """One parser per thread: its memory is worth keeping, and it holds one document at a time."""

    def __init__(self) -> None:
        self.parse = simdjson.Parser().parse


_parser = _Parser()

_FLAG_OF_DIGIT = bytes.maketrans(b"01", b"\0\1")


if TYPE_CHECKING:
    FlatTrace = Trace
    FlatTrajectory = Trajectory
    FlatSession = SessionResult
else:

    class FlatTrace(Trace, gc=False, kw_only=True):
        """A `Trace` whose number arrays are memoryviews.

        Their format is ``q`` for ids, ``B`` or ``q`` for the mask and ``d`` for logprobs.
        """

        prompt_ids: msgspec.Raw = msgspec.Raw()
        response_ids: msgspec.Raw = msgspec.Raw()
        loss_mask: msgspec.Raw = msgspec.Raw()
        response_logprobs: msgspec.Raw = msgspec.Raw()

        def __post_init__(self) -> None:
            self.prompt_ids = _flat(self.prompt_ids, "q")
            self.response_ids = _flat(self.response_ids, "q")
            self.loss_mask = _flags(self.loss_mask) or _flat(self.loss_mask, "q")
            self.response_logprobs = _flat(self.response_logprobs, "d")
            super().__post_init__()

    class FlatTrajectory(Trajectory, gc=False, kw_only=True):
        """A `Trajectory` of flat traces."""

        traces: list[FlatTrace] | None = []

    class FlatSession(SessionResult, gc=False, kw_only=True):
        """A `SessionResult` of flat traces."""

        trajectory: FlatTrajectory


def _flags(raw: msgspec.Raw) -> memoryview[Any] | None:
    """Return a mask of digits 0 and 1 with nothing between them but commas, else None."""
    text = bytes(raw)
    digits, separators = text[1::2], text[2::2]
    if not text.startswith(b"[") or separators.count(b",") != len(digits) - 1:
        return None
    # The decoder has seen that it is JSON, so that only the closing bracket is left.
    if digits.count(b"0") + digits.count(b"1") != len(digits):
        return None
    return memoryview(digits.translate(_FLAG_OF_DIGIT))


def _flat(raw: msgspec.Raw, code: str) -> memoryview[Any] | None:
    """Return the numbers of a JSON array; None where there is none. Raises ValueError for anything else."""
    text = bytes(raw)
    if text in (b"", b"null"):
        return None
    # Nested arrays would be flattened without a word.
    if text.find(b"[", 1) != -1:
        raise ValueError("not a flat array")
    try:
        array = _parser.parse(text)
        if not isinstance(array, simdjson.Array):
            raise ValueError("not an array")
        numbers = memoryview(array.as_buffer(of_type="d" if code == "d" else "i"))
    except (RuntimeError, TypeError) as exc:
        raise ValueError(str(exc)) from None
    return numbers.cast("d") if code == "d" else numbers.cast("q")
