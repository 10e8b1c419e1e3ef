"""The faults that the Polar-compatible server can play: name, where each acts, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["connection", "request", "server", "task", "callback", "session"]


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault.

    `scope` says where it acts: on a TCP connection, an HTTP request, the whole server, one task, the
    delivery of a task's result, or one session's result.
    """

    name: str
    scope: Scope
    effect: str


def _kinds(scope: Scope, **effects: str) -> dict[str, FaultKind]:
    return {name: FaultKind(name, scope, effect) for name, effect in effects.items()}


KINDS: dict[str, FaultKind] = {
    **_kinds(
        "connection",
        connection_reset="accept the connection and reset it at once (RST)",
        connection_half_open="accept the connection, read nothing and never answer",
        connection_garbage="answer with bytes that are not HTTP (`value`: the bytes as text), then close",
    ),
    **_kinds(
        "request",
        response_status="answer `status` with `value` as the detail",
        response_hang="never answer",
        response_slow="answer after `seconds`",
        response_drip="send the answer's body in `count` pieces over `seconds`",
        response_reset="reset the connection instead of answering (RST)",
        response_cut="send the header and half of the body, then reset the connection",
        response_garbage="answer 200 with a body that is not JSON (`value`)",
        response_empty="answer 200 with an empty body",
    ),
    **_kinds(
        "server",
        outage="refuse connections for `seconds` and cut the live ones; running sessions go on",
        restart="forget all tasks, as a restarted process does; refuse connections for `seconds`",
    ),
    **_kinds(
        "task",
        task_conflict="answer 409 to the submit although the task is not running",
        task_failed="end with status `failed`, without results and without a callback",
        task_endless="stay `running` for ever",
        task_slow="start the sessions after `seconds`",
        task_forgotten="forget this task `seconds` after its submit was answered",
        task_status="end with the status given in `value`, without a callback",
        task_foreign_id="show another task's id in the bodies of this task",
        task_unknown_fields="add unknown fields to the bodies of this task, timing included",
        task_huge="pad the bodies of this task to `count` bytes",
        session_extra="add `count` sessions that nobody asked for",
    ),
    **_kinds(
        "callback",
        callback_lost="send no callback",
        callback_late="send the callback `seconds` later",
        callback_duplicate="send the callback `count` more times",
        callback_early="send the callback before the submit is answered",
        callback_malformed="send a broken body; `value`: text, truncated, list, empty, null or not_utf8",
        callback_status_shape="send the callback in the shape of a task status",
        callback_running="send a task status that still says `running` and holds no session",
        callback_forged="first post a body with all rewards `value` (default 999) to a guessed path",
        callback_forged_inside="as `callback_forged`, but to the true callback URL",
        callback_foreign="before the true one, post another task's result to this callback URL",
        callback_foreign_only="post only another task's result to this callback URL",
        callback_huge="pad the callback's body to `count` bytes",
        callback_cut="close the connection in the middle of the callback's body; the callback is lost",
        callback_slow="send the callback's body over `seconds`",
    ),
    **_kinds(
        "session",
        session_slow="take `seconds` longer",
        session_endless="never end",
        session_error="end as ERROR without traces (`value`: the error text)",
        session_error_with_traces="end as ERROR with complete traces and reward 0.0",
        session_timeout="end as TIMEOUT without traces",
        session_early_stopped="end as the placeholder of an early stop",
        session_missing="leave this session out of the results",
        session_duplicate="list this session twice",
        session_malformed="replace the result by JSON that is not a session result",
        session_foreign_id="show another task's id in this session",
        session_huge="pad the session with `count` bytes of text",
        session_unknown_fields="add unknown fields at every level, timing included",
        session_lone_surrogate="put a lone surrogate escape into a message",
        no_traces="COMPLETED with no trace",
        no_token_ids="COMPLETED, all id lists empty and logprobs null: the engine gave no ids",
        no_prompt_ids="empty prompt ids",
        zero_mask="every loss mask all 0",
        empty_mask="empty loss masks beside response ids",
        misaligned_mask="loss masks one entry short",
        invalid_mask="a 2 in every loss mask",
        negative_token="a negative token id in the response",
        fractional_token="a fractional number among the response ids",
        null_logprobs="logprobs null",
        short_logprobs="logprobs one entry short",
        nan_logprob="a bare NaN as the logprob of a trainable token (`value` 'masked': of a masked one)",
        null_logprob="a null among the logprobs",
        infinite_logprob="a bare -Infinity as the logprob of a trainable token",
        sentinel_logprob="-99999.0 as the logprob of a trainable token",
        null_reward="reward null",
        nan_reward="a bare NaN as the reward",
        text_reward="the reward as text",
        reward="the reward given in `value`",
        length_finish="the last answer cut by its length limit: finish reason `length`",
        abort_finish="the last answer cut by a weight update: finish reason `abort`",
        weight_version_jump="the last turn sampled `count` weight versions later than the first",
        split_traces="one trace per turn instead of one for all",
        overlong="the first trace has `count` more response tokens, all masked",
        training_filter="masked by a newer gateway: reward 0, mask 0, `metadata.training_filter`",
    ),
}
"""Every fault kind by name."""


def kinds_of(*scopes: Scope) -> frozenset[str]:
    """Return the names of all kinds that act in one of `scopes`."""
    return frozenset(kind.name for kind in KINDS.values() if kind.scope in scopes)


def fault_table() -> str:
    """Return one line per kind: name, scope, effect."""
    width = max(len(name) for name in KINDS)
    return "\n".join(f"{kind.name:<{width}}  {kind.scope:<10}  {kind.effect}" for kind in KINDS.values())
