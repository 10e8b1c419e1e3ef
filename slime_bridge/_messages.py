"""Chat messages as text: the instruction of a prompt, and the readable response of a trace.

Text only: nothing here renders a chat template or tokenises, and nothing is interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["flatten_content", "messages_to_text", "prompt_to_instruction_text"]


def flatten_content(content: Any) -> str:
    """Return the text of a message's ``content``.

    Parameters
    ----------
    content
        A string, None, one content part, or a list of parts as in OpenAI's chat format.

    Returns
    -------
    str
        Texts of the parts, each on a line of its own; a part without text, such as an image, is its type in
        brackets. Empty for None.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        for key in ("text", "content", "refusal"):
            if content.get(key) is not None:
                return flatten_content(content[key])
        return f"[{content['type']}]" if isinstance(content.get("type"), str) else _as_json(content)
    parts = _as_list(content)
    if parts is None:
        return str(content)
    return "\n".join(text for part in parts if (text := flatten_content(part)))


def messages_to_text(messages: Iterable[Any]) -> str:
    """Return messages as ``[role] content`` blocks with blank lines between them.

    An assistant's tool calls follow its content, one ``name(arguments)`` a line, so that a turn that only
    calls tools is not an empty block. A message without content shows its reasoning instead.
    """
    return "\n\n".join(_block(message) for message in messages)


def prompt_to_instruction_text(prompt: Any) -> str:
    """Return a sample's prompt as the instruction for an agent.

    Parameters
    ----------
    prompt
        A string, or a list of chat messages (a NumPy array of them counts, as Parquet files give it).

    Returns
    -------
    str
        The string itself; for messages of one role, their contents joined by blank lines; for several roles,
        ``[role] content`` blocks. Empty for None.
    """
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    messages = [prompt] if isinstance(prompt, Mapping) else _as_list(prompt)
    if messages is None:
        return str(prompt)
    if len({_role(message) for message in messages}) > 1:
        return messages_to_text(messages)
    return "\n\n".join(text for message in messages if (text := _text(message)))


def _as_list(value: Any) -> list[Any] | None:
    if isinstance(value, list | tuple):
        return list(value)
    if hasattr(value, "tolist"):
        return _as_list(value.tolist())
    return None


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    return role if isinstance(role, str) and role else "user"


def _text(message: Any) -> str:
    if not isinstance(message, Mapping):
        return flatten_content(message)
    content = flatten_content(message.get("content"))
    calls = [_tool_call(call) for call in _as_list(message.get("tool_calls")) or ()]
    if not content and not calls:
        content = flatten_content(message.get("reasoning_content") or message.get("reasoning"))
    return "\n".join([content, *calls] if content else calls)


def _block(message: Any) -> str:
    # Nearly all of the hundreds of messages of a long trace are this plain.
    if type(message) is dict and type(content := message.get("content")) is str:
        role = message.get("role")
        if content and type(role) is str and role and not message.get("tool_calls"):
            return f"[{role}] {content}".rstrip()
    return f"[{_role(message)}] {_text(message)}".rstrip()


def _tool_call(call: Any) -> str:
    # Asking an abstract class takes longer than everything else here, and a trace has hundreds of calls.
    known = type(call) is dict or isinstance(call, Mapping)
    function = call.get("function") if known else None
    if type(function) is not dict and not isinstance(function, Mapping):
        return _as_json(call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else _as_json(arguments)
    return f"{function.get('name') or 'tool'}({arguments})"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
