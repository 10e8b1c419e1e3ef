"""What a run's files say, kept up to date: finds them, reads what is new, joins it, and remembers it on disk.

A `Store` is what all views of a run share. Nothing changes until a refresh has succeeded, so that an
interrupted one leaves what was there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from analysis import discovery
from analysis._tables import one_array
from analysis.errors import StrictLoadError
from analysis.index import Cached, fingerprint, index_folder, read_index, write_index
from analysis.merge import OWNER, merge
from analysis.parallel import EarlyWorkers, Engine, chunked, map_chunks, plan
from analysis.parquet_dataset import MANIFEST, dataset_of, joined, restore
from analysis.problems import Problem, Skipped
from analysis.records import Records, compacted, inner_schema, lost_file, read_slim, together, widen
from analysis.run_names import Root, name_runs
from analysis.schema import GRAINS, TOKEN_REFS
from analysis.sources.base import FileRecords, ReadOptions, SourceFile, SourceKind
from analysis.token_cache import TokenCache

__all__ = ["Settings", "Store"]

APPEND_ONLY = frozenset(
    {SourceKind.JOURNAL, SourceKind.REJECTED, SourceKind.WEIGHT_PUSHES, SourceKind.METRICS}
)
"""Kinds of files that only grow: what was read of them stays valid while their beginning stays the same."""

_HEAD_BYTES = 4096
_INDEX_FROM_BYTES = 4 * 2**20
_COMPACT_EVERY = 24
_NOT_FOR_READING = ("pandas",)
"""PyArrow imports it only to find out that a list is none of its types; a trusted pickle may need it."""

_UNREADABLE = "cannot be read"


@dataclass(frozen=True)
class Settings:
    """How a run is loaded.

    Attributes
    ----------
    options
        How files are read.
    strict
        Raise at the first problem.
    engine, workers, address
        As in `analysis.parallel.plan`.
    progress
        As in `analysis.parallel.map_chunks`.
    index
        As in `analysis.index.index_folder`.
    """

    options: ReadOptions = field(default_factory=ReadOptions)
    strict: bool = False
    engine: Engine = "auto"
    workers: int | None = None
    address: str | None = None
    progress: bool | None = None
    index: bool | str | os.PathLike[str] = True


@dataclass(frozen=True)
class _Part:
    """What is known of one root."""

    records: Records = field(default_factory=Records)
    heads: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    cached: Cached | None = None
    changed: bool = True
    parquet: tuple[SourceFile, ...] = ()


class Store:
    """The tables of a run, or of several.

    Parameters
    ----------
    roots
        What the user named.
    settings
        How to load it.

    Attributes
    ----------
    tables
        The joined tables: `analysis.records.inner_schema` and `analysis.merge.OWNER`.
    records
        Everything as it was read.
    run_names
        The run of each file.
    problems, skipped
        What went wrong, and what was left out.
    generation
        Grows whenever the tables change.
    token_cache
        Reads tokens for all views, and keeps the last whole readings.
    """

    def __init__(self, roots: Sequence[Root], settings: Settings) -> None:
        self.roots = tuple(roots)
        self.settings = settings
        self.tables: Mapping[str, pa.Table] = {}
        self.records = Records()
        self.run_names: Mapping[str, str] = {}
        self.problems: tuple[Problem, ...] = ()
        self.skipped: tuple[Skipped, ...] = ()
        self.generation = 0
        self.token_cache = TokenCache(settings.options)
        self._refs: tuple[int, pa.Table] | None = None
        self._join_problems: tuple[Problem, ...] = ()
        self._join_skipped: tuple[Skipped, ...] = ()
        self._restored_refs: list[pa.Table] = []
        self._parts: list[_Part] = [_Part() for _ in self.roots]
        self._made_with = fingerprint(settings.options)

    def refresh(self) -> bool:
        """Look for new and changed files, and read those.

        Returns
        -------
        bool
            Whether anything changed.

        Raises
        ------
        StrictLoadError
            With `strict`, at the first problem.
        EngineUnavailableError
            The engine that was asked for cannot be had.
        """
        first = self.generation == 0
        parts = [self._read(root, part, first) for root, part in zip(self.roots, self._parts, strict=True)]
        problems = tuple(problem for part in parts for problem in (*part.problems, *part.records.problems))
        self.strictly(problems)
        changed = any(part.changed for part in parts)
        if first or changed:
            self._join(parts)
        self._parts = [replace(part, cached=None) for part in parts]
        self.problems = (*problems, *self._join_problems)
        left_out = [item for part in parts for item in (*part.skipped, *part.records.skipped)]
        self.skipped = (*left_out, *self._join_skipped)
        return changed

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Every file that was read, Parquet included."""
        return tuple(file for part in self._parts for file in (*part.records.files.values(), *part.parquet))

    @property
    def token_refs(self) -> pa.Table:
        """Where token arrays lie: `analysis.schema.TOKEN_REFS` and the run of each."""
        if self._refs is None or self._refs[0] != self.generation:
            refs = widen(self.records.token_refs, TOKEN_REFS)
            paths = one_array(refs.column("path")).dictionary_encode()
            names = pa.array([self.run_names[path] for path in paths.dictionary.to_pylist()], pa.string())
            run = pa.DictionaryArray.from_arrays(paths.indices, names)
            own = refs.append_column("run", run.cast(pa.string()))
            self._refs = (self.generation, pa.concat_tables([own, *self._restored_refs]))
        return self._refs[1]

    def strictly(self, problems: Sequence[Problem]) -> None:
        """With `strict`, raise the first of these problems.

        Raises
        ------
        StrictLoadError
            If there is one.
        """
        if self.settings.strict and problems:
            raise StrictLoadError(str(problems[0]), "", "strict=False loads the rest")

    def _read(self, root: Root, before: _Part, first: bool) -> _Part:
        """Bring what is known of a root up to date."""
        problems: list[Problem] = []
        cached: Cached | None = None
        folder = index_folder(root.folder, self.settings.index) if root.is_folder else None
        if first and folder is not None:
            cached, damage = read_index(folder, root.folder, self._made_with)
            problems += [damage] if damage else []
        records = before.records if cached is None else cached.records
        heads = before.heads if cached is None else cached.heads
        with self._early_workers() as workers:
            found = discovery.discover(root.paths, known=records.files, fresh=partial(_expect, workers))
            parquet = tuple(file for file in found.files if file.kind == SourceKind.PARQUET)
            files = [file for file in found.files if file.kind != SourceKind.PARQUET]
            wanted, gone = _differences(files, records, heads)
            order = {file.path: place for place, file in enumerate(files)}
            fresh = self._fresh(wanted, records, gone, order, workers)
        changed = bool(wanted or gone) or (first and cached is None) or parquet != before.parquet
        return _Part(
            records=fresh,
            heads={**heads, **_heads(wanted)},
            problems=(*found.problems, *problems),
            skipped=tuple(item for item in found.skipped if os.path.basename(item.path) != MANIFEST),
            cached=cached,
            changed=changed,
            parquet=parquet,
        )

    def _early_workers(self) -> EarlyWorkers:
        settings = self.settings
        without = () if settings.options.trusted else _NOT_FOR_READING
        return EarlyWorkers(self._read_slim, settings.engine, settings.workers, without)

    @property
    def _read_slim(self) -> Callable[[Sequence[SourceFile]], FileRecords]:
        return partial(read_slim, options=self.settings.options)

    def _fresh(
        self,
        wanted: Sequence[SourceFile],
        before: Records,
        gone: set[str],
        order: Mapping[str, int],
        workers: EarlyWorkers,
    ) -> Records:
        """Read files, and put what they say in the place of what was known of them."""
        tails = {file.path: file.since for file in wanted if file.since is not None}
        again = {file.path for file in wanted if file.since is None}
        records = before.without(gone | (again & before.files.keys()), tails=tails)
        if not wanted:
            return records
        settings = self.settings
        how = plan(
            settings.engine,
            workers=settings.workers,
            total_bytes=sum(_unread(file) for file in wanted),
            address=settings.address,
        )
        results = map_chunks(
            self._read_slim,
            chunked(wanted, _unread),
            how,
            lost=lost_file,
            size=_unread,
            progress=settings.progress,
            without=workers.without,
            started=workers.pool,
        )
        waiting: list[FileRecords] = []
        pieces: list[FileRecords] = []
        with closing(results):
            for part in results:
                self.strictly(part.problems)
                waiting.append(_retried(part))
                if len(waiting) == _COMPACT_EVERY:
                    pieces.append(compacted(waiting))
                    waiting.clear()
                    pa.default_memory_pool().release_unused()
        return records.plus([*pieces, *waiting], order)

    def _join(self, parts: list[_Part]) -> None:
        """Make the joined tables, or take them from the index where nothing changed since it was written."""
        names = name_runs(self.roots, [list(part.records.files.values()) for part in parts])
        single = parts[0].cached if len(parts) == 1 and not parts[0].changed else None
        if single is not None and single.merged_with == _names_text(names):
            tables, problems, skipped = _complete(single.merged), single.merge_problems, single.merge_skipped
        else:
            tables, problems, skipped = self._merged(parts, names)
        restored = [restore(files, self.settings.options) for files in _datasets(parts)]
        if restored:
            alone = not names
            tables = joined([*([] if alone else [tables]), *(dataset.tables for dataset in restored)])
        pa.default_memory_pool().release_unused()
        self.tables, self.run_names = tables, names
        self.records = together([part.records for part in parts])
        self._restored_refs = [dataset.token_refs for dataset in restored]
        self._join_problems = (*problems, *(p for dataset in restored for p in dataset.problems))
        self._join_skipped = skipped
        self.strictly(self._join_problems)
        self.token_cache.clear()
        self.generation += 1

    def _merged(
        self, parts: list[_Part], names: Mapping[str, str]
    ) -> tuple[dict[str, pa.Table], tuple[Problem, ...], tuple[Skipped, ...]]:
        """Join everything, and remember it."""
        merged = merge(
            together([part.records for part in parts]), names, trusted=self.settings.options.trusted
        )
        tables = dict(merged.tables)
        for place, (root, part) in enumerate(zip(self.roots, parts, strict=True)):
            content = Cached(records=part.records, heads=part.heads)
            if len(parts) == 1:
                content = replace(
                    content,
                    merged=tables,
                    merged_with=_names_text(names),
                    merge_problems=merged.problems,
                    merge_skipped=merged.skipped,
                )
            parts[place], kept = self._remember(root, part, content)
            if kept is not None and len(parts) == 1:
                tables = _complete(kept.merged)
        return tables, merged.problems, merged.skipped

    def _remember(self, root: Root, part: _Part, content: Cached) -> tuple[_Part, Cached | None]:
        """Write the index where it is wanted and pays; what it maps takes the place of what is in memory."""
        folder = index_folder(root.folder, self.settings.index) if root.is_folder else None
        total = sum(file.size for file in part.records.files.values())
        if folder is None or (self.settings.index is True and total < _INDEX_FROM_BYTES):
            return part, None
        if write_index(folder, root.folder, self._made_with, content) is not None:
            return part, None  # loading goes on without it; the index says why in the log
        kept, _ = read_index(folder, root.folder, self._made_with)
        if kept is None or kept.records.files.keys() != part.records.files.keys():
            return part, None  # another process was faster
        return replace(part, records=kept.records), kept


