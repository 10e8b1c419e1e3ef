"""Finds the files of a run: walks folders, tells formats apart, says of everything else why it is left out.

Follows symbolic links, but never twice to the same place. Hidden and temporary files, other people's folders
and unknown formats are listed as skipped. Numbers in names sort as numbers. Reads at most the first kilobytes
of a file, and nothing of those whose name decides.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from analysis.errors import LoadError
from analysis.problems import Problem, Skipped
from analysis.sniff import HEAD_BYTES, by_content, by_name, is_unnamed_dump
from analysis.sources.base import SourceFile, SourceKind
from analysis.sources.dump_names import parse_dump_name

__all__ = ["Discovery", "discover", "natural_key"]

_TEMPORARY = re.compile(r".*(\.tmp|\.temp|\.partial|\.part|\.incomplete|\.swp|\.bak|~)", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")
_FOLDERS = {
    "tokenizer": "a tokenizer: used for the text of tokens",
    "processor": "a processor of Slime's",
    "__pycache__": "compiled Python",
    "node_modules": "JavaScript packages",
}
_OWN_FOLDER = ".workbench"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found.

    Parameters
    ----------
    files
        Files to read, in the order of the walk: numbers in names as numbers.
    skipped
        Files and folders that were left out, with the reason.
    problems
        Folders that cannot be listed, and dumps of the same rollout beside each other.
    """

    files: tuple[SourceFile, ...]
    skipped: tuple[Skipped, ...]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Walk:
    known: Mapping[str, SourceFile]
    fresh: Callable[[SourceFile], None]
    files: list[SourceFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seen: dict[tuple[int, int], str] = field(default_factory=dict)


def discover(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    known: Mapping[str, SourceFile] | None = None,
    fresh: Callable[[SourceFile], None] = lambda file: None,
) -> Discovery:
    """Find the files of a run.

    Parameters
    ----------
    paths
        Files and folders. A file that is named here is read if it can be, whatever its name.
    known
        Files of an earlier look, by path: unchanged ones are not looked into again.
    fresh
        Called with each other file, as soon as it is found.

    Raises
    ------
    LoadError
        If one of the paths does not exist.
    """
    roots = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    walk = _Walk(known or {}, fresh)
    for given in roots:
        root = os.fspath(given)
        try:
            status = os.stat(root)
        except OSError as error:
            raise LoadError("there is no such file or folder", f"{root}: {error.strerror}") from error
        if stat.S_ISDIR(status.st_mode):
            _enter(walk, root, status)
        else:
            _take(walk, root, status, explicit=True)
    _leave_out_unnamed(walk)
    walk.problems.extend(_duplicates(walk.files))
    return Discovery(tuple(walk.files), tuple(walk.skipped), tuple(walk.problems))


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sorting key by which ``2.pt`` comes before ``10.pt``; equal numbers sort as text."""
    parts = _DIGITS.split(name)
    numbers = [
        (0, int(part), "") if index % 2 and len(part) < 40 else (1, 0, part)
        for index, part in enumerate(parts)
    ]
    return numbers, name


def _enter(walk: _Walk, root: str, status: os.stat_result) -> None:
    """Walk over a folder without recursion: trees may be deep."""
    if not _first_time(walk, root, status):
        return
    waiting = [iter(_entries(walk, root))]
    while waiting:
        entry = next(waiting[-1], None)
        if entry is None:
            waiting.pop()
            continue
        path = entry.path
        if (reason := _uninteresting(entry.name)) is not None:
            if reason:
                walk.skipped.append(Skipped(path, reason))
            continue
        try:
            found = entry.stat()
        except OSError:
            kind = "a symbolic link that leads nowhere" if entry.is_symlink() else "cannot be looked at"
            walk.skipped.append(Skipped(path, kind))
            continue
        if not stat.S_ISDIR(found.st_mode):
            _take(walk, path, found, explicit=False)
        elif entry.name in _FOLDERS:
            walk.skipped.append(Skipped(path, _FOLDERS[entry.name]))
        elif _first_time(walk, path, found):
            waiting.append(iter(_entries(walk, path)))


def _entries(walk: _Walk, folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as error:
        walk.problems.append(
            Problem(folder, "cannot be listed", error.strerror or str(error), "check its permissions")
        )
        return
    yield from sorted(found, key=lambda entry: natural_key(entry.name))


def _uninteresting(name: str) -> str | None:
    """Return why an entry is passed over, "" if nobody needs to know, None if it is not."""
    if name == _OWN_FOLDER:
        return ""
    if _TEMPORARY.fullmatch(name):
        return "a temporary file of some writer"
    return "hidden" if name.startswith(".") else None


def _first_time(walk: _Walk, path: str, status: os.stat_result) -> bool:
    place = (status.st_dev, status.st_ino)
    if place in walk.seen:
        if walk.seen[place] != path:
            walk.skipped.append(Skipped(path, f"the same as {walk.seen[place]}"))
        return False
    walk.seen[place] = path
    return True


def _take(walk: _Walk, path: str, status: os.stat_result, *, explicit: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        walk.skipped.append(Skipped(path, "no regular file"))
        return
    if not _first_time(walk, path, status):
        return
    before = walk.known.get(path)
    if before is not None and (before.size, before.mtime_ns) == (status.st_size, status.st_mtime_ns):
        kind: SourceKind | str = before.kind
    else:
        kind, before = _kind(path, status.st_size), None
    if isinstance(kind, SourceKind):
        walk.files.append(SourceFile(path, kind, status.st_size, status.st_mtime_ns, explicit))
        if before is None:
            walk.fresh(walk.files[-1])
    else:
        walk.skipped.append(Skipped(path, kind))
        if explicit:
            walk.problems.append(Problem(path, "cannot be loaded", kind))


def _kind(path: str, size: int) -> SourceKind | str:
    named = by_name(path)
    if named is not None:
        return named
    try:
        # The kind of a file that nobody may read is settled by the error.
        with open(path, "rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return by_content(PurePath(path), head)


def _leave_out_unnamed(walk: _Walk) -> None:
    """Leave out rollout dumps without an id where others have one: they are copies, or somebody's notes."""
    dumps = [file for file in walk.files if file.kind == SourceKind.ROLLOUT_DUMP and not file.explicit]
    unnamed = {file.path for file in dumps if is_unnamed_dump(PurePath(file.path))}
    named = {os.path.dirname(file.path) for file in dumps if file.path not in unnamed}
    for path in sorted(unnamed, key=natural_key):
        if os.path.dirname(path) in named:
            reason = "its name holds no rollout id, unlike those beside it; name it by itself to load it"
            walk.skipped.append(Skipped(path, reason))
            walk.files = [file for file in walk.files if file.path != path]


def _duplicates(files: Iterable[SourceFile]) -> Iterator[Problem]:
    """Give a problem for each dump that seems to be of the same rollout as one beside it."""
    first: dict[tuple[object, ...], str] = {}
    for file in files:
        if file.kind not in (SourceKind.ROLLOUT_DUMP, SourceKind.TRAIN_DUMP):
            continue
        folder, base = os.path.split(file.path)
        name = parse_dump_name(base)
        if name.rollout_id is None:
            continue
        key = (folder, file.kind, name)
        if key in first:
            yield Problem(
                file.path,
                "a second dump of the same rollout",
                f"beside {os.path.basename(first[key])}",
                "both are read; take one of them away",
            )
        first.setdefault(key, file.path)
