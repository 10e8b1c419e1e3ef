"""A run folder of realistic shape and any size, the same for the same seed: Polar's files and Slime's dumps.

Sessions have 1 to 24 traces, one per model call: prompts grow from call to call, responses are sampled with a
logprob each, messages carry text, rewards are sparse and some sessions fail. Token arrays are cut from a pool
of ready-made text, so that writing a gigabyte takes seconds; nothing else about them is simplified.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SESSIONS_PER_GROUP = 8
GROUPS_PER_ROLLOUT = 32
MAX_TRACES = 24
LONG_TRACE_TOKENS = 36_000

_VOCABULARY = 151_643
_POOL = 1 << 16
_WORDS = (
    "the agent reads a file and runs tests because one assertion fails in module core while it waits".split()
)


@dataclass(frozen=True)
class Identity:
    """Where a session belongs."""

    number: int
    rollout_id: int
    group_index: int
    position: int
    session_id: str
    task_id: str


class Pool:
    """Ready-made JSON text of token ids, masks and logprobs, cut at random places."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._ids = [str(token) for token in rng.integers(0, _VOCABULARY, size=_POOL)]
        values = -rng.exponential(0.3, size=_POOL).astype(np.float32)
        values[rng.random(_POOL) < 0.2] = 0.0
        self._logprobs = [repr(float(value)) for value in values]

    def ids(self, draws: random.Random, count: int) -> str:
        """Return token ids, separated by commas."""
        return self._cut(self._ids, draws, count)

    def logprobs(self, draws: random.Random, count: int) -> str:
        """Return logprobs, separated by commas."""
        return self._cut(self._logprobs, draws, count)

    def _cut(self, pool: list[str], draws: random.Random, count: int) -> str:
        start = draws.randrange(max(1, _POOL - count))
        return ",".join(pool[start : start + count])


def identities(sessions: int) -> Iterator[Identity]:
    """Give each session its place: rollouts of groups of sessions."""
    for number in range(sessions):
        group = number // SESSIONS_PER_GROUP
        rollout = group // GROUPS_PER_ROLLOUT
        yield Identity(
            number=number,
            rollout_id=rollout,
            group_index=group,
            position=number % SESSIONS_PER_GROUP,
            session_id=f"sk-polar-{number:08x}-0000-4000-8000-{number * 2654435761 % 2**48:012x}",
            task_id=f"polar-slime-{rollout}-{group}-{group}-1.1",
        )


def session_json(who: Identity, pool: Pool, seed: int) -> bytes:
    """Return a session's result as Polar stores it."""
    draws = random.Random(seed * 1_000_003 + who.number)
    failed = draws.random() < 0.05
    reward = "null" if failed else ("1.0" if draws.random() < 0.3 else "0.0")
    version = max(0, who.rollout_id - 1)
    stamps = f'"group_id":{who.group_index},"policy_version":{version},"rollout_step":{who.rollout_id}'
    prompt = draws.randint(150, 350)
    traces = []
    for call in range(draws.randint(1, MAX_TRACES)):
        traces.append(_trace(who, pool, draws, call, prompt, reward, stamps))
        prompt += draws.randint(20, 60)
    status = "ERROR" if failed else "COMPLETED"
    error = '"agent exited with code 1"' if failed else "null"
    evaluation = "" if failed else f',"evaluation":{{"evaluator":"harbor","outcome_reward":{reward}}}'
    times = ",".join(
        f'"{name}":{draws.uniform(5, 50_000):.3f}'
        for name in (
            "register_to_init_queue_ms",
            "init_ms",
            "run_ms",
            "postrun_ms",
            "agent_exec_ms",
            "eval_ms",
        )
    )
    return (
        f'{{"session_id":"{who.session_id}","task_id":"{who.task_id}","status":"{status}","trajectory":{{"metadata":'
        f'{{"builder":"per_request","api_type":"openai_chat","model_requested":"policy","model_used":"policy",'
        f'"record_count":{len(traces)},"task_metadata":{{{stamps}}},"trace_count":{len(traces)}{evaluation}}},'
        f'"traces":[{",".join(traces)}]}},"timing":{{{times}}},"node_id":"node-{draws.randint(1, 4)}",'
        f'"error":{error},"metadata":{{{stamps}}}}}'
    ).encode("ascii")


