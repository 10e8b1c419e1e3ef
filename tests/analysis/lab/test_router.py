"""The real router in front of real engines, and worker lists of routers old and new."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import uvicorn

from analysis.errors import ProcessNotReadyError, RouterError
from analysis.lab.engine import Engine
from analysis.lab.processes import free_port
from analysis.lab.router import Router, RouterWorker, list_workers
from analysis.lab.task_shelf import EpisodeRun, ShelfTask
from tests.analysis.lab.engine_peers import serve_engine, small_checkpoint


@contextmanager
def fake_router(answers: dict[str, tuple[int, object]]) -> Iterator[str]:
    """A server that answers fixed bodies by path, 404 elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, {"detail": "Not Found"}))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class TestListWorkers:
    """Both forms of the worker list."""

    def test_new_resource(self) -> None:
        """``/workers`` names id, URL and health."""
        workers = [{"id": "w1", "url": "http://a:1", "is_healthy": False}, {"url": "http://b:2", "load": 3}]
        with fake_router({"/workers": (200, {"workers": workers, "total": 2})}) as url:
            assert list_workers(url) == [
                RouterWorker("http://a:1", healthy=False, worker_id="w1"),
                RouterWorker("http://b:2"),
            ]

    def test_old_list(self) -> None:
        """``/list_workers`` names URLs only; the new path is 404 there."""
        with fake_router({"/list_workers": (200, {"urls": ["http://a:1"]})}) as url:
            assert list_workers(url) == [RouterWorker("http://a:1", healthy=None, worker_id=None)]

    def test_no_workers_is_an_answer(self) -> None:
        """An empty list is not an unknown form."""
        with fake_router({"/workers": (200, {"workers": []})}) as url:
            assert list_workers(url) == []

    @pytest.mark.parametrize(
        "answers",
        [
            {},
            {"/workers": (200, b"<html>")},
            {"/workers": (200, {"workers": [{"address": "x"}]}), "/list_workers": (200, {"urls": [3]})},
            {"/workers": (500, {"workers": []})},
            {"/workers": (200, [1, 2])},
        ],
    )
    def test_unknown_forms_give_one_clear_line(self, answers: dict[str, tuple[int, object]]) -> None:
        """Something that is no router, or a newer one, is reported with what was asked and answered."""
        with fake_router(answers) as url, pytest.raises(RouterError, match="in no known form") as caught:
            list_workers(url)
        assert "GET /workers: " in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_nothing_there(self) -> None:
        """A refused connection is an error of the same type."""
        with pytest.raises(RouterError, match="no answer"):
            list_workers(f"http://127.0.0.1:{free_port()}", timeout=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("router"), seed=0)


