"""What tests of the embedded stack share: a small checkpoint, teacher forcing, an engine on a socket."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import uvicorn

from analysis.lab.checkpoint import create_checkpoint
from analysis.lab.engine import Engine, GenerationRequest, create_app
from analysis.lab.engine.batch import Batch, BatchLimits
from analysis.lab.engine.weights import load_weights
from analysis.lab.model import Weights, token_logprobs

VOCAB = 448
EOS = 2

torch.set_num_threads(1)


def small_checkpoint(folder: Path, *, seed: int = 0) -> Path:
    """Create a checkpoint with random weights (50 ms)."""
    return create_checkpoint(folder / f"checkpoint-{seed}", seed=seed)


def random_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(length)]


def make_batch(
    folder: Path, *, seed: int = 0, eos: frozenset[int] = frozenset({EOS}), **limits: object
) -> Batch:
    """A batch without a thread: each step is a call of the test."""
    return Batch(
        load_weights(folder),
        version="0",
        eos_ids=eos,
        decode=lambda ids: "".join(chr(token) for token in ids),
        limits=BatchLimits(**limits),  # type: ignore[arg-type]
        seed=seed,
    )


def run_to_end(batch: Batch) -> None:
    with torch.inference_mode():
        while not batch.idle:
            batch.step()


def teacher_forced_error(weights: Weights, request: GenerationRequest, *, start: int = 0) -> float:
    """Largest difference between reported logprobs and a fresh pass, over output tokens from `start` on."""
    temperature = 1.0 if request.params.greedy else request.params.temperature
    with torch.inference_mode():
        expected = token_logprobs(weights, torch.tensor([request.tokens]), temperature=temperature)[0]
    own = expected[len(request.prompt_ids) - 1 + start :]
    reported = torch.tensor(request.output_logprobs[start:])
    return float((own - reported).abs().max()) if len(reported) else 0.0


def worst_error(weights: Weights, requests: Sequence[GenerationRequest]) -> float:
    # A request without output would agree with anything.
    assert all(request.output_ids for request in requests)
    return max(teacher_forced_error(weights, request) for request in requests)


@contextmanager
def serve_engine(engine: Engine, *, model_name: str | None = "tiny") -> Iterator[str]:
    """Serve a started engine on a free loopback port; gives the base URL."""
    app = create_app(engine, model_name=model_name)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    # Connections wait in the backlog until the server takes them: nobody has to ask whether it is up.
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    thread = threading.Thread(target=server.run, args=([listening],), name="uvicorn")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listening.close()
        assert not thread.is_alive()
