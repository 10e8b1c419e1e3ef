"""The "shelf" task: look up an item's shelf, then the shelf's count, then answer with one digit.

Each episode has its own random warehouse: six shelves with a count from 0 to 9 each, and eight items on
them. Seven of ten questions name an item (``find`` and ``count``, three turns), the others name the shelf
(``count`` only, two turns). The tools are needed: without them an answer is right one time in ten.

This module holds the task, its checker and a demonstrator that is often wrong on purpose. It knows nothing
about models or HTTP. The interface that it implements, and how an agent drives it, stands in
`analysis.lab.tasks`, whose names are exported from here too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.errors import TaskError
from analysis.lab.tasks import (
    AssistantTurn,
    Episode,
    EpisodeEnd,
    EpisodeRun,
    Message,
    Task,
    ToolCall,
    ToolResult,
    episode_seed_of,
    parse_assistant_turn,
    write_prompts,
)

__all__ = [
    "ITEMS",
    "SHELVES",
    "AssistantTurn",
    "Episode",
    "EpisodeEnd",
    "EpisodeRun",
    "Message",
    "ShelfEpisode",
    "ShelfTask",
    "Task",
    "ToolCall",
    "ToolResult",
    "demonstrate",
    "episode_seed_of",
    "get_task",
    "parse_assistant_turn",
    "write_prompts",
]

ITEMS = ("lamp", "rope", "bell", "drum", "coat", "fork", "kite", "vase")
SHELVES = ("A", "B", "C", "D", "E", "F")
ITEM_QUESTION_SHARE = 0.7

_ANSWER = re.compile(r"\s*Answer:\s*(\d)\s*")
_WAYS_TO_FAIL = ("guess", "skip", "other_item", "other_shelf", "repeat", "bad_call", "ramble", "wrong_answer")
_RAMBLE = ("the", "boxes", "are", "on", "shelf", "many", "How")


def _tool(name: str, description: str, argument: str, values: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string", "enum": list(values)}},
                "required": [argument],
            },
        },
    }


@dataclass(frozen=True)
class ShelfTask:
    """The task's constants and its factory of episodes.

    Parameters
    ----------
    max_turns
        Assistant turns per episode; three suffice.
    max_new_tokens
        Sampled tokens per turn; a call takes six.
    """

    max_turns: int = 4
    max_new_tokens: int = 40
    name: str = "shelf"

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of ``find(item)`` and ``count(shelf)``."""
        return [
            _tool("find", "Say on which shelf an item is.", "item", ITEMS),
            _tool("count", "Count the boxes on a shelf.", "shelf", SHELVES),
        ]

    def episode(self, seed: int) -> ShelfEpisode:
        """Build the episode of a seed; any whole number is a seed."""
        return ShelfEpisode(self, seed)

    def episode_from(self, metadata: Mapping[str, Any]) -> ShelfEpisode:
        """Rebuild the episode that a stored prompt's metadata names."""
        return self.episode(episode_seed_of(metadata, task=self.name))

    def make_prompt(self, seed: int) -> dict[str, Any]:
        """Build the stored row of a seed: `prompt` (messages), `label` (the digit), `metadata`."""
        episode = self.episode(seed)
        return {
            "prompt": episode.prompt,
            "label": episode.label,
            "metadata": {"task": self.name, "episode_seed": seed},
        }


