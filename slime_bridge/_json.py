"""JSON as servers and old files really send it, turned into plain builtins.

Python's writers emit bare ``NaN`` and ``Infinity``, and escapes of half a surrogate pair; strict parsers
refuse the whole document for one of them. `loads` reads such documents with the standard library, keeps the
numbers as floats and replaces each unpaired surrogate by U+FFFD, so that the text survives and can be encoded
again.

The module knows JSON only, nothing of Polar. It is the slow path: a typed decoder is several times faster.
"""

from __future__ import annotations

import json
import re
from typing import Any

from slime_bridge.errors import ProtocolError

__all__ = ["loads"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(data: bytes | memoryview | str) -> Any:
    """Parse one JSON document, tolerating what Python's own writers produce.

    Parameters
    ----------
    data
        UTF-8 bytes or a view of such, with or without a byte order mark, or text.

    Returns
    -------
    Any
        Builtins. ``NaN``, ``Infinity`` and numbers beyond the range of a float are floats.

    Raises
    ------
    ProtocolError
        If the document is not JSON, not UTF-8, too deeply nested or holds an absurdly long number. The
        message gives the position and never repeats the document.
    """
    try:
        text = data if isinstance(data, str) else bytes(data).decode("utf-8-sig", "surrogatepass")
        value = json.loads(text)
        return _without_surrogates(value) if _may_hold_surrogates(text) else value
    except json.JSONDecodeError as exc:
        problem = f"not JSON: {exc.msg} at character {exc.pos}"
    except UnicodeDecodeError as exc:
        problem = f"not UTF-8: {exc.reason} at byte {exc.start}"
    except RecursionError:
        problem = "too deeply nested"
    except ValueError:
        # The interpreter refuses to parse integers of thousands of digits.
        problem = "a number has too many digits"
    # Raised outside the handlers: the parser's error keeps the whole document alive as its context.
    raise ProtocolError(problem)


def _may_hold_surrogates(text: str) -> bool:
    return "\\ud" in text or "\\uD" in text or _SURROGATE.search(text) is not None


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
