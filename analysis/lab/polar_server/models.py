"""Polar's wire types as pydantic models, so that a bad request gets the same 422 answer that Polar gives.

The strictness is Polar's: unknown keys are dropped in requests and results, refused in `SessionTiming`, and
kept in `CompletionRecord`. Results that this server produces itself are checked by `SessionResult` before
they are shown.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

TERMINAL_SESSION_STATUSES = ("COMPLETED", "ERROR", "TIMEOUT")
"""Session statuses that never change again."""

LIFTED_METADATA_KEYS = ("group_id", "policy_version", "rollout_step")
"""Keys of a task's metadata that Polar copies to the top level of ``trajectory.metadata``."""

TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
"""Task ids that are safe as one path component and can be fetched again over HTTP."""

SessionStatus = Literal[
    "REGISTERED",
    "INITIALIZING",
    "READY",
    "RUNNING",
    "POST_RUN",
    "BUILDING",
    "EVALUATING",
    "COMPLETED",
    "ERROR",
    "TIMEOUT",
]
TrajectoryStatus = Literal["COMPLETED", "TIMEOUT", "ERROR"]


class ExecInput(BaseModel):
    """One shell command of an agent or a prepare recipe."""

    command: str
    cwd: str | None = None
    env: dict[str, str] | None = None


