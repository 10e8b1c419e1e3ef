"""Task results of any size as JSON bytes, the same for the same numbers.

Token ids come from a vocabulary of 150,000 with the skew of a captured agent session: its 18,768 tokens are
1,044 different ones, the three most frequent 1,526, 1,476 and 1,273 times; as many drawn here are 1,129, and
2,089, 1,550 and 1,178 times. Sampled stretches alternate with tool output, sampled tokens carry a logprob
with all its digits, and messages hold about four characters per token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

TASK_MARK = b"@TASK@"
"""Stands in bodies where the task's id belongs; session ids contain it, so that they are unique as well."""

_VOCABULARY = 150_000
_STRETCH = 200
_RANK_SHARES = (np.arange(_VOCABULARY) + 6.0) ** -1.7
_RANK_SHARES /= _RANK_SHARES.sum()
_TOKEN_OF_RANK = np.random.default_rng(0).permutation(_VOCABULARY)
_WORDS = "the agent reads a file and runs its tests because one of them fails".split()


@dataclass(frozen=True)
class TaskShape:
    """The size of one task's result.

    Parameters
    ----------
    sessions
        Sessions of the task.
    traces
        Traces per session.
    prompt_tokens, response_tokens
        Tokens per trace.
    """

    sessions: int = 8
    traces: int = 1
    prompt_tokens: int = 24
    response_tokens: int = 32

    @property
    def tokens(self) -> int:
        """All tokens of the task."""
        return self.sessions * self.traces * (self.prompt_tokens + self.response_tokens)


SMALL = TaskShape()
"""Eight small sessions: what is measured is the work per group."""

LARGE = TaskShape(traces=2, prompt_tokens=2_000, response_tokens=22_600)
"""One task result of about nine megabytes."""

HEAVY = TaskShape(traces=3, prompt_tokens=2_000, response_tokens=19_700)
"""Thirty-two such tasks are a batch of some 377 megabytes."""


def task_body(shape: TaskShape, seed: int = 0) -> bytes:
    """Return one completed task's result, with `TASK_MARK` for its id."""
    rng = np.random.default_rng(seed)
    results = [_session(shape, number, rng) for number in range(shape.sessions)]
    record = {"task_id": TASK_MARK.decode(), "status": "completed", "results": results, "result_paths": []}
    return json.dumps(record, separators=(",", ":")).encode()


def _session(shape: TaskShape, number: int, rng: np.random.Generator) -> dict[str, Any]:
    name = f"sk-polar-{TASK_MARK.decode()}-{number}"
    metadata = {"group_id": "g", "policy_version": 0, "rollout_step": 0}
    reward = float(rng.random() < 0.5)
    traces = [_trace(shape, metadata, reward, rng) for _ in range(shape.traces)]
    trajectory = {
        "status": "COMPLETED",
        "metadata": {"builder": "prefix_merging", "record_count": 4, "trace_count": shape.traces, **metadata},
        "traces": traces,
        "error": None,
    }
    timing = {"register_to_init_queue_ms": 2.1, "init_ms": 350.8, "run_ms": 728.8, "postrun_ms": 124.5}
    ids = {"session_id": name, "task_id": TASK_MARK.decode(), "status": "COMPLETED"}
    return {
        **ids,
        "trajectory": trajectory,
        "timing": timing,
        "node_id": "node-1",
        "error": None,
        "metadata": metadata,
    }


def _trace(
    shape: TaskShape, metadata: dict[str, Any], reward: float, rng: np.random.Generator
) -> dict[str, Any]:
    length = shape.response_tokens
    stretch = min(_STRETCH, max(4, length // 3))
    mask = (np.arange(length) // stretch + 1) % 2
    logprobs = np.where(mask == 1, -rng.exponential(0.4, length), 0.0)
    words = rng.choice(_WORDS, length).tolist()
    messages = [
        {"role": ("assistant", "tool")[turn % 2], "content": " ".join(words[start : start + stretch])}
        for turn, start in enumerate(range(0, length, stretch))
    ]
    return {
        "prompt_ids": _ids(shape.prompt_tokens, rng),
        "response_ids": _ids(length, rng),
        "loss_mask": mask.tolist(),
        "prompt_messages": [{"role": "user", "content": " ".join(rng.choice(_WORDS, shape.prompt_tokens))}],
        "response_messages": messages,
        "tools": None,
        "finish_reason": "stop",
        "response_logprobs": logprobs.tolist(),
        "reward": reward,
        "metadata": {**metadata, "completion_metadata": [metadata]},
    }


def _ids(count: int, rng: np.random.Generator) -> list[int]:
    ids: list[int] = _TOKEN_OF_RANK[rng.choice(_VOCABULARY, count, p=_RANK_SHARES)].tolist()
    return ids
