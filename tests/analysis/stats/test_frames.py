"""One way into all statistics: a run or plain frames, every declared column, unchanged, ids that join."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.schema import TABLES, empty_frame
from analysis.stats._matching import find, identify
from analysis.stats.columns import codes, flags, floats, integers, json_cells, nullable, texts
from analysis.stats.frames import Frames, as_frames, group_codes, group_rows, session_rows, trajectory_codes
from analysis.stats.token_tables import Ragged, TokenTable
from tests.analysis.stats.builder import RunBuilder, frame, same, untouched


class _Run:
    """What a loaded run looks like from here."""

    def __init__(self, tables: dict) -> None:
        self._tables = tables
        for grain in TABLES:
            setattr(self, f"{grain}s", lambda grain=grain: self._tables.get(grain, empty_frame(grain)))


def test_a_run_and_a_mapping_give_the_same_tables() -> None:
    """Methods of a run, plural and singular keys of a mapping lead to the same frames."""
    builder = RunBuilder()
    builder.group([1.0, 0.0])
    tables = builder.tables()
    plural = {f"{name}s": table for name, table in tables.items()}
    for source in (_Run(tables), tables, plural):
        pd.testing.assert_frame_equal(as_frames(source).sessions, tables["session"])
    frames = as_frames(tables)
    assert as_frames(frames) is frames


@pytest.mark.parametrize("grain", TABLES)
def test_absent_tables_are_empty_with_all_columns(grain: str) -> None:
    """A table that nobody gave has its declared columns and dtypes, and no rows."""
    pd.testing.assert_frame_equal(as_frames({}).table(grain), empty_frame(grain))


def test_missing_columns_are_added_and_types_repaired_on_a_copy() -> None:
    """Frames built by hand may lack columns and use plain dtypes; the caller's frame stays as it is."""
    given = pd.DataFrame({"session_id": ["a", None], "reward": [1.0, np.nan], "usable": [True, None]})
    before = given.copy(deep=True)
    made = as_frames({"session": given}).sessions
    pd.testing.assert_frame_equal(given, before)
    assert made["reward"].isna().tolist() == [False, True]
    assert str(made["usable"].dtype) == "boolean"
    assert str(made["trainable_tokens"].dtype) == "Int64"
    assert set(empty_frame("session").columns) <= set(made.columns)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"sesion": pd.DataFrame()}, "sesion"),
        (3, "int"),
        ({"session": pd.DataFrame({"reward": ["high"]})}, "session"),
    ],
)
def test_what_cannot_be_used_is_named(source: object, text: str) -> None:
    """A misspelt table, something else than a run, and a column of the wrong kind are typed errors."""
    with pytest.raises(StatsError, match=text):
        as_frames(source).sessions  # noqa: B018


def test_columns_as_arrays_keep_missing_values_apart() -> None:
    """NA is NaN, the given number, the given answer or None; never 0 by accident."""
    table = frame("session", [{"reward": 0.5, "usable": True, "turns": 3, "error": "x"}, {}])
    assert np.array_equal(floats(table, "reward"), [0.5, np.nan], equal_nan=True)
    assert integers(table, "turns", missing=-7).tolist() == [3, -7]
    assert flags(table, "usable", missing=False).tolist() == [True, False]
    assert texts(table, "error").tolist() == ["x", None]
    back = nullable({"a": np.array([1.0, np.nan]), "b": np.array(["x", None], dtype=object)})
    assert back["a"].isna().tolist() == [False, True]
    assert back["b"].isna().tolist() == [False, True]


def test_json_cells_never_raise() -> None:
    """Cells that are missing, torn, or no object are empty mappings."""
    table = frame("session", [{"evaluation_report": t} for t in ('{"a": 1}', "{", "[1]", None)])
    assert json_cells(table, "evaluation_report") == [{"a": 1}, {}, {}, {}]


def test_rows_that_do_not_say_evaluation_are_training() -> None:
    """A frame built by hand without the column groups as one that says False; an evaluation stays apart."""
    evaluation = pd.array([pd.NA, False, True], dtype="boolean")
    said = pd.DataFrame({"rollout_id": [0, 0, 0], "evaluation": evaluation})
    assert codes(said, ("evaluation", "rollout_id")).tolist() == [0, 0, 1]


def test_codes_number_known_combinations_only() -> None:
    """A missing part makes a key unknown, except the run's name."""
    table = pd.DataFrame({"run": [None, None, "r", None], "x": [1, 1, 1, None]}, dtype=object)
    assert codes(table, ("run", "x")).tolist() == [0, 0, 1, -1]


def test_identify_and_find_follow_the_order_of_keys() -> None:
    """The first key decides; a later one joins only where it points at one entity."""
    first, second = np.array([0, 0, 1, -1, -1, -1]), np.array([5, 5, 6, 6, 9, -1])
    assert identify([first, second]).tolist() == [0, 0, 1, 1, 2, 3]
    ambiguous = np.array([0, 1, -1])
    assert identify([ambiguous, np.array([4, 4, 4])]).tolist() == [0, 1, 2]
    assert find([np.array([1, 2, -1, 7])], [np.array([2, 1, 1])]).tolist() == [-1, 0, -1, -1]
    assert find([np.zeros(0, int)], [np.zeros(0, int)]).tolist() == []


