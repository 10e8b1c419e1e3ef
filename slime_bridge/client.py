"""HTTP client of the rollout server: one method per route, one request per call, typed errors."""

from __future__ import annotations

import httpx

from slime_bridge.protocol import NodeInfo
from slime_bridge.retry import Fuse

__all__ = ["PolarClient", "connection_limits"]


def connection_limits(concurrency: int) -> httpx.Limits:
    """Return limits that let so many requests run at once."""
    ...


class PolarClient:
    """One rollout server; an async context manager.

    Parameters
    ----------
    base_url
        ``http(s)://host[:port][/prefix]``; credentials and a query are used, and never shown.
    timeout
        Seconds for each phase of a request, and in all for requests with small answers; 30 if None.
    limits
        Connection limits, see `connection_limits`.
    trust_env
        Follow proxy variables of the environment.
    control_token
        Sent as ``X-Polar-Control-Token``.
    transport
        Replaces the network.
    fuse
        Shared outage detection; a new one if None.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float | None = None,
        limits: httpx.Limits | None = None,
        trust_env: bool = False,
        control_token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        fuse: Fuse | None = None,
        max_body_bytes: int = 1 << 30,
    ) -> None: ...

    @property
    def fuse(self) -> Fuse:
        """The outage detection that every request passes."""
        ...

    @property
    def inactive_features(self) -> dict[str, str]:
        """Optional features that this server was found to lack, with the reason; each was logged once."""
        ...

    async def submit(self, body: bytes) -> str:
        """Submit an encoded task request; returns the accepted task id."""
        ...

    async def get_task(self, task_id: str) -> bytes:
        """Return a task's record with all results, as received; raises `TaskUnknownError`."""
        ...

    async def list_statuses(self) -> dict[str, str]:
        """Return the status of every task that the server knows, by task id."""
        ...

    async def nodes(self) -> list[NodeInfo]:
        """Return the gateways."""
        ...

    async def health(self) -> bool:
        """Ask whether the server is up; True, or the error of the failed request."""
        ...

    async def cancel_task(self, task_id: str) -> bool:
        """Ask the server to cancel a task; False where it cannot."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
