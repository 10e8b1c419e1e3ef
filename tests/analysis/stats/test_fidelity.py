"""Every seeded kind of corruption is found where it is, and clean data raises no alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.stats.fidelity import CHECKS, audit
from analysis.stats.token_tables import Ragged, TokenTable
from slime_bridge.advantages import LeaveOneTrajectoryOut
from tests.analysis.stats.builder import RunBuilder, run_of_rewards, same, untouched

VICTIM = 4
VICTIM_SESSION = "s-1-0"


class _Trace:
    """The arrays of one clean trace: turns of sampled tokens with tool replies between them."""

    def __init__(self, seed: int, turns: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.prompt = rng.integers(0, 1000, 12)
        parts = []
        for turn in range(turns):
            parts.append(np.ones(int(rng.integers(10, 20)), dtype=np.int64))
            if turn + 1 < turns:
                parts.append(np.zeros(int(rng.integers(3, 8)), dtype=np.int64))
        self.mask = np.concatenate(parts)
        n = len(self.mask)
        self.response = rng.integers(0, 1000, n)
        self.logprob = np.where(self.mask == 1, -rng.gamma(0.6, 0.8, n), 0.0)
        self.train = np.where(self.mask == 1, self.logprob + rng.normal(0, 0.02, n), -3.0)
        self.turns = turns

    def lists(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "response": self.response,
            "mask": self.mask,
            "trainable": self.mask,
            "logprob": self.logprob,
            "train_logprob": self.train,
        }


class Clean:
    """A clean run of four groups of four sessions, one with a continued trace, ready to be corrupted."""

    def __init__(self) -> None:
        self.builder = RunBuilder(max_async_level=2, update_weights_interval=1)
        self.traces: list[_Trace] = []
        rng = np.random.default_rng(0)
        estimator = LeaveOneTrajectoryOut()
        for group in range(4):
            rewards = rng.integers(0, 2, 4).astype(float).tolist()
            sessions = []
            for position in range(4):
                first = _Trace(100 * group + 10 * position)
                members = [first]
                if group == 2 and position == 1:
                    second = _Trace(999)
                    second.prompt = np.concatenate([first.prompt, first.response, [7, 8, 9]])
                    members.append(second)
                own = [
                    {
                        "lists": t.lists(),
                        "prompt_tokens": len(t.prompt),
                        "response_tokens": len(t.response),
                        "calls": t.turns,
                        "advantage_min": 0.5,
                        "advantage_max": 0.5,
                        "sources": "polar+rollout_dump",
                    }
                    for t in members
                ]
                self.traces += members
                sessions.append(
                    {
                        "traces": own,
                        "kept_traces": len(own),
                        "outcome_reward": rewards[position],
                        "weight_version_oldest": str(group),
                        "weight_version_newest": str(group + 1),
                        "run_ms": 5.0,
                    }
                )
            self.builder.group(
                rewards,
                rollout_id=group + 1,
                staleness=1,
                sessions=sessions,
                submitted_at=pd.Timestamp("2026-01-01", tz="UTC") + pd.Timedelta(seconds=group),
            )
        rows = self.builder.rows["trace"]
        for group in range(4):
            mine = [row for row in rows if row["group"] == group]
            means = {row["session_id"]: row["reward"] for row in mine}
            for row in mine:
                others = [v for k, v in means.items() if k != row["session_id"]]
                row["advantage_raw"] = row["reward"] - sum(others) / len(others)
        assert estimator.lone == "raw"

    def trace_row(self, place: int = VICTIM) -> dict:
        return self.builder.rows["trace"][place]

    def session_row(self, place: int = VICTIM) -> dict:
        return self.builder.rows["session"][place]

    def array(self, name: str, values: Any, place: int = VICTIM) -> None:
        self.builder.token_lists[name][place] = values

    def tables(self) -> dict:
        return self.builder.tables()


Corruption = Callable[[Clean], None]


def _set(name: str, position: int, value: float) -> Corruption:
    def corrupt(run: Clean) -> None:
        values = np.array(run.builder.token_lists[name][VICTIM], dtype=float if name != "mask" else int)
        values[position] = value
        run.array(name, values)

    return corrupt


def _shorter(name: str) -> Corruption:
    return lambda run: run.array(name, run.builder.token_lists[name][VICTIM][:-2])


def _every(value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Corruption:
    def corrupt(run: Clean) -> None:
        trace = run.traces[VICTIM]
        run.array("logprob", np.where(trace.mask == 1, value(trace.logprob, trace.mask), 0.0))

    return corrupt


def _flipped_mask(run: Clean) -> None:
    mask = run.traces[VICTIM].mask.copy()
    gap = int(np.flatnonzero(mask == 0)[0])
    mask[3] = 0  # one sampled token in the middle of the first turn
    run.array("mask", mask)
    run.array("trainable", mask)
    run.array("logprob", np.where(mask == 1, run.traces[VICTIM].logprob, 0.0))
    assert gap > 3


def _shifted_logprobs(run: Clean) -> None:
    run.array("logprob", np.roll(run.traces[VICTIM].logprob, 1))


def _shifted_train(run: Clean) -> None:
    rng = np.random.default_rng(5)
    logprob = -rng.gamma(0.6, 3.0, 40)
    lists = {"prompt": np.arange(12), "response": rng.integers(0, 1000, 40), "mask": np.ones(40, np.int64)}
    for name, values in {**lists, "trainable": lists["mask"], "logprob": logprob}.items():
        run.array(name, values)
    run.array("train_logprob", np.roll(logprob, -1) + rng.normal(0, 0.02, 40))
    run.trace_row().update(response_tokens=40, prompt_tokens=12, calls=1)


def _copied(run: Clean) -> None:
    for name in run.builder.token_lists:
        run.array(name, run.builder.token_lists[name][0])
    for place in (0, VICTIM):
        run.array("logprob", run.traces[0].logprob * 4, place)  # so long that no chance repeats it
    run.trace_row().update({k: run.trace_row(0)[k] for k in ("response_tokens", "prompt_tokens", "calls")})


def _retokenised(run: Clean) -> None:
    place = next(i for i, row in enumerate(run.builder.rows["trace"]) if row["trace_index"] == 1)
    prompt = run.traces[place].prompt.copy()
    prompt[12 + 6] += 1
    run.array("prompt", prompt, place)


def _starts_masked(run: Clean) -> None:
    mask = run.traces[VICTIM].mask.copy()
    mask[0] = 0
    run.array("mask", mask)
    run.array("trainable", mask)
    run.array("logprob", np.where(mask == 1, run.traces[VICTIM].logprob, 0.0))


def _in(table: str, **fields: Any) -> Corruption:
    place = {"trace": VICTIM, "session": VICTIM, "group": 1}[table]
    return lambda run: run.builder.rows[table][place].update(fields)


SEEDED: dict[str, tuple[Corruption, dict[str, Any]]] = {
    "mask_length": (_shorter("mask"), {}),
    "mask_values": (_set("mask", 2, 2), {"position": 2}),
    "mask_edges": (_starts_masked, {"position": 0}),
    "mask_turns": (_flipped_mask, {}),
    "logprob_length": (_shorter("logprob"), {}),
    "logprob_missing": (_set("logprob", 5, np.nan), {"position": 5}),
    "logprob_positive": (_set("logprob", 6, 0.7), {"position": 6}),
    "logprob_on_masked": (_shifted_logprobs, {}),
    "logprob_zeros": (_every(lambda logprob, mask: logprob * 0), {}),
    "logprob_constant": (_every(lambda logprob, mask: logprob * 0 - 1.2345), {}),
    "logprob_coarse": (
        _every(
            lambda logprob, mask: (logprob.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
        ),
        {},
    ),
    "train_logprobs": (_shifted_train, {}),
    "token_ids": (_set("response", 4, -1), {"position": 4}),
    "token_counts": (_in("trace", response_tokens=7), {}),
    "trained_unsampled": (lambda run: run.array("trainable", np.ones_like(run.traces[VICTIM].mask)), {}),
    "duplicates": (_copied, {}),
    "prefix_breaks": (_retokenised, {"session_id": "s-2-1", "trace_index": 1, "position": 6}),
    "advantages_uneven": (_in("trace", advantage_min=0.4), {}),
    "reward_placement": (_in("trace", reward=0.123), {}),
    "reward_infinite": (_in("trace", reward=float("inf")), {}),
    "failed_trained": (_in("session", completed=False, status="ERROR"), {}),
    "version_order": (_in("session", weight_version_oldest="9"), {}),
    "version_backwards": (_in("group", policy_version=-1), {"session_id": None, "group": 1}),
    "lag_arithmetic": (_in("group", staleness=3), {"session_id": None, "group": 1}),
    "advantage_mismatch": (_in("trace", advantage_raw=0.9), {}),
    "trace_gaps": (_in("session", kept_traces=2), {}),
    "trajectory_shared": (_in("session", trajectory=101), {"session_id": "s-1-1"}),
    "times_negative": (_in("session", run_ms=-3.0), {}),
    "source_conflict": (_in("trace", conflicts="reward: polar says 1, rollout_dump says 0"), {}),
    "source_rounding": (_in("trace", conflicts="logprob_sum: polar says -1.1, rollout_dump says -1.2"), {}),
}


class TestSeeded:
    """Kinds of corruption."""

    def test_the_clean_run_is_clean(self) -> None:
        """Before anything is broken, no check finds anything, and most can check something."""
        found = audit(Clean().tables(), vocabulary=1000)
        assert found.findings.empty, found.findings[["check", "detail"]].to_string()
        assert found.clean
        assert (found.checks["examined"] > 0).sum() >= 27

    @pytest.mark.parametrize("kind", SEEDED)
    def test_each_kind_is_found_and_located(self, kind: str) -> None:
        """In the right trace, session or group, at the right place, once and nowhere else."""
        corrupt, where = SEEDED[kind]
        run = Clean()
        corrupt(run)
        found = audit(run.tables(), vocabulary=1000).findings
        mine = found[found["check"] == kind]
        assert len(mine) == 1, found[["check", "detail", "session_id"]].to_string()
        row = mine.iloc[0]
        expected = {"session_id": VICTIM_SESSION, **where}
        for name, value in expected.items():
            assert pd.isna(row[name]) if value is None else row[name] == value, name

    def test_at_least_twenty_kinds(self) -> None:
        """All checks but the tokenizer's are seeded."""
        assert len(SEEDED) >= 20
        assert set(SEEDED) == {check.name for check in CHECKS} - {"round_trip"}

    def test_a_shift_is_named(self) -> None:
        """Where the two logprobs agree after a shift the finding says so."""
        run = Clean()
        _shifted_train(run)
        found = audit(run.tables(), only=["train_logprobs"]).findings
        assert "shifted by" in found["detail"].iloc[0]

    def test_the_round_trip_needs_a_tokenizer(self) -> None:
        """Sampled stretches that encode to other tokens are notes, with the place; without one it says so."""

        class Tokenizer:
            def decode(self, ids: list[int]) -> str:
                return " ".join(map(str, ids))

            def encode(self, text: str) -> list[int]:
                return [0 if int(part) == odd else int(part) for part in text.split()]

        run = Clean()
        odd = int(run.traces[VICTIM].response[2])
        found = audit(run.tables(), tokenizer=Tokenizer(), only=["round_trip"])
        mine = found.findings[found.findings["session_id"] == VICTIM_SESSION]
        assert mine["position"].tolist() == [2]
        assert found.clean
        without = audit(run.tables(), only=["round_trip"]).checks
        assert without["skipped"].tolist() == ["no tokenizer is given"]


