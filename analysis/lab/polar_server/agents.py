"""Agents that sessions run, in this process: a multi-turn tool user for the lab's tasks.

An agent gets its instruction and settings and a function that asks the model; it knows nothing about
gateways, queues or rewards. Everything random about its world (slow tools, crashes) is decided by the
episode and the sample, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from analysis.errors import LabError, TaskError
from analysis.lab.polar_server.builders import load_object
from analysis.lab.polar_server.faults import stable_seed
from analysis.lab.polar_server.models import AgentSpec
from analysis.lab.polar_server.proxy import UpstreamError
from analysis.lab.task_shelf import EpisodeEnd, EpisodeRun, get_task

JsonMap = dict[str, Any]
Ask = Callable[[JsonMap], Awaitable[JsonMap]]
"""Sends one chat request on the session's behalf and returns the answer; raises `UpstreamError`."""


_FLOATS = (
    "temperature",
    "top_p",
    "tool_latency_median",
    "tool_latency_sigma",
    "tool_latency_max",
    "failure_rate",
)
_INTEGERS = ("max_tokens", "max_turns", "model_retries", "seed", "sampling_seed")


class AgentError(LabError, ValueError):
    """Raised when an agent is unknown or its settings make no sense; the session ends as ERROR."""


@dataclass(frozen=True)
class AgentResult:
    """How an agent's run ended; `metadata` is for the evaluator."""

    status: Literal["completed", "failed", "timeout"]
    return_code: int = 0
    error: str | None = None
    metadata: JsonMap = field(default_factory=dict)


@dataclass(frozen=True)
class AgentContext:
    """What a session tells its agent about itself."""

    session_id: str
    task_id: str
    sample_index: int
    metadata: Mapping[str, Any]


class Agent(Protocol):
    """One agent, constructed with its `AgentSpec`."""

    async def run(self, instruction: str, context: AgentContext, ask: Ask) -> AgentResult:
        """Work on the instruction until done; may be cancelled at any await."""


@dataclass(frozen=True)
class ToolAgentSettings:
    """Settings of `ToolAgent`, from ``agent.settings``.

    Parameters
    ----------
    temperature, top_p
        Of every model call.
    max_tokens, max_turns
        Limits; None takes the task's.
    tool_latency_median, tool_latency_sigma, tool_latency_max
        Seconds that a tool call takes: lognormal with a heavy tail, cut at the maximum.
    failure_rate
        Chance that a session's agent crashes at one of its tool calls.
    model_retries
        How often a failed model call is tried again, if it may succeed then.
    seed
        Makes another world of latencies and crashes.
    sampling_seed
        Sent as ``seed`` with every model call.
    episode
        Metadata that names the task and the episode; default: the task's metadata.
    """

    temperature: float = 1.0
    top_p: float | None = None
    max_tokens: int | None = None
    max_turns: int | None = None
    tool_latency_median: float = 0.0
    tool_latency_sigma: float = 0.0
    tool_latency_max: float = math.inf
    failure_rate: float = 0.0
    model_retries: int = 2
    seed: int = 0
    sampling_seed: int | None = None
    episode: Mapping[str, Any] | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ToolAgentSettings:
        """Read the settings; unknown keys are ignored, as harnesses do.

        Raises
        ------
        AgentError
            When a value has the wrong type or lies outside its range.
        """
        known = {name: settings[name] for name in cls.__dataclass_fields__ if settings.get(name) is not None}
        try:
            for name in _FLOATS:
                if name in known:
                    known[name] = float(known[name])
            for name in _INTEGERS:
                if name in known:
                    known[name] = int(known[name])
        except (TypeError, ValueError) as error:
            raise AgentError(f"agent setting {name!r} is not a number: {known[name]!r}") from error
        made = cls(**known)
        if not 0.0 <= made.failure_rate <= 1.0 or made.tool_latency_median < 0 or made.temperature < 0:
            raise AgentError("failure_rate must be within 0 and 1, latencies and temperature not negative")
        return made