@pytest.mark.lab
@pytest.mark.timeout(180)
class TestRealRouter:
    """`sglang-router` as installed."""

    def test_requests_pass_exactly_and_the_process_ends(self, folder: Path, tmp_path: Path) -> None:
        """Chat through the router brings ids and logprobs unasked; it lists its worker and stops cleanly."""
        with Engine(folder, seed=0) as engine, serve_engine(engine) as worker:
            with Router([worker], log_path=tmp_path / "router.log") as router:
                workers = router.workers()
                assert [(w.url, w.healthy) for w in workers] == [(worker, True)]
                assert workers[0].worker_id
                body = {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": "hi"}],
                    "max_tokens": 5,
                    "logprobs": True,
                    "return_prompt_token_ids": True,
                }
                with httpx.Client(base_url=router.url, trust_env=False, timeout=30) as client:
                    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
                    native = client.post(
                        "/generate",
                        json={"input_ids": choice["prompt_token_ids"], "return_logprob": True, "rid": "mine"},
                    ).json()
                    refused = client.post("/generate", json={"input_ids": [1] * 2000})
            assert router.process.returncode == 0, router.process.log_tail()
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) > 0
        assert choice["meta_info"]["prompt_tokens"] == len(choice["prompt_token_ids"])
        assert native["meta_info"]["id"] == "mine"
        assert refused.status_code == 400
        assert "2000" in refused.json()["error"]["message"]

    def test_an_episode_plays_through_it(self, folder: Path, tmp_path: Path) -> None:
        """Tools and tool messages survive the router: the next prompt begins with the last one."""
        task = ShelfTask()
        with (
            Engine(folder, seed=0) as engine,
            serve_engine(engine) as worker,
            Router([worker], log_path=tmp_path / "router.log") as router,
            httpx.Client(base_url=router.url, trust_env=False, timeout=30) as client,
        ):
            run = EpisodeRun(task.episode(3))
            prompts = []
            for text in ('<tool_call>{"name": "count", "arguments": {"shelf": "B"}}</tool_call>', None):
                body = {"messages": run.messages, "tools": task.tools, "max_tokens": 4, "logprobs": True}
                answer = client.post("/v1/chat/completions", json={"model": "tiny", **body}).json()
                prompts.append(answer["choices"][0]["prompt_token_ids"])
                if text is not None:
                    run.feed(text)
            direct = engine.tokenizer.apply_chat_template(
                run.messages, tools=task.tools, add_generation_prompt=True, return_dict=False
            )
        assert prompts[1] == direct
        assert prompts[1][: len(prompts[0])] == prompts[0]

    def test_two_engines_share_the_load(self, folder: Path, tmp_path: Path) -> None:
        """Requests reach both workers, and two routers run side by side without fighting for a port."""
        with (
            Engine(folder, seed=0) as one,
            Engine(folder, seed=1) as two,
            serve_engine(one) as first,
            serve_engine(two) as second,
            Router([first, second], log_path=tmp_path / "a.log", policy="round_robin") as router,
            Router([first], log_path=tmp_path / "b.log") as other,
        ):
            deadline = time.monotonic() + 30
            while sum(bool(worker.healthy) for worker in router.workers()) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            with httpx.Client(trust_env=False, timeout=30) as client, ThreadPoolExecutor(4) as pool:
                body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}

                def ask(_: int) -> int:
                    return client.post(f"{router.url}/generate", json=body).status_code

                assert set(pool.map(ask, range(12))) == {200}
                assert client.post(f"{other.url}/generate", json=body).status_code == 200
            assert min(engine.load().counters["requests"] for engine in (one, two)) >= 4

    def test_a_failing_worker_is_asked_once(self, tmp_path: Path) -> None:
        """No hidden retries: one request of a client is one generation, also when it fails."""
        asked: list[str] = []

        async def app(scope: dict[str, object], receive: object, send: object) -> None:
            path = str(scope["path"])
            asked.append(path)
            status = 500 if path == "/generate" else 200
            await send({"type": "http.response.start", "status": status, "headers": []})  # type: ignore[operator]
            await send({"type": "http.response.body", "body": b"{}"})  # type: ignore[operator]

        with serve_asgi(app) as worker, Router([worker], log_path=tmp_path / "router.log") as router:
            with httpx.Client(trust_env=False, timeout=30) as client:
                for _ in range(12):
                    assert client.post(f"{router.url}/generate", json={"text": "x"}).status_code == 500
            assert asked.count("/generate") == 12
            assert router.workers()[0].healthy is True

    def test_no_worker_means_not_ready(self, tmp_path: Path) -> None:
        """No living worker is reported as not ready within the bound, and leaves no process behind."""
        dead = f"http://127.0.0.1:{free_port()}"
        router = Router([dead], log_path=tmp_path / "router.log", ready_timeout=3)
        with pytest.raises(ProcessNotReadyError, match="router was not ready"):
            router.__enter__()
        assert not router.process.running


def test_a_router_needs_workers(tmp_path: Path) -> None:
    """An empty list is refused before anything starts."""
    with pytest.raises(RouterError, match="at least one worker"):
        Router([], log_path=tmp_path / "router.log")


@contextmanager
def serve_asgi(app: object) -> Iterator[str]:
    """Serve any ASGI application on a free loopback port."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), name="uvicorn")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
