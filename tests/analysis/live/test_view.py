"""The widget of a live view: one, brought up to date, and without a kernel none."""

from __future__ import annotations

import logging

import pytest
from markupsafe import Markup

from analysis.live import view
from analysis.live.view import LiveView

ipywidgets = pytest.importorskip("ipywidgets")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if in a notebook; the comms of the widgets lead nowhere."""
    monkeypatch.setattr(view, "in_notebook", lambda: True)


def test_without_a_kernel_there_is_no_widget() -> None:
    """A script pays for none."""
    shown = LiveView(lambda: Markup("x"))
    assert not view.in_notebook()
    assert shown.mimebundle() == {}
    shown.refresh()
    assert not shown.shown


@pytest.mark.usefixtures("kernel")
def test_one_widget_however_often_it_is_shown() -> None:
    """Running a cell again adds nothing."""
    before = len(ipywidgets.Widget._instances) if hasattr(ipywidgets.Widget, "_instances") else None
    state = ["one"]
    shown = LiveView(lambda: Markup(state[0]))
    bundles = [shown.mimebundle() for _ in range(10)]
    key = "application/vnd.jupyter.widget-view+json"
    assert len({bundle[key]["model_id"] for bundle in bundles}) == 1
    assert shown._widget.value == "one"
    state[0] = "two"
    shown.refresh()
    assert shown._widget.value == "two"
    shown.close()
    shown.close()
    shown.refresh()
    assert before is None or len(ipywidgets.Widget._instances) == before


@pytest.mark.usefixtures("kernel")
def test_a_view_that_cannot_be_drawn_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """And does not end what it shows."""
    broken = False

    def render() -> Markup:
        if broken:
            raise RuntimeError("no such thing")
        return Markup("fine")

    shown = LiveView(render)
    shown.mimebundle()
    broken = True
    with caplog.at_level(logging.ERROR):
        shown.refresh()
        shown.refresh()
    assert len(caplog.records) == 1
    shown.close()
