"""Wire types between the rollout server and its gateways, as pydantic models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from analysis.lab.polar_server.models import AgentSpec, EvaluatorSpec, RuntimeSpec, StrategySpec


class SessionDispatchRequest(BaseModel):
    """Body of the gateway's ``POST /sessions`` in dispatch mode; the budget is in seconds."""

    session_id: str
    task_id: str
    instruction: str
    remaining_timeout_seconds: float = Field(gt=0)
    runtime: RuntimeSpec | None = None
    agent: AgentSpec
    builder: StrategySpec = Field(default_factory=lambda: StrategySpec(strategy="per_request"))
    evaluator: EvaluatorSpec | None = None
    callback_url: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    dispatch_priority: int = Field(default=0, ge=0, le=100)


class NodeStageMetrics(BaseModel):
    """How many sessions a gateway holds per stage."""

    init_queue_depth: int = Field(default=0, ge=0)
    init_inflight: int = Field(default=0, ge=0)
    ready_depth: int = Field(default=0, ge=0)
    run_inflight: int = Field(default=0, ge=0)
    postrun_queue_depth: int = Field(default=0, ge=0)
    postrun_inflight: int = Field(default=0, ge=0)


class NodeRegistrationRequest(BaseModel):
    """Body of ``POST /nodes/register``."""

    node_id: str
    gateway_url: str
    max_init_workers: int = Field(ge=1)
    max_run_workers: int = Field(ge=1)
    max_postrun_workers: int = Field(ge=1)
    heartbeat_interval_seconds: int = Field(default=30, ge=1)


class NodeHeartbeatRequest(BaseModel):
    """Body of ``POST /nodes/{id}/heartbeat``; an empty object means all zeros."""

    metrics: NodeStageMetrics = Field(default_factory=NodeStageMetrics)
