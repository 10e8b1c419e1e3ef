"""The generation gates of Polar's gateways, one blocking HTTP request per call.

A closed gate holds new model calls back inside the gateway; the calls that are through go on. Knows the
gate's routes and what its answers mean. Which gates there are, how long to try and what follows is decided
elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

import httpx

from slime_bridge import _json
from slime_bridge._certificates import ssl_context
from slime_bridge._http_errors import HTTPX_ERRORS, Answer, error_of_answer, translate
from slime_bridge.errors import BridgeError, ProtocolError, SubmitRejectedError
from slime_bridge.protocol import NodeInfo, decode_nodes
from slime_bridge.redaction import redact

__all__ = ["GateAnswer", "GateClient", "GateOwner", "in_parallel", "nobody_listens"]

_CONNECT_SECONDS = 3.0
_MARGIN_SECONDS = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")


class GateOwner(Protocol):
    """What is needed to reach a rollout server and its gateways; a `PolarSlimeConfig` has it."""

    @property
    def rollout_url(self) -> str: ...
    @property
    def weight_update_pause_timeout(self) -> float: ...
    @property
    def control_plane_token(self) -> str | None: ...
    @property
    def trust_env(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """What a gateway says of its gate.

    Parameters
    ----------
    paused
        Whether new model calls wait.
    inflight
        Model calls that are through the gate and not answered yet; None if the gateway does not say.
    base_url, engine
        Where the gateway sends model calls, and in which dialect; empty if it does not say.
    """

    paused: bool
    inflight: int | None
    base_url: str = ""
    engine: str = ""


class GateClient:
    """Blocking requests to one rollout server and its gateways; usable from several threads.

    Parameters
    ----------
    owner
        The rollout server and how to reach it.
    """

    def __init__(self, owner: GateOwner) -> None:
        token = owner.control_plane_token
        self._rollout_url = owner.rollout_url.rstrip("/")
        self._secrets = tuple(filter(None, (token,)))
        self._headers = {"Accept": "application/json", "User-Agent": "slime-bridge"}
        if token:
            self._headers["X-Polar-Control-Token"] = token
        self._trust_env = owner.trust_env
        self._clients: dict[bool, httpx.Client] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> GateClient:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def nodes(self, *, timeout: float) -> list[NodeInfo]:
        """Return the gateways that the rollout server knows.

        Raises
        ------
        TransportError, SubmitRejectedError, ProtocolError
            No usable answer, refused, or not a list of gateways.
        """
        return decode_nodes(self._request("GET", f"{self._rollout_url}/nodes", timeout=timeout).body)

    def status(self, gateway_url: str, *, timeout: float) -> GateAnswer:
        """Return a gate's state; raises as `nodes`."""
        return self._gate("GET", gateway_url, "status", timeout=timeout)

    def pause(self, gateway_url: str, *, wait: float) -> GateAnswer:
        """Close a gate and wait until nothing is in flight, at most `wait` seconds.

        Returns
        -------
        GateAnswer
            Also where the wait was too short: then the gate is closed, and calls are in flight.

        Raises
        ------
        TransportError, SubmitRejectedError, ProtocolError
            As `nodes`; the gate may be closed all the same.
        """
        return self._gate("POST", gateway_url, "pause", timeout=wait + _MARGIN_SECONDS, wait=wait)

    def resume(self, gateway_url: str, *, timeout: float) -> GateAnswer:
        """Open a gate; raises as `nodes`."""
        return self._gate("POST", gateway_url, "resume", timeout=timeout)

    def _gate(
        self, method: str, gateway_url: str, action: str, *, timeout: float, wait: float | None = None
    ) -> GateAnswer:
        url = f"{gateway_url.rstrip('/')}/admin/inference/{action}"
        params = {} if wait is None else {"timeout_seconds": f"{wait:g}"}
        answer = self._request(method, url, timeout=timeout, params=params, accept=504 if params else None)
        try:
            state = _json.loads(answer.body)
        except ProtocolError as error:
            raise ProtocolError(f"{method} {redact(url)}: {error}") from None
        state = state if isinstance(state, dict) else {}
        # A 504 means: closed, and calls are still in flight. Its body is the state or an error text.
        paused = state.get("paused", answer.status_code == 504)
        inflight = state.get("inflight", None if answer.status_code == 504 else 0)
        if not isinstance(paused, bool):
            raise ProtocolError(f"{method} {redact(url)}: the answer does not say whether the gate is closed")
        return GateAnswer(
            paused,
            inflight if isinstance(inflight, int) else None,
            str(state.get("base_url") or ""),
            str(state.get("engine") or ""),
        )

    def _client(self, url: str) -> httpx.Client:
        """Return the client for an address; certificates take long to load, and `http` needs none."""
        encrypted = self._trust_env or not url.startswith("http://")
        with self._lock:
            if encrypted not in self._clients:
                self._clients[encrypted] = httpx.Client(
                    headers=self._headers,
                    trust_env=self._trust_env,
                    follow_redirects=False,
                    verify=encrypted and ssl_context(trust_env=self._trust_env),
                )
            return self._clients[encrypted]

    def _request(
        self,
        method: str,
        url: str,
        *,
        timeout: float,
        params: dict[str, str] | None = None,
        accept: int | None = None,
    ) -> Answer:
        request = f"{method} {redact(url)}"
        limits = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
        try:
            got = self._client(url).request(method, url, params=params, timeout=limits)
        except HTTPX_ERRORS as exc:
            raise translate(exc, request, secrets=self._secrets) from exc
        answer = Answer(got.status_code, {k.lower(): v for k, v in got.headers.items()}, got.content)
        error = error_of_answer(answer, request, secrets=self._secrets)
        if error is None or got.status_code == accept:
            return answer
        if got.status_code == 404:
            raise SubmitRejectedError(str(error), status_code=404)
        raise error


def nobody_listens(error: BaseException) -> bool:
    """Tell whether a connection was refused by the machine itself: no process has that port."""
    link: BaseException | None = error
    for _ in range(16):
        if link is None:
            break
        if isinstance(link, ConnectionRefusedError):
            return True
        link = link.__cause__ or link.__context__
    return False


def in_parallel(
    function: Callable[[Item], Result], items: Iterable[Item], *, within: float
) -> list[Result | BridgeError]:
    """Call a function for each item at the same time, in daemon threads.

    Parameters
    ----------
    function
        Bounds its own time and raises errors of the bridge only.
    items
        What to call it for.
    within
        Seconds after which a call that has not ended is left alone.

    Returns
    -------
    list
        In the order of the items: what the function returned or raised.
    """
    wanted = list(items)
    late = BridgeError(f"no end within {within:g} s")
    results: list[Result | BridgeError] = [late] * len(wanted)

    def run(index: int) -> None:
        try:
            results[index] = function(wanted[index])
        except BridgeError as error:
            results[index] = error

    threads = []
    for index in range(len(wanted)):
        thread = threading.Thread(target=run, args=(index,), name="polar-gate", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # an interpreter that is shutting down starts no threads any more
            run(index)
        else:
            threads.append(thread)
    deadline = time.monotonic() + within
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(results)
