"""The rollout server's register of gateway nodes: health by heartbeat age, draining, and placement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from analysis.errors import LabError
from analysis.lab.polar_server.node_models import NodeRegistrationRequest, NodeStageMetrics


class UnknownNodeError(LabError, KeyError):
    """Raised when a node id is not registered; its text is Polar's answer."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"Unknown gateway node: {node_id}")


@dataclass
class Node:
    """One registered gateway; `probe` reads the metrics of a gateway that lives in this process."""

    registration: NodeRegistrationRequest
    metrics: NodeStageMetrics = field(default_factory=NodeStageMetrics)
    dispatch_reservations: int = 0
    draining: bool = False
    last_heartbeat: datetime = field(default_factory=lambda: datetime.now(UTC))
    probe: Callable[[], NodeStageMetrics | None] | None = None

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.registration.node_id

    @property
    def url(self) -> str:
        """The gateway's base URL without trailing slashes."""
        return self.registration.gateway_url.rstrip("/")

    def refresh(self) -> None:
        """Take a heartbeat from a gateway in this process, if it is up."""
        metrics = self.probe() if self.probe is not None else None
        if metrics is not None:
            self.metrics = metrics
            self.last_heartbeat = datetime.now(UTC)

    @property
    def healthy(self) -> bool:
        """Whether the last heartbeat is younger than 2.5 intervals."""
        age = (datetime.now(UTC) - self.last_heartbeat).total_seconds()
        return age <= max(1.0, 2.5 * self.registration.heartbeat_interval_seconds)

    @property
    def total(self) -> int:
        """Sessions in all stages and reservations."""
        m = self.metrics
        stages = m.init_queue_depth + m.init_inflight + m.ready_depth + m.run_inflight
        return stages + m.postrun_queue_depth + m.postrun_inflight + self.dispatch_reservations

    @property
    def admits(self) -> bool:
        """Whether the node may get another session."""
        r, m = self.registration, self.metrics
        room = self.total < r.max_init_workers + 2 * r.max_run_workers + r.max_postrun_workers
        return room and m.postrun_inflight + m.postrun_queue_depth < 2 * r.max_postrun_workers

    @property
    def rank(self) -> tuple[float, ...]:
        """Order of preference: least run, post-run and init pressure, emptiest ready buffer, least total."""
        r, m = self.registration, self.metrics
        run = (m.ready_depth + m.run_inflight) / r.max_run_workers
        postrun = (m.postrun_queue_depth + m.postrun_inflight) / r.max_postrun_workers
        init = (m.init_queue_depth + m.init_inflight + self.dispatch_reservations) / r.max_init_workers
        return (run, postrun, init, m.ready_depth - r.max_run_workers, self.total)

    def info(self) -> dict[str, Any]:
        """Return the `GatewayNodeInfo` that the API shows."""
        r = self.registration
        return {
            "node_id": r.node_id,
            "gateway_url": self.url,
            "max_init_workers": r.max_init_workers,
            "max_run_workers": r.max_run_workers,
            "max_postrun_workers": r.max_postrun_workers,
            "metrics": self.metrics.model_dump(),
            "dispatch_reservations": self.dispatch_reservations,
            "healthy": self.healthy,
            "draining": self.draining,
            "heartbeat_interval_seconds": r.heartbeat_interval_seconds,
            "last_heartbeat": self.last_heartbeat.isoformat().replace("+00:00", "Z"),
        }


class NodeRegistry:
    """All gateway nodes by id."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def register(
        self, request: NodeRegistrationRequest, *, probe: Callable[[], NodeStageMetrics | None] | None = None
    ) -> Node:
        """Create or replace a node: healthy, no reservations, its `draining` flag and metrics kept."""
        old = self._nodes.get(request.node_id)
        node = Node(request, probe=probe)
        if old is not None:
            node.metrics, node.draining = old.metrics, old.draining
            node.probe = probe or old.probe
        self._nodes[request.node_id] = node
        return node

    def heartbeat(self, node_id: str, metrics: NodeStageMetrics) -> Node:
        """Replace a node's metrics and clear its reservations.

        Raises
        ------
        UnknownNodeError
            When the node is not registered.
        """
        node = self._known(node_id)
        node.metrics = metrics
        node.dispatch_reservations = 0
        node.last_heartbeat = datetime.now(UTC)
        return node

    def drain(self, node_id: str) -> Node:
        """Give a node no new sessions, and drop it once it is idle; raises `UnknownNodeError`."""
        node = self._known(node_id)
        node.refresh()
        node.draining = True
        if node.total == 0:
            del self._nodes[node_id]
        return node

    def get(self, node_id: str) -> Node | None:
        """Return a node with fresh metrics, or None."""
        return next((node for node in self.all() if node.node_id == node_id), None)

    def all(self) -> list[Node]:
        """Return all nodes with fresh metrics, sorted by id; drained nodes that became idle are dropped."""
        for node in list(self._nodes.values()):
            node.refresh()
            if node.draining and node.total == 0:
                del self._nodes[node.node_id]
        return [self._nodes[node_id] for node_id in sorted(self._nodes)]

    def pick(self, *, excluding: frozenset[str] = frozenset()) -> Node | None:
        """Return the node that should take the next session, or None when no node can."""
        eligible = [
            node
            for node in self.all()
            if node.healthy and not node.draining and node.admits and node.node_id not in excluding
        ]
        return min(eligible, key=lambda node: (*node.rank, node.node_id), default=None)

    def __len__(self) -> int:
        return len(self._nodes)

    def _known(self, node_id: str) -> Node:
        node = self._nodes.get(node_id)
        if node is None:
            raise UnknownNodeError(node_id)
        return node
