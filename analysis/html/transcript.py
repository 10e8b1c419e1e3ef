"""A session as it was spoken: messages by turns, tool calls and their results, with the numbers of each turn.

Everything a model or a tool wrote stands in its place as text. Long parts show their beginning and open; what
would make a page of a hundred megabytes is cut, and says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from analysis.html.text import TextPattern, escaped, template
from analysis.transcripts.model import Block, Message, SessionTranscript, Transcript, Turn

__all__ = ["session_html", "transcript_html", "turn_facts"]

_SHOWN_LINES = 12
_SHOWN_CHARACTERS = 1_000
_MOST_CHARACTERS = 60_000
_SHOWN_CALLS = 12
_SHORT_ARGUMENT = 72
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "prompt", "context"})
_USUAL_ENDS = frozenset({"stop", "tool_calls", "function_call", "eos", "end_turn", "tool_use"})

_MESSAGE = template(
    """
<article class="wb-msg wb-msg-{{ style }}{% if marked %} wb-msg-marked{% endif %}" data-message="{{ number }}"
{%- if turn is not none %} data-turn="{{ turn }}"{% endif %}>
<header><span class="wb-role">{{ role }}</span>
{%- if turn is not none %}<span class="wb-turn">turn {{ turn }}</span>{% endif %}
{%- for fact in facts %}<span class="wb-fact">{{ fact }}</span>{% endfor %}</header>
<div class="wb-msg-body">{{ body }}</div></article>
"""
)
_TOOLS = template(
    """
