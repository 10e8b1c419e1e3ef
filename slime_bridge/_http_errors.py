"""What an HTTP exchange that went wrong means to the bridge: one map from exceptions, one from answers.

Knows the exceptions of aiohttp (used by the client) and httpx (by the gates) and Polar's status codes, but
sends nothing.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import aiohttp.http_exceptions
import httpx

from slime_bridge import _json
from slime_bridge.errors import (
    BridgeError,
    ConfigError,
    ProtocolError,
    SubmitRejectedError,
    TaskConflictError,
    TaskUnknownError,
    TransportError,
)
from slime_bridge.redaction import excerpt

__all__ = ["AIOHTTP_ERRORS", "HTTPX_ERRORS", "Answer", "error_of_answer", "translate"]

_RETRYABLE_4XX = frozenset({408, 425, 429})


@dataclass(frozen=True)
class _Meaning:
    """Which error an exception becomes; `reason` and `ambiguous` are for a `TransportError`."""

    error: type[BridgeError]
    reason: str = ""
    ambiguous: bool = True


# Searched in this order, so each class stands before its bases. "Ambiguous" means: the request may have been
# carried out.
_AIOHTTP: tuple[tuple[type[Exception], _Meaning], ...] = (
    (aiohttp.InvalidURL, _Meaning(ConfigError)),
    (aiohttp.NonHttpUrlClientError, _Meaning(ConfigError)),
    (aiohttp.TooManyRedirects, _Meaning(ProtocolError)),
    (aiohttp.ClientHttpProxyError, _Meaning(TransportError, "proxy", ambiguous=False)),
    (aiohttp.ClientProxyConnectionError, _Meaning(TransportError, "proxy", ambiguous=False)),
    (aiohttp.ConnectionTimeoutError, _Meaning(TransportError, "timeout", ambiguous=False)),
    (aiohttp.ServerTimeoutError, _Meaning(TransportError, "timeout")),
    (aiohttp.ClientConnectorError, _Meaning(TransportError, "refused", ambiguous=False)),
    (aiohttp.ClientError, _Meaning(TransportError, "cut")),
    (OSError, _Meaning(TransportError, "cut")),
)
_HTTPX: tuple[tuple[type[Exception], _Meaning], ...] = (
    (httpx.InvalidURL, _Meaning(ConfigError)),
    (httpx.UnsupportedProtocol, _Meaning(ConfigError)),
    (httpx.CookieConflict, _Meaning(ProtocolError)),
    (httpx.TooManyRedirects, _Meaning(ProtocolError)),
    (httpx.DecodingError, _Meaning(ProtocolError)),
    (httpx.ConnectTimeout, _Meaning(TransportError, "timeout", ambiguous=False)),
    (httpx.PoolTimeout, _Meaning(TransportError, "timeout", ambiguous=False)),
    (httpx.TimeoutException, _Meaning(TransportError, "timeout")),
    (httpx.ConnectError, _Meaning(TransportError, "refused", ambiguous=False)),
    (httpx.ProxyError, _Meaning(TransportError, "proxy", ambiguous=False)),
    (httpx.HTTPError, _Meaning(TransportError, "cut")),
    (httpx.StreamError, _Meaning(TransportError, "cut")),
)

AIOHTTP_ERRORS: tuple[type[Exception], ...] = tuple(kind for kind, _ in _AIOHTTP)
"""Every exception that aiohttp raises for a request that failed; `translate` takes them."""

HTTPX_ERRORS: tuple[type[Exception], ...] = tuple(kind for kind, _ in _HTTPX)
"""Every exception that httpx can raise for a request; `translate` takes them."""

# Their own text holds the whole URL of the request, with its query.
_UNSPOKEN = (aiohttp.ClientResponseError, aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)


@dataclass(frozen=True)
class Answer:
    """A complete answer: status code, headers whose names are looked up in any case, decoded body."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes


