"""An exact barrier for weight pushes: no model call is in flight while it holds.

A push makes SGLang end the requests in flight, and what was sampled so far reaches the agent like a finished
answer. `pause_for_weight_update` closes the generation gate of every gateway and returns once nothing is in
flight; agents wait inside the gateway until `resume_after_weight_update`. Everything here blocks, takes a
bounded time, and needs no event loop, so that a trainer process can use it. It does not know what is pushed.

Each gate that may be closed is remembered until it was seen open. What is left over, say because a gateway
could not be reached, is opened by the next pause or resume, by `open_all`, and when the interpreter exits. A
process that was killed remembers nothing: `open_stray_gates` asks the gateways themselves. Each pause is also
noted for the process that collects rollouts, which then knows that the push after it cut no turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from slime_bridge._gate_memory import GateMemory, GateState, Gateway, PauseReport, ResumeReport
from slime_bridge._gates import GateAnswer, GateClient, GateOwner, in_parallel, nobody_listens
from slime_bridge._push_log import note_push
from slime_bridge.config import BarrierSettings, resolve_barrier_settings
from slime_bridge.errors import BridgeError, ConfigError, SubmitRejectedError, WeightBarrierError
from slime_bridge.redaction import redact

__all__ = [
    "GateState",
    "PauseReport",
    "ResumeReport",
    "open_all",
    "open_stray_gates",
    "pause_for_weight_update",
    "possibly_closed",
    "resume_after_weight_update",
]

logger = logging.getLogger(__name__)

# One pause request waits no longer than this, so that a gateway that fails ends the waiting of the others.
_SLICE_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_LIST_SECONDS = 10.0
# So long may a gateway be restarting.
_UNREACHABLE_SECONDS = 10.0
_OPEN_SECONDS = 10.0
_EXIT_SECONDS = 2.0
_MARGIN_SECONDS = 1.0


_memory = GateMemory(at_exit=lambda: open_all(_EXIT_SECONDS))


def pause_for_weight_update(target: Any, timeout: float | None = None) -> PauseReport:
    """Close the generation gate of every gateway and wait until no model call is in flight.

    Call `resume_after_weight_update` in a ``finally``. Where a gate cannot be closed, or its calls do not end
    in time, all gates are opened again before this raises.

    Parameters
    ----------
    target
        The rollout server: its URL, a `PolarSlimeConfig`, or the trainer's ``args``.
    timeout
        Seconds to wait; `polar_weight_update_pause_timeout` if None. Opening again may take 10 more.

    Returns
    -------
    PauseReport
        Complete: every gate is closed and quiet, also those of gateways that came while others were waited
        for. Gateways that are gone are listed as such.

    Raises
    ------
    WeightBarrierError
        Not every gate is closed and quiet; the report is attached.
    ConfigError
        `target` names no rollout server.
    """
    owner = _owner(target)
    started = time.monotonic()
    seconds = owner.weight_update_pause_timeout if timeout is None else timeout
    with GateClient(owner) as client:
        try:
            gates, problem = _close_all(client, owner, started + seconds)
        except BaseException:
            # An interrupt too: no gate may stay closed behind it.
            _open(client, _memory.closed(owner.rollout_url), _OPEN_SECONDS)
            raise
        report = PauseReport(gates, time.monotonic() - started, problem)
        note_push(owner.rollout_url, getattr(owner, "run_dir", None), guarded=report.complete)
        if problem is None:
            logger.info("Generation is held back at %d gateways after %.2f s", len(gates), report.seconds)
            return report
        _open(client, _memory.closed(owner.rollout_url), _OPEN_SECONDS)
    raise WeightBarrierError(
        f"generation could not be held back within {seconds:g} s, and all gates are asked to open again: "
        f"{problem}",
        report=report,
    )


def resume_after_weight_update(target: Any = None, timeout: float = _OPEN_SECONDS) -> ResumeReport:
    """Open every gate that this process may have closed.

    Never raises for a gateway's sake; gates that could not be opened are logged and tried again later.

    Parameters
    ----------
    target
        As in `pause_for_weight_update`; None for every rollout server.
    timeout
        Seconds to keep trying.
    """
    rollout_url = None if target is None else _owner(target).rollout_url
    return _open_remembered(rollout_url, timeout)


def open_all(timeout: float = _EXIT_SECONDS) -> ResumeReport:
    """Open every gate that this process may have closed; for stopping and exit. Never raises."""
    return _open_remembered(None, timeout)


def open_stray_gates(target: Any, timeout: float = 2.0) -> ResumeReport:
    """Open every gate of a rollout server's gateways, whoever closed it.

    For moments when no push can be under way: it finds what a process left closed that was killed. A server
    or gateway that does not answer is passed over.

    Parameters
    ----------
    target
        As in `pause_for_weight_update`.
    timeout
        Seconds in all, about.
    """
    owner = _owner(target)
    with GateClient(owner) as client:
        try:
            nodes = client.nodes(timeout=timeout / 2)
        except BridgeError as error:
            logger.debug("Gates are not checked: %s", error)
            nodes = []
        gateways = [Gateway(node.node_id, node.gateway_url, node.healthy) for node in nodes]
        answers = in_parallel(
            lambda gateway: client.status(gateway.url, timeout=timeout / 2), gateways, within=timeout
        )
        for gateway, answer in zip(gateways, answers, strict=True):
            if isinstance(answer, GateAnswer) and answer.paused:
                logger.warning("The generation gate of %s was left closed; it is opened", gateway.node_id)
                _memory.may_be_closed(gateway, owner)
        return _open(client, _memory.closed(owner.rollout_url), timeout)


def possibly_closed() -> list[str]:
    """Return the base URLs of gateways whose gate this process may have left closed."""
    return [gateway.url for gateway, _ in _memory.closed()]


def _owner(target: Any) -> GateOwner:
    if isinstance(target, str):
        return BarrierSettings(rollout_url=target.rstrip("/"))
    if isinstance(getattr(target, "rollout_url", None), str):
        owner: GateOwner = target
        return owner
    settings = resolve_barrier_settings(target)
    if settings is None:
        raise ConfigError("no rollout server is named: expected polar_rollout_url or polar_topology_path")
    return settings


def _close_all(
    client: GateClient, owner: GateOwner, deadline: float
) -> tuple[tuple[GateState, ...], str | None]:
    """Close gates until the list of gateways holds no other one; return their states and what is wrong."""
    gates: dict[str, GateState] = {}
    while True:
        try:
            gateways = _gateways(client, owner, deadline)
        except BridgeError as error:
            return tuple(gates.values()), f"the gateways are not known: {error}"
        new = [gateway for gateway in gateways if gateway.url not in gates]
        if not new:
            return tuple(gates.values()), None
        give_up = threading.Event()

        def close(gateway: Gateway, give_up: threading.Event = give_up) -> GateState:
            state = _close(client, gateway, owner, deadline, give_up)
            if not state.quiet:
                give_up.set()
            return state

        left = max(0.0, deadline - time.monotonic())
        try:
            states = in_parallel(close, new, within=left + _OPEN_SECONDS)
        finally:
            give_up.set()
        for gateway, state in zip(new, states, strict=True):
            if isinstance(state, GateState):
                gates[gateway.url] = state
            else:
                gates[gateway.url] = GateState(gateway.node_id, gateway.url, error=str(state))
        loud = [state.describe() for state in gates.values() if not state.quiet]
        if loud:
            return tuple(gates.values()), "; ".join(loud)


def _gateways(client: GateClient, owner: GateOwner, deadline: float) -> list[Gateway]:
    """Return the server's gateways; those seen before where it does not answer."""
    give_up_at = min(deadline, time.monotonic() + _LIST_SECONDS)
    while True:
        left = give_up_at - time.monotonic()
        try:
            nodes = client.nodes(timeout=max(0.5, left))
        except SubmitRejectedError:
            raise
        except BridgeError:
            if time.monotonic() + _RETRY_SECONDS < give_up_at:
                time.sleep(_RETRY_SECONDS)
                continue
            known = _memory.seen(owner.rollout_url)
            if not known:
                raise
            logger.warning(
                "%s does not list its gateways; the ones seen before are paused", owner.rollout_url
            )
            return known
        return _memory.listed(
            owner.rollout_url, [Gateway(n.node_id, n.gateway_url.rstrip("/"), n.healthy) for n in nodes]
        )


