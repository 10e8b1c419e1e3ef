"""JSON as Polar writes and reads it: fast where it is clean, tolerant where it is not."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec


def encode(value: Any, *, literal_nan: bool = False) -> bytes:
    """Encode `value` as compact JSON.

    Non-finite numbers become null, as Polar writes them; with `literal_nan` they become the bare literals
    ``NaN`` and ``Infinity``. Lone surrogates are kept as escapes.
    """
    if not literal_nan:
        try:
            return msgspec.json.encode(value)
        except UnicodeEncodeError:
            value = _finite(value)
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def decode(data: bytes) -> Any:
    """Decode JSON; bare NaN and Infinity and lone surrogates are accepted.

    Raises
    ------
    ValueError
        When it is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data)
