"""Effort adds up: every session is in one row, and the rows sum to the table."""

from __future__ import annotations

import random

import pytest

from analysis.stats.rejections import waste
from tests.analysis.stats.builder import RunBuilder, same, untouched


def _builder(seed: int = 0) -> RunBuilder:
    rng = random.Random(seed)
    builder = RunBuilder()
    for number in range(30):
        rejected = rng.random() < 0.3
        sessions = []
        for _ in range(4):
            bad = rng.random() < 0.2
            sessions.append(
                {
                    "usable": not bad,
                    "completed": not bad,
                    "reason": "failed" if bad else None,
                    "response_tokens": rng.randint(1, 90),
                    "e2e_ms": None if rng.random() < 0.1 else rng.random() * 1e4,
                    "run_ms": rng.random() * 1e3,
                }
            )
        builder.group(
            [1.0] * 4,
            rollout_id=number // 5,
            accepted=not rejected,
            reject_reason=rng.choice(["too_stale", "low_complete_fraction"]) if rejected else None,
            sessions=sessions,
        )
    return builder


@pytest.mark.parametrize("seed", range(3))
def test_rows_add_up_to_the_total(seed: int) -> None:
    """Sums over reasons equal a plain loop over the table of sessions."""
    builder = _builder(seed)
    found = waste(builder.tables())
    rows = builder.rows["session"]
    for name in ("response_tokens", "trainable_tokens", "prompt_tokens"):
        assert found.rows[name].sum() == sum(row[name] for row in rows)
    seconds = sum((row["e2e_ms"] if row["e2e_ms"] is not None else row["run_ms"]) / 1000 for row in rows)
    assert float(found.rows["seconds"].sum()) == pytest.approx(seconds)
    assert float(found.total["seconds"].iloc[0]) == pytest.approx(seconds)
    assert found.unaccounted.abs().max(axis=1).iloc[0] == pytest.approx(0.0, abs=1e-9)
    for name in ("session_share", "second_share", "token_share"):
        assert found.rows[name].sum() == pytest.approx(1.0)


def test_reasons_are_those_of_the_group_or_the_session() -> None:
    """A rejected group's sessions carry its reason; a bad session of a delivered group its own."""
    builder = _builder()
    rows = waste(builder.tables()).rows.set_index(["fate", "reason"])
    expected = sum(
        row["response_tokens"] for row in builder.rows["session"] if row["reject_reason"] == "too_stale"
    )
    assert rows.loc[("rejected", "too_stale"), "response_tokens"] == expected
    bad = [row for row in builder.rows["session"] if row["accepted"] and not row["usable"]]
    assert rows.loc[("unusable", "failed"), "sessions"] == len(bad)


def test_sessions_without_any_record_are_counted() -> None:
    """Two attempts of four sessions with rows for four: four left no trace; their time is unknown, not 0."""
    builder = RunBuilder()
    builder.group([1.0] * 4, attempts=2)
    found = waste(builder.tables())
    row = found.rows.set_index("fate").loc["unrecorded"]
    assert (row["sessions"], row["unmeasured"], row["groups"]) == (4, 4, 1)
    assert found.unaccounted["sessions"].iloc[0] == 0
    assert float(found.wasted_share["sessions"].iloc[0]) == 0.5


def test_evaluations_are_no_waste_and_empty_runs_have_none() -> None:
    """Evaluation sessions have a row of their own outside the share; nothing gives nothing."""
    builder = _builder()
    for row in builder.rows["session"][:4]:
        row["evaluation"] = True
    tables = builder.tables()
    before = untouched(tables)
    found = waste(tables)
    same(before, tables)
    assert found.rows.set_index("fate").loc["evaluation", "sessions"].sum() == 4
    empty = waste({})
    assert len(empty.rows) == 0
    assert empty.wasted_share["seconds"].isna().all()
