"""Which reader reads which kind of file, and the one place where a failing file is kept from the others."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable
from types import MappingProxyType
from typing import Protocol

from analysis.errors import LoadError
from analysis.problems import Problem
from analysis.sources.base import FileRecords, ReadOptions, Sink, SourceFile, SourceKind

__all__ = ["READERS", "Reader", "read", "read_files"]

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """A reader's module."""

    def collect(self, file: SourceFile, sink: Sink, options: ReadOptions) -> None:
        """Add a file's rows to the sink.

        Raises
        ------
        LoadError, OSError
            If nothing of the file can be used. Single bad rows are added to the sink as problems instead.
        """
        ...


READERS = MappingProxyType(
    {
        SourceKind.POLAR_SESSION: "analysis.sources.polar_sessions",
        SourceKind.POLAR_TASK: "analysis.sources.polar_sessions",
        SourceKind.COMPLETION: "analysis.sources.completions",
        SourceKind.ROLLOUT_DUMP: "analysis.sources.rollout_dumps",
        SourceKind.TRAIN_DUMP: "analysis.sources.train_dumps",
        SourceKind.JOURNAL: "analysis.sources.journal",
        SourceKind.REJECTED: "analysis.sources.rejected",
        SourceKind.WEIGHT_PUSHES: "analysis.sources.weight_pushes",
        SourceKind.METRICS: "analysis.sources.metrics",
        SourceKind.WANDB: "analysis.sources.wandb_offline",
        SourceKind.PARQUET: "analysis.sources.parquet",
    }
)
"""Module of each kind; it is imported when the first such file is read."""


def read(file: SourceFile, *, options: ReadOptions | None = None) -> FileRecords:
    """Read one file; see `read_files`."""
    return read_files([file], options=options)


def read_files(files: Iterable[SourceFile], *, options: ReadOptions | None = None) -> FileRecords:
    """Read files into common tables, in the given order.

    A pure function of the files: the same files give the same tables. A file that cannot be read gives no
    rows and one problem; the others are untouched. Tables are built once, so many small files at a time are
    much cheaper than one by one.

    Parameters
    ----------
    files
        What to read.
    options
        How; None for the defaults.
    """
    chosen = options or ReadOptions()
    sink = Sink()
    for file in files:
        sink.begin(file)
        problem = _collect(file, sink, chosen)
        if problem is not None:
            sink.rollback()
            sink.problems.append(problem)
    return sink.records()


def _collect(file: SourceFile, sink: Sink, options: ReadOptions) -> Problem | None:
    reader: Reader = importlib.import_module(READERS[file.kind])
    try:
        reader.collect(file, sink, options)
    except LoadError as error:
        return Problem.of(file.path, error)
    except OSError as error:
        return Problem(
            file.path, "cannot be read", error.strerror or str(error), "check that it exists and is readable"
        )
    except (MemoryError, RecursionError) as error:
        return Problem(
            file.path,
            "too large or too deeply nested to be read",
            type(error).__name__,
            "raise `max_bytes` if it is genuine",
        )
    except Exception as error:  # whatever one file does to its reader, the others are read; it is listed
        logger.debug("%s: its reader failed", file.path, exc_info=True)
        return Problem(
            file.path,
            "its reader failed",
            f"{type(error).__name__}: {str(error)[:200]}",
            "this is a defect of the loader: please report it with the file",
        )
    return None
