"""A run's numbers from its journal and a server's events, checked by hand on small histories."""

from __future__ import annotations

import math
from typing import Any

import pytest

from analysis.live.progress import OldestTask, Point, RunProgress


def feed(*records: dict[str, Any]) -> RunProgress:
    progress = RunProgress()
    for at, record in enumerate(records, start=100):
        progress.record({"ts": float(at), **record})
    return progress


def drawn(group: int, sessions: int = 2) -> dict[str, Any]:
    return {"event": "group_drawn", "group": group, "sample_indices": list(range(sessions))}


def submitted(group: int, task_id: str) -> dict[str, Any]:
    return {"event": "task_submitted", "group": group, "task_id": task_id}


def session(status: str = "COMPLETED", reward: float | None = 1.0, tokens: int = 10) -> dict[str, Any]:
    return {
        "status": status,
        "completed": status == "COMPLETED",
        "reward": reward,
        "response_tokens": tokens,
    }


def result(group: int, task_id: str, *sessions: dict[str, Any]) -> dict[str, Any]:
    return {"event": "task_result", "group": group, "task_id": task_id, "sessions": list(sessions)}


def changed(task_id: str, session_id: str, status: str) -> dict[str, Any]:
    data = {"task_id": task_id, "session_id": session_id, "status": status}
    return {"type": "session.state_changed", "data": data}


def test_nothing_known_is_nothing_and_not_zero() -> None:
    """Means without values are NaN; nothing is under way."""
    snapshot = RunProgress().snapshot()
    assert math.isnan(snapshot.reward_mean)
    assert math.isnan(snapshot.first)
    assert snapshot.oldest is None
    assert snapshot.sessions == {}
    assert snapshot.under_way == 0


def test_a_group_from_its_prompt_to_its_verdict() -> None:
    """Every step is seen, and at the end only what came of it."""
    progress = feed(drawn(0), submitted(0, "t"))
    snapshot = progress.snapshot()
    assert snapshot.groups == {"running": 1}
    assert snapshot.sessions == {"SUBMITTED": 2}
    assert snapshot.submitted == snapshot.under_way == 2
    assert snapshot.oldest == OldestTask("t", 101.0)
    progress.record(result(0, "t", session(), session("TIMEOUT", None, 4)) | {"ts": 110.0})
    progress.record({"event": "verdict", "group": 0, "accepted": True, "ts": 110.0})
    assert progress.snapshot().groups == {"accepted": 1}
    progress.record({"event": "group_delivered", "group": 0, "ts": 111.0})
    snapshot = progress.snapshot()
    assert snapshot.groups == {"accepted": 1}
    assert snapshot.sessions == {"COMPLETED": 1, "TIMEOUT": 1}
    assert (snapshot.rewarded, snapshot.reward_mean, snapshot.rewards) == (1, 1.0, (1.0,))
    assert snapshot.tokens == progress.tokens == 14
    assert snapshot.oldest is None
    assert (snapshot.first, snapshot.last) == (100.0, 111.0)


def test_missing_rewards_are_counted_and_stay_out_of_the_mean() -> None:
    """A completed session without a reward is no zero."""
    snapshot = feed(
        drawn(0), submitted(0, "t"), result(0, "t", session(reward=None), session(reward=0.5))
    ).snapshot()
    assert (snapshot.unrewarded, snapshot.rewarded, snapshot.reward_mean) == (1, 1, 0.5)


def test_rejections_and_requeues_have_their_reasons() -> None:
    """Both are counted by reason; a requeued group waits, and its task's sessions are lost."""
    snapshot = feed(
        drawn(0),
        submitted(0, "a"),
        {"event": "group_requeued", "group": 0, "reason": "outage", "detail": "TransportError: gone"},
        drawn(1),
        {"event": "group_rejected", "group": 1, "reason": "zero_trainable"},
    ).snapshot()
    assert snapshot.groups == {"waiting": 1, "rejected": 1}
    assert snapshot.requeues == {"outage": 1}
    assert snapshot.rejections == {"zero_trainable": 1}
    assert snapshot.last_error == "TransportError: gone"
    assert snapshot.sessions == {"LOST": 2}


def test_events_say_where_sessions_are_and_never_take_them_back() -> None:
    """Two streams tell of the same session; the furthest stage counts."""
    progress = feed(drawn(0), submitted(0, "t"))
    for event in (
        changed("t", "s1", "REGISTERED"),
        changed("t", "s1", "RUNNING"),
        changed("t", "s1", "REGISTERED"),
        changed("t", "s2", "COMPLETED"),
        {"type": "ping", "data": {}},
        {"type": "session.state_changed", "data": {"task_id": 3}},
        {"type": "session.state_changed"},
    ):
        progress.event(event)
    assert progress.snapshot().sessions == {"RUNNING": 1, "COMPLETED": 1}


