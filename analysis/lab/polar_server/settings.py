"""Settings of the Polar-compatible server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeSettings:
    """One gateway node.

    Parameters
    ----------
    node_id, host, port
        Name, and where it listens; port 0 takes a free one.
    max_init_workers, max_run_workers, max_postrun_workers
        Sessions per stage at a time.
    model_served
        Model name sent to the engine; empty keeps the agent's.
    inference_url, engine
        Base URL of the engine or router without ``/v1``, and its dialect: ``sglang`` or ``vllm``.
    public_url
        How others reach the gateway; default: where it listens.
    init_seconds
        Time that preparing a sandbox takes.
    """

    node_id: str = "node-1"
    host: str = "127.0.0.1"
    port: int = 0
    max_init_workers: int = 64
    max_run_workers: int = 64
    max_postrun_workers: int = 64
    model_served: str = ""
    inference_url: str = ""
    engine: str = "sglang"
    public_url: str | None = None
    init_seconds: float = 0.0


@dataclass(frozen=True)
class ServerSettings:
    """The rollout server and its gateways.

    Parameters
    ----------
    host, port
        Where the rollout server listens; port 0 takes a free one.
    public_url
        How gateways reach the rollout server; default: where it listens.
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
    max_field_bytes
        Size above which one field of a completion file is cut.
    persist_completions
        Whether captured model calls are written below `save_dir`.
    keep_results
        Number of finished tasks whose results stay in memory, the latest ones; None keeps all, as Polar does.
    keep_requests
        Number of request records kept, the latest ones; None keeps all.
    scripted
        Play the fault script's synthetic sessions; else run agents on the gateways.
    nodes
        The gateways of this process; each listens on its own port.
    """

    host: str = "127.0.0.1"
    port: int = 0
    public_url: str | None = None
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
    persist_completions: bool = True
    keep_results: int | None = None
    keep_requests: int | None = None
    scripted: bool = True
    nodes: tuple[NodeSettings, ...] = (NodeSettings(),)
