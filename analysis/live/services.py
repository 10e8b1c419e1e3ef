"""What a submission needs around it: client, listener, collector, and the server's event streams."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from analysis.live.event_stream import follow_events, list_sessions, task_sessions_path
from slime_bridge.client import PolarClient, connection_limits
from slime_bridge.collect import Collector, listening
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.errors import BridgeError, CallbackBindError
from slime_bridge.poller import PollSchedule
from slime_bridge.protocol import NodeInfo

__all__ = ["LeavingClient", "Services", "open_client", "open_services", "watch_events"]

logger = logging.getLogger(__name__)

_MAX_GATEWAY_STREAMS = 16
_LISTING_SECONDS = 5.0
_ASK_SECONDS = 2.0
_ASKED_TASKS = 32
# In a notebook somebody waits in front of the screen, and few tasks are watched.
_SCHEDULE = PollSchedule(first=0.5, factor=1.5, max_interval=5.0, min_gap=0.25)


class LeavingClient(PolarClient):
    """A client that may be told to leave tasks alone.

    Attributes
    ----------
    leaves_tasks : bool
        Whether requests to cancel a task are dropped.
    """

    leaves_tasks = False

    async def cancel_task(self, task_id: str) -> bool:
        """Cancel a task, unless this process lets go of it on purpose."""
        return False if self.leaves_tasks else await super().cancel_task(task_id)


@dataclass(frozen=True)
class Services:
    """One server, and what collects results from it."""

    client: LeavingClient
    collector: Collector


def open_client(config: PolarSlimeConfig, *, concurrency: int = 8) -> LeavingClient:
    """Return a client of the configured server; a context manager."""
    return LeavingClient(
        config.rollout_url,
        timeout=config.request_timeout,
        limits=connection_limits(concurrency),
        trust_env=config.trust_env,
        control_token=config.control_plane_token,
    )


@asynccontextmanager
async def open_services(
    config: PolarSlimeConfig, *, concurrency: int, listens: bool
) -> AsyncIterator[Services]:
    """Open what one submission needs.

    Parameters
    ----------
    config
        Where the server is.
    concurrency
        Tasks under way at a time.
    listens
        Whether the server can post results to this machine; else, or where no port can be bound, they are
        polled.
    """
    client = open_client(config, concurrency=concurrency)
    async with (
        client,
        listening(config, without=_polls_instead) if listens else nullcontext() as listener,
        Collector(client, listener=listener, schedule=_SCHEDULE) as collector,
    ):
        yield Services(client, collector)


def _polls_instead(error: CallbackBindError) -> None:
    logger.warning("Results are polled, because nothing can be posted here: %s", error)


async def watch_events(
    client: PolarClient,
    config: PolarSlimeConfig,
    take: Callable[[dict[str, Any]], None],
    *,
    headers: Mapping[str, str],
    under_way: Callable[[], Sequence[str]],
) -> None:
    """Tell where sessions are, until cancelled: by the event streams of the server and of its gateways.

    Gateways tell more than their server, and are asked once for what happened before. A server that has no
    stream is asked again and again.

    Parameters
    ----------
    client, config
        The server.
    take
        Called with each event.
    headers
        Sent along.
    under_way
        Returns the ids of the tasks that are looked after.
    """
    follow = partial(follow_events, take=take, headers=headers, trust_env=config.trust_env)
    ask = partial(list_sessions, take=take, headers=headers, trust_env=config.trust_env)

    async def follow_server() -> None:
        await follow(config.rollout_url)
        while True:
            await ask(config.rollout_url, map(task_sessions_path, under_way()[:_ASKED_TASKS]))
            await anyio.sleep(_ASK_SECONDS)

    async def follow_gateway(url: str) -> None:
        await ask(url, ["/sessions"])
        await follow(url)

    async with anyio.create_task_group() as streams:
        streams.start_soon(follow_server)
        nodes: Sequence[NodeInfo] = ()
        with anyio.move_on_after(_LISTING_SECONDS):
            try:
                nodes = await client.nodes()
            except BridgeError as error:
                logger.debug("The gateways are not known: %s", error)
        for node in nodes[:_MAX_GATEWAY_STREAMS]:
            streams.start_soon(follow_gateway, node.gateway_url)
