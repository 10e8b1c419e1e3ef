"""Hosts and sockets of a listener: which host may stand in a URL, and how to bind one.

Knows sockets and the configuration keys to name in messages, nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import re
import socket

from slime_bridge.errors import ConfigError

__all__ = ["advertisable_host", "bind_hint", "bind_sockets", "bracketed", "without_brackets"]

logger = logging.getLogger(__name__)

_HOST = re.compile(r"[^\s/?#@\[\]]+")


def without_brackets(host: str) -> str:
    """Return a host as the socket functions take it: ``[::1]`` becomes ``::1``."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def bracketed(host: str) -> str:
    """Return a host as URLs take it: ``::1`` becomes ``[::1]``."""
    return f"[{host}]" if ":" in host else host


def advertisable_host(host: str) -> str:
    """Return a host that may stand in a URL handed to another machine, without brackets.

    Raises
    ------
    ConfigError
        If it is empty, a wildcard address, or not a host.
    """
    bare = without_brackets(host)
    if not _HOST.fullmatch(bare):
        raise ConfigError(
            f"polar_callback_host is {host!r}: it must be a host name or address, without scheme or path"
        )
    if _is_wildcard(bare):
        raise ConfigError(
            f"polar_callback_host is {host!r}: a wildcard leads nowhere, name an address of this machine "
            "that Polar can reach (polar_callback_bind_host may be a wildcard)"
        )
    if ":" in bare:
        try:
            ipaddress.IPv6Address(bare)
        except ValueError:
            raise ConfigError(
                f"polar_callback_host is {host!r}: neither a host name nor an IPv6 address"
            ) from None
    return bare


def _is_wildcard(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # inet_aton also reads the short forms of the wildcard, such as "0" and "0.0".
        try:
            return socket.inet_aton(host) == bytes(4)
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


async def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind every address that a host stands for to one and the same port.

    Parameters
    ----------
    host
        Name or address; ``::`` takes IPv4 too.
    port
        0 for a free one.

    Returns
    -------
    list of socket
        At least one, not yet listening. A name with several addresses (``localhost``) may be bound in part:
        clients try its addresses in turn.

    Raises
    ------
    OSError
        If the host does not resolve, or none of its addresses can be bound.
    """
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as exc:
        # The resolver's own encoding refuses labels that are empty or too long before it looks anything up.
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from exc
    bound: list[socket.socket] = []
    first_error: OSError | None = None
    for family, kind, proto, _, address in dict.fromkeys(infos):
        try:
            sock = socket.socket(family, kind, proto)
        except OSError as exc:
            first_error = first_error or exc
            continue
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
            sock.bind((address[0], port, *address[2:]))
        except OSError as exc:
            sock.close()
            first_error = first_error or exc
            logger.debug("Could not bind %s port %d: %s", address[0], port, exc)
            continue
        sock.setblocking(False)
        bound.append(sock)
        port = sock.getsockname()[1]
    if not bound:
        raise first_error or OSError(errno.EADDRNOTAVAIL, "the host has no address")
    return bound


def bind_hint(error: OSError) -> str:
    """Return what to change after `bind_sockets` failed."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return (
            "polar_callback_bind_host must be a name or address of this machine (0.0.0.0 for all); "
            "polar_callback_host is the one that Polar reaches"
        )
    if error.errno == errno.EADDRINUSE:
        return "another process has the port; set polar_callback_port to 0 for a free one"
    if error.errno == errno.EACCES:
        return "ports below 1024 need privileges; set polar_callback_port to 0 or a higher one"
    return "check polar_callback_bind_host and polar_callback_port"
