"""Stage times, waiting and idling, against times that were planted."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.stats.timing import STAGES, timeline, timing
from tests.analysis.stats.builder import START, RunBuilder, same, untouched


def _at(seconds: float) -> pd.Timestamp:
    return START + pd.Timedelta(seconds=seconds)


def _builder() -> RunBuilder:
    builder = RunBuilder()
    for number, (requested, delivered) in enumerate([(0, 10), (14, 20), (22, 40)]):
        builder.rollout(number, requested_at=_at(requested), delivered_at=_at(delivered))
    stages = {"register_to_init_queue_ms": 1000.0, "init_ms": 2000.0, "run_ms": 4000.0, "postrun_ms": 1000.0}
    builder.group(
        [1.0, 0.0, 0.0],
        sessions=[
            {**stages, "submitted_at": _at(0), "node_id": "a"},
            {**stages, "run_ms": 8000.0, "submitted_at": _at(0), "node_id": "a"},
            {**stages, "submitted_at": _at(20), "node_id": "b"},
        ],
    )
    builder.group(
        [1.0], sessions=[{**stages, "submitted_at": _at(16), "node_id": "a", "ready_queue_ms": 500.0}]
    )
    return builder


def test_trainer_waits_and_works() -> None:
    """Waiting is inside the call, work between calls, and a step from delivery to delivery."""
    rollouts = timing(_builder().tables()).rollouts
    assert rollouts["wait_seconds"].tolist() == [10.0, 6.0, 18.0]
    assert rollouts["busy_seconds"].tolist()[:2] == [4.0, 2.0]
    assert rollouts["busy_seconds"].isna().tolist() == [False, False, True]
    assert rollouts["step_seconds"].tolist() == [10.0, 10.0, 20.0]
    assert rollouts["wait_share"].tolist() == pytest.approx([1.0, 0.6, 0.9])


def test_stages_follow_one_another() -> None:
    """Each stage begins where the one before ended; stages that took no time have no row."""
    rows = timeline(_builder().tables())
    first = rows[rows["session_id"] == "s-0-0"]
    assert first["stage"].tolist() == ["queue", "init", "run", "postrun"]
    assert first["start"].tolist() == [0.0, 1.0, 3.0, 7.0]
    assert first["end"].tolist() == [1.0, 3.0, 7.0, 8.0]
    assert first["fate"].tolist() == ["trained"] * 4
    assert len(timeline(_builder().tables(), rollouts=(1, 3))) == 0
    assert set(rows["stage"]) <= set(STAGES)


def test_stage_statistics_per_rollout() -> None:
    """Mean and percentiles over the sessions that ran."""
    stages = timing(_builder().tables()).stages.set_index("stage")
    assert stages.loc["run", "sessions"] == 4
    assert stages.loc["run", "mean"] == pytest.approx(5.0)
    assert stages.loc["run", "median"] == 4.0
    assert stages.loc["run", "max"] == 8.0
    assert stages.loc["ready", "sessions"] == 1


def test_nodes_idle_between_sessions() -> None:
    """Node a runs from 3 to 11 and from 19.5 to 23.5: 8.5 of 20.5 seconds idle, two at once."""
    nodes = timing(_builder().tables()).nodes.set_index("node_id")
    assert nodes.loc["a", "busy_seconds"] == pytest.approx(12.0)
    assert nodes.loc["a", "idle_seconds"] == pytest.approx(8.5)
    assert nodes.loc["a", "max_running"] == 2
    assert nodes.loc["a", "mean_running"] == pytest.approx((4 + 8 + 4) / 20.5)
    assert nodes.loc["b", "idle_share"] == 0.0


def test_running_sessions_are_a_step_function() -> None:
    """Starts and ends of the agents over all nodes; it ends at zero."""
    running = timing(_builder().tables()).running
    assert running["at"].tolist() == [3.0, 7.0, 11.0, 19.5, 23.0, 23.5, 27.0]
    assert running["sessions"].tolist() == [2, 1, 0, 1, 2, 1, 0]


def test_empty_unmeasured_and_unchanged() -> None:
    """Nothing gives empty frames; sessions without times are in no statistic; nothing is changed."""
    empty = timing({})
    for name in ("rollouts", "stages", "nodes", "running"):
        assert len(getattr(empty, name)) == 0, name
    assert len(timeline({})) == 0
    builder = RunBuilder()
    builder.group([1.0])
    assert timing(builder.tables()).stages.empty
    tables = _builder().tables()
    before = untouched(tables)
    timing(tables)
    timeline(tables)
    same(before, tables)
