"""Chat messages, as agents and servers write them, as `Message` and `Tool`: tolerant, and losing no text.

Understands OpenAI's chat format and content parts, the items of its Responses API, Anthropic's blocks,
``reasoning_content`` and ``<think>`` tags, and tool calls that a model wrote into its text between
``<tool_call>`` tags (Hermes, Qwen). What it does not understand is kept as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from analysis.sources.values import json_text, text
from analysis.transcripts.model import Block, Message, Tool

__all__ = ["messages_of", "tools_of"]

_MOST_CHARACTERS = 64 * 2**20
"""No field of a message is longer: JSON of a whole session is not."""
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
_REASONING_TYPES = frozenset({"thinking", "reasoning", "redacted_thinking"})
_CALL_TYPES = frozenset({"tool_use", "function_call", "tool_call", "function", "custom_tool_call"})
_RESULT_TYPES = frozenset({"tool_result", "function_call_output", "custom_tool_call_output"})
_IMAGE_TYPES = frozenset({"image", "image_url", "input_image"})
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_WRITTEN_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_OPEN_THOUGHT_END = "</think>"


def messages_of(values: Any) -> list[Message]:
    """Return a list of messages as data.

    Parameters
    ----------
    values
        A list of messages, one message, or a text; None for none.
    """
    if values is None:
        return []
    if isinstance(values, str):
        return [Message("user", tuple(_text_blocks("user", values)))]
    if isinstance(values, Mapping):
        return [_message(values)]
    if isinstance(values, Iterable):
        return [_message(value) for value in values]
    return [Message("unknown", (Block("other", _json(values)),))]


def tools_of(values: Any) -> tuple[Tool, ...]:
    """Return the tools that a request offered; what is no tool is left out."""
    tools = []
    for value in values if isinstance(values, list | tuple) else ():
        if not isinstance(value, Mapping):
            continue
        function = value.get("function")
        about = function if isinstance(function, Mapping) else value
        name = _str(about.get("name")) or _str(value.get("type"))
        if name:
            parameters = about.get("parameters", about.get("input_schema"))
            tools.append(Tool(name, _str(about.get("description")), _json(parameters) if parameters else ""))
    return tuple(tools)


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping):
        return Message("unknown", (Block("other", _json(value)),))
    kind = _str(value.get("type"))
    if "role" not in value and kind in _CALL_TYPES | _REASONING_TYPES:
        return Message("assistant", tuple(_part("assistant", value)))
    if "role" not in value and kind in _RESULT_TYPES:
        return Message("tool", tuple(_part("tool", value)), call_id=_str(value.get("call_id")))
    role = _str(value.get("role")) or "user"
    blocks: list[Block] = []
    for name in _REASONING_FIELDS:
        if thought := _flat(value.get(name)):
            blocks.append(Block("reasoning", thought))
            break  # servers write the same under several names
    blocks += _content(role, value.get("content"))
    if refusal := _str(value.get("refusal")):
        blocks.append(Block("refusal", refusal))
    calls = value.get("tool_calls")
    blocks += [_call(call) for call in (calls if isinstance(calls, list | tuple) else ())]
    if isinstance(legacy := value.get("function_call"), Mapping):
        blocks.append(_call({"function": legacy}))
    answered = next((b.call_id for b in blocks if b.kind == "text" and b.call_id), "")
    return Message(role, tuple(blocks), _str(value.get("name")), _str(value.get("tool_call_id")) or answered)


def _content(role: str, content: Any) -> list[Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return list(_text_blocks(role, content))
    parts = [content] if isinstance(content, Mapping) else content
    if not isinstance(parts, list | tuple):
        return [Block("other", _json(parts))]
    return [block for part in parts for block in _part(role, part)]


def _part(role: str, part: Any) -> list[Block]:
    if isinstance(part, str):
        return list(_text_blocks(role, part))
    if not isinstance(part, Mapping):
        return [Block("other", _json(part))]
    kind = _str(part.get("type"))
    if kind in _RESULT_TYPES:
        answer = _flat(part.get("content", part.get("output")))
        return [Block("text", answer, call_id=_str(part.get("tool_use_id", part.get("call_id"))))]
    if kind in _CALL_TYPES:
        return [_call(part)]
    if kind in _REASONING_TYPES:
        thought = _flat(part.get("thinking", part.get("summary", part.get("content", part.get("text")))))
        return [Block("reasoning", thought)] if thought else []
    if kind in _IMAGE_TYPES:
        return [Block("image", _image(part), name=kind)]
    if kind == "refusal":
        return [Block("refusal", _str(part.get("refusal")))]
    if (not kind or kind in _TEXT_TYPES) and isinstance(part.get("text"), str):
        return list(_text_blocks(role, part["text"]))
    return [Block("other", _json(part), name=kind)]


def _text_blocks(role: str, whole: str) -> Iterable[Block]:
    """Split a text into thoughts, calls and the rest; only a model's own text holds thoughts and calls."""
    whole = _str(whole)
    if role == "assistant":
        if match := _THOUGHT.match(whole):
            yield Block("reasoning", match[1].strip("\n"))
            whole = whole[match.end() :].lstrip("\n")
        elif _OPEN_THOUGHT_END in whole and "<think>" not in whole:
            # The chat template had written the opening tag into the prompt.
            thought, _, whole = whole.partition(_OPEN_THOUGHT_END)
            yield Block("reasoning", thought.strip("\n"))
            whole = whole.lstrip("\n")
        done = 0
        for match in _WRITTEN_CALL.finditer(whole):
            call = _written_call(match[1])
            if call is not None:
                if before := whole[done : match.start()].strip("\n"):
                    yield Block("text", before)
                yield call
                done = match.end()
        whole = whole[done:].strip("\n") if done else whole
    if whole:
        yield Block("text", whole)