def _expect(workers: EarlyWorkers, file: SourceFile) -> None:
    """Prepare for a file; what only grew, or is restored by itself, needs no helpers."""
    if file.kind not in APPEND_ONLY and file.kind != SourceKind.PARQUET:
        workers.expect(file.size)


def _differences(
    files: Sequence[SourceFile], records: Records, heads: Mapping[str, str]
) -> tuple[list[SourceFile], set[str]]:
    """Return what has to be read, and which files are no longer there."""
    wanted: list[SourceFile] = []
    for file in files:
        known = records.files.get(file.path)
        if known is None or known.kind != file.kind:
            wanted.append(file)
        elif (known.size, known.mtime_ns) != (file.size, file.mtime_ns):
            wanted.append(_continued(file, records, heads))
    return wanted, set(records.files) - {file.path for file in files}


def _continued(file: SourceFile, records: Records, heads: Mapping[str, str]) -> SourceFile:
    """Read on from where the last reading stopped, if the file only grew."""
    position = records.positions.get(file.path)
    grows = file.kind in APPEND_ONLY and position is not None and file.size >= position.offset > 0
    if grows and heads.get(file.path) == _head(file.path, records.files[file.path].size):
        return replace(file, since=position)
    return file


def _head(path: str, size: int) -> str:
    """Return a digest of the beginning of a file, of at most its first `size` bytes."""
    try:
        with open(path, "rb") as stream:
            return hashlib.blake2b(stream.read(min(size, _HEAD_BYTES)), digest_size=16).hexdigest()
    except OSError:
        return ""


