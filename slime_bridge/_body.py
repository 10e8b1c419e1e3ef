"""The bytes of a task's record as received, large ones in memory that goes back to the system with them.

A result of ten megabytes lives for a second, while the lists made of it stay for a training step. In the
heap of the C library such a body ends up between lists that live on, and its memory cannot be given back. A
mapping of its own begins and ends with the body, and costs nothing before bytes are written to it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

__all__ = ["MAPPED_BYTES", "Body", "joined", "mapped"]

Body: TypeAlias = bytes | memoryview
"""Bytes, or a read-only view of bytes; equal to bytes of the same content."""

MAPPED_BYTES = 256 * 1024
"""From this size on a body has a mapping of its own."""

_HUGE_PAGE = 2 << 20


def mapped(size: int) -> memoryview:
    """Return writable memory of so many zero bytes, at least 1, which is unmapped with its last reference.

    Raises
    ------
    MemoryError
        If the system has no room for so much.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as exc:
        raise MemoryError(f"no memory for {size} bytes: {exc}") from exc
    if size > _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # Huge pages take half the time to fill. Not for the beginning: a sender that announces much and sends
        # little gets small ones. A kernel that has none says so, which changes nothing.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE, _HUGE_PAGE)
    return memoryview(memory)


def joined(chunks: Sequence[bytes]) -> Body:
    """Return the content of all chunks as one body; raises `MemoryError` as `mapped`."""
    size = sum(map(len, chunks))
    if size < MAPPED_BYTES:
        return b"".join(chunks)
    body = mapped(size)
    end = 0
    for chunk in chunks:
        start, end = end, end + len(chunk)
        body[start:end] = chunk
    return body.toreadonly()