class MCPServerSpec(BaseModel):
    """A tool server that an agent may talk to."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http"]
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    url: str | None = None

    @model_validator(mode="after")
    def _needs_its_address(self) -> MCPServerSpec:
        if self.transport == "stdio" and not self.command:
            raise ValueError("stdio MCP servers require command")
        if self.transport != "stdio" and not self.url:
            raise ValueError(f"{self.transport} MCP servers require url")
        return self


class AgentSpec(BaseModel):
    """What a session runs: a named harness or a plug-in class, and its settings."""

    harness: str | None = None
    import_path: str | None = None
    model_name: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    mcp_servers: list[MCPServerSpec] = Field(default_factory=list)
    skills_path: str | None = None
    custom_shell: ExecInput | None = None

    @model_validator(mode="after")
    def _one_agent(self) -> AgentSpec:
        if bool(self.harness) == bool(self.import_path):
            raise ValueError("exactly one of harness or import_path must be set")
        if self.harness == "shell" and self.custom_shell is None:
            raise ValueError("harness 'shell' requires custom_shell")
        if self.custom_shell is not None:
            if self.harness != "shell":
                raise ValueError("custom_shell is only valid with harness 'shell'")
            if self.mcp_servers or self.skills_path is not None:
                raise ValueError("custom_shell cannot be combined with mcp_servers or skills_path")
        return self


class PrepareAction(BaseModel):
    """One step of the recipe that prepares a sandbox."""

    type: Literal["upload_file", "upload_dir", "exec"]
    source: str | None = None
    target: str | None = None
    command: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    max_attempts: int = Field(default=1, ge=1, le=10)
    retry_backoff_seconds: float = Field(default=0.0, ge=0, le=60)

    @model_validator(mode="after")
    def _fields_fit_the_type(self) -> PrepareAction:
        if self.type == "exec":
            if not self.command:
                raise ValueError("exec actions require command")
            if self.source is not None or self.target is not None:
                raise ValueError("exec actions cannot set source or target")
        else:
            if not self.source or not self.target:
                raise ValueError(f"{self.type} actions require source and target")
            if self.command is not None or self.cwd is not None or self.env is not None:
                raise ValueError(f"{self.type} actions cannot set command, cwd or env")
        return self


class RuntimeSpec(BaseModel):
    """The sandbox that a session asks for."""

    backend: Literal["docker", "apptainer"] = "docker"
    image: str
    prepare: list[PrepareAction] = Field(default_factory=list)
    eval_prepare: list[PrepareAction] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    network: str | None = "host"
    workdir: str | None = None
    cpus: int | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    allow_internet: bool = True
    import_path: str | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("image", "workdir")
    @classmethod
    def _not_blank(cls, value: str | None) -> str | None:
        if value is None:
            return None
        value = value.strip()
        if not value:
            raise ValueError("must not be empty")
        return value

    @model_validator(mode="after")
    def _network_fits(self) -> RuntimeSpec:
        if not self.allow_internet and self.network not in (None, "", "host", "none"):
            raise ValueError("allow_internet=false requires network to be empty, 'host' or 'none'")
        return self


class StrategySpec(BaseModel):
    """A trajectory builder by registered name or ``module:Class``, and its configuration."""

    strategy: str
    config: dict[str, Any] = Field(default_factory=dict)


class EvaluatorSpec(StrategySpec):
    """An evaluator by registered name or ``module:Class``, and its configuration."""

    env: dict[str, str] = Field(default_factory=dict)
    refresh_runtime: bool = False


class TaskRequest(BaseModel):
    """Body of ``POST /rollout/task/submit``.

    `timeout_seconds` is the execution budget of each session in seconds, counted from the start of INIT.
    Task ids that could leave their folder or never be fetched again are refused, which the baseline does
    not do.
    """

    task_id: str
    instruction: str
    num_samples: int = Field(default=1, ge=1)
    timeout_seconds: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    runtime: RuntimeSpec | None = None
    agent: AgentSpec
    builder: StrategySpec = Field(default_factory=lambda: StrategySpec(strategy="per_request"))
    evaluator: EvaluatorSpec | None = None
    callback_url: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("task_id")
    @classmethod
    def _safe_task_id(cls, value: str) -> str:
        if TASK_ID_PATTERN.match(value) is None:
            raise ValueError(
                "task_id must be one path component of letters, digits, '.', '_' and '-' (at most 200)"
            )
        return value


class NewerTaskRequest(TaskRequest):
    """`TaskRequest` with the fields of newer servers."""

    dispatch_priority: int = Field(default=0, ge=0, le=100)
    early_stop_min_usable_sessions: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _newer_rules(self) -> NewerTaskRequest:
        minimum = self.early_stop_min_usable_sessions
        if minimum is not None and minimum > self.num_samples:
            raise ValueError("early_stop_min_usable_sessions must not exceed num_samples")
        timeout = self.metadata.get("agent_timeout")
        if timeout is not None and not _positive_number(timeout):
            raise ValueError("metadata.agent_timeout must be a positive finite number")
        seed = self.metadata.get("eval_sampling_seed_base")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ValueError("metadata.eval_sampling_seed_base must be a non-negative integer")
        return self


def _positive_number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


class SessionTiming(BaseModel):
    """Milliseconds that a session spent per stage; waiting for a run slot is in none of them."""

    model_config = ConfigDict(extra="forbid")

    register_to_init_queue_ms: float = 0.0
    init_ms: float = 0.0
    run_ms: float = 0.0
    postrun_ms: float = 0.0


class NewerSessionTiming(SessionTiming):
    """`SessionTiming` with the times, counters and maps of newer gateways; still closed to unknown keys."""

    rollout_dispatch_ms: float = 0.0
    rollout_result_wait_ms: float = 0.0
    rollout_pipeline_e2e_ms: float = 0.0
    ready_queue_ms: float = 0.0
    postrun_queue_ms: float = 0.0
    container_start_ms: float = 0.0
    eval_container_start_ms: float = 0.0
    runtime_validation_ms: float = 0.0
    eval_runtime_validation_ms: float = 0.0
    prepare_ms: float = 0.0
    eval_prepare_ms: float = 0.0
    agent_setup_ms: float = 0.0
    agent_exec_ms: float = 0.0
    agent_postprocess_ms: float = 0.0
    build_ms: float = 0.0
    eval_ms: float = 0.0
    postrun_exec_ms: float = 0.0
    runtime_stop_ms: float = 0.0
    e2e_ms: float = 0.0
    runtime_exec_ms: float = 0.0
    mini_swe_command_ms: float = 0.0
    runtime_exec_count: int = 0
    runtime_exec_timeout_count: int = 0
    runtime_exec_failure_count: int = 0
    runtime_exec_exception_count: int = 0
    runtime_exec_cancelled_count: int = 0
    mini_swe_command_count: int = 0
    mini_swe_command_timeout_count: int = 0
    mini_swe_command_failure_count: int = 0
    runtime_exec_ms_by_category: dict[str, float] = Field(default_factory=dict)
    runtime_exec_count_by_category: dict[str, int] = Field(default_factory=dict)
    mini_swe_command_ms_by_category: dict[str, float] = Field(default_factory=dict)
    mini_swe_command_count_by_category: dict[str, int] = Field(default_factory=dict)


class Trace(BaseModel):
    """One training example: token arrays of one append-only run of model calls.

    `loss_mask` is empty or as long as `response_ids`; `response_logprobs` is null or as long as
    `response_ids`.
    """

    prompt_ids: list[int] = Field(default_factory=list)
    response_ids: list[int] = Field(default_factory=list)
    loss_mask: list[Annotated[int, Field(ge=0, le=1)]] = Field(default_factory=list)
    prompt_messages: list[dict[str, Any]] = Field(default_factory=list)
    response_messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    response_logprobs: list[float] | None = None
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _aligned(self) -> Trace:
        length = len(self.response_ids)
        if self.loss_mask and len(self.loss_mask) != length:
            raise ValueError("loss_mask must have the same length as response_ids")
        if self.response_logprobs is not None and len(self.response_logprobs) != length:
            raise ValueError("response_logprobs must have the same length as response_ids")
        return self


class Trajectory(BaseModel):
    """All traces of one session."""

    status: TrajectoryStatus
    metadata: dict[str, Any] = Field(default_factory=dict)
    traces: list[Trace] = Field(default_factory=list)
    error: str | None = None


class SessionResult(BaseModel):
    """What one session ended with; body of ``POST /callbacks/session_result``."""

    session_id: str
    task_id: str
    status: SessionStatus
    trajectory: Trajectory
    timing: SessionTiming = Field(default_factory=SessionTiming)
    node_id: str | None = None
    error: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class NewerSessionResult(SessionResult):
    """`SessionResult` whose timing may carry the keys of newer gateways."""

    timing: NewerSessionTiming = Field(default_factory=NewerSessionTiming)


class CompletionRecord(BaseModel):
    """One captured model call: what the agent sent, what the engine got, and what it answered."""

    model_config = ConfigDict(extra="allow")

    completion_id: str
    timestamp: str
    request: dict[str, Any] = Field(default_factory=dict)
    original_request: dict[str, Any] = Field(default_factory=dict)
    response: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class CompletionSession(BaseModel):
    """All captured model calls of one session, in order of (`timestamp`, `completion_id`)."""

    model_config = ConfigDict(extra="allow")

    session_id: str
    created_at: str = ""
    completion_count: int = 0
    task_id: str | None = None
    model_requested: str | None = None
    model_used: str | None = None
    api_type: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    completions: list[CompletionRecord] = Field(default_factory=list)

    @model_validator(mode="after")
    def _in_answer_order(self) -> CompletionSession:
        self.completions.sort(key=lambda record: (record.timestamp, record.completion_id))
        return self
