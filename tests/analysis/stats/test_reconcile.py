"""What the hook emitted is computed again: equal where nothing happened, listed where a number is another."""

from __future__ import annotations

import math
from typing import Any

import pytest

from analysis.stats.fidelity import reconcile
from tests.analysis.stats.builder import RunBuilder, same, untouched

REWARDS = {0: [[1.0, 0.0], [1.0, 1.0]], 1: [[0.0, 0.0], [1.0, 0.5]]}


def _metric(builder: RunBuilder, rollout: int, evaluation: bool = False, **values: float) -> None:
    for name, value in values.items():
        builder.rows["metric"].append(
            {
                "run": builder.run,
                "rollout_id": rollout,
                "evaluation": evaluation,
                "stream": "metrics" if evaluation else "journal",
                "name": name.replace("__", "/"),
                "value": value,
            }
        )


def _plain(rewards: list[float]) -> dict[str, float]:
    """A few of the hook's numbers by hand."""
    mean = sum(rewards) / len(rewards)
    return {
        "polar__reward_mean": mean,
        "polar__reward_std": math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards)),
        "polar__rollout_success_rate": sum(r >= 1 for r in rewards) / len(rewards),
        "polar__session__trainable_tokens_mean": 10.0,
        "polar__session__traces_mean": 1.0,
    }


def _builder() -> RunBuilder:
    """Two rollouts of two groups; a third group is rejected before the second, a fourth judged too late."""
    builder = RunBuilder(max_async_level=2)
    number = 0
    for rollout, groups in REWARDS.items():
        builder.event("rollout_requested", 100.0 * rollout, rollout_id=rollout, wanted=2)
        if rollout == 1:
            lost = builder.group([1.0, 1.0], rollout_id=1, accepted=False, reject_reason="zero_trainable")
            builder.event("group_drawn", 101.0, group=lost)
            builder.event("task_submitted", 102.0, group=lost, task_id=f"task-{lost}")
            builder.event("verdict", 103.0, group=lost, accepted=False)
            builder.event("group_rejected", 103.0, group=lost, reason="zero_trainable", numbers={})
            number += 1
        for rewards in groups:
            group = builder.group(rewards, rollout_id=rollout, staleness=rollout)
            builder.event("group_drawn", 100.0 * rollout + 1, group=group)
            builder.event("task_submitted", 100.0 * rollout + 2, group=group, task_id=f"task-{group}")
            builder.event("verdict", 100.0 * rollout + 5, group=group, accepted=True)
            number += 1
        for group in range(number - 2, number):
            builder.event("group_delivered", 100.0 * rollout + 10, group=group, rollout_id=rollout)
        # Judged between the delivery and its summary: it belongs to the next window.
        builder.event("verdict", 100.0 * rollout + 10.5, group=99, accepted=True)
        builder.event("rollout_summary", 100.0 * rollout + 11, rollout_id=rollout)
        _metric(
            builder,
            rollout,
            polar__completed_groups=2.0,
            polar__dropped_groups=float(rollout),
            polar__dropped_zero_trainable_groups=float(rollout),
            polar__staleness__mean=float(rollout),
            polar__submitted_tasks=2.0 + rollout,
            polar__ledger__drawn=2.0 + 3 * rollout,
            polar__ledger__live=0.0,
            polar__decision_window__accepted_groups=2.0 + rollout,
            polar__wait_seconds=10.0,
            polar__callbacks__accepted=3.0,
            **_plain([r for group in groups for r in group]),
        )
    return builder


def _statuses(tables: dict[str, Any]) -> dict[tuple[int, str], str]:
    rows = reconcile(tables).rows
    return {(r["rollout_id"], r["name"]): r["status"] for r in rows.to_dict("records")}


def test_numbers_worked_by_hand_are_found_again() -> None:
    """Quality, counts, lag, windows, ledger and waiting of two rollouts."""
    builder = _builder()
    statuses = _statuses(builder.tables())
    emitted = {(row["rollout_id"], row["name"]) for row in builder.rows["metric"]}
    for key in emitted:
        expected = "not recomputable" if "callbacks" in key[1] else "equal"
        assert statuses[key] == expected, key


