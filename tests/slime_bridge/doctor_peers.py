"""Peers of the doctor: an engine that gives token ids only when asked in so many words, and an agent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from analysis.lab.polar_server.agents import AgentResult
from slime_bridge._launch import arguments

PROMPT_IDS, OUTPUT_IDS, LOGPROBS = [5, 6, 7], [11, 12], [-0.5, -0.25]


@dataclass
class FakeEngine:
    """What an engine does with a chat request; a test may change it at any time.

    `unasked` gives ids whenever logprobs are asked for. `chat_ids` and `native_ids` tell which endpoint knows
    ids at all.
    """

    url: str = ""
    unasked: bool = False
    chat_ids: bool = True
    native_ids: bool = True
    logprobs: bool = True
    weight_version: str | None = "4"
    finish_reason: str = "stop"
    slow: float = 0.0
    chats: list[dict[str, Any]] = field(default_factory=list)
    pages: dict[str, Any] = field(default_factory=dict)

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat completion as SGLang does."""
        self.chats.append(body)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "finish_reason": self.finish_reason,
        }
        if body.get("logprobs") and self.logprobs:
            content = [{"token": "x", "logprob": p, "bytes": None, "top_logprobs": []} for p in LOGPROBS]
            choice["logprobs"] = {"content": content}
        if self.chat_ids and (self.unasked or body.get("return_prompt_token_ids")):
            choice["prompt_token_ids"] = PROMPT_IDS
        if self.chat_ids and (self.unasked or body.get("return_meta_info")):
            choice["meta_info"] = self._meta()
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "tiny",
            "choices": [choice],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }

    def generate(self) -> dict[str, Any]:
        """Answer the native endpoint."""
        return {"text": "hello", "meta_info": self._meta() if self.native_ids else {}}

    def _meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = {"finish_reason": {"type": self.finish_reason}}
        if self.logprobs:
            meta["output_token_logprobs"] = [
                [p, token, None] for p, token in zip(LOGPROBS, OUTPUT_IDS, strict=True)
            ]
        if self.weight_version is not None:
            meta["weight_version"] = self.weight_version
        return meta


@contextmanager
def serve_engine(**settings: Any) -> Iterator[FakeEngine]:
    """Serve a fake engine on a free loopback port."""
    engine = FakeEngine(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Write no log."""

        def _answer(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            time.sleep(engine.slow)
            if self.path in engine.pages:
                self._answer(engine.pages[self.path])
            elif self.path == "/health":
                self._answer({})
            elif self.path == "/get_server_info":
                self._answer({"version": "0.5.12"})
            elif self.path == "/v1/models":
                self._answer({"object": "list", "data": [{"id": "tiny", "object": "model"}]})
            else:
                self._answer({"detail": "Not Found"}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path == "/v1/chat/completions":
                self._answer(engine.chat(body))
            elif self.path == "/generate":
                self._answer(engine.generate())
            else:
                self._answer({"detail": "Not Found"}, 404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class OneCallAgent:
    """Asks the model once and is done."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    async def run(self, instruction: str, context: Any, ask: Any) -> AgentResult:
        """Ask."""
        await ask({"model": "any", "messages": [{"role": "user", "content": instruction}]})
        return AgentResult("completed")


AGENT = {"import_path": "tests.slime_bridge.doctor_peers:OneCallAgent", "model_name": "tiny"}
TEMPLATE = {"agent": AGENT, "evaluator": {"strategy": "session_completed"}, "timeout_seconds": 30}


def args_for(polar: Any, **changes: Any) -> Any:
    """Return the arguments of a training over this server."""
    keys = {"polar_rollout_url": polar.url, "polar_task_template": TEMPLATE, "polar_run_dir": "off"}
    known = {"rollout_batch_size": 2, "n_samples_per_prompt": 4, "max_tokens_per_gpu": 4096}
    return arguments({**keys, **known, **changes})
