"""Where the token arrays of a session result lie in its file.

Offsets come from the memory addresses of undecoded parts, and from keys that stand where a server's compact
writer puts them, which is quicker. What is found at such a place is compared with the part itself, so that a
key of the same name in a message cannot mislead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Raw

__all__ = ["ARRAYS", "Buffer"]

ARRAYS = ("prompt", "response", "mask", "logprob")
"""Token arrays by the names that `TOKEN_REFS` uses."""

_PROMPT_KEY, _RESPONSE_KEY, _MASK_KEY = b'"prompt_ids":', b',"response_ids":', b',"loss_mask":'
_LOGPROBS_KEY = b'"response_logprobs":['
_LOGPROBS = re.compile(rb'"response_logprobs"\s*:\s*\[')
_NEAR, _FAR = 1024, 4096
_MAX_DECOYS = 8

Places = tuple[int | None, ...]


class Buffer:
    """The bytes of a file, and how far the places of arrays in it were looked up.

    Parameters
    ----------
    data
        All of the file.
    """

    __slots__ = ("_base", "_cursor", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._base = _address(data) if data else 0
        self._cursor = 0

    def places(
        self,
        parts: tuple[Raw, Raw, Raw],
        texts: tuple[bytes, bytes, bytes],
        logprobs: Sequence[float] | None,
        tools: Raw,
    ) -> Places:
        """Return the places of one trace's arrays; to be asked trace after trace.

        Parameters
        ----------
        parts, texts
            Prompt ids, response ids and mask, as undecoded parts of the file and as copies.
        logprobs
            The trace's logprobs, None if there are none.
        tools
            The trace's tools, which stand shortly before its logprobs.

        Returns
        -------
        tuple
            Offset and length of each array in the order of `ARRAYS`, None where there is none.
        """
        found = self._adjacent(texts)
        if found is None:
            found = self._by_address(parts, texts)
        if logprobs is None:
            return (*found, None, None)
        return found + self._logprobs(logprobs, tools)

    def _adjacent(self, texts: tuple[bytes, bytes, bytes]) -> Places | None:
        """Find three arrays one right behind the other, as servers write them."""
        prompt, response, mask = texts
        first = self.data.find(_PROMPT_KEY, self._cursor) + len(_PROMPT_KEY)
        expected = b"".join((prompt, _RESPONSE_KEY, response, _MASK_KEY, mask))
        if first <= self._cursor or not self.data.startswith(expected, first):
            return None
        if not prompt[:1] == response[:1] == mask[:1] == b"[":
            return None
        second = first + len(prompt) + len(_RESPONSE_KEY)
        third = second + len(response) + len(_MASK_KEY)
        self._cursor = third + len(mask)
        return first, len(prompt), second, len(response), third, len(mask)

    def _by_address(self, parts: tuple[Raw, Raw, Raw], texts: tuple[bytes, bytes, bytes]) -> Places:
        places: list[int | None] = []
        for part, text in zip(parts, texts, strict=True):
            if text[:1] == b"[":
                start = _address(part) - self._base
                places += (start, len(text))
                self._cursor = start + len(text)
            else:
                places += (None, None)
        return tuple(places)

    def _logprobs(self, values: Sequence[float], tools: Raw) -> Places:
        """Find the next array of logprobs that holds these values."""
        start = self._next_logprobs(tools)
        for _ in range(_MAX_DECOYS):
            if start < 0:
                break
            end = self.data.find(b"]", start) + 1
            if self._holds(start, end, values):
                self._cursor = end
                return start, end - start
            match = _LOGPROBS.search(self.data, end)
            start = -1 if match is None else match.end() - 1
        return None, None

    def _next_logprobs(self, tools: Raw) -> int:
        # Looking through a few kilobytes of messages is quicker than asking for an address.
        start = self.data.find(_LOGPROBS_KEY, self._cursor, self._cursor + _FAR)
        if start < 0 and (size := memoryview(tools).nbytes):
            near = max(self._cursor, _address(tools) - self._base + size)
            start = self.data.find(_LOGPROBS_KEY, near, near + _NEAR)
        if start >= 0:
            return start + len(_LOGPROBS_KEY) - 1
        match = _LOGPROBS.search(self.data, self._cursor)
        return -1 if match is None else match.end() - 1

    def _holds(self, start: int, end: int, values: Sequence[float]) -> bool:
        """Tell whether an array begins and ends with the same numbers: no other one does, to 17 digits."""
        data, count = self.data, len(values)
        if not count:
            return not data[start + 1 : end - 1].strip()
        first = data.find(b",", start, end) if count > 1 else end - 1
        last = data.rfind(b",", start, end) if count > 1 else start
        try:
            return (
                float(data[start + 1 : first]) == values[0] and float(data[last + 1 : end - 1]) == values[-1]
            )
        except ValueError:
            return False


def _address(buffer: Any) -> int:
    address: int = np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0]
    return address
