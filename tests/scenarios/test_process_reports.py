"""Field reports that only a whole process shows: a failed start, another event loop, a missed callback."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge.doctor.generation import check_generation
from slime_bridge.doctor.http import Web
from slime_bridge.doctor.server import Gateway
from slime_bridge.protocol import NodeInfo
from tests.slime_bridge.rollouts import Source, running

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a script; one that hangs fails the test."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def test_a_process_whose_listener_cannot_bind_ends_with_the_error() -> None:
    """No helper thread keeps the script alive; its exit code says that it failed, and the error why."""
    with serve_polar() as polar, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        values = {"url": polar.url, "port": taken.getsockname()[1]}
        done = python(
            """
            import json, sys
            from slime_bridge.rollout import generate_rollout_polar_async
            from tests.slime_bridge.rollouts import Source, make_args
            values = json.loads(sys.argv[1])
            args = make_args(values["url"], polar_callback_port=values["port"])
            generate_rollout_polar_async(args, 0, Source())
            """,
            json.dumps(values),
        )
        assert not polar.submits
    assert done.returncode == 1
    assert "CallbackBindError" in done.stderr
    assert str(values["port"]) in done.stderr


def test_asyncio_is_left_as_it_was_and_any_policy_will_do() -> None:
    """Importing patches nothing, and a rollout works where the process has a loop policy of its own."""
    with serve_polar(FaultScript(sessions=SessionProfile(duration=0.02))) as polar:
        done = python(
            """
            import asyncio, importlib, pkgutil, sys
            before = {name: getattr(asyncio, name) for name in ("run", "get_event_loop", "new_event_loop")}
            base = asyncio.BaseEventLoop
            methods = {name: getattr(base, name) for name in ("run_until_complete", "run_forever")}

            class Loop(asyncio.SelectorEventLoop):
                made = 0
                def __init__(self, *args):
                    super().__init__(*args)
                    Loop.made += 1

            class Policy(asyncio.DefaultEventLoopPolicy):
                _loop_factory = Loop

            asyncio.set_event_loop_policy(Policy())
            for name in ("slime_bridge", "analysis"):
                package = importlib.import_module(name)
                for module in pkgutil.iter_modules(package.__path__, f"{name}."):
                    importlib.import_module(module.name)
            from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
            from tests.slime_bridge.rollouts import Source, make_args
            output = generate_rollout_polar_async(make_args(sys.argv[1]), 0, Source())
            stop_global_worker()

            async def inside():
                return type(asyncio.get_running_loop()).__name__

            assert all(getattr(asyncio, name) is value for name, value in before.items())
            assert all(getattr(base, name) is value for name, value in methods.items())
            assert "nest_asyncio" not in sys.modules
            assert Loop.made > 0
            print(len(output.samples), asyncio.run(inside()))
            """,
            polar.url,
        )
    assert done.stdout.split() == ["4", "Loop"], done.stderr


def test_the_first_missed_callback_is_one_hint(caplog: pytest.LogCaptureFixture) -> None:
    """It names the address that the server was told to call, and the key; every group comes by polling."""
    script = FaultScript(sessions=SessionProfile(duration=0.02), faults=[Fault("callback_lost", seconds=0.0)])
    with (
        caplog.at_level(logging.WARNING, logger="slime_bridge"),
        serve_polar(script) as polar,
        running(polar, Source()) as worker,
    ):
        batch, _ = worker.collect(0)
    assert len(batch.groups) == 4
    hints = [r.getMessage() for r in caplog.records if "had to be polled" in r.getMessage()]
    assert len(hints) == 1
    assert "polar_callback_host" in hints[0]
    assert "http://127.0.0.1:" in hints[0]


@pytest.mark.parametrize("status", [500, 503])
def test_a_generation_is_never_sent_a_second_time(status: int) -> None:
    """A router repeats generations by itself; repeating them here too would multiply them."""
    asked: list[str] = []

    class Failing(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Write no log."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"

    async def ask() -> None:
        async with Web(trust_env=False, timeout=5.0) as web:
            await check_generation(web, [Gateway(NodeInfo(node_id="n", gateway_url=url), url)], [], model="m")

    try:
        asyncio.run(ask())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert asked.count("/v1/chat/completions") == 1
