"""Every attempted group and session has its line: where it ended, why, with which numbers, at what cost."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from analysis.stats.frames import as_frames
from analysis.stats.rejections import ledger
from analysis.stats.sessions import FATES, STAGES, used_attempt
from tests.analysis.stats.builder import START, RunBuilder, same, untouched


def _builder() -> RunBuilder:
    builder = RunBuilder()
    times = {"run_ms": 2000.0, "init_ms": 500.0}
    builder.group(
        [1.0, None],
        sessions=[
            {**times, "e2e_ms": 3000.0},
            {"usable": False, "completed": False, "status": "ERROR", "error": "boom", **times},
        ],
        drawn_at=START,
        ended_at=START + pd.Timedelta(seconds=60),
    )
    builder.group(
        [1.0, 0.0, 0.0],
        accepted=False,
        reject_reason="low_complete_fraction",
        verdict_numbers=json.dumps({"sessions": 3, "complete_usable": 1, "required": 2}),
    )
    builder.group(
        [1.0],
        accepted=False,
        reject_reason="too_stale",
        verdict_numbers=json.dumps({"staleness": 5, "max_staleness": 3}),
    )
    builder.group(
        [None],
        accepted=None,
        state="given_up",
        requeue_reason="timeout",
        sessions=[
            {"finished": False, "usable": False, "group_state": "given_up", "status": None, "completed": None}
        ],
    )
    builder.group([0.5], accepted=None, state="returned", sessions=[{"group_state": "returned"}])
    builder.group([0.5], accepted=None)
    return builder


def test_groups_end_at_a_stage_with_their_numbers_in_words() -> None:
    """Delivered, content, lag, infrastructure, returned, still open; what decided is readable."""
    groups = ledger(_builder().tables()).groups
    assert groups["stage"].tolist() == ["delivered", "content", "lag", "infrastructure", "returned", "open"]
    assert groups["reason"].tolist()[1:4] == ["low_complete_fraction", "too_stale", "timeout"]
    assert groups["deciding"].tolist()[1] == "1 of 3 sessions complete and usable, 2 required"
    assert groups["deciding"].tolist()[2] == "5 rollouts old, 3 allowed"
    assert groups["deciding"].isna().tolist() == [True, False, False, True, True, True]


def test_costs_are_sums_over_sessions() -> None:
    """Seconds by the gateway's own clock, else the sum of its stages; what nobody measured is counted."""
    groups = ledger(_builder().tables()).groups
    first = groups.iloc[0]
    assert first["session_seconds"] == pytest.approx(3.0 + 2.5)
    assert first["unmeasured_sessions"] == 0
    assert first["lifetime_seconds"] == 60.0
    assert first["response_tokens"] == 20
    assert first["trainable_tokens"] == 10
    assert groups.iloc[1]["unmeasured_sessions"] == 3


def test_sessions_have_one_fate_a_stage_and_a_reason() -> None:
    """Each session is in exactly one fate; accepted and rejected stand in one table."""
    sessions = ledger(_builder().tables()).sessions
    assert sessions["fate"].tolist() == [
        "trained",
        "unusable",
        "rejected",
        "rejected",
        "rejected",
        "rejected",
        "given_up",
        "returned",
        "unfinished",
    ]
    assert set(sessions["fate"]) <= set(FATES)
    assert set(sessions["stage"]) <= set(STAGES)
    assert sessions["stage"].tolist()[:2] == ["completed", "run"]
    assert sessions["stage"].tolist()[6] == "submitted"
    assert sessions["reason"].tolist()[1] == "error"
    assert sessions["detail"].tolist()[1] == "boom"
    assert sessions["group_reason"].tolist()[2] == "low_complete_fraction"


def test_only_the_judged_attempt_counts() -> None:
    """Results before a group was put back belong to an attempt that another one took the place of."""
    builder = RunBuilder()
    builder.group(
        [0.0, 1.0],
        sessions=[{"task_id": "first", "attempt": 1}, {"task_id": "second", "attempt": 2}],
    )
    tables = builder.tables()
    assert used_attempt(as_frames(tables)).tolist() == [False, True]
    assert ledger(tables).sessions["fate"].tolist() == ["superseded", "trained"]
    builder.event("task_result", 1.0, group=0, task_id="first", attempt=1)
    builder.event("group_requeued", 2.0, group=0, reason="timeout")
    builder.event("task_result", 3.0, group=0, task_id="second", attempt=1)
    builder.rows["session"][1]["attempt"] = 1  # attempts are counted anew after each flight
    assert used_attempt(as_frames(builder.tables())).tolist() == [False, True]


def test_individual_tasks_of_one_attempt_all_count() -> None:
    """With one task per session, every task since the last flight is part of the attempt."""
    builder = RunBuilder()
    builder.group([0.0, 1.0], sessions=[{"task_id": "a"}, {"task_id": "b", "attempt": 2}])
    for name in ("a", "b"):
        builder.event("task_result", 1.0, group=0, task_id=name)
    assert used_attempt(as_frames(builder.tables())).tolist() == [True, True]


def test_empty_runs_and_sessions_alone() -> None:
    """No rows give empty frames with columns; without groups, sessions speak for themselves."""
    empty = ledger({})
    assert len(empty.groups) == len(empty.sessions) == 0
    assert str(empty.groups["session_seconds"].dtype) == "Float64"
    tables = _builder().tables()
    before = untouched(tables)
    alone = ledger({"session": tables["session"]}).sessions["fate"].tolist()
    assert alone[:6] == ["trained", "unusable", "rejected", "rejected", "rejected", "rejected"]
    ledger(tables)
    same(before, tables)
