"""A transcript that scrolls in its place: turns to jump to, hits of a search, the turn that is looked at."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import traitlets
from markupsafe import Markup

from analysis.explorers.assets import WorkbenchWidget, script
from analysis.html.text import TextPattern, visible
from analysis.html.transcript import transcript_html
from analysis.transcripts.model import Transcript

__all__ = ["TranscriptView", "jumps_of"]

logger = logging.getLogger(__name__)

_NOTHING = Markup('<p class="wb-note">{}</p>')
_LABEL_CHARACTERS = 48


class TranscriptView(WorkbenchWidget):
    """The messages of one trace.

    Attributes
    ----------
    html
        What is shown: escaped HTML, made in Python.
    jumps
        Turns to go to, as pairs of number and label.
    focus
        Turn that is looked at; -1 for none.
    """

    _esm = script("transcript_view.js")

    html = traitlets.Unicode("").tag(sync=True)
    jumps: Any = traitlets.List().tag(sync=True)
    focus = traitlets.Int(-1).tag(sync=True)

    def show(
        self, transcript: Transcript | None, *, pattern: TextPattern | None = None, note: str = ""
    ) -> None:
        """Show a trace.

        Parameters
        ----------
        transcript
            The trace; None for nothing.
        pattern
            What to mark in it.
        note
            What to say where there is nothing.
        """
        with self.hold_sync():
            self.focus = -1
            if transcript is None:
                self.jumps, self.html = [], str(_NOTHING.format(note))
            else:
                self.jumps = jumps_of(transcript)
                self.html = str(transcript_html(transcript, pattern=pattern))

    def reveal(self) -> None:
        """Scroll the page to where it stands."""
        self.send({"type": "reveal"})

    def on_turn(self, handler: Callable[[int], Any]) -> Callable[[Any, Any, Any], None]:
        """Return a message handler that calls back with the number of a turn that was clicked."""

        def received(widget: Any, content: Any, buffers: Any) -> None:
            if content.get("type") == "turn":
                handler(int(content["turn"]))

        return received


def jumps_of(transcript: Transcript) -> list[list[Any]]:
    """Return the turns of a trace with what tells them apart.

    Parameters
    ----------
    transcript
        The trace.
    """
    jumps: list[list[Any]] = []
    for message in transcript.response:
        if message.turn is None:
            continue
        calls = message.tool_calls
        said = " ".join(message.text.split())
        about = ", ".join(dict.fromkeys(call.name for call in calls)) if calls else said
        about = visible(about[:_LABEL_CHARACTERS]) + ("…" if len(about) > _LABEL_CHARACTERS else "")
        jumps.append([message.turn, f"turn {message.turn}: {about or 'empty'}"])
    return jumps
