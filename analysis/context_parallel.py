"""Puts the per-token values of one sample together again that a trainer split over context-parallel ranks.

Slime cuts a sequence into twice as many chunks as there are ranks, and gives rank r the chunks r and
2 CP - 1 - r, so that causal attention costs every rank the same. What a rank dumps are the values of the
response tokens whose predecessor lies in its chunks. Dumps do not say how many ranks there were: that is read
from the lengths of the slices and the global ranks of the files, tensor-parallel ranks changing fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Layout", "assemble", "find_layout", "find_slice", "slice_places"]

Numbers = NDArray[np.float32]

_MAX_RANKS = 64


@dataclass(frozen=True)
class Layout:
    """How a sample is spread over files.

    Attributes
    ----------
    ranks
        Context-parallel ranks in all.
    rank_of
        The one of each file; files with equal ranks are tensor-parallel copies.
    """

    ranks: int
    rank_of: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether every rank is there."""
        return len(set(self.rank_of)) == self.ranks


def slice_places(
    rank: int, ranks: int, prompt: int, response: int, padded: int | None = None
) -> NDArray[np.int64]:
    """Return which response tokens the values of one rank belong to, in their order in the dump.

    Parameters
    ----------
    rank, ranks
        Context-parallel rank, and how many there are.
    prompt, response
        Tokens before and after the end of the prompt.
    padded
        Length that the sequence was padded to before it was cut; None where it was not.
    """
    length = prompt + response
    chunk = -(-(padded or length) // (2 * ranks))
    places = []
    for part in (rank, 2 * ranks - 1 - rank):
        # Position q predicts the token at q + 1, so that response token t belongs to q = prompt - 1 + t.
        first, last = max(part * chunk, prompt - 1), min((part + 1) * chunk, length - 1)
        places.append(np.arange(first, max(first, last)) - (prompt - 1))
    return np.concatenate(places).astype(np.int64)


def find_slice(
    samples: Iterable[tuple[int, int, int | None, int]], global_rank: int | None = None
) -> tuple[int, int] | None:
    """Find out which slice of its samples a single file holds: one sample fits many, a file of them one.

    Parameters
    ----------
    samples
        Tokens before and after the end of the prompt, padded length, and values in the file, of each sample.
    global_rank
        Of the process that wrote the file; None leaves it open.

    Returns
    -------
    tuple or None
        Context-parallel rank, and how many there are; None where none fits, or several do.
    """
    rank, ranks = np.triu_indices(_MAX_RANKS + 1, 1)
    fits = ranks >= 2
    if global_rank is not None:
        copies = np.arange(1, _MAX_RANKS + 1)[:, None]
        fits &= (global_rank // copies % ranks == rank).any(axis=0)
    ranks, rank = ranks[fits], rank[fits]
    for prompt, response, padded, count in samples:
        chunk = -(-(padded or prompt + response) // (2 * ranks))
        size = np.zeros(len(ranks), dtype=np.int64)
        for part in (rank, 2 * ranks - 1 - rank):
            first, last = np.maximum(part * chunk, prompt - 1), (part + 1) * chunk
            size += np.maximum(0, np.minimum(last, prompt + response - 1) - first)
        ranks, rank = ranks[size == count], rank[size == count]
        if not len(ranks):
            return None
    return (int(rank[0]), int(ranks[0])) if len(ranks) == 1 else None


def find_layout(
    files: Sequence[tuple[int, Mapping[str, Numbers]]], prompt: int, response: int, padded: int | None = None
) -> Layout | None:
    """Find out how many context-parallel ranks a sample was spread over.

    Parameters
    ----------
    files
        Global rank and per-token values of each file that holds the sample.
    prompt, response, padded
        As in `slice_places`.

    Returns
    -------
    Layout or None
        One that misses no rank if there is any, else the one that misses the fewest; None if none fits.
    """
    lengths = [len(next(iter(values.values()))) if values else response for _, values in files]
    if all(length == response for length in lengths):
        return Layout(1, (0,) * len(files))
    best: Layout | None = None
    for ranks in range(2, _MAX_RANKS + 1):
        sizes = [len(slice_places(rank, ranks, prompt, response, padded)) for rank in range(ranks)]
        if not set(lengths) <= set(sizes):
            continue
        for copies in range(1, _MAX_RANKS + 1):
            layout = Layout(ranks, tuple(rank // copies % ranks for rank, _ in files))
            fits = all(sizes[r] == n for r, n in zip(layout.rank_of, lengths, strict=True))
            if fits and _copies_agree(layout, files):
                if layout.complete:
                    return layout
                missing = ranks - len(set(layout.rank_of))
                if best is None or missing < best.ranks - len(set(best.rank_of)):
                    best = layout
    return best


def _copies_agree(layout: Layout, files: Sequence[tuple[int, Mapping[str, Numbers]]]) -> bool:
    first: dict[int, Mapping[str, Numbers]] = {}
    for rank, (_, values) in zip(layout.rank_of, files, strict=True):
        other = first.setdefault(rank, values)
        for name in values.keys() & other.keys():
            if not np.array_equal(values[name], other[name], equal_nan=True):
                return False
    return True


def assemble(
    layout: Layout, slices: Sequence[Numbers | None], prompt: int, response: int, padded: int | None = None
) -> Numbers:
    """Return one value per response token, float32; NaN where the rank that had it is missing.

    Parameters
    ----------
    layout
        From `find_layout`.
    slices
        Of each file, in the same order; None where a file has no such values.
    prompt, response, padded
        As in `slice_places`.
    """
    values = np.full(response, np.nan, dtype=np.float32)
    for rank, piece in zip(layout.rank_of, slices, strict=True):
        if piece is None:
            continue
        if layout.ranks == 1:
            values[: len(piece)] = piece[:response]
        else:
            places = slice_places(rank, layout.ranks, prompt, response, padded)
            values[places] = piece[: len(places)]
    return values
