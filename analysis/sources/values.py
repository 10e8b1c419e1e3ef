"""Values of foreign files as cells: what does not fit a column is missing, never guessed and never an error.

Booleans are no numbers, NaN is missing, integers that do not fit 64 bits are missing, text is valid Unicode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

__all__ = ["boolean", "integer", "json_text", "mapping", "moment", "number", "text"]

_INT64 = 1 << 63
_MOST_CHARACTERS = 16 << 20
_CONTAINER = 64  # so that a list inside itself is given up soon
_TEXTS = (str, bytes, bytearray)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_MAX_SECONDS = 253_402_300_800.0  # the year 10000, where calendars end


def integer(value: Any) -> int | None:
    """Return an int that fits 64 bits; integral floats and NumPy integers count."""
    if type(value) is not int:
        if value is None or isinstance(value, bool | str | bytes):
            return None
        try:
            converted = int(value)
            if converted != value:
                return None
        except (TypeError, ValueError, OverflowError):
            return None
        value = converted
    return value if -_INT64 <= value < _INT64 else None


def number(value: Any) -> float | None:
    """Return a float; None for NaN. Infinities are kept: they are values."""
    if type(value) is not float:
        if value is None or isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            return None
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
    return None if math.isnan(value) else value


def boolean(value: Any) -> bool | None:
    """Return a bool; NumPy's count."""
    if isinstance(value, bool):
        return value
    return bool(value) if type(value).__name__ in ("bool", "bool_") else None


def text(value: Any, limit: int = 20_000) -> str | None:
    """Return text, cut at `limit` characters; numbers become text, half surrogate pairs U+FFFD."""
    if type(value) is str and len(value) <= limit and value.isascii():
        return value  # nearly always
    if not isinstance(value, str):
        if value is None or isinstance(value, bool | Mapping | list | tuple | bytes):
            return None
        try:
            value = str(value)
        except ValueError:  # an integer of more digits than Python writes
            return None
    if len(value) > limit:
        value = value[: max(0, limit - 1)] + "…"
    kept = str(value)
    return kept if kept.isascii() else kept.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_text(value: Any, limit: int = 20_000) -> str | None:
    """Return a value as JSON text, None for None and for empty containers.

    NaN and the infinities become null, objects of other types their text. Text longer than `limit` is
    replaced by ``{"__truncated": true, "characters": n}``, so that every cell is valid JSON; from some
    millions on, `n` is null.
    """
    if value is None or (isinstance(value, Mapping | list | tuple) and not value):
        return None
    if isinstance(value, _CONTAINERS) and _is_endless(value):
        return json.dumps({"__truncated": True, "characters": None})
    try:
        encoded = msgspec.json.encode(value, enc_hook=_described).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        encoded = _patient_json(value)
    if len(encoded) > limit:
        return json.dumps({"__truncated": True, "characters": len(encoded)})
    return text(encoded, limit)


def _is_endless(value: Any) -> bool:
    """Tell whether a value's text would be longer than anybody could want, without making it.

    A pickle of a few bytes can hold one list many times over, on every level, and a list inside itself.
    """
    left = _MOST_CHARACTERS
    waiting = [value]
    while waiting:
        item = waiting.pop()
        left -= _CONTAINER + len(item)
        if left < 0:
            return True
        inner = [*item, *item.values()] if isinstance(item, Mapping) else item
        left -= sum([len(part) for part in inner if isinstance(part, _TEXTS)])
        waiting += [part for part in inner if isinstance(part, _CONTAINERS)]
    return left < 0


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else."""
    if type(value) is dict or isinstance(
        value, Mapping
    ):  # the first is nearly always enough, and much quicker
        return value
    return {}


def moment(value: Any) -> int | None:
    """Return a moment in microseconds since 1970, UTC, from Unix seconds or an ISO 8601 text."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return None
        value = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    seconds = number(value)
    if seconds is None or abs(seconds) > _MAX_SECONDS:
        return None
    return round(seconds * 1_000_000)


def _patient_json(value: Any) -> str:
    """Encode what the fast encoder refuses: keys of any type, half surrogate pairs, enormous integers."""
    try:
        return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), default=_described)
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps({"__unreadable": type(error).__name__})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        raise TypeError("a tuple as a key")
    if hasattr(value, "item") and getattr(value, "size", None) == 1:
        return _plain(value.item())
    return f"<{type(value).__name__}>"
