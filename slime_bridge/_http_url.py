"""Addresses of HTTP servers, told from texts that only look like one before anything is sent there."""

from __future__ import annotations

from contextlib import suppress

import httpx

__all__ = ["parse_http_url"]


def parse_http_url(text: str) -> httpx.URL | None:
    """Return an ``http`` or ``https`` URL with a host and a port that sockets take, None for any other text.

    It does not raise, because the library's message may quote the credentials of the URL.
    """
    with suppress(httpx.InvalidURL, UnicodeError):  # the latter: a label of the host is empty or too long
        url = httpx.URL(text)
        url.raw_host.decode().encode("idna")
        if url.scheme in ("http", "https") and url.host and (url.port is None or 0 < url.port < 1 << 16):
            return url
    return None
