"""Frames that can be trusted with, views of a part, and a summary that interprets nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.lab.run_folder import RunFolder
from analysis.schema import GRAINS, TABLES, columns_of
from tests.analysis.test_loading import write_session


@pytest.fixture
def run(embedded: RunFolder) -> analysis.Run:
    return analysis.load(embedded.root, index=False)


def test_frames_have_the_declared_columns_and_dtypes(run: analysis.Run) -> None:
    """Exactly those of the schema, in order, each able to hold missing values."""
    for grain, frame in zip(
        GRAINS,
        (
            run.rollouts(),
            run.groups(),
            run.sessions(),
            run.traces(),
            run.events(),
            run.completions(),
            run.metrics(),
        ),
        strict=True,
    ):
        assert list(frame.columns) == [column.name for column in columns_of(grain)]
        for column in TABLES[grain]:
            assert str(frame[column.name].dtype) == column.dtype, (grain, column.name)
        assert run.table(grain).schema.names == list(frame.columns)


def test_frames_are_the_callers_own(run: analysis.Run) -> None:
    """Changing one changes neither the run nor the next one."""
    first = run.sessions()
    before = first["reward"].copy()
    first["reward"] = -1.0
    first.loc[0, "status"] = "CHANGED"
    first.iloc[:, 3] = pd.NA
    second = run.sessions()
    pd.testing.assert_series_equal(second["reward"], before)
    assert second.loc[0, "status"] != "CHANGED"


def test_columns_can_be_chosen(run: analysis.Run) -> None:
    """Only these, in this order; a wrong name is said."""
    assert list(run.sessions(["reward", "session_id", "path"]).columns) == ["reward", "session_id", "path"]
    with pytest.raises(KeyError, match="rewrad"):
        run.sessions(["rewrad"])
    with pytest.raises(KeyError, match="no table"):
        run.table("sessions")


def test_levels_join_on_ids(run: analysis.Run) -> None:
    """Each trace finds its session, each session its group, by the ids in its own row."""
    sessions, traces, groups = run.sessions(), run.traces(), run.groups()
    both = traces.dropna(subset="session_id").merge(sessions, on="session_id", suffixes=("", "_s"))
    for name in ("rollout_id", "group", "group_index", "task_id", "trajectory"):
        pd.testing.assert_series_equal(both[name], both[f"{name}_s"], check_names=False)
    training = sessions[~sessions["evaluation"]]
    joined = training.merge(groups, on=["run", "worker", "group"], suffixes=("", "_g"))
    assert len(joined) == len(training)
    assert (joined["rollout_id"] == joined["rollout_id_g"]).all()


def test_filter_by_columns(run: analysis.Run) -> None:
    """One value, several, a range, missing; the outermost table with the column decides, others follow."""
    part = run.filter(rollout_id=range(1, 3), evaluation=False)
    assert part.rollouts()["rollout_id"].tolist() == [1, 2]
    assert set(part.traces()["rollout_id"]) == {1, 2}
    assert set(part.events()["group"].dropna()) == set(part.groups()["group"])
    assert set(part.metrics()["rollout_id"]) == {1, 2}
    accepted = run.filter(accepted=True)
    assert accepted.groups()["accepted"].all()
    assert accepted.sessions()["accepted"].all()
    assert len(accepted.sessions()) == 9 * 4
    rejected = run.filter(state="rejected")
    assert rejected.rollouts()["rollout_id"].tolist() == [1]
    assert len(rejected.sessions()) == 4
    assert run.filter(state=None).groups()["evaluation"].all()
    assert len(run.filter(status=["ERROR", "TIMEOUT"]).sessions()) == 4
    assert len(run.filter(reason=["failed", None]).sessions()) == 42


def test_filter_by_functions(run: analysis.Run) -> None:
    """A session filter keeps the groups and rollouts that still have a session, and only their traces."""
    good = run.filter(session=lambda frame: frame["reward"] > 0.5)
    assert (good.sessions()["reward"] > 0.5).all()
    assert set(good.traces()["session_id"]) <= set(good.sessions()["session_id"])
    assert set(good.groups()["group_index"]) == set(good.sessions()["group_index"])
    both = run.filter(
        group=lambda frame: frame["reward_std"] > 0, trace=lambda frame: frame["response_tokens"] > 5
    )
    assert (both.traces()["response_tokens"] > 5).all()
    assert (both.groups()["reward_std"] > 0).all()
    chained = run.filter(accepted=True).filter(session=lambda frame: ~frame["usable"])
    assert len(chained.sessions()) == 2
    assert not chained.sessions()["usable"].any()


def test_filter_by_the_numbers_of_levels(run: analysis.Run) -> None:
    """Instead of a function a level takes what numbers its rows: one, several, a column of a frame."""
    sessions = run.sessions()
    wanted = sessions["session_id"].dropna().head(3)
    assert run.filter(session=wanted).sessions()["session_id"].tolist() == wanted.tolist()
    number = run.groups()["group"].dropna().iloc[0]
    assert set(run.filter(group=number).groups()["group"]) == {number}
    assert run.filter(rollout=range(1, 3)).rollouts().equals(run.filter(rollout_id=range(1, 3)).rollouts())
    assert set(run.filter(trace=0).traces()["trace_index"]) == {0}


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ({"group": "x"}, "'group' holds int64, so no row can have 'x'"),
        ({"rollout_id": 1.5}, "'rollout_id' holds int64, so no row can have 1.5"),
        ({"rollout_id": [1, "x"]}, "no row can have 'x'"),
        ({"rollout_id": 1 << 70}, "no row can have"),
        ({"accepted": "maybe"}, "'accepted' holds bool"),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(
    run: analysis.Run, wanted: dict[str, object], match: str
) -> None:
    """They are named; a fraction is not cut to a number that some row has."""
    with pytest.raises(ValueError, match=match):
        run.filter(**wanted).groups()


def test_filters_that_cannot_be_meant_are_refused(run: analysis.Run) -> None:
    """An unknown column at once; a function of the wrong shape when it is used."""
    with pytest.raises(TypeError, match="rollout_id is given twice"):
        run.filter(rollout=1, rollout_id=2)
    with pytest.raises(KeyError, match="acepted"):
        run.filter(acepted=True)
    with pytest.raises(ValueError, match="expected"):
        run.filter(session=lambda frame: [True]).sessions()
    with pytest.raises(ValueError, match="by must be"):
        run.sample(3, by="token")
    with pytest.raises(ValueError, match="negative"):
        run.sample(-1)


def test_nothing_matches(run: analysis.Run) -> None:
    """An empty view is a run without rows, not an error."""
    none = run.filter(rollout_id=12345)
    assert all(len(none.table(grain)) == 0 for grain in GRAINS)
    assert "Run without data" in repr(none)
    assert none.names == []


def test_samples_are_reproducible_and_whole(run: analysis.Run) -> None:
    """The same seed gives the same groups, with all their sessions; more than there are gives all."""
    one, again, other = run.sample(4, seed=1), run.sample(4, seed=1), run.sample(4, seed=2)
    pd.testing.assert_frame_equal(one.groups(), again.groups())
    assert not one.groups()["prompt_sha256"].equals(other.groups()["prompt_sha256"])
    assert len(one.groups()) == 4
    assert one.sessions().groupby(["evaluation", "group_index"]).size().isin([1, 4]).all()
    assert len(run.sample(10_000).groups()) == len(run.groups())
    assert len(run.sample(5, by="session").sessions()) == 5
    assert len(run.sample(0).groups()) == 0


def test_tail_is_the_last_rollouts_and_what_was_evaluated_since(run: analysis.Run) -> None:
    """By id, per run."""
    part = run.tail(2)
    assert part.rollouts()["rollout_id"].tolist() == [1, 2, 3]
    assert part.rollouts()["evaluation"].tolist() == [False, False, True]
    assert set(part.sessions()["rollout_id"]) == {1, 2, 3}
    assert len(run.tail(0).rollouts()) == 0
    assert len(run.tail(100).rollouts()) == len(run.rollouts())


def test_views_follow_a_refresh(embedded: RunFolder) -> None:
    """A view is a choice, not a copy: what is new and fits is in it."""
    run = analysis.load(embedded.root, index=False)
    part = run.filter(status="COMPLETED")
    before = len(part.sessions())
    write_session(embedded.polar_results, "new")
    assert part.refresh() is part
    assert len(part.sessions()) == before + 1
    assert len(run.sessions()) == 44


def test_describe_is_the_dictionary_with_counts(run: analysis.Run) -> None:
    """Every column with its meaning, and how many values this run has."""
    found = run.describe("session").set_index("column")
    assert found.loc["session_id", "values"] == 43
    assert found.loc["reward", "values"] == run.sessions()["reward"].notna().sum()
    assert found["meaning"].str.len().min() > 5
    assert len(run.describe()) == sum(len(columns) for columns in TABLES.values())


def test_summary_says_what_is_there(run: analysis.Run) -> None:
    """Counts by fate and status, coverage of the train dumps, and where problems are listed."""
    text = repr(run)
    assert text.startswith("Run lab")
    assert "9 delivered, 1 rejected, 3 of evaluations" in text
    assert "39 COMPLETED, 4 ERROR" in text
    assert "matched (100.0%)" in text
    assert len(text.splitlines()) < 15


def test_html_shows_names_and_problems_escaped(tmp_path: Path) -> None:
    """Nothing that comes from a file is interpreted: names, statuses, problems."""
    evil = "<img src=x onerror=alert(1)>"
    folder = tmp_path / evil
    path = write_session(folder, "s1")
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "status": "<b>DONE</b>"}))
    write_session(folder, "torn").write_bytes(b"{")
    html = analysis.load(folder, index=False)._repr_html_()
    assert "<img" not in html
    assert "<b>" not in html
    assert "&lt;img src=x" in html
    assert "&lt;b&gt;DONE" in html
    assert "<script" not in html
    assert "1 problem (" in html
    assert html.count("<dl") == html.count("</dl>") == 1
    assert html.count("<div") == html.count("</div>")