def translate(exc: Exception, request: str, *, secrets: Iterable[str] = ()) -> BridgeError:
    """Turn one of `AIOHTTP_ERRORS` or `HTTPX_ERRORS` into an error of the bridge.

    Parameters
    ----------
    exc
        What was raised. It becomes the error's cause, unless its own text could hold credentials.
    request
        Method and URL to name in the message, without credentials.
    secrets
        Values to keep out of the message.
    """
    meaning = next(meaning for kind, meaning in (*_AIOHTTP, *_HTTPX) if isinstance(exc, kind))
    if isinstance(exc.__cause__, aiohttp.http_exceptions.ContentEncodingError):
        meaning = _Meaning(ProtocolError)
    text = f"{request}: {type(exc).__name__}: {excerpt(_root_cause(exc), secrets=secrets)}"
    error: BridgeError
    if meaning.error is TransportError:
        error = TransportError(text, reason=meaning.reason, ambiguous=meaning.ambiguous)
    elif meaning.error is ConfigError:
        error = ConfigError(f"{text}; check polar_rollout_url")
    else:
        error = meaning.error(text)
    if not isinstance(exc, _UNSPOKEN):
        error.__cause__ = exc
    return error


def _root_cause(exc: BaseException) -> str:
    """Return the operating system's words where there are some; the library's own name no reason."""
    link: BaseException | None = exc
    words = str(exc)
    if isinstance(exc, _UNSPOKEN):
        words = exc.message if isinstance(exc, aiohttp.ClientResponseError) else "the address is not usable"
    for _ in range(16):
        if link is None:
            break
        if isinstance(link, socket.gaierror):
            words = f"name resolution failed: {link.strerror}"
        elif isinstance(link, ssl.SSLError):
            words = link.strerror or str(link)  # its number is OpenSSL's
        elif isinstance(link, OSError) and isinstance(link.errno, int) and link.errno > 0:
            words = os.strerror(link.errno)
        link = link.__cause__ or link.__context__
    return words or "no details"


def error_of_answer(answer: Answer, request: str, *, secrets: Iterable[str] = ()) -> BridgeError | None:
    """Return the error that an answer stands for, None for a 2xx.

    Parameters
    ----------
    answer
        The server's answer.
    request
        Method and URL to name in the message, without credentials.
    secrets
        Values to keep out of the message.

    Returns
    -------
    BridgeError or None
        `TransportError` for 5xx and the 4xx that ask for patience (408, 425, 429), `TaskUnknownError` for a
        404 of a route that exists, `TaskConflictError` for 409, `SubmitRejectedError` for every other
        status. Redirects are among the latter: a server that moved is a setting to correct.
    """
    status = answer.status_code
    if 200 <= status < 300:
        return None
    said = excerpt(_detail(answer.body), secrets=secrets)
    text = f"{request} was answered {status}" + (f": {said}" if said else "")
    if status >= 500 or status in _RETRYABLE_4XX:
        reason = "server_error" if status >= 500 else "busy"
        return TransportError(
            text, reason=reason, status_code=status, retry_after=_retry_after(answer.headers)
        )
    if status == 404 and _is_unknown_id(answer.body):
        return TaskUnknownError(text)
    if status == 409:
        return TaskConflictError(text)
    if 300 <= status < 400:
        target = excerpt(answer.headers.get("location", "an unnamed place"), secrets=secrets)
        text += (
            f" (redirect to {target}; redirects are not followed, polar_rollout_url needs the final address)"
        )
    elif status == 404:
        text += " (no such route: is polar_rollout_url a Polar rollout server, and its path prefix right?)"
    return SubmitRejectedError(text, status_code=status)


def _detail(body: bytes) -> str:
    """Return what an error body says; of a 422 not its echo of the request, which may hold secrets."""
    detail = _detail_field(body)
    if isinstance(detail, list):
        items = [item for item in detail[:5] if isinstance(item, dict)]
        paths = [item.get("loc") for item in items]
        places = [".".join(map(str, path)) if isinstance(path, list) else str(path or "") for path in paths]
        found = [f"{place}: {item.get('msg', '')}" for place, item in zip(places, items, strict=True)]
        return "; ".join(found) + (f" (and {len(detail) - 5} more)" if len(detail) > 5 else "")
    if isinstance(detail, str):
        return detail
    return body[:4096].decode("utf-8", "replace")


def _detail_field(body: bytes) -> Any:
    try:
        content = _json.loads(body)
    except ProtocolError:
        return None
    return content.get("detail") if isinstance(content, dict) else None


def _is_unknown_id(body: bytes) -> bool:
    """Tell a 404 of the task route from the web framework's own, which is fixed, and from others."""
    detail = _detail_field(body)
    return isinstance(detail, str) and detail != "Not Found"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a ``Retry-After`` header; its date form is left to the retry policy."""
    value = headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else None