def _trace(
    who: Identity, pool: Pool, draws: random.Random, call: int, prompt: int, reward: str, stamps: str
) -> str:
    length = draws.randint(40, 180)
    asked = [
        {"role": "system", "content": _text(draws, 60)},
        {"role": "user", "content": _text(draws, 60 + 4 * call)},
    ]
    answer = [{"role": "assistant", "content": _text(draws, 60), "tool_calls": None}]
    return (
        f'{{"prompt_ids":[{pool.ids(draws, prompt)}],"response_ids":[{pool.ids(draws, length)}],'
        f'"loss_mask":[{",".join("1" * length)}],"prompt_messages":{json.dumps(asked)},'
        f'"response_messages":{json.dumps(answer)},"tools":null,"finish_reason":"stop",'
        f'"response_logprobs":[{pool.logprobs(draws, length)}],"reward":{reward},'
        f'"metadata":{{"session_id":"{who.session_id}","task_id":"{who.task_id}",{stamps},"weight_version":"{who.rollout_id}",'
        f'"completion_id":"msg_{draws.getrandbits(48):012x}","api_type":"openai_chat"}}}}'
    )


def _text(draws: random.Random, words: int) -> str:
    start = draws.randrange(len(_WORDS))
    return " ".join((_WORDS * (words // len(_WORDS) + 2))[start : start + words])


def write_polar_results(folder: Path, sessions: int, *, seed: int = 0) -> int:
    """Write ``task_*/ses_*.json`` under `folder`; return the number of bytes."""
    pool = Pool(seed)
    total = 0
    for who in identities(sessions):
        data = session_json(who, pool, seed)
        path = folder / f"task_{who.task_id}" / f"ses_{who.session_id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        total += len(data)
    return total


def write_long_session(folder: Path, *, tokens: int = LONG_TRACE_TOKENS, seed: int = 0) -> str:
    """Write one session with a single long trace of many turns; return its id."""
    pool = Pool(seed)
    draws = random.Random(seed)
    prompt, response = 2_000, tokens - 2_000
    turn = [1] * 150 + [0] * 50
    mask = (turn * (response // len(turn) + 1))[:response]
    chunks = [pool.logprobs(draws, min(10_000, response - start)) for start in range(0, response, 10_000)]
    session_id = "sk-polar-long"
    folder.joinpath("task_long").mkdir(parents=True, exist_ok=True)
    folder.joinpath("task_long", f"ses_{session_id}.json").write_text(
        f'{{"session_id":"{session_id}","task_id":"long","status":"COMPLETED","trajectory":{{"metadata":{{}},"traces":['
        f'{{"prompt_ids":[{pool.ids(draws, prompt)}],"response_ids":[{pool.ids(draws, response)}],'
        f'"loss_mask":[{",".join(map(str, mask))}],"response_logprobs":[{",".join(chunks)}],"reward":1.0,'
        f'"prompt_messages":[],"response_messages":[],"finish_reason":"stop","metadata":{{}}}}]}},"timing":{{}},"metadata":{{}}}}'
    )
    return session_id


def write_rollout_dumps(results: Path, folder: Path) -> int:
    """Convert written results with the bridge, and write them as Slime's dumps; return their bytes."""
    from analysis.lab.dumps import write_rollout_dump
    from slime_bridge.adapter import session_result_to_samples
    from slime_bridge.protocol import decode_session_result

    by_rollout: dict[int, list[Path]] = {}
    for task in sorted(results.glob("task_polar-*")):
        by_rollout.setdefault(int(task.name.split("-")[2]), []).extend(sorted(task.glob("ses_*.json")))
    total = 0
    for rollout_id, paths in sorted(by_rollout.items()):
        samples = []
        for index, path in enumerate(paths):
            result = decode_session_result(path.read_bytes())
            group = int(result.metadata["group_id"])
            samples += session_result_to_samples(result, group, trajectory_index=rollout_id * 100_000 + index)
        total += write_rollout_dump(folder, rollout_id, samples).stat().st_size
    return total
