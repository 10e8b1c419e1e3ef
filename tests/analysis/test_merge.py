"""What several sources tell becomes one row per thing, with ids and fate from whoever knows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import analysis
from analysis.lab.run_folder import RunFolder
from analysis.merge import OWNER
from tests.analysis.rows import frame_of, merged, rows_of

TRAINING: dict[str, Any] = {"evaluation": False}


def journal_group(number: int = 0, **cells: Any) -> tuple[str, dict[str, Any]]:
    return "group", {
        **TRAINING, "worker": "journal#1", "group": number, "group_index": number + 7, "rollout_id": 3,
        "attempted": True, **cells,
    }  # fmt: skip


def delivered(number: int = 0, **cells: Any) -> tuple[str, dict[str, Any]]:
    fate = {
        "state": "delivered",
        "accepted": True,
        "staleness": 2,
        "staleness_in_flight": 1,
        "staleness_in_queue": 1,
    }
    return journal_group(number, **{**fate, **cells})


def journal_session(number: int = 0, **cells: Any) -> tuple[str, dict[str, Any]]:
    return "session", {
        **TRAINING, "worker": "journal#1", "group": number, "rollout_id": 2, "task_id": f"t{number}",
        "attempt": 1, "attempted": True, **cells,
    }  # fmt: skip


def polar_session(name: str, task: str = "t0", **cells: Any) -> list[tuple[str, dict[str, Any]]]:
    ids = {**TRAINING, "session_id": name, "task_id": task, "rollout_id": 1, "group_index": 7}
    return [
        (
            "session",
            {**ids, "status": "COMPLETED", "attempted": True, "finished": True, "usable": True, **cells},
        ),
        ("trace", {**ids, "trace_index": 0, "sampled_tokens": 5, "response_tokens": 6}),
    ]


def submitted(task: str, number: int = 0, attempt: int = 1) -> tuple[str, dict[str, Any]]:
    return "event", {
        **TRAINING, "worker": "journal#1", "group": number, "task_id": task, "attempt": attempt,
        "event": "task_submitted", "kind": "journal",
    }  # fmt: skip


def test_one_session_in_three_sources_is_one_row() -> None:
    """Ids travel: the rollout from the group, the group from the journal, the trajectory from the dump."""
    found = merged(
        polar=polar_session("s1", reward=1.0),
        journal=[delivered(), journal_session(session_id="s1", position=0, trajectory=14, reward=1.0)],
        dump=[
            (
                "session",
                {**TRAINING, "session_id": "s1", "rollout_id": 3, "trajectory": 14, "accepted": True},
            ),
            (
                "trace",
                {**TRAINING, "session_id": "s1", "trace_index": 0, "rollout_id": 3, "trainable_tokens": 5},
            ),
        ],
    )
    (session,) = rows_of(found.tables["session"])
    assert session["sources"] == "polar+rollout_dump+journal"
    assert "conflicts" not in session
    wanted = {
        "rollout_id": 3, "worker": "journal#1", "group": 0, "group_index": 7, "task_id": "t0", "attempt": 1,
        "trajectory": 14, "position": 0, "accepted": True, "group_state": "delivered", "reward": 1.0,
        "staleness": 2, "staleness_in_flight": 1, "staleness_in_queue": 1, OWNER: 0,
    }  # fmt: skip
    assert {name: session[name] for name in wanted} == wanted
    (trace,) = rows_of(found.tables["trace"])
    assert (trace["rollout_id"], trace["group"], trace["position"], trace["accepted"]) == (3, 0, 0, True)
    assert trace["trainable_tokens"] == 5


def test_sources_that_contradict_are_quoted() -> None:
    """The best authority counts, and the row says who said otherwise."""
    found = merged(
        polar=polar_session("s1", reward=0.0),
        journal=[delivered(), journal_session(session_id="s1", reward=1.0)],
    )
    (session,) = rows_of(found.tables["session"])
    assert session["reward"] == 1.0
    assert session["conflicts"] == "reward: journal says 1, polar says 0"


def test_rejected_groups_and_their_sessions_have_rows_like_any_other() -> None:
    """The samples of a rejected group do not know their worker; their group does."""
    numbers = {"group": 4, "group_index": 11, "rollout_id": 3}
    found = merged(
        journal=[journal_group(4, state="rejected", accepted=False, reject_reason="low_complete_fraction")],
        rejected=[
            ("group", {**TRAINING, **numbers, "state": "rejected", "accepted": False, "samples_kept": True}),
            (
                "session",
                {**TRAINING, **numbers, "session_id": "s9", "trajectory": 44, "reward": 0.5, "usable": True},
            ),
        ],
    )
    (group,) = rows_of(found.tables["group"])
    assert (group["worker"], group["samples_kept"], group["sessions"], group["reward_mean"]) == (
        "journal#1",
        True,
        1,
        0.5,
    )
    (session,) = rows_of(found.tables["session"])
    assert session["accepted"] is False
    assert session["reject_reason"] == "low_complete_fraction"
    assert session["worker"] == "journal#1"


def test_group_numbers_start_again_with_each_worker() -> None:
    """Group 0 before and after a restart are two groups, and so are their sessions."""
    second = {"worker": "journal#2", "group_index": 99}
    found = merged(
        journal=[
            delivered(), journal_session(session_id="a", position=0), delivered(**second),
            journal_session(session_id="b", position=0, worker="journal#2", task_id="u0"),
        ]
    )  # fmt: skip
    assert frame_of(found, "group")["group_index"].tolist() == [7, 99]
    assert frame_of(found, "session")["group_index"].tolist() == [7, 99]


def test_placeholder_without_a_session_meets_its_journal_row() -> None:
    """Found by group and trajectory, once the journal's row knows which rollout took its group."""
    ids = {**TRAINING, "rollout_id": 3, "group": 0, "group_index": 7, "trajectory": 15}
    found = merged(
        journal=[delivered(), journal_session(position=1, trajectory=15, usable=False, reason="missing")],
        dump=[
            ("session", {**ids, "accepted": True}),
            ("trace", {
                **ids, "sample_index": 15, "tokens_hash": "00", "placeholder": True, "trace_index": -1,
            }),
        ],
    )  # fmt: skip
    (session,) = rows_of(found.tables["session"])
    assert (session["sources"], session["position"], session["reason"]) == (
        "rollout_dump+journal",
        1,
        "missing",
    )
    (trace,) = rows_of(found.tables["trace"])
    assert (trace[OWNER], trace["position"], trace["accepted"]) == (0, 1, True)
    (group,) = rows_of(found.tables["group"])
    assert (group["sessions"], group["traces"]) == (1, 0)


