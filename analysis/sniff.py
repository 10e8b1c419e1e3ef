"""What a file is, from its name and its first bytes.

A name that only one format uses decides at once, without a look inside; its reader still checks the content.
Everything else is decided by content, so that a run whose files were renamed, or a folder in which results
lie among other JSON, loads as well. A file that no reader is for gets a reason instead of a kind.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import PurePath

import msgspec

from analysis.sources.base import SourceKind
from analysis.sources.dump_names import parse_dump_name

__all__ = ["HEAD_BYTES", "by_content", "by_name", "is_unnamed_dump", "top_level_keys"]

HEAD_BYTES = 1 << 16
"""How much of a file `by_content` wants to see at first, in bytes."""

_SESSION_FILE = re.compile(r"ses_.+\.json")
_COMPLETION_FILE = re.compile(r"\d+-.+\.json")
_LINES = (
    ("journal", SourceKind.JOURNAL),
    ("rejected", SourceKind.REJECTED),
    ("weight_pushes", SourceKind.WEIGHT_PUSHES),
    ("metrics", SourceKind.METRICS),
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]:,]', re.DOTALL)
_DUMP_NAME = re.compile(rb"(?:X.\x00\x00\x00|\x8c.)(rollout_data|samples)", re.DOTALL)
_DUMP_HEAD = 2048
_ARCHIVE = b"PK\x03\x04"
_COMPRESSED = {".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".7z", ".lz4"}
_SESSION_KEYS = {"session_id", "task_id", "status"}
_SHOWN_KEYS = 6


def by_name(path: str) -> SourceKind | None:
    """Return the kind of a file whose name and place only one format uses, None where that is not certain."""
    # `pathlib` takes three times as long, and all files of a run are asked.
    parent, name = os.path.split(path)
    folder, suffix = os.path.basename(parent), os.path.splitext(name)[1]
    if _SESSION_FILE.fullmatch(name) and folder.startswith("task_"):
        return SourceKind.POLAR_SESSION
    if _COMPLETION_FILE.fullmatch(name) and folder == "completions":
        return SourceKind.COMPLETION
    if suffix == ".wandb":
        return SourceKind.WANDB
    if suffix == ".jsonl":
        return next((kind for stem, kind in _LINES if re.fullmatch(rf"{stem}(\.\d+)?\.jsonl", name)), None)
    return None


def by_content(path: PurePath, head: bytes) -> SourceKind | str:
    """Return the kind of a file, or why no reader is for it.

    Parameters
    ----------
    path
        Its name and place.
    head
        Its first bytes, `HEAD_BYTES` of them or all.
    """
    suffix = path.suffix.lower()
    if suffix == ".pt":
        return _dump_kind(path, head)
    if suffix == ".json":
        return _json_kind(path, head)
    if suffix == ".jsonl":
        return _lines_kind(path, head)
    if suffix == ".parquet":
        return SourceKind.PARQUET if head.startswith(b"PAR1") else "not a Parquet file, in spite of its name"
    if suffix in _COMPRESSED:
        return "a compressed file: unpack it to load what is inside"
    return f"no reader for {suffix or 'files without an extension'}"


def is_unnamed_dump(path: PurePath) -> bool:
    """Tell whether a dump's name holds no rollout id."""
    return path.suffix == ".pt" and parse_dump_name(path.name).rollout_id is None


def _dump_kind(path: PurePath, head: bytes) -> SourceKind | str:
    name = parse_dump_name(path.name)
    folder = path.parent.name
    expected = (
        SourceKind.TRAIN_DUMP if folder == "train_data" or name.rank is not None else SourceKind.ROLLOUT_DUMP
    )
    placed = folder in ("rollout_data", "train_data")
    if not head.startswith(_ARCHIVE):
        # Torn, empty or in PyTorch's old format: where a dump must be, the reader says what is wrong with it.
        if placed or (name.rollout_id is not None and not head):
            return expected
        return "no archive that `torch.save` wrote"
    # `torch.save` puts the pickle first, and a dump's few top-level names stand at its beginning.
    names = set(_DUMP_NAME.findall(head[:_DUMP_HEAD]))
    if b"rollout_data" in names:
        return SourceKind.TRAIN_DUMP
    if b"samples" in names:
        return SourceKind.ROLLOUT_DUMP
    return expected if placed else "a PyTorch file, but none of Slime's dumps"


def _json_kind(path: PurePath, head: bytes) -> SourceKind | str:
    keys = set(top_level_keys(head))
    if {"session_id", "trajectory"} <= keys:
        return SourceKind.POLAR_SESSION
    if "task_id" in keys and keys & {"results", "total_sessions"}:
        return SourceKind.POLAR_TASK
    if "completion_id" in keys and keys & {"response", "original_request", "transformed_request", "request"}:
        return SourceKind.COMPLETION
    if _SESSION_FILE.fullmatch(path.name) or (len(head) == HEAD_BYTES and keys >= _SESSION_KEYS):
        # Torn before the telling key, or that key comes late: the reader will see.
        return SourceKind.POLAR_SESSION
    if not head.strip(b" \r\n\t\x00"):
        return "an empty file"
    if not keys:
        return "JSON, but no object" if head.lstrip().startswith((b"[", b'"')) else "not JSON, or not yet"
    return f"JSON, but nothing known: an object with {_shown(keys)}"


def _lines_kind(path: PurePath, head: bytes) -> SourceKind | str:
    line = next((part for part in head.splitlines() if part.strip()), b"")
    try:
        first = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        first = dict.fromkeys(top_level_keys(line))
    if not isinstance(first, dict) or not first:
        named = next((kind for stem, kind in _LINES if path.name.startswith(stem)), None)
        return named or "JSON lines, but the first one is no complete object"
    if {"v", "seq", "event"} <= first.keys():
        return SourceKind.JOURNAL
    if {"v", "group", "samples"} <= first.keys():
        return SourceKind.REJECTED
    if {"ts", "server", "guarded"} <= first.keys():
        return SourceKind.WEIGHT_PUSHES
    placed = first.keys() & {"rollout_id", "step", "rollout/step", "eval/step", "_step"}
    numbers = sum(isinstance(value, int | float) and "/" in name for name, value in first.items())
    if placed and numbers:
        return SourceKind.METRICS
    return f"JSON lines, but nothing known: objects with {_shown(set(first))}"


def _shown(keys: set[str]) -> str:
    shown = ", ".join(sorted(key[:40] for key in keys)[:_SHOWN_KEYS])
    return f"{shown} …" if len(keys) > _SHOWN_KEYS else shown


def top_level_keys(head: bytes) -> Iterator[str]:
    """Give the keys of the JSON object that begins here, as far as it is there."""
    depth, last = 0, b""
    for match in _TOKEN.finditer(head):
        token = match[0]
        if token in (b"{", b"["):
            if not depth and token == b"[":
                return
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth <= 0:
                return
        elif token == b":" and depth == 1:
            try:
                yield str(json.loads(last))
            except ValueError:
                return
        last = token