class ToolAgent:
    """Plays one episode of a lab task: asks the model, runs its tool calls, stops at the end."""

    def __init__(self, spec: AgentSpec) -> None:
        self._settings = ToolAgentSettings.from_settings(spec.settings)
        self._model = spec.model_name or "default"

    async def run(self, instruction: str, context: AgentContext, ask: Ask) -> AgentResult:
        """Play the episode that the settings or the metadata name.

        Raises
        ------
        AgentError
            When no episode is named.
        """
        settings = self._settings
        named = dict(_episode_metadata(settings.episode, context.metadata))
        try:
            task = get_task(str(named.get("task", "shelf")))
            run = EpisodeRun(task.episode_from(named))
        except TaskError as error:
            raise AgentError(str(error)) from error
        if instruction:
            run.messages = [{"role": "user", "content": instruction}]
        world = self._world(named, context)
        crash_at = world.randint(1, 2) if world.random() < settings.failure_rate else None
        limit = min(settings.max_turns or task.max_turns, task.max_turns)
        max_tokens = settings.max_tokens or task.max_new_tokens
        while True:
            try:
                answer = await self._ask(ask, self._request(run.messages, task.tools, max_tokens))
            except UpstreamError as error:
                return AgentResult("failed", 1, f"step 0 exited with code 1: {error}", {"episode": named})
            end = _feed(run, answer)
            if end is not None:
                return _result(named, end.state, run, end.detail)
            if run.turns >= limit:
                return _result(named, "turn_limit", run, f"no answer within {limit} turns")
            await self._use_tools(world)
            if run.turns == crash_at:
                return AgentResult("failed", 1, "step 0 exited with code 1", {"episode": named})

    def _world(self, named: JsonMap, context: AgentContext) -> random.Random:
        """Return the source of everything random about this session that is not the model."""
        step = context.metadata.get("rollout_step")
        return random.Random(
            stable_seed(self._settings.seed, named.get("episode_seed"), step, context.sample_index)
        )

    async def _ask(self, ask: Ask, request: JsonMap) -> JsonMap:
        """Ask the model; failures that may pass are tried again, as agents' client libraries do."""
        for attempt in range(self._settings.model_retries):
            try:
                return await ask(request)
            except UpstreamError as error:
                if error.status < 500 and error.status not in (408, 409, 429):
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        return await ask(request)

    def _request(self, messages: list[JsonMap], tools: list[JsonMap], max_tokens: int) -> JsonMap:
        request: JsonMap = {
            "model": self._model,
            "messages": [dict(message) for message in messages],
            "tools": tools,
            "temperature": self._settings.temperature,
            "max_tokens": max_tokens,
        }
        if self._settings.top_p is not None:
            request["top_p"] = self._settings.top_p
        if self._settings.sampling_seed is not None:
            request["seed"] = self._settings.sampling_seed
        return request

    async def _use_tools(self, world: random.Random) -> None:
        """Let the time pass that the tools take."""
        settings = self._settings
        seconds = settings.tool_latency_median * math.exp(settings.tool_latency_sigma * world.gauss(0.0, 1.0))
        seconds = min(seconds, settings.tool_latency_max)
        if seconds > 0:
            await asyncio.sleep(seconds)


def _feed(run: EpisodeRun, answer: JsonMap) -> EpisodeEnd | None:
    """Hand one chat answer to the episode, and keep it in the form in which the engine gave it."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = _mapping(choice.get("message"))
    content, calls = message.get("content"), message.get("tool_calls")
    text = content if isinstance(content, str) else ""
    structured = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    position = len(run.messages)
    end = run.feed(
        text + "".join(_call_text(call) for call in structured), str(choice.get("finish_reason") or "stop")
    )
    if structured:
        run.messages[position] = {"role": "assistant", "content": content, "tool_calls": structured}
        for call, reply in zip(structured, run.messages[position + 1 :], strict=False):
            reply["tool_call_id"] = str(call.get("id"))
    return end


def _mapping(value: Any) -> JsonMap:
    return value if isinstance(value, dict) else {}


def _call_text(call: JsonMap) -> str:
    """Return a structured tool call as the text that a model writes for it."""
    function = _mapping(call.get("function"))
    name = json.dumps(function.get("name"))
    return f'<tool_call>{{"name": {name}, "arguments": {function.get("arguments")}}}</tool_call>'


def _result(named: JsonMap, state: str, run: EpisodeRun, detail: str) -> AgentResult:
    notes = {"state": state, "turns": run.turns, "tool_errors": run.tool_errors, "detail": detail}
    return AgentResult("completed", metadata={"episode": named, **notes})


def _episode_metadata(own: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    for candidate in (own, metadata.get("episode"), metadata):
        if isinstance(candidate, Mapping) and "episode_seed" in candidate:
            return candidate
    raise AgentError("neither agent.settings.episode nor the task's metadata names an episode_seed")


REGISTERED: dict[str, Any] = {"lab_tool_agent": ToolAgent}
"""Agents by harness name; others are named by ``agent.import_path``."""


def make_agent(spec: AgentSpec) -> Agent:
    """Return the agent of a harness name or an import path.

    Raises
    ------
    AgentError
        When the harness is unknown, the class cannot be imported, or its settings are wrong.
    """
    factory = REGISTERED.get(spec.harness or "")
    try:
        if factory is None and spec.import_path:
            factory = load_object(spec.import_path)
        if factory is None:
            raise AgentError(f"unknown harness {spec.harness!r}; known: {', '.join(REGISTERED)}")
        agent: Agent = factory(spec)
    except (TypeError, ImportError, AttributeError) as error:
        raise AgentError(
            f"agent {spec.harness or spec.import_path!r} cannot be constructed: {error}"
        ) from error
    return agent