def test_results_of_an_attempt_that_was_given_up_count_for_nothing() -> None:
    """Polar finished a task that the bridge had submitted anew: listed, not accepted, in no mean."""
    found = merged(
        journal=[
            submitted("t-old"), submitted("t0", attempt=2), delivered(),
            journal_session(session_id="new", position=0, reward=1.0, usable=True),
        ],
        polar=polar_session("old", task="t-old", reward=0.0),
    )  # fmt: skip
    sessions = frame_of(found, "session").set_index("session_id")
    assert bool(sessions.loc["new", "accepted"])
    assert not sessions.loc["old", "accepted"]
    assert sessions.loc["old", "attempt"] == 1
    assert sessions.loc["old", "group"] == 0
    (group,) = rows_of(found.tables["group"])
    assert (group["sessions"], group["rated_sessions"], group["reward_mean"]) == (2, 1, 1.0)
    assert sessions["advantage_recomputed"].isna().tolist() == [False, True]


def test_results_that_nobody_fetched_take_the_places_of_sessions_that_nobody_heard_of() -> None:
    """Four submitted, a result for two of them: four sessions, not six, and no position made up."""
    lost = [journal_session(position=p, trajectory=p, finished=False) for p in range(4)]
    found = merged(
        journal=[submitted("t0"), journal_group(state="returned", accepted=False), *lost],
        polar=polar_session("a"), polar_2=polar_session("b"),
    )  # fmt: skip
    sessions = frame_of(found, "session")
    assert len(sessions) == 4
    assert sorted(sessions["session_id"].dropna()) == ["a", "b"]
    named = sessions["session_id"].notna()
    assert sessions.loc[named, "position"].isna().all()
    assert sessions.loc[named, "sources"].tolist() == ["polar+journal"] * 2
    assert sessions["conflicts"].isna().all()
    assert sorted(sessions.loc[~named, "position"]) == [2, 3]


