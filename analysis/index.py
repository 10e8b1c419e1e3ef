"""What was read, kept beside the data: the second load of a run opens it instead of reading the files again.

::

    <run>/.workbench/CURRENT              names the generation that counts
    <run>/.workbench/index-<generation>/  manifest.json, and one Arrow IPC file per table

The index is a cache and never the truth: each file is checked against its size and time, anything damaged or
of another version is ignored and made anew, and where the folder cannot be written the index goes to the
user's cache folder. A generation appears as a whole; readers of an older one keep what they have opened.

Knows nothing about formats, nor about how tables are joined.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import msgspec
import pyarrow as pa

from analysis.problems import Problem, Skipped
from analysis.records import Records, renamed_paths, slim
from analysis.schema import SCHEMA_VERSION
from analysis.sources.base import Position, ReadOptions, SourceFile, SourceKind

__all__ = ["FOLDER", "Cached", "fingerprint", "index_folder", "read_index", "write_index"]

logger = logging.getLogger(__name__)

FOLDER = ".workbench"
"""Name of the folder beside the data."""

INDEX_VERSION = 2
_CURRENT = "CURRENT"
_MANIFEST = "manifest.json"
_PREFIX = "index-"
_POINTED_TO_WITHIN = 60.0  # seconds; a rename and a small file, on a slow file system
_README = "Made by `workbench`: what it has read of this run, for the next time. Safe to delete.\n"


@dataclass(frozen=True)
class Cached:
    """What an index holds.

    Attributes
    ----------
    records
        Rows as they were read, per file.
    merged
        The joined tables of all these files.
    merged_with
        What the joined tables depend on beside the rows, such as the names of runs.
    merge_problems, merge_skipped
        What was wrong, and what was left out, in joining them.
    heads
        Digests of the beginnings of append-only files, by path.
    """

    records: Records = field(default_factory=Records)
    merged: Mapping[str, pa.Table] = field(default_factory=dict)
    merged_with: str = ""
    merge_problems: tuple[Problem, ...] = ()
    merge_skipped: tuple[Skipped, ...] = ()
    heads: Mapping[str, str] = field(default_factory=dict)


class _Entry(msgspec.Struct, array_like=True):
    """One file, named relative to the run's folder."""

    path: str
    kind: str
    size: int
    mtime_ns: int
    explicit: bool


class _Head(msgspec.Struct):
    """What decides whether the rest can be read at all."""

    version: int
    fingerprint: str


class _Manifest(_Head):
    merged_with: str
    sizes: dict[str, int]
    files: list[_Entry]
    problems: list[tuple[str, str, str, str]]
    skipped: list[tuple[str, str]]
    positions: dict[str, Position]
    merge_problems: list[tuple[str, str, str, str]]
    merge_skipped: list[tuple[str, str]]
    heads: dict[str, str]


def fingerprint(options: ReadOptions) -> str:
    """Return what an index must have been made with to be of use: options, schema, code of the readers.

    Parameters
    ----------
    options
        How files are read.
    """
    parts = repr((INDEX_VERSION, SCHEMA_VERSION, options)) + _code()
    return hashlib.sha256(parts.encode()).hexdigest()


def index_folder(root: Path, wanted: bool | str | os.PathLike[str]) -> Path | None:
    """Return where the index of a run's folder is or goes.

    Parameters
    ----------
    root
        The folder that is loaded.
    wanted
        False for no index, a folder of the user's choice, or True for ``.workbench`` in the run's folder, or
        the user's cache folder where the run's cannot be written.
    """
    if wanted is False:
        return None
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    if wanted is not True:
        return Path(wanted) / name
    beside = root / FOLDER
    if os.access(beside if beside.exists() else root, os.W_OK):
        return beside
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "slime-bridge-workbench" / name


def read_index(folder: Path, root: Path, made_with: str) -> tuple[Cached | None, Problem | None]:
    """Open the index of a folder.

    Parameters
    ----------
    folder
        From `index_folder`.
    root
        The run's folder, as paths are to begin.
    made_with
        From `fingerprint`.

    Returns
    -------
    cached
        None where there is no index, or none of this version.
    problem
        What is wrong with an index that is there and cannot be used.
    """
    try:
        generation = folder / _PREFIX / (folder / _CURRENT).read_text(encoding="ascii").strip()
        generation = folder / f"{_PREFIX}{generation.name}"
        content = (generation / _MANIFEST).read_bytes()
        head = msgspec.json.decode(content, type=_Head)
        if (head.version, head.fingerprint) != (INDEX_VERSION, made_with):
            return None, None
        manifest = msgspec.json.decode(content, type=_Manifest)
        for name, size in manifest.sizes.items():
            if Path(name).name != name or (generation / name).stat().st_size != size:
                raise ValueError(f"{name} is torn")
        tables = {name: _open(generation / name) for name in manifest.sizes}
        return _cached(manifest, tables, partial(os.path.join, root)), None
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, pa.ArrowException, msgspec.MsgspecError) as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        return None, Problem(str(folder), "the index is damaged and was not used", why, "it is made anew")


