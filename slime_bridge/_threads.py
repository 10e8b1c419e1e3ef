"""Work in a thread whose failure keeps nothing of what it was given."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

__all__ = ["run_in_thread"]

T = TypeVar("T")


async def run_in_thread(
    function: Callable[..., T],
    *args: object,
    limiter: anyio.CapacityLimiter,
    abandon_on_cancel: bool = False,
) -> T:
    """Call a function in a thread, as `anyio.to_thread.run_sync`; what it raises comes out."""
    try:
        return await anyio.to_thread.run_sync(
            function, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )
    except Exception as exc:
        # The error refers to the frames that it went through, and one of them to the future that holds the
        # error: a result of many megabytes would stay until the garbage collector comes by.
        traceback.clear_frames(exc.__traceback__)
        raise
