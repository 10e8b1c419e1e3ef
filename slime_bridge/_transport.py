"""One HTTP exchange: a request out, its whole answer in, through aiohttp's pool of connections.

Adds nothing to a request and repeats none. Knows neither routes nor what an answer means; what aiohttp
raises comes out as it is (see `slime_bridge._http_errors.translate`).
"""

from __future__ import annotations

import asyncio
import io
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import aiohttp.abc
import anyio
from yarl import URL

from slime_bridge._certificates import ssl_context
from slime_bridge._http_errors import Answer
from slime_bridge._http_url import parse_http_url
from slime_bridge.errors import ConfigError
from slime_bridge.redaction import redact

__all__ = ["HttpTransport", "Transport"]

# Idle connections close before the five seconds of common servers, because a submit that meets a closing
# connection is ambiguous.
_KEEP_ALIVE_SECONDS = 2.0
_READ_BYTES = 256 * 1024
_CLOSE_SECONDS = 0.5
# An error is explained in its first lines.
_ERROR_BYTES = 64 * 1024
# Above this, aiohttp wants a body as a file, which it sends piece by piece.
_WHOLE_BYTES = 1 << 20


class Transport(Protocol):
    """What a `PolarClient` sends its requests through."""

    async def exchange(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None, max_bytes: int
    ) -> Answer:
        """Send one request and read its answer to the end, or a little beyond the limit.

        Parameters
        ----------
        method
            In capitals.
        url
            Complete and percent-encoded, without user info.
        headers
            All but those that HTTP itself needs.
        content
            The body, None if there is none.
        max_bytes
            Reading stops soon after so many decoded bytes of a 2xx answer; of others less is kept.

        Raises
        ------
        aiohttp.ClientError, OSError
            There is no complete answer.
        """

    async def aclose(self) -> None:
        """Close all connections; idempotent."""


@dataclass(kw_only=True, eq=False)
class HttpTransport:
    """The network, for one server and one event loop.

    Parameters
    ----------
    base_url
        The server's address; its host decides about the proxy.
    connect_timeout
        Seconds for looking up the host's name, and for a connection.
    read_timeout
        Seconds without a byte after which an answer is given up.
    max_connections
        At the same time; further requests wait for one without a timeout.
    trust_env
        Follow the environment's proxy variables and certificate settings.
    netrc
        Look up credentials in ``.netrc``.

    Raises
    ------
    ConfigError
        If the environment names a proxy or certificates that cannot be used.
    """

    base_url: str
    connect_timeout: float
    read_timeout: float
    max_connections: int
    trust_env: bool = False
    netrc: bool = False

    def __post_init__(self) -> None:
        self._proxy = _proxy_of(URL(self.base_url)) if self.trust_env else None
        encrypted = self.base_url.startswith("https:") or (self._proxy or "").startswith("https:")
        # Where nothing is encrypted, certificates would be loaded for nothing.
        self._ssl = ssl_context(trust_env=self.trust_env) if encrypted else True
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def exchange(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None, max_bytes: int
    ) -> Answer:
        """Send one request; see `Transport.exchange`."""
        session = self._session if self._session is not None else self._open()
        body = io.BytesIO(content) if content is not None and len(content) > _WHOLE_BYTES else content
        async with session.request(
            method,
            URL(url, encoded=True),
            headers=headers,
            data=body,
            proxy=self._proxy,
            allow_redirects=False,
        ) as response:
            limit = max_bytes if 200 <= response.status < 300 else min(max_bytes, _ERROR_BYTES)
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    break
            return Answer(response.status, response.headers, b"".join(chunks))

    async def aclose(self) -> None:
        """Close all connections; idempotent."""
        self._closed = True
        if self._session is not None:
            # Closing is done at once; what is waited for is that the loop notices.
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Make the session, which belongs to the loop that it is made in."""
        if self._closed:
            raise RuntimeError("the client is closed")
        connector = aiohttp.TCPConnector(
            limit=self.max_connections,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            resolver=_BoundedResolver(self.connect_timeout),
            ssl=self._ssl,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self.connect_timeout, sock_read=self.read_timeout
            ),
            read_bufsize=_READ_BYTES,
            trust_env=self.netrc,
            cookie_jar=aiohttp.CookieJar(unsafe=True),
            middlewares=(_only_once,),
        )
        return self._session


async def _only_once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request one time only.

    aiohttp repeats a GET or DELETE on a kept connection that has just closed, unseen by fuse and policy. It
    knows that case by the two classes of the error, so that the error comes out as their base.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise aiohttp.ClientConnectionError(str(exc) or "the connection was cut") from exc


class _BoundedResolver(aiohttp.ThreadedResolver):
    """Looks names up within a time; aiohttp's own timeout for connecting begins after that."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    async def resolve(self, *args: Any, **kwargs: Any) -> list[aiohttp.abc.ResolveResult]:
        async with asyncio.timeout(self._timeout):
            return await super().resolve(*args, **kwargs)


def _proxy_of(url: URL) -> str | None:
    """Return the proxy that the environment names for this address, None for none."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.host or ""):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if (parsed := parse_http_url(proxy)) is None:
        raise ConfigError(
            f"the environment's proxy {redact(proxy)!r} cannot be used: it must look like "
            "http://host:port or https://host:port; name the server in NO_PROXY, or unset polar_trust_env"
        )
    return f"{parsed.scheme}://{proxy.partition('://')[2]}"
