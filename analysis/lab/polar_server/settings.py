"""Settings of the Polar-compatible server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeSettings:
    """One gateway node: id, address, workers per stage, engine, and seconds to prepare a sandbox."""

    node_id: str = "node-1"
    host: str = "127.0.0.1"
    port: int = 0
    max_init_workers: int = 64
    max_run_workers: int = 64
    max_postrun_workers: int = 64
    model_served: str = ""
    inference_url: str = ""
    engine: str = "sglang"
    init_seconds: float = 0.0


@dataclass(frozen=True)
class ServerSettings:
    """The rollout server and its gateways.

    Parameters
    ----------
    host, port
        Where the rollout server listens; port 0 takes a free one.
    save_dir
        Root of the result tree; None writes nothing.
    newer
        Behave like newer servers: cancelling, early stop, priorities, more timing fields, masked traces.
    control_token
        When set, ``X-Polar-Control-Token`` must carry it on node and session-callback routes (newer servers).
    protect_submit
        Whether submit and cancel need the token too.
    heartbeat_seconds
        Interval at which nodes are expected to report.
    callback_grace_seconds
        Added to a session's budget before the rollout server gives up on its gateway.
    dispatch_poll_seconds
        Interval at which a dispatched session is polled on a remote gateway.
    ping_seconds
        Silence on ``/events`` before a ping.
    keep_alive
        Seconds an idle connection is kept.
    """

    host: str = "127.0.0.1"
    port: int = 0
    save_dir: str | Path | None = None
    newer: bool = False
    control_token: str | None = None
    protect_submit: bool = False
    heartbeat_seconds: int = 30
    callback_grace_seconds: float = 120.0
    dispatch_poll_seconds: float = 1.0
    ping_seconds: float = 15.0
    keep_alive: float = 75.0
    max_field_bytes: int = 1_048_576
    nodes: tuple[NodeSettings, ...] = (NodeSettings(),)
