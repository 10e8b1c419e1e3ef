"""Token arrays of many traces as flat arrays with offsets, tied to the rows of a trace table.

The arrays of one trace need not be equally long: whether they are is what the fidelity audit looks at. All
others ask for `TokenTable.aligned`, which gives NaN where an array does not fit the response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import StatsError
from analysis.stats._matching import find
from analysis.stats.columns import Bools, Floats, Ints, codes

__all__ = ["ARRAYS", "Ragged", "TokenTable"]

ARRAYS = (
    "prompt",
    "response",
    "mask",
    "trainable",
    "logprob",
    "train_logprob",
    "advantage",
    "kl",
    "value",
    "turn",
)
"""Names of the arrays that a token table may hold; all but the first have one entry per response token.

``mask`` is 1 where the policy sampled the token, ``trainable`` where the trainer learns from it.
"""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of different lengths, one after another.

    Parameters
    ----------
    offsets
        Shape (k + 1,): list i is ``values[offsets[i]:offsets[i + 1]]``.
    values
        Shape (n,).
    """

    offsets: Ints
    values: NDArray[Any]

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets, dtype=np.int64)
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise StatsError("offsets must start at 0 and never decrease")
        if offsets[-1] != len(self.values):
            raise StatsError(f"offsets end at {offsets[-1]}, but there are {len(self.values)} values")
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def of(cls, lists: Sequence[Sequence[Any]], dtype: Any = np.float64) -> Ragged:
        """Build from lists; None is a list without entries."""
        parts = [np.asarray([] if part is None else part, dtype=dtype) for part in lists]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
        values = np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
        return cls(offsets.astype(np.int64), values.astype(dtype, copy=False))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, item: int) -> NDArray[Any]:
        if not 0 <= item < len(self):
            raise IndexError(item)
        return self.values[self.offsets[item] : self.offsets[item + 1]]

    @property
    def lengths(self) -> Ints:
        """Entries per list, shape (k,)."""
        return np.diff(self.offsets)

    @cached_property
    def owner(self) -> Ints:
        """List of each value, shape (n,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def position(self) -> Ints:
        """Place of each value in its list, shape (n,)."""
        return np.arange(len(self.values)) - self.offsets[:-1][self.owner]

    def take(self, items: Ints) -> Ragged:
        """Return the lists at these places, in this order."""
        lengths = self.lengths[items]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        starts = np.repeat(self.offsets[:-1][items] - offsets[:-1], lengths)
        return Ragged(offsets, self.values[np.arange(int(offsets[-1])) + starts])


@dataclass(frozen=True, eq=False)
class TokenTable:
    """The token arrays of some traces.

    Parameters
    ----------
    rows
        Shape (k,): position of each trace in the table of traces.
    arrays
        By name (`ARRAYS`), each with k lists; ``response`` is always there.
    """

    rows: Ints
    arrays: Mapping[str, Ragged] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", np.asarray(self.rows, dtype=np.int64))
        unknown = sorted(set(self.arrays) - set(ARRAYS))
        if unknown:
            raise StatsError(f"no token array {unknown[0]!r}: there are {', '.join(ARRAYS)}")
        if "response" not in self.arrays:
            raise StatsError("a token table needs the response ids")
        for name, array in self.arrays.items():
            if len(array) != len(self.rows):
                raise StatsError(f"the array {name} is of {len(array)} traces, expected {len(self.rows)}")

    @classmethod
    def empty(cls) -> TokenTable:
        """Return a table of no traces."""
        return cls(np.zeros(0, dtype=np.int64), {"response": Ragged.of([], np.int64)})

    @classmethod
    def of_lists(cls, rows: Sequence[int], **lists: Sequence[Any]) -> TokenTable:
        """Build from one list per trace and array.

        Parameters
        ----------
        rows
            Positions in the table of traces.
        **lists
            One list of lists per array name.
        """
        ids = ("prompt", "response", "mask", "trainable", "turn")
        arrays = {k: Ragged.of(v, np.int64 if k in ids else np.float64) for k, v in lists.items()}
        return cls(np.asarray(rows, dtype=np.int64), arrays)

    def __len__(self) -> int:
        return len(self.rows)

    def has(self, name: str) -> bool:
        """Tell whether any trace has this array."""
        return name in self.arrays and len(self.arrays[name].values) > 0

    @property
    def response(self) -> Ragged:
        """Response ids."""
        return self.arrays["response"]

    def fits(self, name: str) -> Bools:
        """Tell for each trace whether an array is there with one entry per response token; shape (k,)."""
        if name not in self.arrays:
            return np.zeros(len(self), dtype=bool)
        return np.asarray(self.arrays[name].lengths == self.response.lengths, dtype=bool)

    def aligned(self, name: str) -> Floats:
        """Return an array with one entry per response token of all traces; NaN where it does not fit."""
        result = np.full(len(self.response.values), np.nan)
        if name not in self.arrays:
            return result
        good = self.fits(name)
        if good.all():
            result[:] = self.arrays[name].values
        else:
            array = self.arrays[name]
            result[good[self.response.owner]] = array.values[good[array.owner]]
        return result

    def select(self, keep: Bools) -> TokenTable:
        """Return the traces where `keep` is true; shape (k,)."""
        return self.select_items(np.flatnonzero(keep))

    def select_items(self, places: Ints) -> TokenTable:
        """Return the traces at these places of the table, in this order."""
        return TokenTable(self.rows[places], {name: a.take(places) for name, a in self.arrays.items()})

    @property
    def learnt(self) -> Bools:
        """Tell which tokens the trainer learns from; where no dump says, those that were sampled."""
        trainable = self.aligned("trainable")
        return np.asarray(np.where(np.isnan(trainable), self.aligned("mask"), trainable) > 0, dtype=bool)

    @cached_property
    def turns(self) -> Ints:
        """Number the stretches of sampled tokens of each trace from 0; -1 for other tokens, shape (N,).

        Taken from the array ``turn`` where there is one, else from the mask.
        """
        mask = np.nan_to_num(self.aligned("mask"), nan=0.0) > 0
        if "turn" in self.arrays and self.fits("turn").all():
            return np.where(mask, self.arrays["turn"].values, -1).astype(np.int64)
        starts = mask & ~np.concatenate([[False], mask[:-1]]) if len(mask) else mask
        first = self.response.position == 0
        starts = starts | (mask & first)
        number = np.cumsum(starts)
        before = np.concatenate([[0], number])[self.response.offsets[:-1]]
        return np.where(mask, number - 1 - before[self.response.owner], -1).astype(np.int64)

    @classmethod
    def of_run(cls, run: Any, traces: pd.DataFrame, sessions: Sequence[str] | None = None) -> TokenTable:
        """Read the arrays of all traces of a loaded run, or of some sessions.

        Parameters
        ----------
        run
            Has ``token_arrays()``; without it the table is empty.
        traces
            The run's table of traces.
        sessions
            Ids of those that are read; all by default.
        """
        read = getattr(run, "token_arrays", None)
        if read is None or traces.empty:
            return cls.empty()
        arrays = read() if sessions is None else read(sessions)
        found = _rows_of(traces, arrays.traces)
        count = len(arrays.traces)
        owner = np.repeat(np.arange(count), np.diff(arrays.offsets))
        prompts = arrays.traces["prompt_tokens"].to_numpy(dtype=np.int64)
        in_response = arrays.position >= prompts[owner]

        def part(values: NDArray[Any], chosen: Bools) -> Ragged:
            lengths = np.bincount(owner[chosen], minlength=count)
            return Ragged(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), values[chosen])

        def known(unknown: Bools) -> Bools:
            """Leave an array out where nothing in it is known: there is none, or it did not fit."""
            there = np.bincount(owner[in_response & ~unknown], minlength=count) > 0
            return np.asarray(in_response & there[owner], dtype=bool)

        table = {"prompt": part(arrays.ids, ~in_response), "response": part(arrays.ids, in_response)}
        for name in ("mask", "trainable"):
            values = getattr(arrays, name)
            table[name] = part(np.maximum(values, 0), known(values < 0))
        for name in ("logprob", "train_logprob", "advantage"):
            values = getattr(arrays, name)
            table[name] = part(values.astype(np.float64), known(np.isnan(values)))
        return cls(found, table).select(found >= 0)


def _rows_of(traces: pd.DataFrame, others: pd.DataFrame) -> Ints:
    """Find the rows of a table of traces that the rows of another one are; -1 for none."""
    sample = ("run", "evaluation", "rollout_id", "sample_index")
    names = ["run", "session_id", "trace_index", *sample[1:]]
    both = []
    for frame in (traces, others):
        part = frame.loc[:, names].astype(object)
        part = part.where(part.notna(), None)
        part["again"] = part.groupby(list(sample), dropna=False).cumcount()
        both.append(part)
    together = pd.concat(both, ignore_index=True)
    numbers = [codes(together, key) for key in (("run", "session_id", "trace_index"), (*sample, "again"))]
    return find([key[len(traces) :] for key in numbers], [key[: len(traces)] for key in numbers])