@dataclass(frozen=True)
class ShelfEpisode:
    """One warehouse and one question about it; equal seeds give equal episodes on every machine.

    Parameters
    ----------
    task
        The task that it belongs to.
    seed
        Decides the contents and the question.

    Attributes
    ----------
    shelf_of, count_of
        Item to shelf, and shelf to number of boxes (0 to 9).
    item
        The item that the question names, or None when it names the shelf.
    shelf
        The shelf that is asked about.
    """

    task: ShelfTask
    seed: int
    shelf_of: dict[str, str] = field(init=False)
    count_of: dict[str, int] = field(init=False)
    item: str | None = field(init=False)
    shelf: str = field(init=False)

    def __post_init__(self) -> None:
        # A text seed: Python hashes it the same way in every process and version.
        rng = random.Random(f"shelf/{self.seed}")
        shelf_of = {item: rng.choice(SHELVES) for item in ITEMS}
        count_of = {shelf: rng.randrange(10) for shelf in SHELVES}
        item = rng.choice(ITEMS) if rng.random() < ITEM_QUESTION_SHARE else None
        shelf = shelf_of[item] if item is not None else rng.choice(SHELVES)
        for name, value in (("shelf_of", shelf_of), ("count_of", count_of), ("item", item), ("shelf", shelf)):
            object.__setattr__(self, name, value)

    @property
    def prompt(self) -> list[Message]:
        """The user's question. Quotes make the word to look up the same token here and in a call."""
        if self.item is not None:
            text = f'How many boxes are on the shelf with the "{self.item}"?'
        else:
            text = f'How many boxes are on shelf "{self.shelf}"?'
        return [{"role": "user", "content": text}]

    @property
    def label(self) -> str:
        """The right digit."""
        return str(self.count_of[self.shelf])

    def run_tool(self, call: ToolCall) -> ToolResult:
        """Serve ``find`` or ``count``; everything else is an error reply."""
        if call.name == "find":
            item = call.arguments.get("item")
            if isinstance(item, str) and item in self.shelf_of:
                return ToolResult(f'shelf "{self.shelf_of[item]}"')
            return ToolResult("error: no such item", is_error=True)
        if call.name == "count":
            shelf = call.arguments.get("shelf")
            if isinstance(shelf, str) and shelf in self.count_of:
                return ToolResult(str(self.count_of[shelf]))
            return ToolResult("error: no such shelf", is_error=True)
        return ToolResult("error: no such tool", is_error=True)

    def is_answer(self, text: str) -> bool:
        """Whether the text is ``Answer: <digit>`` and nothing else."""
        return _ANSWER.fullmatch(text) is not None

    def score(self, final_text: str) -> float:
        """1.0 for the right digit, else 0.0."""
        match = _ANSWER.fullmatch(final_text)
        return 1.0 if match is not None and match.group(1) == self.label else 0.0


def get_task(name: str) -> Task:
    """Look a task up by the name in a prompt's metadata; `TaskError` lists the known names."""
    tasks: dict[str, Task] = {"shelf": ShelfTask()}
    if name not in tasks:
        raise TaskError(f"unknown task {name!r}; known tasks: {', '.join(sorted(tasks))}")
    return tasks[name]


def demonstrate(episode: ShelfEpisode, rng: random.Random, *, p_right: float) -> list[Message]:
    """Play one episode as an unreliable demonstrator.

    With probability `p_right` it does what is right. Otherwise it picks one of the ways to fail that a
    policy should know before it can learn to avoid them: guess, skip ``find``, look up another item, count
    another shelf, repeat a call, call with a wrong argument, ramble, or answer wrongly.

    Parameters
    ----------
    episode
        The episode to play.
    rng
        Source of all its choices.
    p_right
        Probability of playing right, 0.0 to 1.0.

    Returns
    -------
    list of messages
        The whole conversation, prompt included. Wrong plays can still be right by luck.
    """
    run = EpisodeRun(episode)
    for text in _plan(episode, rng, p_right):
        if run.end is None:
            run.feed(text)
    if run.end is None:
        # The plan ended in a tool call: it answers with what that call said, or guesses.
        said = run.messages[-1]["content"]
        run.feed(f"Answer: {said if said.isdigit() else rng.randrange(10)}")
    return run.messages


def _find(item: str) -> str:
    return ToolCall("find", {"item": item}).to_text()


def _count(shelf: str) -> str:
    return ToolCall("count", {"shelf": shelf}).to_text()


def _plan(episode: ShelfEpisode, rng: random.Random, p_right: float) -> list[str]:
    """Choose the assistant's texts; the demonstrator adds the answer that follows from the last count."""
    right = [_count(episode.shelf)] if episode.item is None else [_find(episode.item), _count(episode.shelf)]
    if rng.random() < p_right:
        return right
    way = rng.choice(
        ("guess", "skip", "other_item", "other_shelf", "repeat", "bad_call", "ramble", "wrong_answer")
    )
    shelf = rng.choice(SHELVES)
    if way == "guess":
        return [f"Answer: {rng.randrange(10)}"]
    if way == "skip":
        return [_count(shelf)]
    if way == "other_item":
        item = rng.choice(ITEMS)
        return [_find(item), _count(episode.shelf_of[item])]
    if way == "other_shelf":
        return [*right[:-1], _count(shelf)]
    if way == "repeat":
        return [right[0]] * rng.randint(2, episode.task.max_turns)
    if way == "bad_call":
        bad = rng.choice((_find(rng.choice(SHELVES)), _count(rng.choice(ITEMS))))
        return [bad, *right] if rng.random() < 0.25 else [bad]
    if way == "ramble":
        # One in five goes on for longer than a turn may be.
        words = rng.randint(3, 12) if rng.random() < 0.8 else rng.randint(30, 60)
        return [" ".join(rng.choice(_RAMBLE) for _ in range(words))]
    return [*right, f"Answer: {rng.randrange(10)}"]
