"""What a multi-turn tool task is: prompts, tools, episodes, and how an assistant's text is read.

Knows nothing about HTTP, models or token ids: an agent feeds it the text that was sampled and gets back
either the next messages or the end of the episode. The same code runs under a rollout server's agent,
in-process and in tests.

How the pieces fit::

    task = get_task(row["metadata"]["task"])                    # analysis.lab.task_shelf.get_task
    run = EpisodeRun(task.episode_from(row["metadata"]))
    while run.end is None:
        text, finish_reason = sample(run.messages, tools=task.tools, max_new_tokens=task.max_new_tokens)
        run.feed(text, finish_reason)                           # appends the assistant's and tools' messages
    run.end.state, run.end.reward

A prompt is stored as one JSON object per line, in the form that Slime's data source reads::

    {"prompt": [{"role": "user", "content": "..."}], "label": "7",
     "metadata": {"task": "shelf", "episode_seed": 12}}

Tools are described in the format of chat templates and OpenAI requests (``{"type": "function", "function":
{"name", "description", "parameters": <JSON schema>}}``). The assistant calls one by Hermes-style text, as
Qwen models do::

    <tool_call>{"name": "find", "arguments": {"item": "lamp"}}</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from analysis.errors import TaskError
from analysis.lab.files import write_text

__all__ = [
    "AssistantTurn",
    "Episode",
    "EpisodeEnd",
    "EpisodeRun",
    "Message",
    "Task",
    "ToolCall",
    "ToolResult",
    "episode_seed_of",
    "parse_assistant_turn",
    "write_prompts",
]

Message = dict[str, Any]

_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """One call that the assistant wrote, not yet checked against any schema."""

    name: str
    arguments: dict[str, Any]

    def to_text(self) -> str:
        """Write the call as the assistant would."""
        return f"<tool_call>{json.dumps({'name': self.name, 'arguments': self.arguments})}</tool_call>"


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered; `is_error` marks a call that it could not serve."""

    content: str
    is_error: bool = False


@dataclass(frozen=True)
class AssistantTurn:
    """An assistant's text, read: its calls in order, or the reason why its calls cannot be read.

    A turn with neither calls nor a problem is plain text; only the task can say whether that is an answer.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    problem: str | None = None


def parse_assistant_turn(text: str) -> AssistantTurn:
    """Read the Hermes-style tool calls out of an assistant's text.

    Parameters
    ----------
    text
        Decoded text of one turn. Anything is allowed: it is what a model wrote.

    Returns
    -------
    AssistantTurn
        With `problem` set, and no calls, when a tag is unpaired, its content is not JSON, or it lacks `name`
        (a string) or `arguments` (an object).
    """
    if "<tool_call>" not in text and "</tool_call>" not in text:
        return AssistantTurn(text)
    bodies = _TOOL_CALL.findall(text)
    if text.count("<tool_call>") != len(bodies) or text.count("</tool_call>") != len(bodies):
        return AssistantTurn(text, problem="a tool_call tag without its partner")
    calls = []
    for body in bodies:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return AssistantTurn(text, problem="a tool call that is not JSON")
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return AssistantTurn(text, problem="a tool call without a name")
        if not isinstance(value.get("arguments"), dict):
            return AssistantTurn(text, problem="a tool call whose arguments are not an object")
        calls.append(ToolCall(value["name"], value["arguments"]))
    return AssistantTurn(text, calls=tuple(calls))


class Episode(Protocol):
    """One question with its hidden world. Building it twice from the same seed gives the same episode."""

    @property
    def task(self) -> Task:
        """The task that it belongs to."""
        ...

    @property
    def prompt(self) -> list[Message]:
        """The messages that open the conversation."""
        ...

    @property
    def label(self) -> str:
        """The right answer, as text."""
        ...

    def run_tool(self, call: ToolCall) -> ToolResult:
        """Serve a call; an unknown tool or argument is an error result, never an exception."""
        ...

    def is_answer(self, text: str) -> bool:
        """Whether the text has the form of a final answer, right or wrong."""
        ...

    def score(self, final_text: str) -> float:
        """Reward of a final text, 0.0 to 1.0; text that is no answer scores 0.0."""
        ...


class Task(Protocol):
    """A family of episodes that share tools and limits."""

    @property
    def name(self) -> str:
        """Registry name, stored in each prompt's metadata."""
        ...

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool schemas in chat-template form."""
        ...

    @property
    def max_turns(self) -> int:
        """Assistant turns after which an episode without an answer ends."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Sampled tokens allowed per turn."""
        ...

    def episode(self, seed: int) -> Episode:
        """Build the episode of a seed."""
        ...

    def episode_from(self, metadata: Mapping[str, Any]) -> Episode:
        """Rebuild the episode that a stored prompt's metadata names; `TaskError` when it names none."""
        ...

    def make_prompt(self, seed: int) -> dict[str, Any]:
        """Build the stored row of a seed: `prompt`, `label`, `metadata`."""
        ...


