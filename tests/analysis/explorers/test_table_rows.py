"""Tables on a screen without the screen: order, search and cells, against plain loops over the rows."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import ExplorerError
from analysis.explorers.table_rows import Column, TableRows, short_id
from tests.analysis.explorers.made_runs import HOSTILE


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "group": pd.array([10, 11, 2, None], dtype="Int64"),
            "state": pd.array(["delivered", "rejected", None, "delivered"], dtype="string"),
            "reward": pd.array([0.5, None, -1.0, 0.25], dtype="Float64"),
            "usable": pd.array([True, False, None, True], dtype="boolean"),
            "at": pd.to_datetime(["2026-01-02", None, "2026-01-01", "2026-01-03"], utc=True),
        }
    )


class TestOrder:
    @pytest.mark.parametrize(
        ("sort", "expected"),
        [
            ([], [0, 1, 2, 3]),
            ([("group", False)], [2, 0, 1, 3]),
            ([("group", True)], [1, 0, 2, 3]),
            ([("state", False)], [0, 3, 1, 2]),
            ([("state", True)], [1, 0, 3, 2]),
            ([("state", False), ("reward", False)], [3, 0, 1, 2]),
            ([("at", True)], [3, 0, 2, 1]),
            ([("usable", False)], [1, 0, 3, 2]),
        ],
    )
    def test_missing_values_are_last_either_way(
        self, frame: pd.DataFrame, sort: list, expected: list[int]
    ) -> None:
        assert TableRows(frame).order(sort).tolist() == expected

    def test_equal_rows_keep_their_order(self) -> None:
        frame = pd.DataFrame({"a": [1, 0] * 50, "b": range(100)})
        order = TableRows(frame).order([("a", True)])
        assert order.tolist() == [*range(0, 100, 2), *range(1, 100, 2)]

    def test_by_another_column(self) -> None:
        frame = pd.DataFrame({"text": ["9/10", "10/10"], "number": [9, 10]})
        rows = TableRows(frame, [Column("text", sort_by="number")])
        assert rows.order([("text", True)]).tolist() == [1, 0]

    def test_a_list_has_no_order_of_its_own(self) -> None:
        rows = TableRows(pd.DataFrame({"rewards": [[1.0], [0.0]]}), [Column("rewards", kind="strip")])
        assert not rows.head()[0]["sortable"]
        with pytest.raises(ExplorerError, match="cannot be sorted by 'rewards'"):
            rows.order([("rewards", False)])

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.none() | st.floats(allow_nan=False), max_size=30), st.booleans())
    def test_like_a_plain_sort(self, values: list, descending: bool) -> None:
        frame = pd.DataFrame({"x": pd.array(values, dtype="Float64")})
        known = [k for k, v in enumerate(values) if v is not None]
        expected = sorted(known, key=lambda k: -values[k] if descending else values[k])
        expected += [k for k, v in enumerate(values) if v is None]
        assert TableRows(frame).order([("x", descending)]).tolist() == expected


class TestSearch:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", [0, 1, 2, 3]),
            ("DELIV", [0, 3]),
            ("deliv 10", [0]),
            ("-deliv", [1, 2]),
            ("state:rej", [1]),
            ("state=delivered", [0, 3]),
            ("state!=delivered", [1]),
            ("-state:deliv", [1, 2]),
            ("reward>0", [0, 3]),
            ("reward<=-1", [2]),
            ("reward>=0.25 reward<0.5", [3]),
            ("reward=0.5", [0]),
            ("group>2", [0, 1]),
            ("group>many", []),
            ("usable=yes", [0, 3]),
            ("usable=no", [1]),
            ("nothing:deliv", []),
            ("[", []),
            (".*", []),
        ],
    )
    def test_words_and_comparisons(self, frame: pd.DataFrame, query: str, expected: list[int]) -> None:
        assert TableRows(frame).order([], query).tolist() == expected

    def test_a_column_by_its_heading(self, frame: pd.DataFrame) -> None:
        rows = TableRows(frame, [Column("reward", "mean reward")])
        assert rows.order([], "mean_reward>0").tolist() == [0, 3]

    def test_what_is_not_shown_is_found_by_name_only(self, frame: pd.DataFrame) -> None:
        rows = TableRows(frame, ["group"])
        assert rows.order([], "delivered").tolist() == []
        assert rows.order([], "state:delivered").tolist() == [0, 3]

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(st.text(max_size=5), max_size=20),
        st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=2),
    )
    def test_like_a_plain_search(self, values: list[str], word: str) -> None:
        if word.startswith("-"):
            word = "a"
        frame = pd.DataFrame(
            {"x": pd.array([v.encode("utf-8", "ignore").decode() for v in values], dtype="string")}
        )
        found = TableRows(frame).order([], word).tolist()
        lower = pd.Series(frame["x"]).str.lower()
        assert found == [k for k, v in enumerate(lower) if word.lower() in v]


class TestCells:
    def test_missing_values_are_none(self, frame: pd.DataFrame) -> None:
        assert TableRows(frame).cells(np.array([1]))[0] == ["11", "rejected", None, "no", None]

    def test_only_what_is_asked_for(self, frame: pd.DataFrame) -> None:
        cells = TableRows(frame, ["state", "group"]).cells(np.array([3, 0]))
        assert cells == [["delivered", None], ["delivered", "10"]]

    def test_they_are_json(self, frame: pd.DataFrame) -> None:
        rows = TableRows(
            frame.assign(
                rewards=[[1.0, None, math.nan], [], None, [math.inf]], pull=[1.0, math.nan, -2.0, math.inf]
            ),
            ["group", Column("rewards", kind="strip"), Column("pull", kind="bar"), "state"],
        )
        sent = json.loads(json.dumps([rows.head(), rows.cells(np.arange(4))], allow_nan=False))
        assert sent[1][0][1]["x"] == [1.0, None, None]
        assert sent[1][0][1]["f"] == "1, —, —"
        assert sent[1][2][2] == {"t": "−2", "x": -2.0}
        assert sent[0][2]["domain"] == [-2.0, 2.0]
        assert [row[1] for row in sent[1]][1:3] == [{"x": [], "f": ""}, None]

    def test_text_of_a_model_is_text(self) -> None:
        [[cell]] = TableRows(pd.DataFrame({"prompt": [HOSTILE + "\nnext"]})).cells(np.array([0]))
        assert cell.startswith("<img src=x")  # text nodes show it as it is
        assert "\u202e" not in cell
        assert "‹U+202E›" in cell
        assert "\n" not in cell

    def test_long_text_is_cut_and_kept_whole_for_the_title(self) -> None:
        [[cell]] = TableRows(pd.DataFrame({"prompt": ["x" * 1000]})).cells(np.array([0]))
        assert cell == {"t": "x" * 160 + "…", "f": "x" * 1000}

    def test_an_id_is_shortened_and_kept_whole_for_the_title(self) -> None:
        name = "sk-polar-eb29b368-3e43-4b61-a2ed-317e0c042508"
        rows = TableRows(pd.DataFrame({"session_id": [name, "odd"]}), [Column("session_id", write=short_id)])
        assert rows.cells(np.arange(2)) == [[{"t": "eb29b368…", "f": name}], ["odd"]]
        assert rows.order([], "317e0c").tolist() == [0]

    def test_badges_have_the_colour_of_their_word(self, frame: pd.DataFrame) -> None:
        rows = TableRows(frame, [Column("state", kind="badge", badges={"rejected": "serious"})])
        assert rows.cells(np.arange(3)) == [
            [{"t": "delivered", "m": ""}],
            [{"t": "rejected", "m": "serious"}],
            [None],
        ]


class TestFrames:
    def test_a_frame_without_rows(self, frame: pd.DataFrame) -> None:
        rows = TableRows(frame.iloc[:0])
        assert rows.order([("group", True)], "x").tolist() == []
        assert rows.cells(np.zeros(0, dtype=np.int64)) == []
        assert [column["kind"] for column in rows.head()] == ["number", "text", "number", "text", "text"]

    def test_a_frame_without_columns(self) -> None:
        rows = TableRows(pd.DataFrame(index=range(2)))
        assert rows.order([], "x").tolist() == []
        assert rows.cells(np.arange(2)) == [[], []]

    def test_columns_that_hold_nothing(self) -> None:
        frame = pd.DataFrame({"a": pd.array([None, None], dtype="Float64"), "b": [None, None]})
        rows = TableRows(frame, [Column("a", kind="bar"), Column("b", kind="strip")])
        assert rows.cells(np.arange(2)) == [[None, None], [None, None]]

    def test_an_unknown_column_is_named(self, frame: pd.DataFrame) -> None:
        with pytest.raises(ExplorerError, match="no columns speed"):
            TableRows(frame, ["group", "speed"])

    def test_the_index_does_not_matter(self, frame: pd.DataFrame) -> None:
        shuffled = frame.set_index(pd.Index([7, 7, 7, 7]))
        assert TableRows(shuffled).cells(np.array([0])) == TableRows(frame).cells(np.array([0]))
