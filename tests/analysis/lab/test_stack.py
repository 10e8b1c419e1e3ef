"""The processes of a run are wired to one another; an engine that takes no weights is named."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from analysis.errors import EngineError
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import LabSettings
from analysis.lab.stack import Stack


class _Engine(BaseHTTPRequestHandler):
    status = 200
    bodies: list[dict[str, str]]

    def do_POST(self) -> None:
        self.bodies.append(
            json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path}
        )
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b'{"success": true}' if self.status == 200 else b'{"message": "torn file"}')

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[tuple[type[_Engine], str]]:
    handler = type("Handler", (_Engine,), {"bodies": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(LabSettings(engines=2), RunFolder(tmp_path), model=tmp_path / "model")


def test_parts_know_one_another(stack: Stack, tmp_path: Path) -> None:
    """The router gets every engine, the rollout server the router; all addresses differ."""
    router, server = stack.processes[-2], stack.processes[-1]
    for url in stack.engine_urls:
        assert url in router.argv
    assert f"http://{stack.router_host}:{stack.router_port}" in server.argv
    assert str(tmp_path / "polar_results") in server.argv
    ports = {process.ready_url for process in stack.processes}
    assert len(ports) == 4
    assert len({process.log_path for process in stack.processes}) == 4


def test_stopping_what_never_started_does_nothing(stack: Stack) -> None:
    """Clean-up may run before anything was started."""
    stack.stop()
    assert not any(process.running for process in stack.processes)


def test_weights_go_to_every_engine(stack: Stack, engine, tmp_path: Path) -> None:
    """Folder and version reach each engine's own address, since a router does not forward them."""
    handler, url = engine
    stack.engine_urls = [url, url]
    stack.push_weights(tmp_path, "7")
    assert [body["path"] for body in handler.bodies] == ["/update_weights_from_disk"] * 2
    assert handler.bodies[0]["model_path"] == str(tmp_path)
    assert handler.bodies[0]["weight_version"] == "7"


def test_a_refusal_says_why(stack: Stack, engine, tmp_path: Path) -> None:
    """What the engine answered is in the error, with its address and the version."""
    handler, url = engine
    handler.status = 400
    stack.engine_urls = [url]
    with pytest.raises(EngineError, match=f"{url} refused weights 3: 400 .*torn file"):
        stack.push_weights(tmp_path, "3")


def test_an_engine_that_is_gone_is_named(stack: Stack, tmp_path: Path) -> None:
    """Nothing listens: the error names the address instead of retrying for ever."""
    with pytest.raises(EngineError, match=f"{stack.engine_urls[0]} did not take weights 1"):
        stack.push_weights(tmp_path, "1")
