"""From the bytes of one task result to samples, three ways, in one process: ``decoding.py REPEATS``."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from support.bridge_trainer import Prompts
from support.plain_bridge import plain_decode, plain_samples
from support.task_bodies import LARGE, TASK_MARK, task_body

from slime_bridge import _slime
from slime_bridge.config.types import PolarSlimeConfig
from slime_bridge.conversion.groups import convert_group
from slime_bridge.protocol import decode_task_payload


class Trace(msgspec.Struct):
    """A trace's fields with their types, and nothing else."""

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    prompt_messages: list[dict[str, Any]]
    response_messages: list[dict[str, Any]]
    response_logprobs: list[float] | None
    reward: float | None
    metadata: dict[str, Any]
    finish_reason: str | None = None
    tools: list[dict[str, Any]] | None = None


class Trajectory(msgspec.Struct):
    """A trajectory's fields."""

    status: str
    metadata: dict[str, Any]
    traces: list[Trace]
    error: str | None = None


class Session(msgspec.Struct):
    """A session's fields."""

    session_id: str
    task_id: str
    status: str
    trajectory: Trajectory
    timing: dict[str, float]
    metadata: dict[str, Any]
    node_id: str | None = None
    error: str | None = None


class Task(msgspec.Struct):
    """A task's fields."""

    task_id: str
    status: str
    results: list[Session]


_decoder = msgspec.json.Decoder(Task)


def bare(body: bytes, group: list[Any]) -> list[Any]:
    """Decode into typed structs and fill records with what is there; nothing is checked or shared."""
    sample_class = _slime.sample_class()
    samples = []
    for prompt, session in zip(group, _decoder.decode(body).results, strict=True):
        for number, trace in enumerate(session.trajectory.traces):
            sample = sample_class(index=prompt.index, group_index=prompt.group_index)
            sample.tokens = trace.prompt_ids + trace.response_ids
            sample.response_length = len(trace.response_ids)
            sample.loss_mask = trace.loss_mask
            sample.rollout_log_probs = trace.response_logprobs
            sample.prompt = trace.prompt_messages
            sample.response = "\n".join(f"[{m['role']}] {m['content']}" for m in trace.response_messages)
            sample.reward = {"score": trace.reward}
            sample.session_id = session.session_id
            sample.metadata = {
                "polar": {
                    "session_id": session.session_id,
                    "trace_index": number,
                    "trace_metadata": trace.metadata,
                    "trace_debug": {"response_messages": trace.response_messages},
                }
            }
            samples.append(sample)
    return samples


def plain(body: bytes, group: list[Any]) -> list[Any]:
    """Decode with the standard parser and pydantic, and build records field by field."""
    return plain_samples(plain_decode(body), group)


def ours(body: bytes, group: list[Any]) -> list[Any]:
    """Decode, check and convert as the hook does."""
    return convert_group(decode_task_payload(body, flat_arrays=True).results, group, config=_CONFIG).samples


_CONFIG = PolarSlimeConfig(
    rollout_url="http://127.0.0.1:9",
    task_template={"agent": {"harness": "shell"}},
    rollout_batch_size=8,
    n_samples_per_prompt=8,
)


def best(work: Callable[[bytes, list[Any]], list[Any]], body: bytes, group: list[Any], repeats: int) -> float:
    """Return the CPU seconds of the fastest of some runs."""
    times = []
    for _ in range(repeats):
        gc.collect()
        began = time.process_time()
        samples = work(body, group)
        times.append(time.process_time() - began)
        assert len(samples) == LARGE.sessions * LARGE.traces
        del samples
    return min(times)


def main() -> None:
    """Print the seconds of each way."""
    body = task_body(LARGE).replace(TASK_MARK, b"task-1")
    group = Prompts(LARGE.sessions).get_samples(1)[0]
    repeats = int(sys.argv[1])
    result: dict[str, float] = {"bytes": len(body)}
    for work in (ours, bare, plain):
        result[work.__name__] = best(work, body, group, repeats)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
