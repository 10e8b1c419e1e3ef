"""The shelf task: episodes that can be rebuilt, tools that never fail, a checker, every way to end."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import TaskError
from analysis.lab.task_shelf import (
    ITEMS,
    SHELVES,
    EpisodeRun,
    ShelfEpisode,
    ShelfTask,
    ToolCall,
    demonstrate,
    get_task,
    parse_assistant_turn,
    write_prompts,
)

TASK = ShelfTask()


def item_episode() -> ShelfEpisode:
    return next(e for e in map(TASK.episode, range(100)) if e.item is not None)


def shelf_episode() -> ShelfEpisode:
    return next(e for e in map(TASK.episode, range(100)) if e.item is None)


def find(item: str) -> str:
    return ToolCall("find", {"item": item}).to_text()


def count(shelf: str) -> str:
    return ToolCall("count", {"shelf": shelf}).to_text()


@given(st.integers())
def test_a_stored_prompt_rebuilds_its_episode(seed: int) -> None:
    """Whoever holds the row holds the episode: same question, same contents, same answer."""
    row = json.loads(json.dumps(TASK.make_prompt(seed)))
    episode = get_task(row["metadata"]["task"]).episode_from(row["metadata"])
    assert episode == TASK.episode(seed)
    assert row["prompt"] == episode.prompt
    assert row["label"] == episode.label
    assert episode.score(f"Answer: {row['label']}") == 1.0


def test_questions_and_answers_are_spread() -> None:
    """Seven of ten questions need both tools, and no digit is a good guess."""
    episodes = [TASK.episode(seed) for seed in range(3000)]
    by_item = sum(episode.item is not None for episode in episodes) / 3000
    assert abs(by_item - 0.7) < 0.03
    counts = [sum(episode.label == str(digit) for episode in episodes) / 3000 for digit in range(10)]
    assert max(counts) < 0.15
    assert {episode.item for episode in episodes} == {*ITEMS, None}


def test_tools_lead_to_the_answer() -> None:
    """Playing right is worth 1: find the item, count its shelf, say the number."""
    episode = item_episode()
    run = EpisodeRun(episode)
    assert run.feed(find(str(episode.item))) is None
    assert run.messages[-1]["content"] == f'shelf "{episode.shelf}"'
    assert run.feed(count(episode.shelf)) is None
    assert run.messages[-1]["content"] == episode.label
    end = run.feed(f"Answer: {episode.label}")
    assert end is not None
    assert (end.state, end.reward, end.turns, end.tool_errors) == ("completed", 1.0, 3, 0)
    assert [message["role"] for message in run.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("find", {"item": "unicorn"}),
        ToolCall("find", {"item": ["lamp"]}),
        ToolCall("find", {}),
        ToolCall("count", {"shelf": "Z"}),
        ToolCall("count", {"shelf": 3}),
        ToolCall("destroy", {"shelf": "A"}),
    ],
)
def test_bad_calls_are_answered_not_raised(call: ToolCall) -> None:
    """A model may write anything: the tool says so, and the episode goes on."""
    result = item_episode().run_tool(call)
    assert result.is_error
    assert result.content.startswith("error: ")
    run = EpisodeRun(item_episode())
    assert run.feed(call.to_text()) is None
    assert run.tool_errors == 1


@pytest.mark.parametrize(
    ("text", "reason", "state"),
    [
        ("I do not know", "stop", "malformed"),
        ("", "stop", "malformed"),
        ("<tool_call>{}</tool_call>", "stop", "malformed"),
        ("Answer: 3", "length", "truncated"),
        (find("lamp"), "abort", "aborted"),
        ("Answer: 33", "stop", "malformed"),
    ],
)
def test_every_way_to_fail_has_its_own_state(text: str, reason: str, state: str) -> None:
    """Failures end the episode at once, with reward 0 and a state that says why."""
    end = EpisodeRun(item_episode()).feed(text, reason)
    assert end is not None
    assert (end.state, end.reward) == (state, 0.0)


def test_calls_without_end_reach_the_turn_limit() -> None:
    """A loop ends after max_turns, without running the last call."""
    run = EpisodeRun(item_episode())
    for _ in range(TASK.max_turns):
        run.feed(find("lamp"))
    assert run.end is not None
    assert run.end.state == "turn_limit"
    assert run.messages[-1]["role"] == "assistant"
    with pytest.raises(TaskError, match="already ended as turn_limit"):
        run.feed("Answer: 1")


def test_a_wrong_answer_completes_with_zero() -> None:
    """Wrong is a completed episode, not a malformed one."""
    episode = shelf_episode()
    end = EpisodeRun(episode).feed(f"Answer: {(int(episode.label) + 1) % 10}")
    assert end is not None
    assert (end.state, end.reward) == ("completed", 0.0)


@pytest.mark.parametrize(
    ("text", "right"),
    [("Answer: {}", True), (" Answer:{}\n", True), ("answer: {}", False), ("Answer: {} boxes", False)],
)
def test_only_the_agreed_form_is_an_answer(text: str, right: bool) -> None:
    """The checker accepts the whole text or nothing."""
    episode = shelf_episode()
    assert episode.score(text.format(episode.label)) == float(right)
    assert episode.is_answer(text.format(episode.label)) == right


def test_several_calls_in_one_turn_are_all_served() -> None:
    """Each call of a turn gets a tool message of its own, in order."""
    run = EpisodeRun(item_episode())
    run.feed(find("lamp") + count("A"))
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool", "tool"]
    assert len({message["tool_call_id"] for message in run.messages[2:]}) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>", "without its partner"),
        ("</tool_call>", "without its partner"),
        ("<tool_call>{}</tool_call></tool_call>", "without its partner"),
        ("<tool_call>not json</tool_call>", "not JSON"),
        ("<tool_call>" + "[" * 10_000 + "</tool_call>", "not JSON"),
        ("<tool_call>[]</tool_call>", "without a name"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "without a name"),
        ('<tool_call>{"name": "find"}</tool_call>', "not an object"),
        ('<tool_call>{"name": "find", "arguments": "x"}</tool_call>', "not an object"),
    ],
)
def test_unreadable_calls_are_named(text: str, problem: str) -> None:
    """What cannot be read is a property of the turn, never an exception."""
    turn = parse_assistant_turn(text)
    assert turn.calls == ()
    assert problem in str(turn.problem)


@given(st.text())
def test_any_text_can_be_parsed_and_fed(text: str) -> None:
    """Model output is untrusted: parsing and playing never raise."""
    parse_assistant_turn(text)
    EpisodeRun(item_episode()).feed(text)


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_a_call_survives_being_written_and_read(name: str, arguments: dict[str, str]) -> None:
    """Writing a call and parsing it gives the call back, unless its own text contains the tags."""
    text = ToolCall(name, dict(arguments)).to_text()
    if text.count("tool_call>") == 2:
        assert parse_assistant_turn(f"so: {text} ").calls == (ToolCall(name, arguments),)


def test_demonstrations_show_every_behaviour() -> None:
    """The demonstrator is right one time in three, errs in every way, and is always right when told to."""
    states: dict[str, int] = {}
    reward = 0.0
    for seed in range(1500):
        episode = TASK.episode(seed)
        run = EpisodeRun(episode)
        for message in demonstrate(episode, random.Random(seed), p_right=0.2):
            if message["role"] == "assistant":
                run.feed(message["content"])
        assert run.end is not None
        states[run.end.state] = states.get(run.end.state, 0) + 1
        states["tool_error"] = states.get("tool_error", 0) + run.tool_errors
        reward += run.end.reward / 1500
    assert set(states) == {"completed", "malformed", "turn_limit", "tool_error"}
    assert min(states.values()) > 20
    assert 0.25 < reward < 0.45
    for seed in range(50):
        messages = demonstrate(TASK.episode(seed), random.Random(seed), p_right=1.0)
        assert TASK.episode(seed).score(messages[-1]["content"]) == 1.0


def test_tool_schemas_describe_the_tools_that_exist() -> None:
    """Every value that a schema allows is served without an error."""
    for tool in TASK.tools:
        function = tool["function"]
        ((argument, schema),) = function["parameters"]["properties"].items()
        assert function["parameters"]["required"] == [argument]
        for value in schema["enum"]:
            assert not TASK.episode(0).run_tool(ToolCall(function["name"], {argument: value})).is_error
    assert len(SHELVES) == 6


def test_prompts_are_written_one_per_line(tmp_path: Path) -> None:
    """The file is JSONL in the form that Slime's data source reads."""
    path = tmp_path / "deep" / "train.jsonl"
    assert write_prompts(path, TASK, range(5, 8)) == 3
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [TASK.make_prompt(seed) for seed in (5, 6, 7)]
    assert rows[0]["metadata"] == {"task": "shelf", "episode_seed": 5}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "None"),
        ({"episode_seed": "7"}, "'7'"),
        ({"episode_seed": True}, "True"),
        ({"task": "price", "episode_seed": 7}, "'price'"),
    ],
)
def test_metadata_that_names_no_episode_is_refused(metadata: dict[str, object], message: str) -> None:
    """A prompt of another task, or without a seed, says so instead of playing some episode."""
    with pytest.raises(TaskError, match=message):
        TASK.episode_from(metadata)


def test_unknown_tasks_are_listed() -> None:
    """The error names what exists."""
    with pytest.raises(TaskError, match="known tasks: shelf"):
        get_task("chess")
