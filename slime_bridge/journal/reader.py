"""Tolerant reading of journal files: torn and foreign lines are passed over and reported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_bridge.errors import JournalError
from slime_bridge.journal.schema import SCHEMA_VERSION

__all__ = ["RUN_SUBFOLDER", "JournalProblem", "read_journal"]

RUN_SUBFOLDER = "polar"
"""Where a run keeps its journals unless `polar_run_dir` says otherwise."""


@dataclass(frozen=True, slots=True)
class JournalProblem:
    """One line that a reader passed over: where it stands, and what is wrong with it."""

    path: Path
    line: int
    message: str


def read_journal(
    path: str | os.PathLike[str], *, problems: list[JournalProblem] | None = None
) -> Iterator[dict[str, Any]]:
    """Read the records of a journal, or of a ``rejected.jsonl``, line by line.

    Parameters
    ----------
    path
        The file, or a folder: then all its ``journal*.jsonl`` one after the other. A run folder stands for
        the ``polar`` in it, where the bridge keeps them by default.
    problems
        Receives one entry per line that is no record: torn, empty of meaning, or of a newer schema.

    Yields
    ------
    dict
        Records in file order, as written; missing numbers are None.

    Raises
    ------
    JournalError
        The path does not exist or cannot be read.
    """
    files = _files(Path(path))
    found: list[JournalProblem] = [] if problems is None else problems
    for file in files:
        try:
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    yield from _parse(file, number, line, found)
        except OSError as error:
            words = error.strerror or str(error)
            raise JournalError(f"{file} cannot be read: {words[:1].lower()}{words[1:]}") from error


def _files(root: Path) -> list[Path]:
    if not root.is_dir():
        return [root]
    for folder in (root, root / RUN_SUBFOLDER):
        found = sorted(folder.glob("journal*.jsonl"), key=lambda p: (len(p.name), p.name))
        if found:
            return found
    raise JournalError(
        f"{root}: no journal.jsonl in this folder, nor in a folder {RUN_SUBFOLDER} below it; name the run's "
        "folder, or what polar_run_dir says"
    )


def _parse(file: Path, number: int, line: bytes, problems: list[JournalProblem]) -> Iterator[dict[str, Any]]:
    if not line.strip():
        return
    try:
        record = json.loads(line)
    except ValueError:
        problems.append(JournalProblem(file, number, "not a complete JSON record (a torn line)"))
        return
    if not isinstance(record, dict) or not isinstance(record.get("v"), int):
        problems.append(JournalProblem(file, number, "no journal record: the field v is missing"))
    elif record["v"] > SCHEMA_VERSION:
        problems.append(
            JournalProblem(file, number, f"schema version {record['v']} is newer than {SCHEMA_VERSION}")
        )
    else:
        yield record