def _close(
    client: GateClient, gateway: Gateway, owner: GateOwner, deadline: float, give_up: threading.Event
) -> GateState:
    """Close one gate and wait until it is quiet, the deadline, or another one has failed."""
    started = time.monotonic()
    state = GateState(gateway.node_id, gateway.url)
    unreachable_since: float | None = None
    _memory.may_be_closed(gateway, owner)
    while True:
        now = time.monotonic()
        try:
            answer = client.pause(gateway.url, wait=max(0.1, min(_SLICE_SECONDS, deadline - now)))
        except SubmitRejectedError as error:
            return replace(state, seconds=now - started, error=f"it has no generation gate: {error}")
        except BridgeError as error:
            unreachable_since = now if unreachable_since is None else unreachable_since
            too_long = time.monotonic() - unreachable_since > _UNREACHABLE_SECONDS
            if not gateway.healthy and (too_long or nobody_listens(error)):
                _memory.forget(owner.rollout_url, gateway.url)
                return replace(state, gone=True, seconds=time.monotonic() - started)
            state = replace(state, paused=None, inflight=None, error=str(error))
            if too_long:
                return replace(state, seconds=time.monotonic() - started)
            give_up.wait(_RETRY_SECONDS)
        else:
            unreachable_since = None
            state = replace(state, paused=answer.paused, inflight=answer.inflight, error=None)
        state = replace(state, seconds=time.monotonic() - started)
        if state.quiet or give_up.is_set() or time.monotonic() >= deadline:
            return state


