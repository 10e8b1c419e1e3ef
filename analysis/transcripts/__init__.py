"""What was said in a session: messages, tool calls and reasoning by turns, with the numbers of their tokens.

::

    from analysis.transcripts import read_transcript

    session = read_transcript(run, "sk-polar-...")
    session.frame()                        # one row per message
    session.traces[0].turns[3].advantage   # numbers of one model call
"""

from __future__ import annotations

from analysis.transcripts.model import Block, Message, SessionTranscript, Tool, Transcript, Turn
from analysis.transcripts.reading import read_transcript

__all__ = ["Block", "Message", "SessionTranscript", "Tool", "Transcript", "Turn", "read_transcript"]
