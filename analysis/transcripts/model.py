"""What was said in a session, as plain data: traces, messages, their parts, and the numbers of each turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.problems import Problem

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BLOCK_KINDS", "Block", "Message", "SessionTranscript", "Tool", "Transcript", "Turn"]

BLOCK_KINDS = ("text", "reasoning", "tool_call", "refusal", "image", "other")
"""What a part of a message can be."""


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a message.

    Parameters
    ----------
    kind
        One of `BLOCK_KINDS`.
    text
        Its text; of a tool call the arguments as the model wrote them, of an image or another part a
        description.
    name
        Of the tool that is called, or the type of a part of kind ``other``.
    call_id
        Id of the tool call.
    written
        The call was found in the text of the message, between ``<tool_call>`` tags, and not beside it.
    """

    kind: str
    text: str
    name: str = ""
    call_id: str = ""
    written: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Parameters
    ----------
    role
        As received: system, user, assistant, tool, or whatever the agent wrote.
    blocks
        Its parts, in order.
    name
        Of the tool that answers, or of who speaks, where the message says so.
    call_id
        Of a tool's answer: the call that it answers.
    turn
        Place in `Transcript.turns` of the model call that gave it; None for messages that nobody sampled, and
        where messages and sampled tokens do not match.
    """

    role: str
    blocks: tuple[Block, ...] = ()
    name: str = ""
    call_id: str = ""
    turn: int | None = None

    @property
    def text(self) -> str:
        """All of its parts as text, one after the other; a tool call is ``name(arguments)``."""
        return "\n".join(
            f"{block.name}({block.text})" if block.kind == "tool_call" else block.text
            for block in self.blocks
        )

    @property
    def tool_calls(self) -> tuple[Block, ...]:
        """Its tool calls."""
        return tuple(block for block in self.blocks if block.kind == "tool_call")


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call within a trace, and what is known of its tokens.

    Parameters
    ----------
    number
        From 0.
    start, stop
        Its sampled tokens as positions in the whole trace, stop excluded; None where nobody knows.
    sampled
        Number of sampled tokens.
    trainable
        Of these, those that the trainer learns from; None where no dump says.
    answered
        Tokens that came back before the next turn.
    logprob_mean
        Nats per sampled token, under the policy that sampled.
    advantage
        Mean over its trainable tokens, as trained.
    weight_versions
        Of the weights that served it, in order; empty if nobody said.
    version_spans
        Version, start and stop (positions in the whole trace) of its parts, where the weights changed during
        the call.
    finish_reason
        As reported for this call.
    """

    number: int
    start: int | None = None
    stop: int | None = None
    sampled: int | None = None
    trainable: int | None = None
    answered: int | None = None
    logprob_mean: float | None = None
    advantage: float | None = None
    weight_versions: tuple[str, ...] = ()
    version_spans: tuple[tuple[str, int, int], ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model was offered: its name, what it says of itself, and its parameters as JSON."""

    name: str
    description: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of one trace.

    Parameters
    ----------
    trace_index
        Number in its session; None where the file does not say.
    prompt, response
        Messages before and after the first sampled token.
    turns
        Its model calls.
    tools
        Tools that were offered.
    finish_reason
        Of the last call.
    reward
        Of the trace; None where there is none.
    prompt_tokens, response_tokens
        Of the whole trace; None without token ids.
    decoded
        There were no messages: these were made from the token ids, and roles are guessed from the mask.
    """

    trace_index: int | None
    prompt: tuple[Message, ...] = ()
    response: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    tools: tuple[Tool, ...] = ()
    finish_reason: str | None = None
    reward: float | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    decoded: bool = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """Prompt and response."""
        return (*self.prompt, *self.response)

    def turn_at(self, position: int) -> Turn | None:
        """Return the turn that sampled a token, by its position in the whole trace; None if none did."""
        for turn in self.turns:
            if turn.start is not None and turn.stop is not None and turn.start <= position < turn.stop:
                return turn
        return None

    def _repr_html_(self) -> str:
        from analysis.html.style import scoped
        from analysis.html.transcript import transcript_html

        return str(scoped(transcript_html(self)))


@dataclass(frozen=True)
class SessionTranscript:
    """What was said in a session.

    Parameters
    ----------
    session_id
        Polar's id.
    run
        Name of the run.
    traces
        In order; empty where nobody kept messages.
    source
        Which kind of file they come from, by its name in `analysis.schema.SOURCES`; ``tokens`` where they
        were made from token ids; empty without any.
    path
        The file.
    problems
        What could not be read.
    """

    session_id: str
    run: str | None = None
    traces: tuple[Transcript, ...] = ()
    source: str = ""
    path: str = ""
    problems: tuple[Problem, ...] = field(default=())

    def trace(self, index: int | None) -> Transcript | None:
        """Return a trace by its number, the first one for None; None if there is no such."""
        if index is None:
            return self.traces[0] if self.traces else None
        return next((trace for trace in self.traces if trace.trace_index == index), None)

    def frame(self) -> pd.DataFrame:
        """Return one row per message.

        Columns: `run`, `session_id`, `trace_index`, `message` (number in the trace, prompt included), `role`,
        `turn` (model call that gave it), `text`, `reasoning` (without it in `text`), `tool_calls` (number),
        `tools` (their names), `call_id`, `sampled_tokens`, `trainable_tokens`, `finish_reason` (of the turn).
        """
        import pandas as pd

        rows = [
            _row(self, trace, number, message)
            for trace in self.traces
            for number, message in enumerate(trace.messages)
        ]
        return pd.DataFrame(rows, columns=list(_FRAME)).astype(_FRAME)

    def _repr_html_(self) -> str:
        from analysis.html.style import scoped
        from analysis.html.transcript import session_html

        return str(scoped(session_html(self)))


_FRAME = {
    "run": "string",
    "session_id": "string",
    "trace_index": "Int64",
    "message": "Int64",
    "role": "string",
    "turn": "Int64",
    "text": "string",
    "reasoning": "string",
    "tool_calls": "Int64",
    "tools": "string",
    "call_id": "string",
    "sampled_tokens": "Int64",
    "trainable_tokens": "Int64",
    "finish_reason": "string",
}


def _row(session: SessionTranscript, trace: Transcript, number: int, message: Message) -> dict[str, Any]:
    turn = None if message.turn is None else trace.turns[message.turn]
    calls = message.tool_calls
    spoken = [block.text for block in message.blocks if block.kind not in ("reasoning", "tool_call")]
    thought = [block.text for block in message.blocks if block.kind == "reasoning"]
    return {
        "run": session.run,
        "session_id": session.session_id,
        "trace_index": trace.trace_index,
        "message": number,
        "role": message.role,
        "turn": message.turn,
        "text": "\n".join(spoken) if spoken else None,
        "reasoning": "\n".join(thought) if thought else None,
        "tool_calls": len(calls),
        "tools": ", ".join(call.name for call in calls) or None,
        "call_id": message.call_id or None,
        "sampled_tokens": None if turn is None else turn.sampled,
        "trainable_tokens": None if turn is None else turn.trainable,
        "finish_reason": None if turn is None else turn.finish_reason,
    }