def _open_remembered(rollout_url: str | None, timeout: float) -> ResumeReport:
    reports = []
    by_owner: dict[str, list[tuple[Gateway, GateOwner]]] = {}
    for gateway, owner in _memory.closed(rollout_url):
        by_owner.setdefault(owner.rollout_url, []).append((gateway, owner))
    for gates in by_owner.values():
        with GateClient(gates[0][1]) as client:
            reports.append(_open(client, gates, timeout))
    return ResumeReport(
        tuple(state for report in reports for state in report.opened),
        tuple(state for report in reports for state in report.failed),
    )


def _open(client: GateClient, gates: Iterable[tuple[Gateway, GateOwner]], timeout: float) -> ResumeReport:
    """Open gates at the same time; logs what could not be opened."""
    deadline = time.monotonic() + timeout
    gateways = [gateway for gateway, _ in gates]
    results = in_parallel(
        lambda gateway: _open_one(client, gateway, deadline), gateways, within=timeout + _MARGIN_SECONDS
    )
    opened, failed = [], []
    for gateway, result in zip(gateways, results, strict=True):
        if isinstance(result, GateState):
            _memory.is_open(gateway.url)
            opened.append(result)
        else:
            failed.append(GateState(gateway.node_id, gateway.url, error=str(result)))
            logger.error(
                "The generation gate of %s may still be closed (%s); it is opened at the next chance. "
                "By hand: curl -X POST %s/admin/inference/resume",
                gateway.node_id,
                result,
                redact(gateway.url),
            )
    return ResumeReport(tuple(opened), tuple(failed))


def _open_one(client: GateClient, gateway: Gateway, deadline: float) -> GateState:
    started = time.monotonic()
    while True:
        left = deadline - time.monotonic()
        try:
            answer = client.resume(gateway.url, timeout=max(0.2, min(left, _SLICE_SECONDS)))
        except BridgeError as error:
            if nobody_listens(error):
                return GateState(gateway.node_id, gateway.url, gone=True, seconds=time.monotonic() - started)
            if isinstance(error, SubmitRejectedError) or time.monotonic() + _RETRY_SECONDS >= deadline:
                raise
        else:
            if not answer.paused:
                return GateState(
                    gateway.node_id, gateway.url, False, answer.inflight, seconds=time.monotonic() - started
                )
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                raise WeightBarrierError("the gateway says that its gate stays closed")
        time.sleep(_RETRY_SECONDS)
