"""Sessions for the checks: good ones, split ones, failed ones and none at all, converted by the bridge."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slime_bridge._slime import sample_class
from slime_bridge.conversion.groups import convert_group, mark_delivered
from slime_bridge.protocol import (
    MalformedSession,
    SessionResult,
    Trace,
    Trajectory,
    decode_session_result,
)

CAPTURES = Path(__file__).resolve().parents[2] / "data" / "polar"
GROUP_SIZE = 4
CONFIG = SimpleNamespace(
    reward_key="score", max_tokens=4096, overlong_traces="drop", aborted_turns="mask", missing_reward="zero"
)


def trace(reward: float | None, length: int, **fields: Any) -> Trace:
    values: dict[str, Any] = {
        "prompt_ids": [1, 2, 3],
        "response_ids": [100 + i for i in range(length)],
        "loss_mask": [int(i % 3 != 1) for i in range(length)],
        "response_logprobs": [-0.25 * (i % 3 != 1) for i in range(length)],
        "prompt_messages": [{"role": "user", "content": "hi"}],
        "response_messages": [{"role": "assistant", "content": "hello " * length}],
        "finish_reason": "stop",
        "reward": reward,
    }
    return Trace(**{**values, **fields})


def session(name: str, *traces: Trace, status: str = "COMPLETED", **fields: Any) -> SessionResult:
    trajectory = Trajectory(status=status, traces=list(traces))
    return SessionResult(
        session_id=name,
        task_id="t",
        status=status,
        trajectory=trajectory,
        metadata={"policy_version": 2, "group_id": 0, "rollout_step": 2},
        **fields,
    )


def results() -> list[list[Any]]:
    """Four groups of four sessions, ragged in every way."""
    small = decode_session_result((CAPTURES / "session_result.small.json").read_bytes())
    return [
        [
            session("a0", trace(1.0, 5)),
            session("a1", trace(0.0, 7)),
            session("a2", trace(0.0, 3, finish_reason="length")),
            session("a3", trace(1.0, 9)),
        ],
        [
            session("b0", trace(2.0, 4), trace(4.0, 6)),
            session("b1", trace(10.0, 5)),
            session("b2", trace(9.0, 5), status="ERROR", error="boom"),
            session("b3", status="TIMEOUT", error="session execution timeout"),
        ],
        [
            session("c0", trace(1.0, 5)),
            session("c1", trace(1.0, 5)),
            MalformedSession(2, "c2", "torn"),
            session("c3", trace(None, 5, response_logprobs=None)),
        ],
        [small, session("d1", trace(0.5, 5000)), session("d2", trace(None, 8))],
    ]


def prompt_groups(count: int | None = None) -> list[list[Any]]:
    """Prompt samples as a data source draws them."""
    sample_cls = sample_class()
    return [
        [
            sample_cls(group_index=g, index=g * GROUP_SIZE + i, prompt="hi", label="l", metadata={"task": g})
            for i in range(GROUP_SIZE)
        ]
        for g in range(len(results()) if count is None else count)
    ]


def converted_groups() -> list[list[Any]]:
    """The groups as they are handed to Slime: one flat list of samples per prompt."""
    groups = []
    for number, (sessions, prompts) in enumerate(zip(results(), prompt_groups(), strict=True)):
        samples = convert_group(sessions, prompts, config=CONFIG).samples  # type: ignore[arg-type]
        mark_delivered(samples, rollout_id=3, policy_version=2, staleness=1, scheduler_group_id=number)
        groups.append(samples)
    return groups