def test_without_a_journal_groups_come_from_their_sessions() -> None:
    """Polar's folder alone: sessions of a prompt group, or of a task, are a group, its fate unknown."""
    plain = {"session_id": "z", "task_id": "tz", "status": "COMPLETED"}
    found = merged(
        polar=polar_session("s1", reward=1.0), polar_2=polar_session("s2", reward=0.0),
        polar_3=[("session", plain)], polar_4=[("session", {**plain, "session_id": "y"})],
    )  # fmt: skip
    groups = frame_of(found, "group")
    assert groups["sessions"].tolist() == [2, 2]
    assert groups["group_index"].isna().tolist() == [False, True]
    assert groups["accepted"].isna().all()
    assert groups["reward_mean"].iloc[0] == 0.5
    assert frame_of(found, "rollout")["rollout_id"].tolist() == [1]


def test_train_rows_find_their_sample_by_index_and_tokens() -> None:
    """Siblings share an index; a shard that is missing leaves its samples untrained, others are loose."""
    dump = {
        **TRAINING,
        "rollout_id": 3,
        "sample_index": 14,
        "trajectory": 14,
        "session_id": "s1",
        "trainable_tokens": 4,
    }
    train = {
        **TRAINING,
        "rollout_id": 3,
        "sample_index": 14,
        "trajectory": 14,
        "trained": True,
        "trainable_tokens": 4,
    }
    found = merged(
        dump=[
            ("session", {**TRAINING, "rollout_id": 3, "trajectory": 14, "session_id": "s1", "usable": True}),
            *(
                ("trace", {**dump, "trace_index": n, "tokens_hash": h})
                for n, h in enumerate(["aa", "bb", "cc"])
            ),
        ],
        train=[
            ("rollout", {**TRAINING, "rollout_id": 3, "train_ranks": 1, "trained_traces": 3}),
            ("trace", {**train, "tokens_hash": "bb", "advantage": 1.0, "advantage_raw": 1.0}),
            ("trace", {**train, "tokens_hash": "aa", "advantage": 3.0, "advantage_raw": 3.0}),
            ("trace", {**train, "trajectory": 99, "tokens_hash": "xx", "advantage": 9.0}),
        ],
    )
    traces = frame_of(found, "trace")
    assert traces["advantage"].tolist()[:2] == [3.0, 1.0]
    assert traces["trained"].tolist() == [True, True, False, True]
    assert traces["trace_index"].isna().tolist() == [False, False, False, True]
    (session,) = rows_of(found.tables["session"])
    assert (session["advantage"], session["advantage_raw"]) == (2.0, 2.0)


def test_copies_of_tensor_parallel_ranks_are_one_row_and_equal_siblings_are_two() -> None:
    """The same two equal samples in two ranks' files are two samples, not four and not one."""
    dump = {**TRAINING, "rollout_id": 3, "sample_index": 1, "tokens_hash": "aa", "session_id": "s"}
    train = {
        **TRAINING,
        "rollout_id": 3,
        "sample_index": 1,
        "tokens_hash": "aa",
        "trained": True,
        "advantage": 0.5,
    }
    found = merged(
        dump=[("trace", {**dump, "trace_index": 0}), ("trace", {**dump, "trace_index": 1})],
        train_0=[("trace", train), ("trace", train)],
        train_1=[("trace", train), ("trace", train)],
    )
    traces = frame_of(found, "trace")
    assert traces["trace_index"].tolist() == [0, 1]
    assert traces["advantage"].tolist() == [0.5, 0.5]