def _heads(files: Sequence[SourceFile]) -> dict[str, str]:
    return {file.path: _head(file.path, file.size) for file in files if file.kind in APPEND_ONLY}


def _unread(file: SourceFile) -> int:
    return max(0, file.size - (file.since.offset if file.since is not None else 0))


def _retried(part: FileRecords) -> FileRecords:
    """Mark files that could not be opened: they are tried again, though nothing about them may change."""
    failed = {problem.path for problem in part.problems if problem.what == _UNREADABLE}
    if not failed:
        return part
    files = tuple(replace(file, mtime_ns=-1) if file.path in failed else file for file in part.files)
    return replace(part, files=files)


def _complete(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return tables with all their columns: those without a value are left out of the index."""
    owner = pa.field(OWNER, pa.int64())
    return {grain: widen(tables[grain], inner_schema(grain).append(owner)) for grain in GRAINS}


def _names_text(names: Mapping[str, str]) -> str:
    return repr(sorted(set(names.values())))


def _datasets(parts: Sequence[_Part]) -> list[list[SourceFile]]:
    """Return the Parquet files of each dataset."""
    found: dict[str, list[SourceFile]] = {}
    for part in parts:
        for file in part.parquet:
            found.setdefault(dataset_of(file.path), []).append(file)
    return list(found.values())
