"""A wrong address of a Ray is said soon, with what is wrong with it, before Ray itself tries for minutes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import analysis
from analysis import ray_address
from analysis.errors import EngineUnavailableError
from analysis.ray_address import check_address
from tests.analysis.test_loading import write_session

_EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextmanager
def listening(answer: bytes | None, *, port: int = 0) -> Iterator[str]:
    """Listen, and give those who connect these bytes; None for a silence."""
    with socket.create_server(("127.0.0.1", port)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.recv(100)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in kept:
        connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nobody_listens(scheme: str) -> None:
    """Refused at once, with what to do."""
    address = f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(EngineUnavailableError, match=f"no Ray at {address}.*refused.*ray start --head"):
        check_address(address)


def test_loading_gives_up_before_ray_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way from `analysis.load`; also for an address from the environment."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
    write_session(tmp_path, "s1")
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail("Ray was asked"))
    with pytest.raises(EngineUnavailableError, match=f"no Ray at {address}"):
        analysis.load(tmp_path, engine="ray", address=address, index=False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(EngineUnavailableError, match=f"no Ray at {address}"):
        analysis.load(tmp_path, engine="ray", index=False)


def test_a_listener_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for, within a bound."""
    monkeypatch.setattr(ray_address, "PATIENCE_SECONDS", 0.2)
    with listening(None) as address, pytest.raises(EngineUnavailableError, match=r"no answer within 0\.2 s"):
        check_address(address)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_listens(answer: bytes) -> None:
    """A port that is taken by another service."""
    with listening(answer) as address, pytest.raises(EngineUnavailableError, match="something else answers"):
        check_address(address)


def test_a_web_server_is_no_ray() -> None:
    """The real thing, with its own opinion of HTTP/2."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(EngineUnavailableError, match="something else answers"):
            check_address(f"127.0.0.1:{server.server_address[1]}")
        server.shutdown()


def test_what_speaks_as_ray_does_is_left_to_ray() -> None:
    """A server of gRPC begins with its settings."""
    with listening(_EMPTY_SETTINGS) as address:
        check_address(address)
        check_address(f"ray://{address}")
    for name in ("auto", "local"):
        check_address(name)


def test_no_opening_in_the_clear_where_ray_uses_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a connection has to do."""
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with listening(b"") as address:
        check_address(address)


@pytest.mark.parametrize(
    "address", ["nonsense", "host:port", "http://127.0.0.1:8265", "127.0.0.1:99999", ":6379", "ray://"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    """Without a look-up or a connection, naming the forms that are."""
    with pytest.raises(EngineUnavailableError, match=r"no address of a Ray.*ray://host:port"):
        check_address(address)