@dataclass(frozen=True)
class EpisodeEnd:
    """How an episode ended.

    Parameters
    ----------
    state
        ``completed`` (an answer, right or wrong), ``malformed`` (neither a readable call nor an answer),
        ``turn_limit``, ``truncated`` (a turn hit its token limit) or ``aborted`` (the engine cut a turn).
    reward
        0.0 to 1.0; 0.0 for every state but ``completed``.
    turns
        Assistant turns taken.
    tool_errors
        Tool calls that were answered with an error.
    detail
        One line for a reader.
    """

    state: str
    reward: float
    turns: int
    tool_errors: int
    detail: str


@dataclass
class EpisodeRun:
    """Drives one episode: takes each assistant turn, runs its calls and decides when it ends.

    Parameters
    ----------
    episode
        The episode to play.

    Attributes
    ----------
    messages
        The conversation so far, starting with the episode's prompt. Tool results carry a `tool_call_id`
        because strict chat servers ask for one.
    end
        None while the episode goes on.
    """

    episode: Episode
    messages: list[Message] = field(default_factory=list)
    end: EpisodeEnd | None = None
    turns: int = 0
    tool_errors: int = 0

    def __post_init__(self) -> None:
        if not self.messages:
            self.messages = [dict(message) for message in self.episode.prompt]

    def feed(self, text: str, finish_reason: str = "stop") -> EpisodeEnd | None:
        """Take one assistant turn.

        Parameters
        ----------
        text
            What was sampled, without the end-of-turn token.
        finish_reason
            The engine's reason: ``length`` ends the episode as truncated, ``abort`` as aborted, any other
            goes on.

        Returns
        -------
        EpisodeEnd or None
            The end, when this turn brought it.
        """
        if self.end is not None:
            raise TaskError(
                f"the episode has already ended as {self.end.state}; build a new EpisodeRun for another try"
            )
        self.turns += 1
        self.messages.append({"role": "assistant", "content": text})
        if finish_reason == "length":
            return self._finish("truncated", 0.0, f"turn {self.turns} reached its token limit")
        if finish_reason == "abort":
            return self._finish("aborted", 0.0, f"turn {self.turns} was cut by the engine")
        turn = parse_assistant_turn(text)
        if turn.problem is not None:
            return self._finish("malformed", 0.0, turn.problem)
        if not turn.calls:
            if not self.episode.is_answer(text):
                return self._finish("malformed", 0.0, "neither a tool call nor an answer")
            reward = self.episode.score(text)
            return self._finish("completed", reward, "right answer" if reward > 0 else "wrong answer")
        if self.turns >= self.episode.task.max_turns:
            return self._finish("turn_limit", 0.0, f"no answer within {self.turns} turns")
        self._run_tools(turn.calls)
        return None

    def _run_tools(self, calls: Iterable[ToolCall]) -> None:
        for number, call in enumerate(calls):
            result = self.episode.run_tool(call)
            self.tool_errors += result.is_error
            call_id = f"call_{self.turns}_{number}"
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result.content})

    def _finish(self, state: str, reward: float, detail: str) -> EpisodeEnd:
        self.end = EpisodeEnd(state, reward, self.turns, self.tool_errors, detail)
        return self.end


def episode_seed_of(metadata: Mapping[str, Any], *, task: str) -> int:
    """Read the episode's seed from a stored prompt's metadata.

    Raises
    ------
    TaskError
        When the metadata belongs to another task or holds no whole number under ``episode_seed``.
    """
    named = metadata.get("task", task)
    if named != task:
        raise TaskError(f"metadata names task {named!r}, this is task {task!r}")
    seed = metadata.get("episode_seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TaskError(
            f"metadata['episode_seed'] is {seed!r}; a whole number is needed to rebuild the episode"
        )
    return seed


def write_prompts(path: Path, task: Task, seeds: Iterable[int]) -> int:
    """Write one prompt row per seed as JSONL, replacing `path` in one step; return the number of rows."""
    lines = [json.dumps(task.make_prompt(seed), ensure_ascii=False) for seed in seeds]
    write_text(path, "".join(f"{line}\n" for line in lines))
    return len(lines)
