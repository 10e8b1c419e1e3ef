"""What all explorers have in common: errors that are seen, successors, and ends that leave nothing."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Mapping
from typing import Any

import ipywidgets as W
import pytest
from ipywidgets.widgets.widget import _instances

from analysis.explorers import cells
from analysis.explorers.base import Explorer, close_widget, open_explorers
from analysis.explorers.state import SelectionState
from tests.analysis.explorers.made_runs import small_run


class Counter(Explorer):
    """Counts presses, and fails at the third."""

    kind = "counter"

    def _build(self, *, start: int = 0) -> W.DOMWidget:
        self.count = start
        self.button = W.Button(description="count")
        self.on_click(self.button, self._pressed)
        self.observe(self.state, self._followed, "group")
        self.followed: list[Any] = []
        return W.HBox([self.button, W.Label("of presses")])

    def _pressed(self, button: Any) -> None:
        self.count += 1
        if self.count == 3:
            raise ValueError("<b>three</b>")

    def _followed(self, change: Any) -> None:
        self.followed.append(change["new"])

    def view(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore_view(self, view: Mapping[str, Any]) -> None:
        self.count = view["count"]


class Unbuildable(Counter):
    """Fails halfway through its construction."""

    def _build(self, **options: Any) -> W.DOMWidget:
        super()._build()
        raise RuntimeError("half of it is there")


def test_an_explorer_without_widgets_is_none(run: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="_build"):
        Explorer(run)  # type: ignore[abstract]


@pytest.fixture
def run() -> dict[str, Any]:
    return small_run()


class TestErrors:
    def test_an_error_in_a_callback_is_shown_and_logged(
        self, run: dict, caplog: pytest.LogCaptureFixture
    ) -> None:
        explorer = Counter(run, start=2)
        with caplog.at_level(logging.ERROR):
            explorer.button.click()
        shown = explorer.error_text()
        assert "ValueError" in shown
        assert "_pressed" in shown  # the traceback
        assert "&lt;b&gt;three&lt;/b&gt;" in shown
        assert "<b>" not in shown
        assert "three" in caplog.text
        explorer.close()

    def test_it_goes_when_the_callback_succeeds(self, run: dict, caplog: pytest.LogCaptureFixture) -> None:
        explorer = Counter(run, start=2)
        explorer.button.click()
        explorer.button.click()
        assert explorer.error_text() == ""
        explorer.close()

    def test_one_that_cannot_be_built_leaves_nothing(self, run: dict) -> None:
        state = SelectionState(run)
        before = set(_instances)
        with pytest.raises(RuntimeError, match="half"):
            Unbuildable(run, state=state)
        assert not state.has_trait("nothing")
        state.group = 0  # nobody follows
        assert [name for name, w in _instances.items() if name not in before and isinstance(w, W.HTML)] == []


class TestSuccessors:
    def test_the_same_name_takes_over(self, run: dict) -> None:
        first = Counter(run, name="a")
        first.state.select(session_id="s-0-0", estimator="grpo")
        first.button.click()
        second = Counter(run, name="a")
        assert first.closed
        assert second.state.values() == first.state.values()
        assert second.count == 1
        second.close()

    def test_another_name_does_not(self, run: dict) -> None:
        first, second = Counter(run, name="a"), Counter(run, name="b")
        assert not first.closed
        first.close()
        second.close()

    def test_without_a_name_and_a_notebook_nothing_is_replaced(self, run: dict) -> None:
        first, second = Counter(run), Counter(run)
        assert not first.closed
        assert second not in open_explorers()
        first.close()
        second.close()

    def test_a_cell_is_a_name(self, run: dict, monkeypatch: pytest.MonkeyPatch) -> None:
        requests = iter([("one", "m1"), ("one", "m1"), ("two", "m2"), ("one", "m3"), ("one", "m3")])
        monkeypatch.setattr(cells, "_request", lambda: next(requests))
        first, beside, elsewhere = Counter(run), Counter(run), Counter(run)
        again = Counter(run)
        assert (first.closed, beside.closed, elsewhere.closed) == (True, False, False)
        beside_again = Counter(run)
        assert beside.closed
        for explorer in (elsewhere, again, beside_again):
            explorer.close()

    def test_a_state_that_is_given_is_kept(self, run: dict) -> None:
        first = Counter(run, name="a")
        first.state.group = 0
        shared = SelectionState(run, group=1)
        second = Counter(run, state=shared, name="a")
        assert first.closed
        assert second.state.group.group == 1
        second.close()

    def test_a_part_ends_with_its_whole(self, run: dict) -> None:
        whole = Counter(run, name="a")
        part = Counter(run, part_of=whole)
        assert part.state is whole.state
        whole.close()
        assert part.closed


class TestEnds:
    def test_ten_runs_of_a_cell_leave_as_much_as_one(self, run: dict) -> None:
        state = SelectionState(run)
        explorer = Counter(run, state=state, name="ten")
        widgets = len(_instances)
        observers = len(state._trait_notifiers["group"]["change"])
        dead = []
        for _ in range(10):
            dead.append(weakref.ref(explorer))
            explorer = Counter(run, state=state, name="ten")
        assert len(_instances) == widgets
        assert len(state._trait_notifiers["group"]["change"]) == observers
        gc.collect()
        assert [ref() for ref in dead] == [None] * 10
        explorer.close()

    def test_a_closed_one_no_longer_follows(self, run: dict) -> None:
        explorer = Counter(run)
        explorer.close()
        explorer.close()
        explorer.state.group = 0
        assert explorer.followed == []

    def test_a_closed_one_says_so(self, run: dict) -> None:
        explorer = Counter(run)
        assert "application/vnd.jupyter.widget-view+json" in explorer._repr_mimebundle_()
        explorer.close()
        assert "run its cell again" in explorer._repr_mimebundle_()["text/html"]
        assert repr(explorer) == "<Counter: nothing selected, closed>"

    def test_layouts_and_styles_are_closed_too(self) -> None:
        before = set(_instances)
        close_widget(W.VBox([W.Button(), W.Dropdown(options=["a"])]))
        assert set(_instances) == before