def _clean_traces(count: int, seed: int) -> dict:
    """Many clean traces as flat arrays: one to three turns, gamma logprobs, siblings that may coincide."""
    rng = np.random.default_rng(seed)
    tables = run_of_rewards(rng.integers(0, 2, (count // 8, 8)).astype(float))
    lists: dict[str, list[np.ndarray]] = {
        name: [] for name in ("prompt", "response", "mask", "logprob", "train")
    }
    turns = rng.integers(1, 4, count)
    for trace in range(count):
        parts = [
            np.repeat([1, 0], [int(rng.integers(1, 20)), int(rng.integers(2, 6))])
            for _ in range(turns[trace])
        ]
        mask = np.concatenate(parts)
        mask = mask[: int(np.flatnonzero(mask)[-1]) + 1]
        drawn = -rng.gamma(0.4, 0.8, len(mask)) * (rng.random(len(mask)) > 0.25)
        lists["prompt"].append((np.arange(10) + trace // 8) % 1000)
        lists["response"].append(rng.integers(0, 50 if turns[trace] == 1 else 1000, len(mask)))
        lists["mask"].append(mask)
        lists["logprob"].append(np.where(mask == 1, drawn, 0.0))
        lists["train"].append(np.where(mask == 1, drawn + rng.normal(0, 0.05, len(mask)), -1.0))
    arrays = {
        n: Ragged.of(v, np.int64 if n in ("prompt", "response", "mask") else float) for n, v in lists.items()
    }
    arrays["train_logprob"] = arrays.pop("train")
    arrays["trainable"] = arrays["mask"]
    tables["tokens"] = TokenTable(np.arange(count), arrays)
    trace = tables["trace"]
    trace["calls"] = pd.array(turns, dtype="Int64")
    trace["prompt_tokens"] = pd.array(np.full(count, 10), dtype="Int64")
    trace["response_tokens"] = pd.array(arrays["response"].lengths, dtype="Int64")
    return tables


class TestFalseAlarms:
    """Clean data."""

    def test_ten_thousand_clean_traces(self) -> None:
        """No error, warning or note in ten thousand traces, a quarter of whose logprobs are exactly 0."""
        tables = _clean_traces(10_000, seed=1)
        before = untouched(tables)
        found = audit(tables, vocabulary=1000)
        assert found.findings.empty, found.findings[["check", "detail"]].head().to_string()
        same(before, tables)

    def test_short_answers_may_coincide(self) -> None:
        """Two siblings that both answered "4" are no duplicates."""
        builder = RunBuilder()
        lists = {"prompt": [1, 2], "response": [4], "mask": [1], "logprob": [-0.3]}
        builder.group([1.0, 1.0], tokens=1, sessions=[{"traces": [{"lists": lists, "prompt_tokens": 2}]}] * 2)
        assert audit(builder.tables()).clean

    def test_history_that_was_rewritten_is_no_break(self) -> None:
        """A trace whose prompt starts anew, or leaves an earlier one inside its prompt, continues nothing."""
        builder = RunBuilder()
        first = {"prompt": [1, 2, 3, 4], "response": [5, 6, 7], "mask": [1, 1, 1], "logprob": [-1.0] * 3}
        second = {"prompt": [1, 2, 9, 9, 9], "response": [5, 6, 8], "mask": [1, 1, 1], "logprob": [-1.0] * 3}
        own = [{"lists": part, "prompt_tokens": len(part["prompt"])} for part in (first, second)]
        builder.group([1.0], tokens=3, sessions=[{"traces": own, "kept_traces": 2}])
        assert audit(builder.tables()).clean

    def test_turns_that_a_weight_push_cut_may_look_odd(self) -> None:
        """The bridge masks such turns afterwards: logprobs under mask 0, stretches fewer than calls."""
        builder = RunBuilder()
        lists = {"response": [1, 2, 3, 4], "mask": [1, 1, 0, 0], "logprob": [-1.0, -2.0, -0.5, -0.7]}
        trace = {"lists": lists, "calls": 2, "aborted_turns": 1}
        builder.group([1.0], tokens=4, sessions=[{"traces": [trace]}])
        assert audit(builder.tables()).clean

    def test_empty_runs_and_unknown_checks(self) -> None:
        """Without data every check says why it did not look; a misspelt one is an error."""
        found = audit({})
        assert found.clean
        assert found.findings.empty
        assert found.checks["findings"].sum() == 0
        assert found.checks["skipped"].notna().sum() >= 20
        with pytest.raises(StatsError, match="mask_lenght"):
            audit({}, only=["mask_lenght"])
