"""Reads a Polar ``topology.yaml`` into this server's settings; unknown keys are refused, as by Polar.

`NodeTopology.default_runtime` is checked and otherwise unused: sessions run in this process, without a
sandbox.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from analysis.errors import LabError
from analysis.lab.polar_server.models import RuntimeSpec
from analysis.lab.polar_server.settings import NodeSettings, ServerSettings

NonBlank = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Port = Annotated[int, Field(ge=1, le=65535)]


class TopologyError(LabError, ValueError):
    """Raised when a topology file cannot be read or breaks a rule; names the file, the key and the value."""


def _http_url(value: str) -> str:
    parts = urlsplit(value.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http or https URL with a host")
    return value.strip().rstrip("/")


HttpUrl = Annotated[str, AfterValidator(_http_url)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RolloutTopology(_Strict):
    """The ``rollout`` section."""

    host: NonBlank = "0.0.0.0"
    port: Port = 8080
    public_url: HttpUrl | None = None
    save_dir: NonBlank | None = None
    dispatch_poll_interval_seconds: float = Field(default=1.0, gt=0)
    callback_grace_seconds: float = Field(default=120.0, ge=0)


class InferenceTopology(_Strict):
    """Where a gateway's model calls go; `base_url` is without ``/v1``."""

    engine: Literal["sglang", "vllm"] = "sglang"
    base_url: HttpUrl = "http://127.0.0.1:8000"


class NodeTopology(_Strict):
    """One entry of ``gateway.nodes``."""

    id: NonBlank = Field(default_factory=socket.gethostname)
    host: NonBlank = "0.0.0.0"
    port: Port = 8081
    public_url: HttpUrl | None = None
    model_served: Annotated[str, StringConstraints(strip_whitespace=True)] = ""
    inference: InferenceTopology = Field(default_factory=InferenceTopology)
    max_init_workers: int = Field(default=4, gt=0)
    max_run_workers: int = Field(default=2, gt=0)
    max_postrun_workers: int = Field(default=4, gt=0)
    default_runtime: RuntimeSpec | None = None


class CompletionPersistence(_Strict):
    """The ``gateway.completion_persistence`` section."""

    enabled: bool = True
    max_field_bytes: int = Field(default=1_048_576, gt=0)
    queue_size: int = Field(default=1024, gt=0)


class GatewayTopology(_Strict):
    """The ``gateway`` section."""

    heartbeat_interval_seconds: int = Field(default=30, gt=0)
    rollout_server_url: HttpUrl | None = None
    nodes: list[NodeTopology] = Field(min_length=1)
    completion_persistence: CompletionPersistence = Field(default_factory=CompletionPersistence)


class Topology(_Strict):
    """The whole file."""

    path: Any = None
    rollout: RolloutTopology = Field(default_factory=RolloutTopology)
    gateway: GatewayTopology


def load_topology(path: str | Path) -> Topology:
    """Read and check a topology file.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    TopologyError
        When it is no YAML mapping, breaks a rule, or names a node twice.
    """
    file = Path(path)
    if file.is_dir():
        raise TopologyError(f"{file} is a directory, not a topology file")
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TopologyError(f"{file} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise TopologyError(f"{file} must hold a mapping with the key 'gateway', not {type(data).__name__}")
    try:
        topology = Topology.model_validate(data)
    except ValidationError as error:
        raise TopologyError(f"{file}: {error}") from error
    ids = [node.id for node in topology.gateway.nodes]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise TopologyError(f"{file}: gateway.nodes names {', '.join(twice)} more than once")
    return topology


def settings_from_topology(topology: Topology) -> ServerSettings:
    """Return the settings of a deployment that runs all nodes of `topology` in this process."""
    rollout, gateway = topology.rollout, topology.gateway
    nodes = tuple(
        NodeSettings(
            node_id=node.id,
            host=node.host,
            port=node.port,
            max_init_workers=node.max_init_workers,
            max_run_workers=node.max_run_workers,
            max_postrun_workers=node.max_postrun_workers,
            model_served=node.model_served,
            inference_url=node.inference.base_url,
            engine=node.inference.engine,
            public_url=node.public_url,
        )
        for node in gateway.nodes
    )
    return ServerSettings(
        host=rollout.host,
        port=rollout.port,
        public_url=rollout.public_url,
        save_dir=rollout.save_dir,
        heartbeat_seconds=gateway.heartbeat_interval_seconds,
        callback_grace_seconds=rollout.callback_grace_seconds,
        dispatch_poll_seconds=rollout.dispatch_poll_interval_seconds,
        keep_alive=5.0,
        max_field_bytes=gateway.completion_persistence.max_field_bytes,
        persist_completions=gateway.completion_persistence.enabled,
        scripted=False,
        nodes=nodes,
    )