def test_missing_is_not_zero_and_failed_sessions_are_in_no_mean() -> None:
    """A group with one good, one failed and one unrated session: the mean is the good one's."""
    cells = [
        {"session_id": "good", "usable": True, "reward": 0.8},
        {"session_id": "failed", "usable": False, "reward": 0.0, "status": "ERROR"},
        {"session_id": "unrated", "usable": True},
    ]
    found = merged(journal=[delivered(), *(journal_session(position=i, **c) for i, c in enumerate(cells))])
    (group,) = rows_of(found.tables["group"])
    assert (group["sessions"], group["rated_sessions"]) == (3, 1)
    assert (group["reward_mean"], group["reward_std"], group["reward_min"]) == (0.8, 0.0, 0.8)
    rewards = frame_of(found, "session").set_index("session_id")["reward"]
    assert rewards.isna().to_dict() == {"good": False, "failed": False, "unrated": True}


def test_a_group_without_rewards_has_no_advantage() -> None:
    """Not 0: nothing was compared. With one rated session the others get the estimator's 0."""
    found = merged(journal=[delivered(), journal_session(position=0, session_id="a", usable=True)])
    assert frame_of(found, "session")["advantage_recomputed"].isna().all()
    assert frame_of(found, "group")["reward_mean"].isna().all()


def test_evaluations_have_their_own_rollout_and_all_of_them_counts() -> None:
    """Evaluation 3 is not rollout 3; nothing in it is accepted or rejected, and it has no advantages."""

    def row(name: str, reward: float) -> tuple[str, dict[str, Any]]:
        return "session", {
            "evaluation": True, "rollout_id": 3, "dataset": "held_out", "group_index": 0, "trajectory": 0,
            "session_id": name, "usable": True, "reward": reward, "trainable_tokens": 2,
        }  # fmt: skip

    found = merged(dump_eval=[row("a", 1.0), row("b", 0.0)], journal=[delivered()])
    rollouts = frame_of(found, "rollout")
    assert rollouts["evaluation"].tolist() == [False, True]
    assert rollouts["rollout_id"].tolist() == [3, 3]
    assert rollouts["reward_mean"].iloc[1] == 0.5
    assert rollouts["trainable_tokens"].iloc[1] == 4
    assert rollouts["delivered_groups"].isna().tolist() == [False, True]
    assert frame_of(found, "session")["advantage_recomputed"].isna().all()


def test_copies_of_a_result_that_differ_are_a_problem_and_equal_ones_are_none() -> None:
    """A result in a task record and in its own file is one session; a changed copy is named."""
    assert (
        merged(polar=polar_session("s1", reward=1.0), polar_2=polar_session("s1", reward=1.0)).problems == ()
    )
    (problem,) = merged(
        polar=polar_session("s1", reward=1.0), polar_2=polar_session("s1", reward=0.5)
    ).problems
    assert problem.path == "polar_2"
    assert "session s1 is also in polar" in problem.what
    assert "reward" in problem.what


def test_rows_sort_by_ids_as_numbers_with_missing_ones_last() -> None:
    """Rollout 10 comes after 2, whatever the order of files."""

    def group(rollout: int | None, number: int) -> tuple[str, dict[str, Any]]:
        return delivered(number, rollout_id=rollout)

    found = merged(journal=[group(10, 1), group(None, 2), group(2, 3), group(2, 0)])
    groups = frame_of(found, "group")
    assert groups["rollout_id"].tolist()[:3] == [2, 2, 10]
    assert groups["group"].tolist() == [0, 3, 1, 2]


