"""What a user asked, out of what was kept of a prompt."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["prompt_text"]

_CONTENT = re.compile(r'"content"\s*:\s*"((?:[^"\\]|\\.)*)')


def prompt_text(preview: str | None) -> str | None:
    """Return what a user asked, out of the beginning of a prompt; the beginning itself if it is no chat."""
    if preview is None:
        return None
    try:
        messages: Any = json.loads(preview)
    except ValueError:
        found = _CONTENT.findall(preview)  # cut in the middle
        return _unquoted(found[-1]) if found else preview
    if isinstance(messages, list):
        said = [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
        spoken = [text for text in said if isinstance(text, str)]
        return spoken[-1] if spoken else preview
    return preview


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
