"""Session faults: turn a good session result into the broken one that a fault rule asks for.

Each function changes the wire form in place; the caller encodes it afterwards. Rules that put non-finite
numbers in ask for the literal encoding with `needs_literal_nan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from analysis.lab.polar_server.faults import Fault
from analysis.lab.polar_server.results import failure_result

Result = dict[str, Any]


def apply_session_faults(result: Result, faults: Sequence[Fault]) -> Result:
    """Apply `faults` in order and return the result, which may be another object."""
    for fault in faults:
        mutate = _MUTATIONS.get(fault.kind)
        if mutate is not None:
            result = mutate(result, fault) or result
    return result


def needs_literal_nan(faults: Sequence[Fault]) -> bool:
    """Say whether one of `faults` wants NaN or Infinity as bare literals on the wire."""
    return any(fault.kind in ("nan_logprob", "infinite_logprob", "nan_reward") for fault in faults)


def _traces(result: Result) -> list[dict[str, Any]]:
    return [trace for trace in result["trajectory"].get("traces", []) if isinstance(trace, dict)]


def _last_trainable(trace: dict[str, Any], wanted: int = 1) -> int | None:
    """Return the last position whose mask is `wanted`."""
    positions = [index for index, bit in enumerate(trace["loss_mask"]) if bit == wanted]
    return positions[-1] if positions else None


def _fail(status: str, default_error: str) -> Callable[[Result, Fault], Result]:
    def mutate(result: Result, fault: Fault) -> Result:
        return failure_result(result, status, str(fault.value or default_error))

    return mutate


def _error_with_traces(result: Result, fault: Fault) -> None:
    error = str(fault.value or "step 0 exited with code 1")
    result["status"] = result["trajectory"]["status"] = "ERROR"
    result["error"] = result["trajectory"]["error"] = error
    _each(reward=0.0)(result, fault)


def _early_stopped(result: Result, fault: Fault) -> Result:
    result = failure_result(result, "ERROR", "session cancelled")
    placeholder = {
        "early_stop_cancelled": True,
        "fully_masked": True,
        "early_stop_reason": "minimum_usable_sessions_reached",
        "early_stop_min_usable_sessions": fault.count,
        "early_stop_usable_sessions": fault.count,
        "early_stop_elapsed_ms": 12.5,
    }
    result["metadata"] = {**result["metadata"], **placeholder}
    result["trajectory"]["metadata"].update(placeholder)
    return result


def _each(**values: Any) -> Callable[[Result, Fault], None]:
    """Set fields of every trace."""

    def mutate(result: Result, _: Fault) -> None:
        for trace in _traces(result):
            trace.update(values)

    return mutate


def _on_traces(change: Callable[[dict[str, Any], Fault], None]) -> Callable[[Result, Fault], None]:
    def mutate(result: Result, fault: Fault) -> None:
        for trace in _traces(result):
            change(trace, fault)

    return mutate


def _without_ids(trace: dict[str, Any], _: Fault) -> None:
    trace.update(prompt_ids=[], response_ids=[], loss_mask=[], response_logprobs=None, finish_reason="length")


def _zero_mask(trace: dict[str, Any], _: Fault) -> None:
    trace["loss_mask"] = [0] * len(trace["response_ids"])


def _put_logprob(value: float | None) -> Callable[[dict[str, Any], Fault], None]:
    def change(trace: dict[str, Any], fault: Fault) -> None:
        position = _last_trainable(trace, 0 if fault.value == "masked" else 1)
        if position is not None and trace["response_logprobs"]:
            trace["response_logprobs"][position] = value

    return change


def _put_token(value: float) -> Callable[[dict[str, Any], Fault], None]:
    def change(trace: dict[str, Any], _: Fault) -> None:
        if trace["response_ids"]:
            trace["response_ids"][-1] = value

    return change


def _invalid_mask(trace: dict[str, Any], _: Fault) -> None:
    if trace["loss_mask"]:
        trace["loss_mask"][-1] = 2


def _shorter(key: str) -> Callable[[dict[str, Any], Fault], None]:
    def change(trace: dict[str, Any], _: Fault) -> None:
        if trace[key]:
            trace[key] = trace[key][:-1]

    return change


def _reward_value(result: Result, fault: Fault) -> None:
    for trace in _traces(result):
        trace["reward"] = fault.value
    evaluation = result["trajectory"].get("metadata", {}).get("evaluation")
    if isinstance(evaluation, dict):
        evaluation["outcome_reward"] = fault.value


def _null_reward(result: Result, _: Fault) -> None:
    for trace in _traces(result):
        trace["reward"] = None
    result["trajectory"].get("metadata", {}).pop("evaluation", None)


def _finish(reason: str) -> Callable[[Result, Fault], None]:
    def mutate(result: Result, _: Fault) -> None:
        for trace in _traces(result)[-1:]:
            trace["finish_reason"] = reason
            if len(trace["response_ids"]) > 1:
                for key in ("response_ids", "loss_mask", "response_logprobs"):
                    trace[key] = trace[key][:-1] if trace[key] else trace[key]

    return mutate


def _version_jump(result: Result, fault: Fault) -> None:
    for trace in _traces(result)[-1:]:
        turns = trace["metadata"].setdefault("completion_metadata", [dict(trace["metadata"])])
        first = int(turns[0].get("weight_version") or 0)
        turns[-1] = {
            **turns[-1],
            "policy_version": first + fault.count,
            "weight_version": str(first + fault.count),
        }


def _overlong(result: Result, fault: Fault) -> None:
    for trace in _traces(result)[:1]:
        trace["response_ids"] = trace["response_ids"] + [11] * fault.count
        trace["loss_mask"] = trace["loss_mask"] + [0] * fault.count
        if trace["response_logprobs"] is not None:
            trace["response_logprobs"] = trace["response_logprobs"] + [0.0] * fault.count


def _training_filter(result: Result, fault: Fault) -> None:
    result["status"] = result["trajectory"]["status"] = "TIMEOUT"
    result["error"] = result["trajectory"]["error"] = "session execution timeout"
    for trace in _traces(result):
        note = {"masked": True, "reason": "session_timeout", "detail": result["error"]}
        trace["metadata"]["training_filter"] = {**note, "original_reward": trace["reward"]}
        trace["reward"] = 0.0
        _zero_mask(trace, fault)


def _malformed(result: Result, fault: Fault) -> Result:
    if isinstance(fault.value, dict):
        return fault.value
    return {"session_id": result["session_id"], "status": 7, "trajectory": {"traces": "none"}, "timing": [1]}


def _foreign_id(result: Result, _: Fault) -> None:
    result["task_id"] = "somebody-elses-task"


def _huge(result: Result, fault: Fault) -> None:
    for trace in _traces(result)[:1]:
        trace["response_messages"] = [
            *trace["response_messages"],
            {"role": "user", "content": "x" * fault.count},
        ]


def _unknown_fields(result: Result, _: Fault) -> None:
    extra = {"future_field": {"nested": [1, None, {"deep": True}]}, "another": None}
    result.update(extra)
    result["trajectory"].update(extra)
    result["timing"] = {
        **result["timing"],
        "ready_queue_ms": 3,
        "runtime_exec_ms_by_category": {"agent": 1.5},
    }
    for trace in _traces(result):
        trace.update(extra)


def _lone_surrogate(result: Result, _: Fault) -> None:
    for trace in _traces(result)[:1]:
        odd = {"role": "user", "content": "before \ud83d after"}
        trace["response_messages"] = [*trace["response_messages"], odd]


def _no_traces(result: Result, _: Fault) -> None:
    result["trajectory"]["traces"] = []


_MUTATIONS: dict[str, Callable[[Result, Fault], Result | None]] = {
    "session_error": _fail("ERROR", "agent execution failed: scripted"),
    "session_timeout": _fail("TIMEOUT", "session execution timeout"),
    "session_error_with_traces": _error_with_traces,
    "session_early_stopped": _early_stopped,
    "session_malformed": _malformed,
    "session_foreign_id": _foreign_id,
    "session_huge": _huge,
    "session_unknown_fields": _unknown_fields,
    "session_lone_surrogate": _lone_surrogate,
    "no_traces": _no_traces,
    "no_token_ids": _on_traces(_without_ids),
    "no_prompt_ids": _each(prompt_ids=[]),
    "zero_mask": _on_traces(_zero_mask),
    "empty_mask": _each(loss_mask=[]),
    "misaligned_mask": _on_traces(_shorter("loss_mask")),
    "invalid_mask": _on_traces(_invalid_mask),
    "negative_token": _on_traces(_put_token(-1)),
    "fractional_token": _on_traces(_put_token(3.5)),
    "null_logprobs": _each(response_logprobs=None),
    "short_logprobs": _on_traces(_shorter("response_logprobs")),
    "nan_logprob": _on_traces(_put_logprob(math.nan)),
    "null_logprob": _on_traces(_put_logprob(None)),
    "infinite_logprob": _on_traces(_put_logprob(-math.inf)),
    "sentinel_logprob": _on_traces(_put_logprob(-99999.0)),
    "null_reward": _null_reward,
    "nan_reward": _each(reward=math.nan),
    "text_reward": _each(reward="one"),
    "reward": _reward_value,
    "length_finish": _finish("length"),
    "abort_finish": _finish("abort"),
    "weight_version_jump": _version_jump,
    "overlong": _overlong,
    "training_filter": _training_filter,
}
