"""Tokens of a trace of any length: bytes for all of them at once, texts for those in sight.

Keys, with the focus on the tokens: the arrows, Page Up and Down, Home and End move the cursor, with Shift
they choose a window; ``n`` and ``p`` go to the next and the previous trained span, ``t`` and ``T`` to the
next and the previous turn; ``1`` to ``6`` switch the overlay.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

import numpy as np
import traitlets

from analysis.errors import ExplorerError
from analysis.explorers.assets import WorkbenchWidget, script
from analysis.html.token_spans import token_details, turn_edges
from analysis.token_overlays import OVERLAYS, find_overlay, legend_of, levels_of
from analysis.trace_tokens import TraceTokens

__all__ = ["PAGE_SIZE", "TokenView", "layout_of", "texts_of"]

logger = logging.getLogger(__name__)

PAGE_SIZE = 256
"""Tokens whose texts travel together."""

_FIRST_PAGES = 4
_LONGEST_ANSWER = 16 * PAGE_SIZE
_NOTHING = "No trace is chosen."


def layout_of(tokens: TraceTokens, version: int = 0) -> dict[str, Any]:
    """Return what the browser needs of all tokens to lay them out and to colour them, as bytes.

    Parameters
    ----------
    tokens
        One trace.
    version
        Tells answers for this trace from those for others.

    Returns
    -------
    dict
        `count`, `start` (position of the first token), `cells`, `kinds`, `breaks`, `edges` and each of
        `levels` (uint8, one per token), `overlays` (name, label, scale, meaning, legend, known), `turns`
        (position and sampled tokens of each), `title`, `version`, `page_size`.

    Raises
    ------
    LoadError
        If the tokenizer cannot be loaded.
    """
    cells, kinds, breaks = tokens.glyphs.layout(tokens.ids)
    levels = {name: levels_of(tokens, name) for name in OVERLAYS}
    overlays = [
        {
            "name": name,
            "label": overlay.label,
            "scale": overlay.scale,
            "meaning": overlay.meaning,
            "legend": [[level, label] for level, label in legend_of(tokens, name)],
            "known": bool(levels[name].any()),
        }
        for name, overlay in OVERLAYS.items()
    ]
    trace = "" if tokens.trace_index is None else f", trace {tokens.trace_index}"
    return {
        "version": version,
        "page_size": PAGE_SIZE,
        "count": len(tokens),
        "start": int(tokens.position[0]) if len(tokens) else 0,
        "title": f"Tokens of session {tokens.session_id or '?'}{trace}",
        "cells": cells.tobytes(),
        "kinds": kinds.tobytes(),
        "breaks": breaks.tobytes(),
        "edges": np.asarray(turn_edges(tokens), dtype=np.uint8).tobytes(),
        "levels": {name: values.tobytes() for name, values in levels.items()},
        "overlays": overlays,
        "turns": [[start, count] for start, count in tokens.starts],
    }


def _nothing(version: int) -> dict[str, Any]:
    return {"version": version, "page_size": PAGE_SIZE, "count": 0, "start": 0, "overlays": []}


def texts_of(tokens: TraceTokens, start: int, stop: int, version: int = 0) -> dict[str, Any]:
    """Return texts and details of some tokens.

    Parameters
    ----------
    tokens
        One trace.
    start, stop
        Places in its arrays; moved to whole pages, and cut where there is no token.
    version
        As in `layout_of`.

    Raises
    ------
    LoadError
        If the tokenizer cannot be loaded.
    """
    start = max(0, start) // PAGE_SIZE * PAGE_SIZE
    stop = min(len(tokens), max(start, stop), start + _LONGEST_ANSWER)
    glyphs = tokens.glyphs.glyphs(tokens.ids[start:stop])
    return {
        "version": version,
        "start": start,
        "texts": [glyph.text for glyph in glyphs],
        "details": [token_details(tokens, place) for place in range(start, stop)],
    }


class TokenView(WorkbenchWidget):
    """Tokens of one trace to look at, and to choose a window of.

    Parameters
    ----------
    tokens
        What to show; None for nothing yet.
    overlay
        To begin with, one of `analysis.token_overlays.OVERLAYS`.
    lines_in_sight
        Its height; shorter traces are as high as they need.

    Attributes
    ----------
    overlay
        What is laid over the tokens.
    cursor
        Position of a token in the whole trace.
    chosen
        Start and stop of the chosen window, positions in the whole trace; empty for none.
    note
        What is said where there are no tokens.
    """

    _esm = script("token_view.js")

    trace = traitlets.Dict().tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    overlay = traitlets.Unicode("mask").tag(sync=True)
    cursor = traitlets.Int(0).tag(sync=True)
    chosen = traitlets.List(traitlets.Int()).tag(sync=True)
    lines_in_sight = traitlets.Int(22).tag(sync=True)
    note = traitlets.Unicode(_NOTHING).tag(sync=True)
    problem = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self, tokens: TraceTokens | None = None, *, overlay: str = "mask", lines_in_sight: int = 22
    ) -> None:
        self._tokens: TraceTokens | None = None
        self._version = 0
        super().__init__(overlay=overlay, lines_in_sight=lines_in_sight)
        self.on_msg(self._answer)
        self.show(tokens)

    @property
    def tokens(self) -> TraceTokens | None:
        """What is shown."""
        return self._tokens

    def show(self, tokens: TraceTokens | None, *, cursor: int | None = None, note: str = _NOTHING) -> None:
        """Show another trace, with the same overlay.

        Parameters
        ----------
        tokens
            One trace, or None for nothing.
        cursor
            Position in the whole trace where to begin; its first token by default.
        note
            What to say where there is nothing.

        Raises
        ------
        LoadError
            If the tokenizer cannot be loaded.
        """
        self._tokens = tokens
        self._version += 1
        if tokens is None or not len(tokens):
            layout = {
                "version": self._version,
                "page_size": PAGE_SIZE,
                "count": 0,
                "start": 0,
                "overlays": [],
            }
            with self.hold_sync():
                self.note = note
                self.chosen, self.page, self.trace = [], {}, layout
            return
        layout = layout_of(tokens, self._version)
        start = int(tokens.position[0])
        begin = start if cursor is None else self._inside(cursor)
        page = (begin - start) // PAGE_SIZE * PAGE_SIZE
        with self.hold_sync():
            self.note, self.chosen, self.cursor = "", [], begin
            self.page = texts_of(tokens, page, page + _FIRST_PAGES * PAGE_SIZE, self._version)
            self.trace = layout

    def choose(self, start: int, stop: int) -> None:
        """Choose a window and bring it into sight.

        Parameters
        ----------
        start, stop
            Positions in the whole trace, stop excluded.

        Raises
        ------
        ExplorerError
            If no token of it is shown.
        """
        if self._tokens is None or not len(self._tokens):
            raise ExplorerError("no tokens are shown of which a window could be chosen")
        first, last = self._inside(start), self._inside(stop - 1)
        if last < start or first >= stop:
            low, high = int(self._tokens.position[0]), int(self._tokens.position[-1])
            raise ExplorerError(
                f"the tokens {start} to {stop} are not shown: positions go from {low} to {high}"
            )
        self.chosen = [first, last + 1]

    @traitlets.validate("overlay")
    def _valid_overlay(self, proposal: dict[str, Any]) -> str:
        return find_overlay(str(proposal["value"])).name

    def _inside(self, position: int) -> int:
        assert self._tokens is not None
        low, high = int(self._tokens.position[0]), int(self._tokens.position[-1])
        return min(max(position, low), high)

    def _answer(self, widget: Any, content: Any, buffers: Any) -> None:
        try:
            if content.get("type") == "texts" and content.get("version") == self._version and self._tokens:
                start, stop = int(content["start"]), int(content["stop"])
                self.send({"type": "texts", **texts_of(self._tokens, start, stop, self._version)})
                self.problem = ""
        except Exception as exc:  # it was asked for by the browser, where nobody would see it raised
            logger.exception("the texts of tokens could not be sent")
            self.problem = "".join(traceback.format_exception_only(exc)).strip()