def test_events_before_the_submit_is_known_are_kept() -> None:
    """The server tells of a session before it has answered; other people's sessions count for nothing."""
    progress = feed(drawn(0))
    progress.event(changed("t", "s1", "RUNNING"))
    progress.event(changed("other", "s9", "RUNNING"))
    assert progress.snapshot().sessions == {}
    progress.record(submitted(0, "t"))
    assert progress.snapshot().sessions == {"SUBMITTED": 1, "RUNNING": 1}


def test_strangers_are_forgotten_in_time() -> None:
    """A shared server's other tasks do not fill the memory."""
    progress = RunProgress()
    for number in range(5000):
        progress.event(changed(f"other-{number}", "s", "RUNNING"))
    assert len(progress._strangers) <= 4096


def test_groups_scored_one_by_one_have_a_task_for_each_session() -> None:
    """Three tasks of a group of three are three sessions."""
    progress = feed(drawn(0, 3), submitted(0, "a"), submitted(0, "b"), submitted(0, "c"))
    assert progress.snapshot().submitted == 3
    assert progress.snapshot().sessions == {"SUBMITTED": 3}
    progress.record(result(0, "b", session()))
    assert progress.snapshot().sessions == {"SUBMITTED": 2, "COMPLETED": 1}
    assert progress.snapshot().submitted == 3


def test_a_killed_process_leaves_its_groups_lost() -> None:
    """Group numbers start again with each opening; nothing old stays under way."""
    snapshot = feed(
        {"event": "journal_opened"}, drawn(0), submitted(0, "t"), {"event": "journal_opened"}, drawn(0)
    ).snapshot()
    assert snapshot.groups == {"waiting": 1, "lost": 1}
    assert snapshot.sessions == {"LOST": 2}
    assert snapshot.oldest is None


def test_what_somebody_takes_over_is_counted_once() -> None:
    """Its groups and sessions are told of again by whoever goes on."""
    progress = feed(drawn(0), submitted(0, "a"), result(0, "a", session()), drawn(5), submitted(5, "b"))
    progress.taken_over()
    for record in (drawn(0), submitted(0, "b")):
        progress.record(record)
    snapshot = progress.snapshot()
    assert snapshot.groups == {"running": 1}
    assert snapshot.sessions == {"SUBMITTED": 2, "COMPLETED": 1}
    assert snapshot.submitted == 3


def test_curves_come_from_summaries() -> None:
    """One point per rollout; missing numbers leave no point."""
    progress = feed(
        {
            "event": "rollout_summary",
            "rollout_id": 1,
            "metrics": {"polar/reward_mean_completed": 0.5, "polar/staleness/mean": 1.0},
        },
        {"event": "rollout_summary", "rollout_id": 0, "metrics": {"polar/reward_mean_completed": 0.25}},
        {"event": "rollout_summary", "rollout_id": 2, "metrics": {"polar/reward_mean_completed": None}},
        {
            "event": "evaluation_summary",
            "rollout_id": 0,
            "metrics": {"polar/eval/a/reward_mean_completed": 0.2, "polar/eval/b/reward_mean_completed": 0.4},
        },
    )
    progress.metrics({"kind": "rollout", "rollout_id": 0, "train/ppo_kl": 0.01, "train/grad_norm": None})
    progress.metrics({"kind": "rollout", "rollout_id": None})
    curves = progress.snapshot().curves
    assert curves["reward"] == (Point(0, 0.25), Point(1, 0.5))
    assert curves["policy lag"] == (Point(1, 1.0),)
    assert [round(point.value, 9) for point in curves["held-out reward"]] == [0.3]
    assert curves["KL"] == (Point(0, 0.01),)
    assert "gradient norm" not in curves


def test_outages_drops_and_the_end_are_seen() -> None:
    """Whether the server is away now, how many records were lost, whether the writer closed the file."""
    progress = feed(
        {"event": "outage", "error": "refused"}, {"event": "records_dropped", "count": 3, "events": {}}
    )
    assert progress.snapshot().away
    progress.record({"event": "outage_over"})
    progress.record({"event": "journal_closed"})
    snapshot = progress.snapshot()
    assert (snapshot.away, snapshot.dropped_records, snapshot.closed) == (False, 3, True)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"event": None},
        {"event": "group_drawn"},
        {"event": "group_drawn", "group": "0"},
        {"event": "group_drawn", "group": 0, "sample_indices": "many"},
        {"event": "task_result", "group": 9, "task_id": None, "sessions": "x"},
        {"event": "task_result", "group": 9, "task_id": "t", "sessions": [None, {}, {"reward": "high"}]},
        {"event": "rollout_summary", "rollout_id": 0, "metrics": []},
        {"event": "from_the_future", "group": 3},
        {"event": "group_delivered", "group": 77, "ts": "yesterday"},
        {"event": "records_dropped"},
    ],
)
def test_odd_records_are_no_reason_to_stop(odd: dict[str, Any]) -> None:
    """Journals of other versions, and damaged ones, are watched as far as they can be read."""
    progress = RunProgress()
    progress.record(odd)
    progress.snapshot()
