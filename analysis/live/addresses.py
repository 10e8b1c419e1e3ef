"""Where the servers of a connection are: named, in the environment, or nowhere. Pure, and free of secrets.

A URL may hold credentials; they are used and never shown.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from analysis.errors import ConnectError

__all__ = ["POLAR_VARIABLE", "ROUTER_VARIABLE", "Addresses", "is_loopback", "resolve_addresses", "shown_url"]

POLAR_VARIABLE = "POLAR_ROLLOUT_URL"
"""Environment variable with the base URL of a Polar rollout server."""

ROUTER_VARIABLE = "SGLANG_ROUTER_URL"
"""Environment variable with the base URL of an SGLang router."""


@dataclass(frozen=True)
class Addresses:
    """Base URLs of running servers.

    Attributes
    ----------
    polar
        Of the rollout server.
    router
        Of the router behind it; None if nobody named one. Sessions do not need it: gateways know theirs.
    """

    polar: str
    router: str | None = None

    def __repr__(self) -> str:
        router = None if self.router is None else shown_url(self.router)
        return f"Addresses(polar={shown_url(self.polar)!r}, router={router!r})"


def resolve_addresses(
    polar: str | None, router: str | None, environment: Mapping[str, str]
) -> Addresses | None:
    """Return where to connect to, None for the embedded stack.

    Parameters
    ----------
    polar, router
        As given by the caller; each falls back on its variable.
    environment
        Variables by name.

    Raises
    ------
    ConnectError
        If a router is named and no rollout server, or a URL is none.
    """
    polar = polar or environment.get(POLAR_VARIABLE) or None
    given = router is not None
    router = router or environment.get(ROUTER_VARIABLE) or None
    if polar is None:
        if given:
            raise ConnectError(
                f"a router is named and no rollout server: name one with polar_url or {POLAR_VARIABLE}, or "
                "name neither for the embedded stack"
            )
        return None
    router_url = None if router is None else _checked(router, "router_url")
    return Addresses(_checked(polar, "polar_url"), router_url)


def shown_url(url: str) -> str:
    """Return a URL without user info, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine by name or address."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked(url: str, what: str) -> str:
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        # The URL itself is not quoted: what is wrong with it may be the password in it.
        raise ConnectError(f"{what} is not usable: it must look like http://host:8080 or https://host/prefix")
    return url.strip()
