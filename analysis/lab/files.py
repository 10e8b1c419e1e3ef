"""Files that are either whole or absent: written beside their final name and moved there in one step.

Knows nothing about what is written. A reader of a live run folder never meets a half-written file, and what
an interrupted writer leaves behind carries a name that `sweep_partial_files` recognises.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["append_json_line", "atomic_path", "cache_folder", "sweep_partial_files", "write_text"]

PARTIAL_SUFFIX = ".partial"


def cache_folder() -> Path:
    """Folder for results that can be made again: ``$SLIME_BRIDGE_CACHE``, else ``~/.cache/slime-bridge``."""
    named = os.environ.get("SLIME_BRIDGE_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "slime-bridge"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to: it becomes `path` when the block ends well, else it is removed.

    Parameters
    ----------
    path
        Final name. Its parent is created. An existing file is replaced in one step.

    Yields
    ------
    Path
        A name in the same folder that nobody else uses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        yield partial
        # Some writers create private files; the engine or a reader may run as another user.
        partial.chmod(stat.S_IMODE(partial.stat().st_mode) | 0o044)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` so that a reader sees the old or the new content, never a part."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON object as one line, handed to the system in a single write.

    Non-finite numbers become null: the file stays readable by strict JSON parsers, and null means "not known"
    there.
    """
    line = json.dumps(_without_non_finite(record), ensure_ascii=True, allow_nan=False) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def sweep_partial_files(folder: Path) -> list[Path]:
    """Remove what interrupted writers of this process left under `folder`; return what was removed."""
    mine = f".{os.getpid()}{PARTIAL_SUFFIX}"
    leftovers = [path for path in folder.rglob(f".*{mine}") if path.is_file()]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return leftovers


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, Mapping):
        return {str(key): _without_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_non_finite(item) for item in value]
    return value