def write_index(folder: Path, root: Path, made_with: str, content: Cached) -> Problem | None:
    """Replace the index in one step.

    Returns
    -------
    Problem or None
        Why it could not be written; loading goes on without it.
    """
    token = f"{os.getpid():x}-{secrets.token_hex(4)}"
    partial_folder = folder / f".{_PREFIX}{token}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _describe(folder)
        partial_folder.mkdir()
        _write(partial_folder, content, made_with, partial(os.path.relpath, start=root))
        partial_folder.rename(folder / f"{_PREFIX}{token}")
        pointer = folder / f".{_CURRENT}.{token}"
        pointer.write_text(f"{token}\n", encoding="ascii")
        pointer.replace(folder / _CURRENT)
    except OSError as error:
        shutil.rmtree(partial_folder, ignore_errors=True)
        logger.info("%s: no index was written: %s", folder, error)
        return Problem(
            str(folder), "no index could be written", error.strerror or str(error), "index=False turns it off"
        )
    _sweep(folder, token)
    return None


def _describe(folder: Path) -> None:
    """Say what the folder is, to people and to version control."""
    for name, text in (("README", _README), (".gitignore", "*\n")):
        if not (folder / name).exists():
            (folder / name).write_text(text, encoding="ascii")


def _write(folder: Path, content: Cached, made_with: str, rename: Callable[[str], str]) -> None:
    records = content.records.renamed(rename)
    tables = {f"{grain}.arrow": table for grain, table in records.tables.items()}
    tables["token_refs.arrow"] = records.token_refs
    for grain, table in content.merged.items():
        tables[f"merged-{grain}.arrow"] = renamed_paths(slim(table), rename)
    for name, table in tables.items():
        _save(folder / name, table)
    manifest = _Manifest(
        version=INDEX_VERSION,
        fingerprint=made_with,
        merged_with=content.merged_with,
        sizes={name: (folder / name).stat().st_size for name in tables},
        files=[_Entry(f.path, f.kind, f.size, f.mtime_ns, f.explicit) for f in records.files.values()],
        problems=[(p.path, p.what, p.why, p.fix) for p in records.problems],
        skipped=[(item.path, item.reason) for item in records.skipped],
        positions=dict(records.positions),
        merge_problems=[(p.path, p.what, p.why, p.fix) for p in content.merge_problems],
        merge_skipped=[(item.path, item.reason) for item in content.merge_skipped],
        heads={
            rename(path): digest for path, digest in content.heads.items() if path in content.records.files
        },
    )
    (folder / _MANIFEST).write_bytes(msgspec.json.encode(manifest))


def _save(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def _open(path: Path) -> pa.Table:
    """Map a table into memory: its columns are read from the disk when somebody looks at them."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    table.validate()
    return table


def _cached(manifest: _Manifest, tables: dict[str, pa.Table], rename: Callable[[str], str]) -> Cached:
    files = {
        e.path: SourceFile(e.path, SourceKind(e.kind), e.size, e.mtime_ns, e.explicit) for e in manifest.files
    }
    records = Records(
        files=files,
        tables={
            name.removesuffix(".arrow"): table
            for name, table in tables.items()
            if not name.startswith("merged-") and name != "token_refs.arrow"
        },
        token_refs=tables["token_refs.arrow"],
        problems=tuple(Problem(*item) for item in manifest.problems),
        skipped=tuple(Skipped(*item) for item in manifest.skipped),
        positions=manifest.positions,
    )
    merged = {
        name.removeprefix("merged-").removesuffix(".arrow"): renamed_paths(table, rename)
        for name, table in tables.items()
        if name.startswith("merged-")
    }
    return Cached(
        records=records.renamed(rename),
        merged=merged,
        merged_with=manifest.merged_with,
        merge_problems=tuple(Problem(*item) for item in manifest.merge_problems),
        merge_skipped=tuple(Skipped(*item) for item in manifest.merge_skipped),
        heads={rename(path): digest for path, digest in manifest.heads.items()},
    )


def _sweep(folder: Path, token: str) -> None:
    """Remove generations that no longer count, and what killed writers left behind."""
    with contextlib.suppress(OSError):  # somebody sweeps as well, or removes the whole folder
        for entry in folder.iterdir():
            ours = entry.name.startswith((_PREFIX, f".{_PREFIX}", f".{_CURRENT}."))
            if ours and token not in entry.name and not _at_work(entry):
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)


def _at_work(entry: Path) -> bool:
    """Whether another process that is named in an entry's name may still need it.

    Partial entries are its own as long as it runs. A whole generation it may just have put there, and point
    to it next: for a while it stays, though ours came later.
    """
    name = entry.name
    try:
        pid = int(name.lstrip(".").removeprefix(_PREFIX).removeprefix(f"{_CURRENT}.").split("-")[0], 16)
        os.kill(pid, 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    if name.startswith("."):
        return True
    return pid != os.getpid() and time.time() - entry.stat().st_mtime < _POINTED_TO_WITHIN


@cache
def _code() -> str:
    """Return a digest of everything that turns files into rows: an index made by other code is of no use."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("sources/*.py")]):
        with contextlib.suppress(OSError):  # not installed as files: the version number has to do
            digest.update(path.read_bytes())
    return digest.hexdigest()
