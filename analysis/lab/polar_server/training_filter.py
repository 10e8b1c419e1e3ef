"""What newer gateways do to traces of sessions that did not complete: no reward, no mask, a note why."""

from __future__ import annotations

import math
from typing import Any

JsonMap = dict[str, Any]


def mask_unusable(trajectory: JsonMap, *, agent_timeout: bool) -> None:
    """Zero the rewards and masks of a trajectory that is not COMPLETED, in place.

    With `agent_timeout` (the agent ran out of its own time while executing) traces whose arrays are aligned
    and finite keep mask and logprobs, so that they can be trained on with reward 0.
    """
    if trajectory["status"] == "COMPLETED":
        return
    reason = "session_timeout" if trajectory["status"] == "TIMEOUT" else "session_error"
    for trace in trajectory["traces"]:
        note: JsonMap = {"masked": True, "reason": reason, "detail": trajectory.get("error")}
        if agent_timeout and _aligned(trace):
            note = {
                "masked": False,
                "trainable": True,
                "reason": "agent_timeout",
                "detail": trajectory.get("error"),
            }
        else:
            if agent_timeout:
                note["reason"] = "agent_timeout_unaligned"
            trace["loss_mask"] = [0] * len(trace["response_ids"])
        note["original_reward"] = trace["reward"]
        trace["reward"] = 0.0
        trace["metadata"] = {**trace["metadata"], "training_filter": note}
    _discard_evaluation(trajectory, reason)


def _aligned(trace: JsonMap) -> bool:
    ids, mask, logprobs = trace["response_ids"], trace["loss_mask"], trace["response_logprobs"]
    if not ids or logprobs is None or len(mask) != len(ids) or len(logprobs) != len(ids):
        return False
    return all(math.isfinite(value) for value in logprobs)


def _discard_evaluation(trajectory: JsonMap, reason: str) -> None:
    evaluation = trajectory["metadata"].get("evaluation")
    if not isinstance(evaluation, dict):
        return
    evaluation.update(
        reward_discarded=True,
        reward_discard_reason=reason,
        discarded_outcome_reward=evaluation.get("outcome_reward"),
        outcome_reward=0.0,
        resolved=False,
    )