def test_every_table_has_its_columns_even_without_rows() -> None:
    """Nothing read: typed, empty tables."""
    found = merged()
    for grain, table in found.tables.items():
        assert len(table) == 0
        assert frame_of(found, grain).shape[1] == table.num_columns


def test_metrics_of_the_bridge_have_units() -> None:
    """Looked up in the bridge's catalogue, patterns included; foreign metrics have none."""
    names = ["polar/completed_groups", "loss", "polar/scheduler/active_groups"]
    found = merged(metrics=[("metric", {"name": name, "value": 1.0, "stream": "metrics"}) for name in names])
    assert frame_of(found, "metric")["unit"].fillna("none").tolist() == ["groups", "none", "groups"]


@pytest.fixture
def run(embedded: RunFolder) -> analysis.Run:
    return analysis.load(embedded.root, index=False)


def test_real_files_join_without_contradiction(run: analysis.Run) -> None:
    """Server, journal, dumps and rejected samples by the real writers tell one story."""
    assert run.problems.empty
    for frame in (run.rollouts(), run.groups(), run.sessions(), run.traces()):
        assert frame["conflicts"].isna().all()
    sessions = run.sessions()
    training = sessions[~sessions["evaluation"]]
    assert training["sources"].str.contains(r"polar\+.*journal").all()
    assert sessions["session_id"].is_unique
    assert (
        training[["group", "group_index", "task_id", "attempt", "trajectory", "position"]]
        .notna()
        .all(axis=None)
    )


def test_every_group_that_was_drawn_has_a_row_with_its_fate(run: analysis.Run) -> None:
    """As many rows as the journal drew groups; accepted and rejected ones side by side."""
    groups, events = run.groups(), run.events()
    training = groups[~groups["evaluation"]]
    assert len(training) == (events["event"] == "group_drawn").sum()
    assert set(training["state"]) >= {"delivered", "rejected"}
    rejected = training[training["state"] == "rejected"]
    assert rejected["reject_reason"].tolist() == ["low_complete_fraction"]
    assert rejected["samples_kept"].all()
    assert not rejected["accepted"].any()
    assert (training.loc[training["accepted"], "staleness"] >= 0).all()
    assert training.groupby("rollout_id")["accepted"].sum().tolist() == [3, 3, 3]


def test_recomputed_advantages_are_those_that_were_trained(run: analysis.Run) -> None:
    """The bridge's default estimator on the tables gives what the trainer got, per session and trace."""
    for frame in (run.sessions(), run.traces()):
        known = frame[frame["advantage"].notna()]
        assert len(known) > 20
        np.testing.assert_allclose(known["advantage_recomputed"], known["advantage"], atol=1e-6)
    assert run.sessions()["advantage"].notna().sum() == 34  # all accepted ones with something to train on


def test_train_dumps_cover_the_rollout_dumps(run: analysis.Run) -> None:
    """Coverage by sample index and tokens, placeholders included."""
    coverage = run.coverage
    assert coverage["rollout_id"].tolist() == [0, 1, 2]
    assert (coverage["dumped"] == coverage["matched"]).all()
    assert (coverage["fraction"] == 1.0).all()


def test_a_missing_shard_shows_as_missing(embedded: RunFolder) -> None:
    """Without the train dump of rollout 1 its traces are untrained or unknown, the others unchanged."""
    (embedded.train_data / "1_0.pt").unlink()
    run = analysis.load(embedded.root, index=False)
    assert run.coverage["matched"].tolist()[1] == 0
    traces = run.traces()
    other = traces[(traces["rollout_id"] == 1) & traces["accepted"].fillna(False)]
    assert other["advantage"].isna().all()
    assert other["trained"].isna().all()
    assert traces.loc[traces["rollout_id"] == 2, "trained"].fillna(False).any()
