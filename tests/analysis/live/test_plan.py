"""Prompts in every form that a notebook has them, and plans that another process reads back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.errors import SubmissionError
from analysis.live.budgets import Budget
from analysis.live.plan import Plan, prompt_rows, read_plan, refuse_unknown_keys, write_plan

OTHER_BUDGET = json.dumps(
    {"version": 1, "n_samples": 1, "max_in_flight": 1, "keys": {}, "budget": {"max_seconds": -1}}
)
CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", ["hi"]),
        (["a", "b"], ["a", "b"]),
        (CHAT, [CHAT]),
        ([CHAT, CHAT], [CHAT, CHAT]),
        ({"prompt": "a", "label": "1", "metadata": {"k": 1}}, ["a"]),
        ([{"input": "a"}, {"prompt": CHAT}], ["a", CHAT]),
        (iter(["a"]), ["a"]),
    ],
)
def test_every_usual_form_is_understood(given: Any, prompts: list[Any]) -> None:
    """One or many; texts, messages, rows."""
    rows = prompt_rows(given)
    assert [row["prompt"] for row in rows] == prompts
    assert all(isinstance(row["metadata"], dict) for row in rows)


def test_frames_and_files_are_rows(tmp_path: Path) -> None:
    """Missing metadata in a frame is NaN, and is none."""
    frame = pd.DataFrame({"prompt": ["a", "b"], "metadata": [{"k": 1}, float("nan")]})
    assert [row["metadata"] for row in prompt_rows(frame)] == [{"k": 1}, {}]
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "label": "x"}\n\n{"input": "b"}\n')
    assert [(row["prompt"], row["label"]) for row in prompt_rows(path)] == [("a", "x"), ("b", None)]
    assert len(prompt_rows(str(path))) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([3], "prompt 0 is a int"),
        (["a", ""], "prompt 1 has no text"),
        ([{"question": "a"}], "prompt 0 has no text"),
        (7, "got int"),
        ("nowhere.jsonl", "cannot be read"),
    ],
)
def test_what_is_no_prompt_is_named(given: Any, message: str) -> None:
    """The error says which one."""
    with pytest.raises(SubmissionError, match=message):
        prompt_rows(given)


def plan(**changes: Any) -> Plan:
    values = {"rows": prompt_rows(["a", "\ud800 broken"]), "n_samples": 2, "keys": {"polar_x": {"y": [1]}}}
    return Plan(**{**values, **changes})


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    """Also with text that has no UTF-8."""
    written = plan(budget=Budget(max_seconds=3.0, max_sessions=9), max_in_flight=5)
    write_plan(tmp_path, written)
    assert read_plan(tmp_path) == written


def test_misspelt_options_are_refused() -> None:
    """A bound that is spelt otherwise would be none; what a template asks for is meant."""
    with pytest.raises(SubmissionError, match="max_second is no option.*did you mean max_seconds"):
        refuse_unknown_keys({}, ["polar_max_second"])
    with pytest.raises(SubmissionError, match="bogus.*slime-bridge keys"):
        refuse_unknown_keys({}, ["polar_bogus"])
    template = {"agent": {"harness": "{args.polar_harness}"}}
    refuse_unknown_keys({"polar_task_template": template}, ["polar_harness", "polar_task_template"])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 99}', OTHER_BUDGET])
def test_damaged_plans_are_said_to_be(tmp_path: Path, content: str) -> None:
    """Torn, foreign, or of a newer version."""
    write_plan(tmp_path, plan())
    (tmp_path / "submission.json").write_text(content)
    with pytest.raises(SubmissionError, match=r"submission\.json"):
        read_plan(tmp_path)


def test_no_plan_and_no_prompts_are_errors(tmp_path: Path) -> None:
    """An empty folder holds no submission; an empty list is nothing to submit."""
    with pytest.raises(SubmissionError, match="holds no submission"):
        read_plan(tmp_path)
    with pytest.raises(SubmissionError, match="no prompt"):
        plan(rows=())
    with pytest.raises(SubmissionError, match="n_samples"):
        plan(n_samples=0)


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    """A plan is plain data."""
    with pytest.raises(SubmissionError, match="plain data"):
        write_plan(tmp_path, plan(keys={"polar_x": object()}))


def test_groups_in_flight_are_at_least_one() -> None:
    """A group larger than the limit runs alone."""
    assert plan(n_samples=8, max_in_flight=64).groups_in_flight == 8
    assert plan(n_samples=100, max_in_flight=64).groups_in_flight == 1
    assert plan(n_samples=3).sessions == 6


def test_arguments_hold_addresses_and_keys(tmp_path: Path) -> None:
    """Where to go is the connection's, and stands over any key of that name."""
    args = plan(keys={"polar_rollout_url": "http://other", "polar_reward_key": "r"}).arguments(
        polar_url="http://here", run_dir=tmp_path, callback_host=None
    )
    assert args.polar_rollout_url == "http://here"
    assert args.reward_key == args.polar_reward_key == "r"
    assert not hasattr(args, "polar_callback_host")


def test_credentials_are_never_part_of_a_plan(tmp_path: Path) -> None:
    """What is written down holds keys and prompts only."""
    write_plan(tmp_path, plan())
    record = json.loads((tmp_path / "submission.json").read_text())
    assert set(record) == {"version", "n_samples", "max_in_flight", "keys", "budget"}