<details class="wb-more wb-tools"><summary>{{ title }}</summary><dl class="wb-facts">
{%- for tool in tools %}<dt class="wb-code">{{ tool.name }}</dt><dd>{{ tool.description }}
{%- if tool.parameters %}<details class="wb-more"><summary>parameters</summary>
<pre class="wb-text" dir="auto">{{ tool.parameters }}</pre></details>{% endif %}</dd>
{%- endfor %}</dl></details>
"""
)
# A message may hold hundreds of calls, and a template costs more than all that is in it.
_CALL = Markup('<div class="wb-call"><span class="wb-call-name">{}</span>{}{}</div>')
_FACT = Markup('<span class="wb-fact">{}</span>')
_ARGUMENT = Markup("<dt>{}</dt><dd>{}</dd>")
_MORE = Markup('<details class="wb-more"{}><summary>{}</summary>{}</details>')
# A parser drops a newline that stands first in such an element: ours, so that the text keeps its own.
_TEXT = Markup('<pre class="wb-text" dir="auto">\n{}</pre>')


@dataclass(frozen=True)
class _Look:
    """What a transcript is drawn with: the search pattern, and the names of the calls that tools answer."""

    pattern: TextPattern | None
    call_names: dict[str, str]


def transcript_html(
    transcript: Transcript,
    *,
    pattern: TextPattern | None = None,
    messages: slice = slice(None),
    marked: Collection[int] = (),
    tools: bool = True,
) -> Markup:
    """Return the messages of a trace as HTML.

    Parameters
    ----------
    transcript
        One trace.
    pattern
        What to mark in the texts; parts that hide a match are open.
    messages
        Which messages, by their number in the trace; all by default.
    marked
        Numbers of messages that get a mark at their side, such as the first one that differs.
    tools
        Whether the tools that were offered come first.
    """
    everything = transcript.messages
    names = {call.call_id: call.name for m in everything for call in m.tool_calls if call.call_id}
    look = _Look(pattern, names)
    start, stop, _ = messages.indices(len(everything))
    parts = [
        _message_html(everything[number], number, transcript, look, number in marked)
        for number in range(start, stop)
    ]
    lead = [_tools_html(transcript)] if tools and transcript.tools and start == 0 else []
    if not everything:
        parts = [Markup('<p class="wb-note">No messages were kept of this trace.</p>')]
    if transcript.decoded:
        note = "Made from token ids: no messages were kept. Roles follow from the mask."
        lead.insert(0, Markup('<p class="wb-note">{}</p>').format(note))
    return Markup('<div class="wb-transcript">{}</div>').format(Markup("").join([*lead, *parts]))


def session_html(session: SessionTranscript, *, pattern: TextPattern | None = None) -> Markup:
    """Return all traces of a session as HTML, the first one open.

    Parameters
    ----------
    session
        The session.
    pattern
        What to mark in the texts.
    """
    head = Markup('<p class="wb-title">Session <span class="wb-code">{}</span></p>').format(
        escaped(session.session_id, 200)
    )
    if not session.traces:
        body = Markup('<p class="wb-note">No messages of this session were kept.</p>')
    elif len(session.traces) == 1:
        what = Markup('<p class="wb-note">{}</p>').format(_trace_title(session.traces[0]))
        body = what + transcript_html(session.traces[0], pattern=pattern)
    else:
        body = Markup("").join(
            _MORE.format(
                Markup(" open") if place == 0 else "",
                _trace_title(trace),
                transcript_html(trace, pattern=pattern),
            )
            for place, trace in enumerate(session.traces)
        )
    notes = Markup("").join(
        Markup('<p class="wb-note">{}</p>').format(escaped(str(problem), 600)) for problem in session.problems
    )
    return Markup('<section class="wb-session">{}{}{}</section>').format(head, notes, body)


def turn_facts(turn: Turn) -> list[str | Markup]:
    """Return what is known of a model call as short phrases; nothing for what nobody knows.

    Parameters
    ----------
    turn
        The call.
    """
    facts: list[str | Markup] = []
    if turn.sampled is not None:
        facts.append(f"{turn.sampled:,} token{'' if turn.sampled == 1 else 's'}")
        if turn.trainable is not None and turn.trainable != turn.sampled:
            facts.append(f"{turn.trainable:,} trained on" if turn.trainable else "not trained on")
    if turn.logprob_mean is not None:
        facts.append(f"logprob {_signed(turn.logprob_mean)}")
    if turn.advantage is not None:
        facts.append(f"advantage {_signed(turn.advantage, plus=True)}")
    if turn.weight_versions:
        facts.append(f"weights {' → '.join(dict.fromkeys(turn.weight_versions))}")
    if turn.finish_reason is not None:
        if turn.finish_reason in _USUAL_ENDS:
            facts.append(turn.finish_reason)
        else:
            badge = Markup('<span class="wb-badge wb-warning">{}</span>')
            facts.append(badge.format(escaped(turn.finish_reason, 60)))
    return facts


def _signed(value: float, *, plus: bool = False) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    return f"{value:{'+' if plus else ''}.3f}".replace("-", "−")


def _tools_html(transcript: Transcript) -> Markup:
    count = len(transcript.tools)
    title = f"{count} tool{'' if count == 1 else 's'} offered"
    return Markup(_TOOLS.render(tools=transcript.tools, title=title).strip())


def _trace_title(trace: Transcript) -> str:
    name = "Trace" if trace.trace_index is None else f"Trace {trace.trace_index}"
    count = len(trace.messages)
    parts = [f"{count} message{'' if count == 1 else 's'}"]
    if trace.response_tokens is not None:
        parts.append(f"{trace.response_tokens:,} response tokens")
    if trace.reward is not None:
        parts.append(f"reward {_signed(trace.reward)}")
    return f"{name}: {', '.join(parts)}"


def _message_html(message: Message, number: int, transcript: Transcript, look: _Look, marked: bool) -> Markup:
    turn = None if message.turn is None else transcript.turns[message.turn]
    role = message.role
    facts: list[str | Markup] = [] if turn is None else turn_facts(turn)
    answers = look.call_names.get(message.call_id) or message.name
    if answers:
        facts.append(Markup('<span class="wb-code">{}</span>').format(escaped(answers, 80)))
    folded = role in ("system", "developer") and number < len(transcript.prompt)
    body = Markup("").join(_blocks(message, look, folded))
    return Markup(
        _MESSAGE.render(
            style=role if role in _ROLES else "other",
            role=escaped(role, 40),
            number=number,
            turn=None if turn is None else turn.number,
            facts=facts,
            marked=marked,
            body=body or Markup('<p class="wb-note">empty</p>'),
        ).strip()
    )


def _blocks(message: Message, look: _Look, folded: bool) -> Iterator[Markup]:
    calls = [block for block in message.blocks if block.kind == "tool_call"]
    surplus = {id(block) for block in calls[_SHOWN_CALLS:]} if len(calls) > _SHOWN_CALLS + 2 else set()
    hidden = []
    for block in message.blocks:
        if id(block) in surplus:
            hidden.append(block)
        else:
            yield _block_html(block, look, folded)
    if hidden:
        inner = Markup("").join(_block_html(block, look, False) for block in hidden)
        yield _MORE.format(_open(look, *(b.text for b in hidden)), f"{len(hidden):,} more calls", inner)


def _block_html(block: Block, look: _Look, folded: bool) -> Markup:
    if block.kind == "tool_call":
        return _call_html(block, look)
    if block.kind == "reasoning":
        lines = block.text.count("\n") + 1
        title = f"reasoning, {len(block.text):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")
        inner = _TEXT.format(_marked(_cut(block.text), look))
        return Markup('<div class="wb-reasoning">{}</div>').format(
            _MORE.format(_open(look, block.text), title, inner)
        )
    if block.kind == "image":
        return Markup('<p class="wb-part"><span class="wb-badge">image</span> {}</p>').format(
            escaped(block.text, 200)
        )
    if block.kind == "refusal":
        return Markup('<p class="wb-part"><span class="wb-badge wb-warning">refusal</span></p>{}').format(
            _folding(block.text, look)
        )
    if block.kind == "other" and block.name:
        return Markup('<p class="wb-part"><span class="wb-badge">{}</span></p>{}').format(
            escaped(block.name, 40), _folding(block.text, look)
        )
    return _folding(block.text, look, folded)


def _call_html(block: Block, look: _Look) -> Markup:
    pairs, note = _arguments(block.text)
    if block.written:
        note = note or "in its text"
    if pairs is None:
        arguments = _folding(block.text, look) if block.text else Markup("")
    else:
        arguments = _arguments_html(pairs, look)
    noted = _FACT.format(note) if note else Markup("")
    return _CALL.format(escaped(block.name, 120), noted, arguments)


def _arguments(written: str) -> tuple[list[tuple[str, str]] | None, str]:
    """Return a call's arguments by name, and what is wrong with them."""
    if not written.strip():
        return [], ""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        return None, "arguments are not valid JSON"
    if not isinstance(found, dict):
        return None, "arguments are no JSON object"
    return [
        (str(name)[:120], value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in found.items()
    ], ""


def _arguments_html(pairs: list[tuple[str, str]], look: _Look) -> Markup:
    if not pairs:
        return Markup("")
    short = " wb-args-short" if all(_is_short(value) for _, value in pairs) else ""
    shown = Markup("").join(
        _ARGUMENT.format(escaped(name), _argument_html(value, look)) for name, value in pairs
    )
    return Markup('<dl class="wb-args{}">{}</dl>').format(short, shown)


def _argument_html(value: str, look: _Look) -> Markup:
    if _is_short(value):
        return Markup('<span class="wb-text wb-code" dir="auto">{}</span>').format(_marked(value, look))
    return _folding(value, look)


def _is_short(value: str) -> bool:
    return len(value) <= _SHORT_ARGUMENT and "\n" not in value


def _folding(whole: str, look: _Look, folded: bool = False) -> Markup:
    """Return a text of which a long rest opens; `folded` shows no more than its first line."""
    lines, characters = (1, 160) if folded else (_SHOWN_LINES, _SHOWN_CHARACTERS)
    head = _head(whole, lines, characters)
    rest = whole[len(head) :]
    hidden_lines = rest.count("\n")
    # Folding away a line or two costs more than it saves.
    if not folded and hidden_lines <= 3 and len(rest) <= _SHOWN_CHARACTERS // 4:
        head, rest = whole, ""
    if not rest:
        return _TEXT.format(_marked(head, look))
    more = f"{hidden_lines:,} more lines" if hidden_lines > 1 else f"{len(rest):,} more characters"
    inner = _TEXT.format(_marked(_cut(rest.removeprefix("\n")), look))
    return _TEXT.format(_marked(head, look)) + _MORE.format(_open(look, rest), more, inner)


def _head(whole: str, lines: int, characters: int) -> str:
    end = -1
    for _ in range(lines):
        found = whole.find("\n", end + 1)
        if found < 0:
            end = len(whole)
            break
        end = found
    if end <= characters:
        return whole[:end]
    blank = whole.rfind(" ", characters // 2, characters)  # cut between words where there are words
    return whole[: blank if blank > 0 else characters]


def _cut(whole: str) -> str:
    if len(whole) <= _MOST_CHARACTERS:
        return whole
    left = len(whole) - _MOST_CHARACTERS
    return f"{whole[:_MOST_CHARACTERS]}\n… {left:,} more characters are not shown here …"


def _open(look: _Look, *hidden: str) -> Markup:
    if look.pattern is not None and any(look.pattern.search(part) for part in hidden):
        return Markup(" open")
    return Markup("")


def _marked(shown: str, look: _Look) -> Markup:
    """Return a text as HTML, with what the pattern finds marked."""
    if look.pattern is None:
        return escaped(shown)
    parts: list[Markup] = []
    done = 0
    for match in look.pattern.finditer(shown):
        if match.end() > match.start():
            parts.append(escaped(shown[done : match.start()]))
            parts.append(Markup("<mark>{}</mark>").format(escaped(match[0])))
            done = match.end()
    return Markup("").join([*parts, escaped(shown[done:])])
