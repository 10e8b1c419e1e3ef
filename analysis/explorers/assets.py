"""Scripts and style of the explorers: plain ES modules and one style sheet, shipped with the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import anywidget

from analysis.html import css

__all__ = ["WorkbenchWidget", "script", "styles"]

_SHEETS = ("explorers.css", "token_view.css", "sessions.css")


def script(name: str) -> str:
    """Return an ES module of the explorers as text."""
    return files("analysis.explorers").joinpath("static", name).read_text("utf-8")


@cache
def styles() -> str:
    """Return the style sheet of everything below the class ``wb``, with what the explorers add."""
    folder = files("analysis.explorers").joinpath("static")
    return css() + "".join(folder.joinpath(sheet).read_text("utf-8") for sheet in _SHEETS)


class WorkbenchWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """Base of the widgets that are drawn by a script of ours: text reaches the page as text only."""

    _css = styles()

    def __init__(self, **traits: object) -> None:
        super().__init__(**traits)
        self.add_class("wb")
