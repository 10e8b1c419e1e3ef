"""Rows of one sample from the train dumps of several context-parallel ranks become one row of all its tokens.

Each rank's means are over the trainable tokens of its own slice, so that the whole sample's mean weighs them
by the number of these. Tensor-parallel copies of a slice count once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis._identity import Ints, codes, occurrences, with_occurrence
from analysis._tables import Floats, as_floats, as_integers, floats, integers, known, set_columns, take_table

__all__ = ["join_slices"]

_MEANS = (
    *("advantage", "return_mean", "value_mean", "train_logprob_mean", "train_logprob_diff"),
    *("train_logprob_abs_diff", "ref_logprob_mean", "teacher_logprob_mean", "kl_mean", "entropy_mean"),
)
_LARGEST = ("advantage_max", "train_logprob_max_diff")
_SMALLEST = ("advantage_min",)
_SAMPLE = ("run", "evaluation", "rollout_id", "sample_index", "tokens_hash")


def join_slices(rows: pa.Table) -> pa.Table:
    """Return rows of the trace table with one row in the place of those that hold slices of one sample.

    Parameters
    ----------
    rows
        As they were read, in any order; rows of anything but slices stay as they are.
    """
    slices = np.flatnonzero(known(rows, "train_slice"))
    if not len(slices):
        return rows
    table = take_table(rows, slices)
    key = codes([table.column(name) for name in _SAMPLE])
    sample = codes([pa.array(with_occurrence(key, codes([table.column("path")])))])
    copies = occurrences(codes([pa.array(sample), table.column("train_slice")]))
    first = np.flatnonzero(copies == 0)
    joined = _joined(take_table(table, first), sample[first])
    rest = np.setdiff1d(np.arange(len(rows)), slices)
    return pa.concat_tables([take_table(rows, rest), joined])


def _joined(table: pa.Table, sample: Ints) -> pa.Table:
    count = int(sample.max()) + 1
    heads = np.full(count, len(table), dtype=np.int64)
    np.minimum.at(heads, sample, np.arange(len(table)))
    weight = integers(table, "train_weight").astype(np.float64)
    found = np.bincount(sample, minlength=count)
    joined: dict[str, Any] = {}
    for name in _MEANS:
        values = floats(table, name)
        there = ~np.isnan(values) & (weight > 0)
        sums = np.bincount(sample[there], weights=(values * weight)[there], minlength=count)
        weights = np.bincount(sample[there], weights=weight[there], minlength=count)
        joined[name] = as_floats(np.divide(sums, weights, out=np.full(count, np.nan), where=weights > 0))
    for names, largest in ((_LARGEST, np.fmax), (_SMALLEST, np.fmin)):
        for name in names:
            extreme: Floats = np.full(count, np.nan)
            largest.at(extreme, sample, floats(table, name))
            joined[name] = as_floats(extreme)
    for name in ("train_tokens", "train_weight"):
        total = np.bincount(sample, weights=integers(table, name), minlength=count)
        joined[name] = as_integers(total, np.ones(count, dtype=bool))
    result = take_table(table, heads)
    wanted = integers(result, "train_slices")
    joined["train_partial"] = pa.array(found < wanted)
    alone = pc.if_else(pa.array(found == 1), result.column("train_slice"), pa.scalar(None, pa.int64()))
    return set_columns(result, train_slice=alone, **joined)
