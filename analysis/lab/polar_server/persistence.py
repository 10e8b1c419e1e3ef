"""Writes session results and captured model calls in the layout that Polar leaves on disk.

::

    <save_dir>/task_<task_id>/ses_<session_id>.json
    <save_dir>/task_<task_id>/sessions/<session_id>/completions/0001-msg_<12 hex>.json

Unlike Polar, a file appears under its final name only when it is complete.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from analysis.lab.polar_server.events import now_iso
from analysis.lab.polar_server.state import SessionRecord
from analysis.lab.polar_server.wire import encode

DEFAULT_MAX_FIELD_BYTES = 1_048_576
"""Approximate size above which one top-level field of a completion file is cut."""


class ResultStore:
    """The files under one ``save_dir``.

    Parameters
    ----------
    save_dir
        Folder for the tree; None keeps nothing. Paths in results are written as given, relative or absolute.
    max_field_bytes
        Limit per top-level field of completion files.
    """

    def __init__(
        self, save_dir: str | Path | None, *, max_field_bytes: int = DEFAULT_MAX_FIELD_BYTES
    ) -> None:
        self.save_dir = None if save_dir is None else Path(save_dir)
        self._max_field_bytes = max_field_bytes

    def write_session(self, session: SessionRecord) -> str | None:
        """Write ``ses_<id>.json`` without ``trajectory.status`` and ``trajectory.error``; return its path.

        Raises
        ------
        OSError
            When the file cannot be written; the task then fails as a whole.
        """
        if self.save_dir is None or session.result is None:
            return None
        path = self.save_dir / f"task_{session.task_id}" / f"ses_{session.session_id}.json"
        _replace(path, _ascii(stored_form(session.result)))
        return str(path)

    def write_completion(
        self, record: dict[str, Any], *, task_id: str, session_id: str, number: int
    ) -> str | None:
        """Write one captured model call under its number in the session; return its path.

        `record` has the keys of the live form (``request``); the file says ``transformed_request`` and
        carries ``__written_at``. Bare NaN is possible in these files, as in Polar's.
        """
        if self.save_dir is None:
            return None
        folder = self.save_dir / f"task_{task_id}" / "sessions" / session_id / "completions"
        path = folder / f"{number:04d}-{record['completion_id']}.json"
        stored = {
            "transformed_request" if key == "request" else key: self._limited(value)
            for key, value in record.items()
        }
        stored["__written_at"] = now_iso()
        _replace(path, json.dumps(stored).encode("ascii"))
        return str(path)

    def _limited(self, value: Any) -> Any:
        limit = self._max_field_bytes
        if approximate_size(value) <= limit:
            return value
        if isinstance(value, str):
            return value.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore") + "…"
        if isinstance(value, dict):
            return _leading_keys(value, limit)
        if isinstance(value, list):
            return _leading_items(value, limit)
        return value


def stored_form(result: dict[str, Any]) -> dict[str, Any]:
    """Return the session result as Polar stores it: its trajectory without ``status`` and ``error``."""
    trajectory = result.get("trajectory")
    if not isinstance(trajectory, dict):
        return result
    kept = {key: value for key, value in trajectory.items() if key not in ("status", "error")}
    return {**result, "trajectory": kept}


def approximate_size(value: Any) -> int:
    """Return Polar's size estimate in bytes.

    UTF-8 length for strings, 16 per number or boolean, 0 for null, sums for containers.
    """
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if value is None:
        return 0
    if isinstance(value, dict):
        return sum(approximate_size(key) + approximate_size(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(approximate_size(item) for item in value)
    return 16


def _leading_keys(value: dict[str, Any], limit: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    used = 0
    keys = list(value)
    for position, key in enumerate(keys):
        used += approximate_size(key) + approximate_size(value[key])
        if used > limit:
            return {**kept, "__truncated": True, "_truncated_keys_omitted": keys[position:]}
        kept[key] = value[key]
    return kept


def _leading_items(value: list[Any], limit: int) -> list[Any]:
    kept: list[Any] = []
    used = 0
    for item in value:
        used += approximate_size(item)
        if used > limit:
            return [*kept, {"__truncated": True}]
        kept.append(item)
    return kept


def _ascii(value: Any) -> bytes:
    """Encode as compact ASCII JSON with null for non-finite numbers."""
    data = encode(value)
    if data.isascii():
        return data
    return json.dumps(json.loads(data), separators=(",", ":")).encode("ascii")


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
