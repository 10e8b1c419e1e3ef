"""The doctor's probe: one real task, which must come back by callback and by polling, fit to train on."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import msgspec

from slime_bridge._body import Body
from slime_bridge.callbacks import CallbackHandle, CallbackListener
from slime_bridge.client import PolarClient
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import SessionOutcome, convert_group
from slime_bridge.conversion.types import SessionReason
from slime_bridge.doctor.configuration import build_request
from slime_bridge.doctor.generation import NO_IDS_FIX, NO_VERSION_FIX
from slime_bridge.doctor.report import Finding, Severity, counted, finding
from slime_bridge.errors import BridgeError, CallbackBindError, SubmitRejectedError, TaskConflictError
from slime_bridge.protocol import TaskPayload, decode_task_payload, encode_task_request, task_is_over

__all__ = ["check_probe"]

_CHECK = "probe task"
_CALLBACK_GRACE = 5.0
_CANCEL_SECONDS = 2.0
_FIXES = {
    SessionReason.NO_TOKEN_IDS: NO_IDS_FIX,
    SessionReason.LOGPROB_ERROR: "the engine must return one finite logprob for each sampled token",
    SessionReason.TIMEOUT: "raise timeout_seconds in polar_task_template, or look at the gateway's logs",
    SessionReason.FAILED: "read the error; it is the agent's, the runtime's or the evaluator's",
    SessionReason.NO_TRACES: "the agent made no model call: check agent.model_name and the agent's base URL",
    SessionReason.OVERLONG: "raise max_tokens_per_gpu or polar_max_trajectory_tokens, or shorten the task",
    SessionReason.ZERO_TRAINABLE: "the trajectory builder masked every token: check the template's builder",
}


@dataclass(slots=True)
class _Outcome:
    """What came back of the probe, and when, in seconds from its submit."""

    status: str | None = None
    polled: bytes | None = None
    polled_after: float = math.nan
    called_back: Body | None = None
    called_back_after: float = math.nan
    last_error: str = ""
    callback_address: str = ""
    seen: dict[str, int] = field(default_factory=dict)


async def check_probe(
    client: PolarClient, config: PolarSlimeConfig, args: Any, sample: Any, *, timeout: float
) -> list[Finding]:
    """Submit one session of the first prompt and follow it to its result.

    Parameters
    ----------
    client
        The rollout server.
    config, args, sample
        Make the request.
    timeout
        Seconds that the task may take; then it is cancelled, as far as the server can.
    """
    listener = CallbackListener(
        config.callback_host, bind_host=config.callback_bind_host, port=config.callback_port
    )
    found: list[Finding] = []
    try:
        await listener.start()
    except CallbackBindError as error:
        text = "the callback listener cannot be bound, so training could not start"
        found.append(finding(_CHECK, Severity.ERROR, text, evidence=str(error)))
    one = replace(config, n_samples_per_prompt=1)
    request = build_request(args, one, sample, task_id_suffix=f"-doctor-{secrets.token_hex(4)}")
    handle = listener.register(request.task_id) if listener.port is not None else None
    if handle is not None:
        request = msgspec.structs.replace(request, callback_url=handle.url)
    try:
        outcome = await _follow(client, encode_task_request(request), request.task_id, handle, timeout)
    except BridgeError as error:
        fix = "correct the task template; the server's message says what it does not take"
        text = "the server did not take the task"
        return [*found, finding(_CHECK, Severity.ERROR, text, evidence=str(error), fix=fix)]
    finally:
        address, counts = listener.address, listener.counts
        await listener.close()
    outcome.callback_address = address if handle is not None else ""
    outcome.seen = {kind: number for kind, number in counts.items() if number}
    found += _arrivals(outcome, config, timeout)
    body = outcome.polled or outcome.called_back
    if body is not None:
        found += _content(body, one, sample)
    return found


async def _follow(
    client: PolarClient, body: bytes, task_id: str, handle: CallbackHandle | None, timeout: float
) -> _Outcome:
    """Submit, then look for the callback and poll until both are there or time is up."""
    outcome = _Outcome()
    started = time.monotonic()

    def arrived() -> None:
        outcome.called_back_after = time.monotonic() - started

    if handle is not None:
        handle.on_delivery = arrived
    pause, taken = 0.1, True
    try:
        await client.submit(body)
        while (now := time.monotonic() - started) < timeout:
            if outcome.polled is None:
                await _poll(client, task_id, outcome, started)
            outcome.called_back = handle.take() if handle is not None else None
            enough = handle is None or outcome.called_back is not None
            enough = enough or now > outcome.polled_after + _CALLBACK_GRACE
            # A task that failed as a whole is never called back.
            enough = enough or outcome.status not in (None, "running", "completed")
            if outcome.polled is not None and enough:
                break
            await anyio.sleep(pause)
            pause = min(2.0, 1.3 * pause) if outcome.polled is None else 0.1
    except (SubmitRejectedError, TaskConflictError):
        taken = False
        raise
    finally:
        if taken and outcome.polled is None:
            # Also after an interrupt: nobody waits for this task any more.
            with anyio.move_on_after(_CANCEL_SECONDS, shield=True):
                await _cancel(client, task_id, outcome)
    return outcome


async def _cancel(client: PolarClient, task_id: str, outcome: _Outcome) -> None:
    try:
        await client.cancel_task(task_id)
    except BridgeError as error:
        outcome.last_error = outcome.last_error or str(error)


async def _poll(client: PolarClient, task_id: str, outcome: _Outcome, started: float) -> None:
    try:
        outcome.status = (await client.list_statuses()).get(task_id)
        if outcome.status is not None and task_is_over(outcome.status):
            outcome.polled = await client.get_task(task_id)
            outcome.polled_after = time.monotonic() - started
    except BridgeError as error:
        outcome.last_error = str(error)


def _arrivals(outcome: _Outcome, config: PolarSlimeConfig, timeout: float) -> list[Finding]:
    found = []
    if outcome.polled is not None:
        text = f"came back by polling after {outcome.polled_after:.1f} s"
        found.append(finding(_CHECK, Severity.OK, text))
    else:
        fix = "give it more time with --timeout, and look whether the gateways have free workers"
        text = f"no result by polling within {timeout:g} s; the task's status is {outcome.status}"
        found.append(finding(_CHECK, Severity.ERROR, text, evidence=outcome.last_error, fix=fix))
    if outcome.called_back is not None:
        text = f"came back by callback to {outcome.callback_address} after {outcome.called_back_after:.1f} s"
        found.append(finding(_CHECK, Severity.OK, text))
    elif outcome.callback_address and outcome.status == "completed":
        text = "no callback: every result would wait for a poll"
        seen = outcome.seen or "none"
        evidence = f"the server was told to call {outcome.callback_address}; requests seen there: {seen}"
        fix = (
            f"set polar_callback_host ({config.callback_host}) to an address of this machine that the "
            f"rollout server reaches, polar_callback_bind_host ({config.callback_bind_host}) to 0.0.0.0 if "
            "that is another interface, and open the port (polar_callback_port) in the firewall"
        )
        found.append(finding(_CHECK, Severity.WARNING, text, evidence=evidence, fix=fix))
    return found


def _content(body: Body, config: PolarSlimeConfig, sample: Any) -> list[Finding]:
    """Convert the result as training would, and say what it holds."""
    try:
        task = decode_task_payload(body)
        [session] = convert_group(task.results, [sample], config=config).sessions
    except BridgeError as error:
        text = "the result cannot be converted"
        return [finding(_CHECK, Severity.ERROR, text, evidence=str(error))]
    if task.status != "completed" and not task.results:
        text = f"the task ended as {task.status}, without a session"
        return [finding(_CHECK, Severity.ERROR, text, fix="look at the rollout server's log")]
    found = [_trainable(session, _evidence(task, session))]
    if session.reason is None and session.weight_versions is None:
        text = "no turn says which weights served it"
        found.append(finding(_CHECK, Severity.WARNING, text, fix=NO_VERSION_FIX))
    if session.completed and (session.missing_rewards or math.isnan(session.reward)):
        without = "" if config.task_template.get("evaluator") else ": polar_task_template has no evaluator"
        text = f"the session has no reward{without}"
        fix = f"name an evaluator; polar_missing_reward is {config.missing_reward}"
        found.append(finding(_CHECK, Severity.WARNING, text, fix=fix))
    return found


def _evidence(task: TaskPayload, session: SessionOutcome) -> str:
    first = task.results[0] if task.results else None
    node = getattr(first, "node_id", None)
    times = "" if session.timing is None else f", run {session.timing.run_ms / 1000:.1f} s"
    versions = "" if session.weight_versions is None else f", weights {' to '.join(session.weight_versions)}"
    name = f"session {session.session_id} on {node}"
    return f"{name}: {session.status}, {counted(session.n_traces, 'trace')}{times}{versions}"


def _trainable(session: SessionOutcome, evidence: str) -> Finding:
    if session.reason is None and session.trainable_tokens:
        text = f"{counted(session.trainable_tokens, 'token')} to train on, each with id and logprob"
        return finding(_CHECK, Severity.OK, text, evidence=evidence)
    reason = SessionReason.ZERO_TRAINABLE if session.reason is None else SessionReason(session.reason)
    text = f"nothing to train on: {reason.value.replace('_', ' ')}"
    detail = evidence if session.detail is None else f"{session.detail}\n{evidence}"
    return finding(_CHECK, Severity.ERROR, text, evidence=detail, fix=_FIXES.get(reason, ""))
