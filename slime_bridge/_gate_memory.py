"""What is known of gates: their states, what a pause or resume did, and which ones may still be closed.

Holds no connection and asks nobody.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from slime_bridge._gates import GateOwner
from slime_bridge.redaction import redact

__all__ = ["GateMemory", "GateState", "Gateway", "PauseReport", "ResumeReport"]


@dataclass(frozen=True, slots=True)
class GateState:
    """One gateway's gate, as far as it is known.

    Parameters
    ----------
    node_id, url
        The gateway.
    paused
        Whether new model calls wait; None if unknown.
    inflight
        Model calls in flight; None if unknown.
    gone
        Nobody listens there, and the rollout server does not count the gateway as healthy: nothing of it can
        be in flight.
    seconds
        Time that it took.
    error
        What went wrong, None if nothing did.
    """

    node_id: str
    url: str
    paused: bool | None = None
    inflight: int | None = None
    gone: bool = False
    seconds: float = 0.0
    error: str | None = None

    @property
    def quiet(self) -> bool:
        """Whether nothing is in flight and nothing can start."""
        return self.gone or (self.paused is True and self.inflight == 0)

    def describe(self) -> str:
        """Return the state in a few words."""
        if self.error is not None:
            return f"{self.node_id} at {redact(self.url)}: {self.error}"
        return f"{self.node_id} at {redact(self.url)}: {self.inflight} model calls in flight"


@dataclass(frozen=True, slots=True)
class PauseReport:
    """What a pause did.

    Parameters
    ----------
    gates
        State of every gate, in the order of the rollout server's list.
    seconds
        Time that it took.
    problem
        Why not all gates are closed and quiet; None if they are.
    """

    gates: tuple[GateState, ...]
    seconds: float
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is in flight anywhere."""
        return self.problem is None


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """Which gates were opened, and which may still be closed.

    Parameters
    ----------
    opened
        Seen open, or gone.
    failed
        Could not be opened in time; they are remembered.
    """

    opened: tuple[GateState, ...] = ()
    failed: tuple[GateState, ...] = ()


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's name and base URL, and whether the rollout server counts it as healthy."""

    node_id: str
    url: str
    healthy: bool = True


@dataclass(slots=True, eq=False)
class GateMemory:
    """Gates that may be closed, and gateways seen so far, of this process.

    Parameters
    ----------
    at_exit
        Called when the interpreter exits, if a gate was ever remembered.
    """

    at_exit: Callable[[], object]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: dict[str, tuple[Gateway, GateOwner]] = field(default_factory=dict)
    _seen: dict[str, dict[str, Gateway]] = field(default_factory=dict)
    _exit_hook: bool = False

    def may_be_closed(self, gateway: Gateway, owner: GateOwner) -> None:
        """Remember a gate before it is asked to close; from the first one on, exit opens what is left."""
        with self._lock:
            self._closed[gateway.url] = (gateway, owner)
            if not self._exit_hook:
                self._exit_hook = True
                atexit.register(self.at_exit)

    def is_open(self, url: str) -> None:
        """Forget a gate."""
        with self._lock:
            self._closed.pop(url, None)

    def closed(self, rollout_url: str | None = None) -> list[tuple[Gateway, GateOwner]]:
        """Return the gates that may be closed, of one rollout server or of all."""
        with self._lock:
            return [
                (gateway, owner)
                for gateway, owner in self._closed.values()
                if rollout_url in (None, owner.rollout_url)
            ]

    def listed(self, rollout_url: str, gateways: Iterable[Gateway]) -> list[Gateway]:
        """Take a server's list; return it with the gateways seen before that are not on it, as not healthy.

        A rollout server that was restarted knows its gateways again only after their next heartbeat.
        """
        with self._lock:
            seen = self._seen.setdefault(rollout_url, {})
            current = {gateway.url: gateway for gateway in gateways}
            missing = [replace(old, healthy=False) for url, old in seen.items() if url not in current]
            seen.update(current)
            return [*current.values(), *missing]

    def seen(self, rollout_url: str) -> list[Gateway]:
        """Return the gateways seen so far."""
        with self._lock:
            return list(self._seen.get(rollout_url, {}).values())

    def forget(self, rollout_url: str, url: str) -> None:
        """Forget a gateway that is gone."""
        with self._lock:
            self._seen.get(rollout_url, {}).pop(url, None)
            self._closed.pop(url, None)
