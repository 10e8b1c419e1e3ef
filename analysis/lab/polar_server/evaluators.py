"""Evaluators: from a finished trajectory to rewards, and how rewards get into its traces."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from analysis.errors import LabError, TaskError
from analysis.lab.polar_server.builders import load_object
from analysis.lab.task_shelf import get_task

JsonMap = dict[str, Any]


class EvaluatorError(LabError, ValueError):
    """Raised when an evaluator is unknown, cannot be constructed, fails, or returns something unusable."""


@dataclass(frozen=True)
class EvalResult:
    """What an evaluator found.

    `trace_rewards` has one entry (or None) per trace and wins over `outcome_reward`, which goes to every
    trace.
    """

    outcome_reward: float | None = None
    trace_rewards: list[float | None] | None = None
    metadata: JsonMap = field(default_factory=dict)


class Evaluator(Protocol):
    """Scores one trajectory; constructed with its configuration as keywords."""

    async def evaluate(self, trajectory: JsonMap, **context: Any) -> EvalResult:
        """Return the rewards; `context` holds ids, the agent's result and the remaining seconds."""


class SessionCompleted:
    """Reward 1.0 if the trajectory is COMPLETED, else 0.0."""

    def __init__(self, **_: Any) -> None:
        pass

    async def evaluate(self, trajectory: JsonMap, **_: Any) -> EvalResult:
        """Return the reward."""
        return EvalResult(outcome_reward=float(trajectory["status"] == "COMPLETED"))


class TaskEvaluator:
    """Lets the lab's task score the agent's final text.

    Parameters
    ----------
    episode
        Metadata that names the task and the episode; default: what the agent played.
    """

    def __init__(self, episode: Mapping[str, Any] | None = None) -> None:
        self._episode = episode

    async def evaluate(self, trajectory: JsonMap, **context: Any) -> EvalResult:
        """Return the task's score of the last assistant text; 0.0 for an episode that reached no answer.

        Raises
        ------
        TaskError
            When nothing says which episode was answered.
        """
        result: AgentOutcome = context["agent_result"]
        text = _final_text(trajectory)
        reward = 0.0
        if result.metadata.get("state") == "completed" and text is not None:
            named = self._episode or result.metadata.get("episode")
            if not isinstance(named, Mapping):
                raise TaskError("no episode is named in the evaluator's config or by the agent")
            reward = get_task(str(named.get("task", "shelf"))).episode_from(named).score(text)
        notes: JsonMap = {
            key: result.metadata[key]
            for key in ("state", "turns", "tool_errors", "detail")
            if key in result.metadata
        }
        return EvalResult(
            outcome_reward=reward, metadata={"mode": "lab_task", "resolved": reward >= 1.0, **notes}
        )


class AgentOutcome(Protocol):
    """The part of an agent's result that evaluators read."""

    @property
    def metadata(self) -> JsonMap:
        """What the agent left for the evaluator."""


def _final_text(trajectory: JsonMap) -> str | None:
    for trace in reversed(trajectory["traces"]):
        for message in reversed(trace["response_messages"]):
            if message.get("role") == "assistant":
                content = message.get("content")
                return content if isinstance(content, str) else None
    return None


REGISTERED: dict[str, Any] = {"session_completed": SessionCompleted, "lab_task": TaskEvaluator}
"""Evaluators by name; others are named ``module:Class``."""


def make_evaluator(strategy: str, config: Mapping[str, Any]) -> Evaluator:
    """Return the evaluator of a registered name or of ``module:Class``.

    Raises
    ------
    EvaluatorError
        When it is unknown, cannot be imported, or refuses its configuration.
    """
    factory = REGISTERED.get(strategy)
    try:
        if factory is None and ":" in strategy:
            factory = load_object(strategy)
        if factory is None:
            raise EvaluatorError(f"unknown evaluator {strategy!r}; known: {', '.join(REGISTERED)}")
        evaluator: Evaluator = factory(**config)
    except (TypeError, ImportError, AttributeError) as error:
        raise EvaluatorError(f"evaluator {strategy!r} cannot be constructed: {error}") from error
    if not inspect.iscoroutinefunction(getattr(evaluator, "evaluate", None)):
        raise EvaluatorError(f"evaluator {strategy!r} has no coroutine method 'evaluate'")
    return evaluator


def attach_rewards(trajectory: JsonMap, strategy: str, result: EvalResult) -> None:
    """Write rewards into the traces and the evaluation into the trajectory's metadata, as Polar does.

    Raises
    ------
    EvaluatorError
        When the number of trace rewards is not the number of traces; nothing is written then.
    """
    traces = trajectory["traces"]
    if result.trace_rewards is not None:
        if len(result.trace_rewards) != len(traces):
            raise EvaluatorError(
                f"evaluator returned {len(result.trace_rewards)} trace rewards for {len(traces)} traces"
            )
        for trace, reward in zip(traces, result.trace_rewards, strict=True):
            trace["reward"] = _finite(reward)
    elif result.outcome_reward is not None:
        for trace in traces:
            trace["reward"] = _finite(result.outcome_reward)
    trajectory["metadata"]["evaluation"] = {
        "strategy": strategy,
        "outcome_reward": result.outcome_reward,
        "trace_rewards": result.trace_rewards,
        **result.metadata,
    }


def _finite(value: float | None) -> float | None:
    """Return the number, or None for a non-finite one, which cannot be written as JSON."""
    return None if value is None or not math.isfinite(value) else float(value)
