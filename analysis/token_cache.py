"""Tokens of a whole run are read once and kept, within a bound, for the next statistic that asks for them.

Shared by all views of a run: what was read of the whole serves its parts. A file that changed since is
noticed as without the cache: what is kept counts only while every file is as it was.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa

from analysis._identity import Ints
from analysis._tables import one_array, take_rows
from analysis.sources.base import ReadOptions
from analysis.token_files import TokenFiles
from analysis.tokens import TokenArrays, Window, read_tokens

__all__ = ["KEPT_BYTES", "TokenCache"]

KEPT_BYTES = 256 * 2**20
"""Most bytes of arrays that are kept: at 26 bytes a token, ten million tokens."""

_State = tuple[tuple[str, int, int], ...]


class TokenCache:
    """Reads tokens, and keeps the last whole readings, up to `KEPT_BYTES`.

    Parameters
    ----------
    options
        As the run was loaded.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._lock = threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a refresh that changed something."""
        with self._lock:
            self._files = TokenFiles(self._options)
            self._kept: list[_Kept] = []

    def read(
        self, traces: pa.Table, places: Ints, refs: pa.Table, *, window: Window = None, keep: bool = False
    ) -> TokenArrays:
        """Read the tokens of traces, or take them from what is kept; the arrays are read-only.

        Parameters
        ----------
        traces, refs, window
            As in `analysis.tokens.read_tokens`.
        places
            Of these traces in the run's table, int64, shape (n,): what is kept is known by them.
        keep
            Whether to keep what is read, if there is room and nothing was wrong with it.
        """
        with self._lock:
            if window is None and (known := self._known(places, refs)) is not None:
                return known
            state = _state(refs) if keep and window is None else None
            found = _frozen(read_tokens(traces, refs, self._files, window=window))
            if state is not None and not found.problems:
                self._keep(_Kept(state, places, found))
            return found

    def _known(self, places: Ints, refs: pa.Table) -> TokenArrays | None:
        for kept in self._kept:
            if np.isin(places, kept.places).all():
                if kept.state != _state(refs):
                    self._kept.clear()
                    return None
                return kept.arrays if np.array_equal(places, kept.places) else _part(kept, places)
        return None

    def _keep(self, new: _Kept) -> None:
        """Keep a reading in the place of its parts, and of the oldest ones where there is no room."""
        if _bytes(new.arrays) > KEPT_BYTES:
            return
        self._kept = [kept for kept in self._kept if not np.isin(kept.places, new.places).all()]
        self._kept.append(new)
        while sum(_bytes(kept.arrays) for kept in self._kept) > KEPT_BYTES:
            self._kept.pop(0)


@dataclass(frozen=True)
class _Kept:
    """The tokens of the traces at some places, read while the files were in a state."""

    state: _State
    places: Ints
    arrays: TokenArrays


def _part(kept: _Kept, places: Ints) -> TokenArrays:
    """Return the tokens of some of the traces, as reading those alone gives them."""
    arrays = kept.arrays
    order = np.argsort(kept.places, kind="stable")
    asked = order[np.searchsorted(kept.places, places, sorter=order)]
    # Which of the traces with tokens each one is; -1 for one without.
    with_tokens = np.full(len(kept.places), -1, dtype=np.int64)
    with_tokens[arrays.rows] = np.arange(len(arrays.rows))
    rows = np.flatnonzero(with_tokens[asked] >= 0).astype(np.int64)
    chosen = with_tokens[asked][rows]
    lengths = np.diff(arrays.offsets)[chosen]
    offsets = np.r_[0, np.cumsum(lengths, dtype=np.int64)].astype(np.int64)
    tokens = np.arange(offsets[-1]) + np.repeat(arrays.offsets[chosen] - offsets[:-1], lengths)
    columns = {name: take_rows(arrays.table.column(name), chosen) for name in arrays.table.column_names}
    flat = {name: getattr(arrays, name)[tokens] for name in _FLAT}
    return _frozen(replace(arrays, table=pa.table(columns), rows=rows, offsets=offsets, **flat))


_FLAT = tuple(
    f.name for f in fields(TokenArrays) if f.name not in ("table", "rows", "offsets", "problems", "text")
)


def _frozen(arrays: TokenArrays) -> TokenArrays:
    """Make the arrays read-only: others may be handed the same ones."""
    for name in ("rows", "offsets", *_FLAT):
        getattr(arrays, name).setflags(write=False)
    return arrays


def _bytes(arrays: TokenArrays) -> int:
    return sum(getattr(arrays, name).nbytes for name in ("rows", "offsets", *_FLAT))


def _state(refs: pa.Table) -> _State:
    """Return size and time of each file that holds tokens; one that is gone has neither."""
    return tuple(_state_of(one_array(refs.column("path").unique()).to_pylist()))


def _state_of(paths: Iterable[str]) -> Iterable[tuple[str, int, int]]:
    for path in sorted(paths):
        try:
            status = os.stat(path)
        except OSError:
            yield path, -1, -1
        else:
            yield path, status.st_size, status.st_mtime_ns
