"""Synthetic session results: random but seeded tokens, logprobs, masks, messages and rewards.

The arrays are consistent: masks and logprobs are aligned, sampled tokens have mask 1 and a finite logprob
at most 0, interstitial tokens have mask 0 and logprob 0.0, and the last sampled token of a turn is the
end-of-turn token.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

Range = int | tuple[int, int]

END_OF_TURN_TOKEN = 2
"""Token id that closes every synthetic turn."""

_FIRST_TOKEN = 10
_POOL_SIZE = 1 << 16

T = TypeVar("T")


@dataclass(frozen=True)
class Lognormal:
    """A lognormal number of seconds with the given `median` and shape `sigma`, cut at `maximum`."""

    median: float
    sigma: float = 1.0
    maximum: float = math.inf


@dataclass(frozen=True)
class SessionInfo:
    """What a reward function of `SessionProfile` gets to see."""

    task_id: str
    instruction: str
    session_index: int
    metadata: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class SessionProfile:
    """How the ordinary sessions of a scripted server look.

    Parameters
    ----------
    prompt_tokens, turns, turn_tokens, tool_tokens
        Token counts: a number, or an inclusive range to draw from.
    vocab_size
        Token ids are below it.
    reward
        ``"bernoulli"`` (0.0 or 1.0 with `success_rate`), ``"normal"``, a number, None for a null reward, or
        a function of `SessionInfo`.
    duration
        Seconds that a session takes: a number or a `Lognormal`.
    extra_text
        Characters of filler text per session, for heavy payloads.
    separate_traces
        One trace per turn instead of one merged trace.
    evaluation
        Whether ``trajectory.metadata.evaluation`` is there.
    weight_versions
        Whether each turn's completion metadata names the weight version that served it.
    """

    prompt_tokens: Range = (6, 16)
    turns: Range = (1, 3)
    turn_tokens: Range = (3, 10)
    tool_tokens: Range = (2, 6)
    vocab_size: int = 1000
    reward: str | float | None | Callable[[SessionInfo], float | None] = "bernoulli"
    success_rate: float = 0.5
    duration: float | Lognormal = 0.0
    extra_text: int = 0
    separate_traces: bool = False
    evaluation: bool = True
    weight_versions: bool = True

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionProfile:
        """Build a profile from plain data: a mapping for `Lognormal`, a list for a range."""
        known = {item.name for item in fields(cls)}
        unknown = set(data) - known
        if unknown:
            raise ValueError(f"unknown keys in the session profile: {sorted(unknown)}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        duration = values.get("duration")
        if isinstance(duration, Mapping):
            values["duration"] = Lognormal(**duration)
        return cls(**values)

    def seconds(self, seed: int) -> float:
        """Return the duration of the session with this seed."""
        if not isinstance(self.duration, Lognormal):
            return float(self.duration)
        draw = random.Random(seed ^ 1).gauss(0.0, 1.0)
        return min(self.duration.maximum, self.duration.median * math.exp(self.duration.sigma * draw))


@dataclass(frozen=True)
class SessionIdentity:
    """Names and context of one synthetic session."""

    session_id: str
    task_id: str
    index: int
    instruction: str
    metadata: Mapping[str, Any]
    model_name: str | None
    node_id: str
    builder: str
    weight_version: int


class _Draws:
    """Cheap seeded draws for one session: numbers from a generator, arrays as slices of a shared pool."""

    def __init__(self, pool: _Pool, seed: int) -> None:
        self._pool = pool
        self._random = random.Random(seed)

    def number(self, wanted: Range) -> int:
        if isinstance(wanted, int):
            return wanted
        return self._random.randint(*wanted)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return self._random.uniform(low, high)

    def normal(self) -> float:
        return self._random.gauss(0.0, 1.0)

    def tokens(self, count: int) -> list[int]:
        return _slice(self._pool.tokens, self._random.getrandbits(30), count)

    def logprobs(self, count: int) -> list[float]:
        return _slice(self._pool.logprobs, self._random.getrandbits(30), count)


@dataclass(frozen=True)
class _Pool:
    tokens: list[int]
    logprobs: list[float]


@functools.lru_cache(maxsize=8)
def _pool(vocab_size: int) -> _Pool:
    rng = np.random.default_rng(vocab_size)
    tokens = rng.integers(_FIRST_TOKEN, max(vocab_size, _FIRST_TOKEN + 1), size=_POOL_SIZE).tolist()
    logprobs = (-rng.exponential(0.6, size=_POOL_SIZE)).round(6).tolist()
    return _Pool(tokens, logprobs)


def _slice(pool: list[T], offset: int, count: int) -> list[T]:
    offset %= len(pool)
    taken = pool[offset : offset + count]
    while len(taken) < count:
        taken += pool[: count - len(taken)]
    return taken


@dataclass
class _Turn:
    """One synthetic turn: what stood before it, what was sampled, and its completion metadata."""

    interstitial: list[int]
    sampled: list[int]
    logprobs: list[float]
    messages: list[dict[str, Any]]
    metadata: dict[str, Any]


def synthetic_result(profile: SessionProfile, who: SessionIdentity, seed: int) -> dict[str, Any]:
    """Return one COMPLETED session result in wire form.

    The same `profile`, names and `seed` give the same result.
    """
    draws = _Draws(_pool(profile.vocab_size), seed)
    prompt = draws.tokens(draws.number(profile.prompt_tokens))
    count = max(1, draws.number(profile.turns))
    turns = [_turn(profile, who, draws, number, last=number == count - 1) for number in range(count)]
    question = {"role": "user", "content": who.instruction}
    traces = (
        _separate(prompt, question, turns) if profile.separate_traces else [_merged(prompt, question, turns)]
    )
    reward = _reward(profile, who, draws, seed)
    for trace in traces:
        trace["reward"] = reward
        trace["metadata"] = {**turns[0].metadata, "completion_metadata": trace.pop("_metadata")}
    metadata = _trajectory_metadata(profile, who, count, traces, reward)
    milliseconds = [round(draws.uniform(0.5, 5.0), 3) for _ in range(4)]
    return {
        "session_id": who.session_id,
        "task_id": who.task_id,
        "status": "COMPLETED",
        "trajectory": {"status": "COMPLETED", "metadata": metadata, "traces": traces, "error": None},
        "timing": dict(
            zip(("register_to_init_queue_ms", "init_ms", "run_ms", "postrun_ms"), milliseconds, strict=True)
        ),
        "node_id": who.node_id,
        "error": None,
        "metadata": dict(who.metadata),
    }


def _turn(profile: SessionProfile, who: SessionIdentity, draws: _Draws, number: int, *, last: bool) -> _Turn:
    interstitial = draws.tokens(draws.number(profile.tool_tokens)) if number else []
    length = max(1, draws.number(profile.turn_tokens))
    sampled = [*draws.tokens(length - 1), END_OF_TURN_TOKEN]
    logprobs = draws.logprobs(length)
    messages: list[dict[str, Any]] = []
    if number:
        messages.append(
            {"role": "tool", "tool_call_id": f"call_{number - 1}", "content": f"result {sampled[0]}"}
        )
    if last:
        filler = " " + "x" * profile.extra_text if profile.extra_text else ""
        messages.append({"role": "assistant", "content": f"Answer: {draws.number((0, 9))}{filler}"})
    else:
        call = {"name": "lookup", "arguments": f'{{"key": "{sampled[0]}"}}'}
        calls = [{"id": f"call_{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
    metadata: dict[str, Any] = {**who.metadata, "session_id": who.session_id, "task_id": who.task_id}
    if profile.weight_versions:
        metadata["policy_version"] = who.weight_version
        metadata["weight_version"] = str(who.weight_version)
    return _Turn(interstitial, sampled, logprobs, messages, metadata)


def _trace(prompt: list[int], prompt_messages: list[dict[str, Any]], turns: list[_Turn]) -> dict[str, Any]:
    response: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    messages: list[dict[str, Any]] = []
    for position, turn in enumerate(turns):
        glue = turn.interstitial if position else []
        response += glue + turn.sampled
        mask += [0] * len(glue) + [1] * len(turn.sampled)
        logprobs += [0.0] * len(glue) + turn.logprobs
        messages += turn.messages if position else turn.messages[-1:]
    return {
        "prompt_ids": prompt,
        "response_ids": response,
        "loss_mask": mask,
        "prompt_messages": prompt_messages,
        "response_messages": messages,
        "tools": None,
        "finish_reason": "stop",
        "response_logprobs": logprobs,
        "reward": None,
        "metadata": {},
        "_metadata": [turn.metadata for turn in turns],
    }


def _merged(prompt: list[int], question: dict[str, Any], turns: list[_Turn]) -> dict[str, Any]:
    return _trace(prompt, [question], turns)


def _separate(prompt: list[int], question: dict[str, Any], turns: list[_Turn]) -> list[dict[str, Any]]:
    traces = []
    history, messages = list(prompt), [question]
    for turn in turns:
        history = history + turn.interstitial
        messages = messages + turn.messages[:-1]
        traces.append(_trace(history, messages, [turn]))
        history = history + turn.sampled
        messages = messages + turn.messages[-1:]
    return traces


def _reward(profile: SessionProfile, who: SessionIdentity, draws: _Draws, seed: int) -> float | None:
    if callable(profile.reward):
        info = SessionInfo(who.task_id, who.instruction, who.index, who.metadata, seed)
        return profile.reward(info)
    if profile.reward == "bernoulli":
        return float(draws.uniform() < profile.success_rate)
    if profile.reward == "normal":
        return round(draws.normal(), 6)
    if isinstance(profile.reward, str):
        raise ValueError(
            f"unknown reward rule {profile.reward!r}; use 'bernoulli', 'normal', a number or None"
        )
    return profile.reward


def _trajectory_metadata(
    profile: SessionProfile,
    who: SessionIdentity,
    turns: int,
    traces: list[dict[str, Any]],
    reward: float | None,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "builder": who.builder,
        "session_id": who.session_id,
        "task_id": who.task_id,
        "api_type": "openai_chat",
        "model_requested": who.model_name or "unknown",
        "model_used": "synthetic",
        "record_count": turns,
        "task_metadata": {**who.metadata, "session_id": who.session_id, "task_id": who.task_id},
        "trace_count": len(traces),
    }
    if who.builder == "prefix_merging":
        metadata["reconstruction_stats"] = {
            "chains_total": len(traces),
            "chains_reconstructed_full": len(traces),
            "chains_reconstructed_truncated": 0,
            "completions_total": turns,
            "completions_merged": turns,
        }
    for key in ("group_id", "policy_version", "rollout_step"):
        if key in who.metadata:
            metadata[key] = who.metadata[key]
    if profile.evaluation:
        metadata["evaluation"] = {"strategy": "scripted", "outcome_reward": reward, "trace_rewards": None}
    return metadata
