"""The table widget without a browser: what it sends, and what it does with what it is told."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.errors import ExplorerError
from analysis.explorers.table import Table


class Wire:
    """Stands for the browser: keeps what is sent to it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.sent: list[dict[str, Any]] = []
        table.send = lambda content, buffers=None: self.sent.append(content)  # type: ignore[method-assign]

    def says(self, **content: Any) -> None:
        """A message from the browser, by the way that it takes."""
        self.table._handle_custom_msg(content, [])


@pytest.fixture
def table() -> Table:
    frame = pd.DataFrame({"n": np.arange(1000), "word": [f"word {k % 7}" for k in range(1000)]})
    return Table(frame, many=True, caption="Numbers")


class TestPages:
    def test_the_first_rows_are_there_without_being_asked_for(self, table: Table) -> None:
        assert (table.count, table.total) == (1000, 1000)
        assert table.page["rows"][:3] == [0, 1, 2]
        assert table.page["cells"][2] == ["2", "word 2"]

    def test_others_come_when_they_are_asked_for(self, table: Table) -> None:
        wire = Wire(table)
        wire.says(type="rows", start=900, stop=1000, version=table.page["version"])
        assert wire.sent[0]["rows"] == list(range(900, 1000))

    @pytest.mark.parametrize(
        ("start", "stop", "count"), [(990, 5000, 10), (0, 10**9, 400), (5000, 5100, 0), (-5, 3, 3)]
    )
    def test_however_many_are_asked_for(self, table: Table, start: int, stop: int, count: int) -> None:
        wire = Wire(table)
        wire.says(type="rows", start=start, stop=stop, version=table.page["version"])
        assert len(wire.sent[0]["rows"]) == count

    def test_a_question_about_an_older_order_is_left_unanswered(self, table: Table) -> None:
        wire = Wire(table)
        version = table.page["version"]
        table.sort = [["n", True]]
        wire.says(type="rows", start=0, stop=10, version=version)
        assert wire.sent == []


class TestArranging:
    def test_sorting_and_searching(self, table: Table) -> None:
        table.query = "word:3"
        table.sort = [["n", True]]
        assert (table.total, table.count) == (143, 1000)
        assert table.page["rows"][:2] == [997, 990]

    def test_what_is_picked_stays_and_the_cursor_follows_it(self, table: Table) -> None:
        table.pick([5])
        assert table.cursor == 5
        table.sort = [["n", True]]
        assert (table.selected, table.cursor) == ([5], 994)
        table.query = "word:3"
        assert (table.selected, table.cursor) == ([5], -1)

    def test_another_frame_keeps_the_sorting_that_it_can(self, table: Table) -> None:
        table.sort = [["word", True], ["n", True]]
        table.set_frame(pd.DataFrame({"n": [1, 3, 2]}), selected=[1])
        assert table.page["rows"] == [1, 2, 0]
        assert (table.selected, table.cursor) == ([1], 0)

    def test_an_error_is_shown(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            raise ValueError("no order today")

        monkeypatch.setattr(table._rows, "order", fail)
        table.query = "x"
        assert table.problem == "ValueError: no order today"
        monkeypatch.undo()
        table.query = ""
        assert table.problem == ""

    def test_a_message_that_is_none_is_shown(self, table: Table) -> None:
        Wire(table).says(type="rows", start="a", stop=None, version=table.page["version"])
        assert "ValueError" in table.problem


class TestPicking:
    def test_a_range_is_of_the_order_that_is_seen(self, table: Table) -> None:
        table.sort = [["n", True]]
        Wire(table).says(type="range", first=3, last=1)
        assert table.selected == [998, 997, 996]
        assert list(table.selection["n"]) == [996, 997, 998]

    def test_all_are_those_that_the_search_left(self, table: Table) -> None:
        table.query = "n<3"
        Wire(table).says(type="all")
        assert table.selected == [0, 1, 2]

    def test_one_at_a_time(self) -> None:
        table = Table(pd.DataFrame({"n": [1, 2]}))
        Wire(table).says(type="all")
        Wire(table).says(type="range", first=0, last=1)
        assert table.selected == []
        with pytest.raises(ExplorerError, match="only one row"):
            table.pick([0, 1])

    def test_a_row_that_is_not_there(self, table: Table) -> None:
        with pytest.raises(ExplorerError, match="none at"):
            table.pick([1000])

    def test_no_rows(self) -> None:
        table = Table(pd.DataFrame({"n": []}))
        assert (table.total, table.page["rows"], len(table.selection)) == (0, [], 0)


@pytest.mark.parametrize("name", ["table.js", "overview.js"])
def test_scripts_never_take_text_for_markup(name: str) -> None:
    source = files("analysis.explorers").joinpath("static", name).read_text("utf-8")
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "createContextualFragment",
    ):
        assert way not in source
    assert "http" not in source.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
