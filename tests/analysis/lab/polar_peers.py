"""Loopback peers for tests of the Polar-compatible server: a callback receiver and a small engine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

AGENT = {"harness": "lab_tool_agent"}


def task(task_id: str = "t-1", **changes: Any) -> dict[str, Any]:
    """Return the body of a submit."""
    return {"task_id": task_id, "instruction": "Say hello.", "agent": {"harness": "lab"}, **changes}


def submit(polar: Any, task_id: str = "t-1", **changes: Any) -> httpx.Response:
    """Submit a task to a running server."""
    body = task(task_id, **changes)
    return post(f"{polar.url}/rollout/task/submit", json=body)


def get(polar: Any, path: str, **options: Any) -> httpx.Response:
    """Fetch a path of a running server."""
    return call("GET", f"{polar.url}{path}", **options)


def call(method: str, url: str, **options: Any) -> httpx.Response:
    """Send one request on a connection of its own, without loading certificates for it."""
    return httpx.request(method, url, **{"timeout": 20.0, "trust_env": False, "verify": False, **options})


def post(url: str, **options: Any) -> httpx.Response:
    """Send one POST."""
    return call("POST", url, **options)


@dataclass
class Received:
    """One request that a peer got; `complete` is false when the sender hung up in the middle."""

    path: str
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)


@dataclass
class CallbackSink:
    """A running callback receiver."""

    url: str
    received: list[Received] = field(default_factory=list)


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *_: Any) -> None:
        """Write no log."""

    def read(self) -> Received:
        length = int(self.headers.get("content-length", 0))
        try:
            body = self.rfile.read(length)
        except OSError:
            body = b""
        headers = {key.lower(): value for key, value in self.headers.items()}
        return Received(self.path, headers, body, complete=len(body) == length)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Peers that hang up are ordinary here."""


@contextmanager
def _serving(handler: type[_Quiet]) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@contextmanager
def callback_sink(status: int = 200) -> Iterator[CallbackSink]:
    """Run a callback receiver that answers `status` to everything."""
    sink = CallbackSink("")

    class Handler(_Quiet):
        def do_POST(self) -> None:
            got = self.read()
            sink.received.append(got)
            if got.complete:
                self.answer(status, b"{}")

    with _serving(Handler) as base:
        sink.url = f"{base}/polar/secret-token"
        yield sink


@dataclass
class StubEngine:
    """A running engine with a character-level tokenisation whose chat template is prefix-stable.

    `reply` maps (messages, number of the call) to the text of the answer, to (text, finish reason), or to an
    HTTP status. With `structured` it parses tool calls out of the text, as real engines can.
    """

    url: str
    reply: Callable[[list[dict[str, Any]], int], Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    weight_version: str = "5"
    hold: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0
    structured: bool = False


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """Tokenise a conversation and open the assistant's turn."""
    ids = []
    for message in messages:
        ids += [1, *_characters(f"{message['role']}:{message.get('content') or ''}"), 2]
    return [*ids, 1, *_characters("assistant:")]


def _characters(text: str) -> list[int]:
    return [10 + ord(character) % 500 for character in text]


def shelf_policy(messages: list[dict[str, Any]], _: int = 0) -> str:
    """Answer the shelf task rightly: find, count, then say the number."""
    last = str(messages[-1]["content"])
    named = re.search(r'shelf "([A-F])"', last)
    item = re.search(r'with the "(\w+)"', last)
    if item is not None and messages[-1]["role"] == "user":
        return f'<tool_call>{{"name": "find", "arguments": {{"item": "{item.group(1)}"}}}}</tool_call>'
    if named is not None:
        return f'<tool_call>{{"name": "count", "arguments": {{"shelf": "{named.group(1)}"}}}}</tool_call>'
    return f"Answer: {last}"


def _chat(engine: StubEngine, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    reply = engine.reply(body["messages"], len(engine.requests) - 1)
    if isinstance(reply, int):
        return reply, {"error": {"message": "scripted", "type": "stub"}}
    text, finish = reply if isinstance(reply, tuple) else (reply, "stop")
    ids = _characters(text) + ([2] if finish == "stop" else [])
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
        "prompt_token_ids": prompt_ids(body["messages"]),
        "logprobs": {
            "content": [{"token": "x", "logprob": -0.25, "bytes": [], "top_logprobs": []} for _ in ids]
        },
        "meta_info": {
            "output_token_logprobs": [[-0.25, token, None] for token in ids],
            "weight_version": engine.weight_version,
        },
    }
    if engine.structured and text.startswith("<tool_call>"):
        call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        structured = [{"id": "call_engine", "type": "function", "function": function}]
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": structured}
    usage = {"prompt_tokens": len(choice["prompt_token_ids"]), "completion_tokens": len(ids)}
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "stub",
        "choices": [choice],
        "usage": usage,
    }
    return 200, answer


@contextmanager
def stub_engine(
    reply: Callable[..., Any] = shelf_policy, *, held: bool = False, structured: bool = False
) -> Iterator[StubEngine]:
    """Run an engine; with `held` every chat call waits for ``engine.hold``."""
    engine = StubEngine("", reply, structured=structured)
    if not held:
        engine.hold.set()
    lock = threading.Lock()

    class Handler(_Quiet):
        def do_GET(self) -> None:
            known = {"/health": b"", "/v1/models": b'{"object":"list","data":[{"id":"stub"}]}'}
            self.answer(200 if self.path in known else 404, known.get(self.path, b"{}"))

        def do_POST(self) -> None:
            body = self.read().json()
            with lock:
                engine.requests.append(body)
                engine.waiting += 1
            engine.hold.wait(20)
            with lock:
                engine.waiting -= 1
                status, answer = _chat(engine, body)
            self.answer(status, json.dumps(answer).encode())

    with _serving(Handler) as engine.url:
        yield engine
        engine.hold.set()
