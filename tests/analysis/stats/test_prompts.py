"""Prompts over time: which groups teach nothing, how long that lasts, and all that happened to one prompt."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.stats.rejections import KINDS, prompt_history, zero_signal
from tests.analysis.stats.builder import START, RunBuilder, same, untouched


def _builder() -> RunBuilder:
    builder = RunBuilder()
    bad = {"usable": False, "completed": False}
    groups = [
        ([1.0, 0.0], "easy", 0),
        ([1.0, 1.0], "easy", 1),
        ([1.0, 1.0], "easy", 2),
        ([0.0, 0.0], "hard", 0),
        ([0.5, 0.5], "hard", 1),
        ([0.0, 1.0], "hard", 2),
    ]
    for rewards, prompt, rollout in groups:
        builder.group(
            rewards, prompt=prompt, rollout_id=rollout, drawn_at=START + pd.Timedelta(seconds=10 * rollout)
        )
    builder.group([1.0, None], prompt="flaky", rollout_id=2, sessions=[{}, bad])
    builder.group(
        [None, None],
        prompt="flaky",
        rollout_id=2,
        sessions=[bad, bad],
        accepted=False,
        reject_reason="zero_trainable",
    )
    return builder


class TestZeroSignal:
    """Groups without variance."""

    def test_kinds(self) -> None:
        """Mixed, all right, all wrong, equal in between, lone, empty."""
        groups = zero_signal(_builder().tables()).groups
        assert groups["kind"].tolist() == [
            "mixed",
            "all_correct",
            "all_correct",
            "all_wrong",
            "constant",
            "mixed",
            "lone",
            "empty",
        ]
        assert groups["zero_signal"].tolist() == [False, True, True, True, True, False, True, True]
        assert set(groups["kind"]) == set(KINDS)

    def test_prompts_add_up(self) -> None:
        """Counts per prompt, share, and the streak at the end."""
        prompts = zero_signal(_builder().tables()).prompts.set_index("prompt_preview")
        assert prompts["attempts"].tolist() == [3, 3, 2]
        assert prompts.loc["easy", "zero_signal"] == 2
        assert prompts.loc["easy", "streak"] == 2
        assert prompts.loc["hard", "streak"] == 0
        assert prompts.loc["hard", "share"] == pytest.approx(2 / 3)
        assert prompts.loc["easy", "first_rollout"] == 0
        assert prompts.loc["easy", "last_rollout"] == 2
        assert prompts.loc["easy", "reward_mean"].__class__ is not str
        assert prompts[list(KINDS)].sum(axis=1).tolist() == [3, 3, 2]

    def test_rollouts_count_what_was_delivered(self) -> None:
        """Shares with Wilson's interval; a rejected group is not among them; streaks of bad rollouts."""
        rollouts = zero_signal(_builder().tables()).rollouts
        assert rollouts["groups"].tolist() == [2, 2, 3]
        assert rollouts["zero_signal"].tolist() == [1, 2, 2]
        assert rollouts["streak"].tolist() == [1, 2, 3]
        assert ((rollouts["low"] < rollouts["share"]) & (rollouts["share"] <= rollouts["high"])).all()

    def test_empty_and_unnamed(self) -> None:
        """Nothing gives empty frames; groups without a digest are in no prompt; nothing is changed."""
        empty = zero_signal({})
        assert len(empty.groups) == len(empty.prompts) == len(empty.rollouts) == 0
        builder = RunBuilder()
        builder.group([1.0, 0.0], prompt_sha256=None)
        tables = builder.tables()
        before = untouched(tables)
        assert zero_signal(tables).prompts.empty
        same(before, tables)


class TestHistory:
    """All attempts at one prompt."""

    def test_attempts_in_order_with_their_outcome(self) -> None:
        """By digest, by a part of the text, or by Slime's number."""
        tables = _builder().tables()
        history = prompt_history(tables, "sha-hard")
        assert history["rollout_id"].tolist() == [0, 1, 2]
        assert history["kind"].tolist() == ["all_wrong", "constant", "mixed"]
        assert history["usable"].tolist() == [2, 2, 2]
        assert prompt_history(tables, "har").equals(history)
        flaky = prompt_history(tables, "flaky")
        assert flaky["failed"].tolist() == [1, 2]
        assert flaky["reject_reason"].tolist()[1] == "zero_trainable"
        assert flaky["response_tokens"].isna().tolist() == [False, True]
        assert prompt_history(tables, 4)["kind"].tolist() == ["constant"]

    def test_ambiguous_and_unknown_prompts(self) -> None:
        """More than one prompt that fits is an error that shows them; none says where to look."""
        tables = _builder().tables()
        with pytest.raises(StatsError, match="easy"):
            prompt_history(tables, "a")
        with pytest.raises(StatsError, match="zero_signal"):
            prompt_history(tables, "nothing like it")
        with pytest.raises(StatsError, match="no prompt"):
            prompt_history({}, "x")


def test_a_whole_digest_names_its_prompt_however_short() -> None:
    """Only of the beginning of one are four characters asked for."""
    builder = RunBuilder()
    for digest, preview in (("ab", "first"), ("abcdef", "second")):
        builder.group([1.0, 0.0], prompt=preview)
        builder.rows["group"][-1]["prompt_sha256"] = digest
    tables = builder.tables()
    assert prompt_history(tables, "ab")["prompt_preview"].tolist() == ["first"]
    assert prompt_history(tables, "abcd")["prompt_preview"].tolist() == ["second"]
    with pytest.raises(StatsError, match="no prompt fits 'abc'"):
        prompt_history(tables, "abc")