def test_what_cannot_be_recomputed_says_why() -> None:
    """How callbacks arrived is in no file."""
    rows = reconcile(_builder().tables()).rows
    row = rows[rows["name"] == "polar/callbacks/accepted"].iloc[0]
    assert "memory" in row["why"]
    assert rows["recomputed"][rows["status"] == "not recomputable"].isna().all()


@pytest.mark.parametrize(
    ("name", "change"),
    [("polar/reward_mean", 0.1), ("polar/dropped_groups", 1.0), ("polar/staleness/mean", -0.5)],
)
def test_a_wrong_number_is_listed_with_its_difference(name: str, change: float) -> None:
    """One emitted value is off: that rollout's row, and no other row of that metric."""
    builder = _builder()
    row = next(r for r in builder.rows["metric"] if r["name"] == name and r["rollout_id"] == 1)
    row["value"] += change
    found = reconcile(builder.tables()).differences
    mine = found[(found["name"] == name) & (found["status"] == "differs")]
    assert mine["rollout_id"].tolist() == [1]
    assert mine["difference"].tolist() == pytest.approx([-change])


def test_a_dump_that_is_not_what_was_counted_shows() -> None:
    """The samples on disk have other tokens and rewards than the hook saw: both metrics differ."""
    builder = _builder()
    row = next(r for r in builder.rows["trace"] if r["rollout_id"] == 0)
    row.update(trainable_tokens=4, reward=0.25)
    found = set(reconcile(builder.tables()).differences["name"])
    assert {"polar/reward_mean", "polar/session/trainable_tokens_mean"} <= found


def test_a_count_that_the_hook_did_not_emit_is_listed() -> None:
    """A recomputed number other than 0 that is missing among the emitted ones."""
    builder = _builder()
    builder.rows["metric"] = [r for r in builder.rows["metric"] if r["name"] != "polar/dropped_groups"]
    assert _statuses(builder.tables())[(1, "polar/dropped_groups")] == "not emitted"


def test_sessions_of_a_group_that_was_cut_in_flight_are_not_counted() -> None:
    """The server keeps their files; the hook, which emitted 0, had thrown the group away before that."""
    builder = _builder()
    lost = builder.rows["group"][2]
    assert lost["accepted"] is False
    _metric(builder, 1, polar__dropped_sessions=2.0)
    assert _statuses(builder.tables())[(1, "polar/dropped_sessions")] == "equal"
    lost["verdict"] = None
    builder.rows["metric"][-1]["value"] = 0.0
    assert _statuses(builder.tables())[(1, "polar/dropped_sessions")] == "equal"


def test_evaluations_are_recomputed_as_well() -> None:
    """Fixed denominators: a failed session counts as 0."""
    builder = RunBuilder()
    builder.group([1.0], rollout_id=3)
    builder.group([None], rollout_id=3, sessions=[{"completed": False, "usable": False, "status": "ERROR"}])
    for table in ("group", "session", "trace"):
        for row in builder.rows[table]:
            row.update(evaluation=True, dataset="held", worker=None, group=None)
    _metric(
        builder,
        3,
        evaluation=True,
        polar__eval__held__reward_mean=0.5,
        polar__eval__held__error_rate=0.5,
        polar__eval__resolved_rate=0.5,
        polar__eval__held__prompts=2.0,
        polar__eval__held__seconds=9.0,
    )
    statuses = _statuses(builder.tables())
    assert statuses[(3, "polar/eval/held/seconds")] == "not recomputable"
    assert [s for (_, name), s in statuses.items() if "seconds" not in name].count("equal") >= 4
    assert "differs" not in statuses.values()


def test_nothing_loaded_and_nothing_changed() -> None:
    """No metrics give no rows; metrics alone are not recomputable; the run stays as it is."""
    assert reconcile({}).rows.empty
    assert reconcile({}).summary["rows"].sum() == 0
    tables = _builder().tables()
    alone = reconcile({"metric": tables["metric"]})
    assert set(alone.rows["status"]) == {"not recomputable"}
    before = untouched(tables)
    reconcile(tables)
    same(before, tables)
