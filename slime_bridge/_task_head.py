"""A look at whose result some bytes are, without decoding the result.

`leading_task_id` reads only the first kilobytes and may not know; `read_task_head` checks the whole
document's syntax and returns the task's id and status. Neither looks at sessions.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from slime_bridge import _json
from slime_bridge._body import Body
from slime_bridge.errors import ProtocolError

__all__ = ["TaskHead", "leading_task_id", "read_task_head", "starts_like_object"]

_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
# Polar writes the task id first.
_LEADING_TASK_ID = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"task_id"\s*:\s*("(?:[^"\\]|\\.)*")')
_LEADING_BYTES = 4096


class TaskHead(msgspec.Struct, frozen=True):
    """Id and status of a task's record."""

    task_id: str
    status: str


_HEAD = msgspec.json.Decoder(TaskHead)


def starts_like_object(body: Body) -> bool:
    """Tell whether bytes begin like a JSON object."""
    return _OBJECT.match(body[:_LEADING_BYTES]) is not None


def leading_task_id(body: Body) -> str | None:
    """Return the task id that a body begins with, None where it begins with something else."""
    match = _LEADING_TASK_ID.match(body[:_LEADING_BYTES])
    if match is None:
        return None
    try:
        return str(json.loads(match[1]))
    except ValueError:
        return None


def read_task_head(body: Body) -> TaskHead:
    """Return the id and status of a task's record after checking that all of it is JSON.

    Raises
    ------
    ProtocolError
        If the bytes are not JSON, or no object with the two fields as strings. The message repeats no
        content.
    """
    try:
        return _HEAD.decode(body)
    except (msgspec.DecodeError, RecursionError):
        # Bare NaN and lone surrogates, which Python's own writers emit, are read by the patient parser.
        content = _json.loads(body)
    return _head_of(content)


def _head_of(content: Any) -> TaskHead:
    try:
        return msgspec.convert(content, TaskHead)
    except msgspec.ValidationError as exc:
        problem = f"not a task record: {exc}"
    raise ProtocolError(problem)