def _written_call(written: str) -> Block | None:
    """Read a call out of a text; None where it is not one that a parser would take."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    shown = arguments if isinstance(arguments, str) else _json(arguments)
    return Block("tool_call", shown, name=_str(found["name"]), written=True)


def _call(call: Any) -> Block:
    if not isinstance(call, Mapping):
        return Block("tool_call", _json(call), name="tool")
    function = call.get("function")
    about = function if isinstance(function, Mapping) else call
    arguments = about.get("arguments", about.get("input", about.get("parameters")))
    shown = _str(arguments) if isinstance(arguments, str) else "" if arguments is None else _json(arguments)
    call_id = _str(call.get("call_id")) or _str(call.get("id"))
    return Block("tool_call", shown, name=_str(about.get("name")) or "tool", call_id=call_id)


def _image(part: Mapping[str, Any]) -> str:
    """Say what an image is, without its data."""
    source = part.get("image_url", part.get("source"))
    address = source.get("url", source.get("data")) if isinstance(source, Mapping) else source
    address = _str(address)
    if address.startswith("data:"):
        return f"{address[5:].split(';', 1)[0][:60] or 'image'}, {len(address):,} characters of data"
    return address[:200] or "image"


def _flat(value: Any) -> str:
    """Return the text of a nested content."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _str(value)
    if isinstance(value, Mapping):
        inner = value.get("text", value.get("content", value.get("output")))
        return _flat(inner) if isinstance(inner, str | list | Mapping) else _json(value)
    if isinstance(value, list | tuple):
        return "\n".join(found for item in value if (found := _flat(item)))
    return _json(value)


def _str(value: Any) -> str:
    """Return valid Unicode; half surrogate pairs become U+FFFD."""
    return text(value, _MOST_CHARACTERS) or ""


def _json(value: Any) -> str:
    if not isinstance(value, Mapping | list | tuple):
        return "" if value is None else _str(str(value))
    return json_text(value, _MOST_CHARACTERS) or ("{}" if isinstance(value, Mapping) else "[]")
