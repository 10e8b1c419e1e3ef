"""The listener that Polar posts finished tasks to.

One HTTP/1.1 server on asyncio streams and h11. A registered attempt gets a URL that nobody can guess; whatever arrives
anywhere else is refused before its body is read. A body is acknowledged as soon as it is complete and before anybody looks
into it, because Polar waits ten seconds and never posts again. The module does not decode results: who awaits a body checks
it, and may `CallbackHandle.reject` it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import TracebackType

__all__ = ["CallbackHandle", "CallbackKind", "CallbackListener"]


class CallbackKind(enum.StrEnum):
    """What became of a request to the listener; keys of `CallbackListener.counts`."""

    ACCEPTED = "accepted"
    LATE = "late"
    DUPLICATE = "duplicate"
    FOREIGN = "foreign"
    FORGED = "forged"
    MALFORMED = "malformed"
    OVERSIZED = "oversized"
    SLOW = "slow"


class CallbackHandle:
    """One attempt's address, and the body that arrives there.

    Attributes
    ----------
    task_id : str
        The task that the address was made for.
    url : str
        What to send as ``callback_url``.
    on_delivery : callable or None
        Called without arguments in the loop's thread when a body has arrived.
    """

    task_id: str
    url: str
    on_delivery: Callable[[], None] | None

    async def body(self) -> bytes:
        """Wait for the body; returns at once, and again, when it is there."""
        ...

    def take(self) -> bytes | None:
        """Return the body if it is there, without waiting."""
        ...

    def reject(self, kind: CallbackKind) -> None:
        """Forget the body as malformed or foreign, count it so, and be open for another one."""
        ...

    def close(self) -> None:
        """Stop accepting; later bodies are acknowledged, counted as late or duplicate, and dropped."""
        ...


class CallbackListener:
    """Server for task callbacks; an async context manager that binds on entry.

    Parameters
    ----------
    advertise_host
        Host in the URLs, as Polar reaches this machine; never a wildcard.
    bind_host
        Address to bind, `advertise_host` if None; may be a wildcard.
    port
        Port to bind, 0 for a free one.
    max_body_bytes
        Larger bodies are refused with 413.
    header_timeout, idle_timeout, request_timeout
        Seconds for the request head, between two reads, and for the whole request.
    """

    def __init__(
        self,
        advertise_host: str,
        *,
        bind_host: str | None = None,
        port: int = 0,
        max_body_bytes: int = 1 << 30,
        header_timeout: float = 10.0,
        idle_timeout: float = 15.0,
        request_timeout: float = 300.0,
    ) -> None: ...

    @property
    def address(self) -> str:
        """``host:port`` as advertised, for messages; without the secret path."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """How many requests of each `CallbackKind` there were."""
        ...

    def register(self, task_id: str) -> CallbackHandle:
        """Make an address for one attempt of a task."""
        ...

    async def __aenter__(self) -> CallbackListener:
        """Bind; raises `CallbackBindError`."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the listener and every open connection within a second."""
        ...

    async def start(self) -> None:
        """Bind; raises `CallbackBindError`."""
        ...

    async def close(self) -> None:
        """Close the listener and every open connection within a second; idempotent."""
        ...