def test_rows_join_by_worker_and_group_or_by_rollout_and_index() -> None:
    """The scheduler's number is unique in one worker's life only; dumps know rollout and index instead."""
    groups = frame(
        "group",
        [
            {"run": "r", "worker": "a", "group": 0, "rollout_id": 0, "group_index": 7, "evaluation": False},
            {"run": "r", "worker": "b", "group": 0, "rollout_id": 1, "group_index": 7, "evaluation": False},
        ],
    )
    other = frame(
        "session",
        [
            {"run": "r", "worker": "b", "group": 0},
            {"run": "r", "rollout_id": 0, "group_index": 7, "evaluation": False},
            {"run": "r", "rollout_id": 5, "group_index": 7, "evaluation": False},
            {"run": "q", "worker": "b", "group": 0},
        ],
    )
    assert group_rows(groups, other).tolist() == [1, 0, -1, -1]
    assert group_codes(groups, other)[1].tolist()[:2] == [1, 0]


def test_trajectories_of_a_session_are_one() -> None:
    """Rows without a session join the one of their group that has their trajectory key."""
    rows = [
        {"session_id": "a", "trajectory": 1},
        {"trajectory": 1},
        {"session_id": "b", "trajectory": 2},
        {"trajectory": 3},
        {},
    ]
    table = frame("trace", rows)
    assert trajectory_codes(table, np.zeros(5, np.int64)).tolist() == [0, 0, 1, 2, 3]
    assert trajectory_codes(table, np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    sessions = frame("session", [{"session_id": "b"}, {"session_id": "a"}])
    assert session_rows(sessions, table).tolist() == [1, -1, 0, -1, -1]


def test_nothing_is_changed_by_looking() -> None:
    """The tables of the source are the same after every table was asked for."""
    builder = RunBuilder()
    builder.group([1.0, None])
    tables = builder.tables()
    before = untouched(tables)
    frames = as_frames(tables)
    for grain in TABLES:
        frames.table(grain)
    same(before, tables)


class TestTokenTable:
    """Flat arrays with offsets."""

    def test_arrays_of_other_lengths_are_kept_and_not_aligned(self) -> None:
        """A mask that is too short stays visible, and counts as unknown for everybody else."""
        table = TokenTable.of_lists([4, 2], response=[[7, 8, 9], [5]], mask=[[1, 0], [1]])
        assert table.fits("mask").tolist() == [False, True]
        assert np.array_equal(table.aligned("mask"), [np.nan, np.nan, np.nan, 1.0], equal_nan=True)
        assert np.isnan(table.aligned("logprob")).all()
        assert table.select(np.array([False, True])).rows.tolist() == [2]

    def test_turns_are_stretches_of_sampled_tokens(self) -> None:
        """Stretches are numbered per trace; what nobody sampled is in none."""
        table = TokenTable.of_lists(
            [0, 1, 2], response=[[1] * 6, [1, 1], []], mask=[[1, 1, 0, 1, 0, 1], [1, 1], []]
        )
        assert table.turns.tolist() == [0, 0, -1, 1, -1, 2, 0, 0]

    def test_empty_and_wrong_input(self) -> None:
        """No traces are fine; offsets that do not fit, unknown arrays and other counts are errors."""
        assert len(TokenTable.empty()) == 0
        assert TokenTable.empty().turns.tolist() == []
        assert Ragged.of([[1], [], [2, 3]]).take(np.array([2, 1])).values.tolist() == [2, 3]
        with pytest.raises(StatsError, match="offsets"):
            Ragged(np.array([0, 3]), np.zeros(2))
        with pytest.raises(StatsError, match="logprobs"):
            TokenTable.of_lists([0], response=[[1]], logprobs=[[0.0]])
        with pytest.raises(StatsError, match="mask"):
            TokenTable.of_lists([0], response=[[1]], mask=[[1], [1]])

    def test_a_run_with_token_arrays_is_read(self) -> None:
        """Prompts are split off, unknown masks count as absent, rows are found by session and trace."""
        import types

        traces = frame("trace", [{"run": "r", "session_id": s, "trace_index": 0} for s in ("a", "b")])
        arrays = types.SimpleNamespace(
            traces=frame(
                "trace", [{"run": "r", "session_id": s, "trace_index": 0} for s in ("b", "a")]
            ).assign(prompt_tokens=[1, 2]),
            offsets=np.array([0, 3, 6]),
            ids=np.array([1, 2, 3, 4, 5, 6]),
            position=np.array([0, 1, 2, 0, 1, 2]),
            mask=np.array([0, 1, 1, 0, 0, -1], dtype=np.int8),
            trainable=np.array([0, -1, -1, 0, 0, -1], dtype=np.int8),
            logprob=np.array([np.nan, -1, -2, np.nan, np.nan, np.nan], dtype=np.float32),
            train_logprob=np.full(6, np.nan, dtype=np.float32),
            advantage=np.full(6, np.nan, dtype=np.float32),
        )
        asked = []

        def token_arrays(sessions: list[str] | None = None) -> types.SimpleNamespace:
            asked.append(sessions)
            return arrays

        run = types.SimpleNamespace(token_arrays=token_arrays, sessions=dict, traces=lambda: traces)
        assert Frames(run).tokens_of(np.array([1])).response.values.tolist() == [2, 3]
        assert asked == [["b"]]  # other sessions are not read
        table = TokenTable.of_run(run, traces)
        assert table.rows.tolist() == [1, 0]
        assert table.response.values.tolist() == [2, 3, 6]
        assert table.arrays["prompt"].lengths.tolist() == [1, 2]
        assert table.fits("mask").tolist() == [True, False]
        assert table.learnt.tolist() == [True, True, False]
        assert np.array_equal(table.aligned("logprob"), [-1, -2, np.nan], equal_nan=True)
