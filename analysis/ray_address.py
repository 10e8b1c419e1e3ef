"""Whether a Ray answers at an address: found out before Ray is asked, which tries for minutes.

Ray's servers speak gRPC, so that the opening of HTTP/2 tells them from a port where something else listens.
Knows nothing about what is computed.
"""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from analysis.errors import EngineUnavailableError

__all__ = ["CLIENT_PORT", "PATIENCE_SECONDS", "check_address"]

PATIENCE_SECONDS = 5.0
"""How long connecting, and then the first answer, may take."""

CLIENT_PORT = 10001
"""Of ``ray://`` addresses that name none."""

_FOUND_BY_RAY = ("auto", "local")
_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # with empty settings
_FRAME_BYTES = 9
_SETTINGS = 4
_FIX = (
    "start one with `ray start --head --port=6379` and pass the address that it prints (or set RAY_ADDRESS), "
    'or use engine="processes"'
)


def check_address(address: str) -> None:
    """Make sure that a Ray can be reached.

    Parameters
    ----------
    address
        As for ``ray.init``: ``host:port``, ``ray://host:port``, ``auto`` or ``local``. The last two are Ray's
        to find.

    Raises
    ------
    EngineUnavailableError
        No such host, nobody listens there, or what listens is no Ray.
    """
    if address in _FOUND_BY_RAY:
        return
    host, port = _parts(address)
    try:
        with socket.create_connection((host, port), timeout=PATIENCE_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                _expect_http2(connection, address)
    except TimeoutError as error:
        why = f"no answer within {PATIENCE_SECONDS:g} s"
        raise EngineUnavailableError(f"no Ray at {address}", why, _FIX) from error
    except OSError as error:
        raise EngineUnavailableError(f"no Ray at {address}", error.strerror or str(error), _FIX) from error


def _parts(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or (CLIENT_PORT if parts.scheme == "ray" else None)
    except ValueError:
        port = None
    if port is None or not parts.hostname or parts.scheme not in ("", "ray"):
        raise EngineUnavailableError(
            f"{address!r} is no address of a Ray", "it has to be host:port, ray://host:port or auto", _FIX
        )
    return parts.hostname, port


def _expect_http2(connection: socket.socket, address: str) -> None:
    connection.sendall(_OPENING)
    answer = b""
    while len(answer) < _FRAME_BYTES and (more := connection.recv(_FRAME_BYTES - len(answer))):
        answer += more
    if len(answer) < _FRAME_BYTES or answer[3] != _SETTINGS:
        raise EngineUnavailableError(f"no Ray at {address}", "something else answers there", _FIX)
