"""Reads Slime's train dumps: what one rank of the trainer made of its share of a rollout.

Gives one trace row per local sample, with rewards after post-processing, advantages and recomputed logprobs.
Rows say which sample they are about by its index and a digest of its tokens, never by their position: a rank
holds a part of the rollout, in an order of its own. Under context parallelism a dump holds slices of each
sample: which ones follows from their lengths, and means are over the slice's trainable tokens, to be joined
with those of the other ranks. Where that stays open they are over all of the slice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.context_parallel import find_slice, slice_places
from analysis.errors import ForeignFileError
from analysis.safe_pickle import load_pt
from analysis.sources.base import ReadOptions, Sink, SourceFile
from analysis.sources.dump_names import parse_dump_name
from analysis.sources.token_stats import logprob_cells, packed, tokens_digest
from analysis.sources.values import integer, number

__all__ = ["collect"]

_MEANS = (
    ("advantages", "advantage"),
    ("returns", "return_mean"),
    ("values", "value_mean"),
    ("log_probs", "train_logprob_mean"),
    ("ref_log_probs", "ref_logprob_mean"),
    ("teacher_log_probs", "teacher_logprob_mean"),
    ("kl", "kl_mean"),
    ("entropy", "entropy_mean"),
)
_LOGPROBS = ("logprob_mean", "logprob_min", "logprob_sum", "logprob_zero_share", "logprob_missing")

Array = np.ndarray[Any, Any]


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the samples of one rank to the sink; see `analysis.sources.registry.Reader`."""
    content = load_pt(file.path, trusted=options.trusted, max_bytes=options.memory_limit())
    data = content.get("rollout_data") if isinstance(content, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(data.get("tokens"), list):
        raise ForeignFileError("holds no train dump", f"a {type(content).__name__} without rollout data")
    name = parse_dump_name(os.path.basename(file.path))
    rollout_id, rank = integer(content.get("rollout_id")), integer(content.get("rank"))
    dump = _Dump(
        data=data,
        rollout_id=name.rollout_id if rollout_id is None else rollout_id,
        rank=name.rank if rank is None else rank,
        steps=_steps(data, len(data["tokens"])),
    )
    dump.find_slice()
    count = len(data["tokens"])
    for key, values in data.items():
        if key in _PER_SAMPLE and len(_entries(values)) not in (0, count):
            sink.tally("lists of different length", f"{key} has {len(values)} entries for {count} samples")
    for position in range(count):
        row = dump.row(position)
        sink.add("trace", row)
        sink.add_tokens(
            "train_dump", None, None, dump.rollout_id, False, row["sample_index"], row["tokens_hash"],
            position, None,
        )  # fmt: skip
    batches = _entries(data.get("global_batch_sizes"))
    sink.add(
        "rollout",
        {
            "rollout_id": dump.rollout_id,
            "evaluation": False,
            "train_ranks": 1,
            "trained_traces": count,
            "optimizer_steps": len(_entries(data.get("num_microbatches"))) or None,
            "global_batch_size": integer(batches[0]) if len(batches) else None,
        },
    )


_PER_SAMPLE = frozenset(
    {
        "response_lengths",
        "total_lengths",
        "rewards",
        "truncated",
        "sample_indices",
        "group_ids",
        "loss_masks",
        "rollout_log_probs",
        *(key for key, _ in _MEANS),
    }
)


@dataclass(slots=True)
class _Dump:
    """One rank's lists.

    `steps` holds the optimiser step of each local sample, where the dump tells; `part` the context-parallel
    rank and the number of ranks, where its samples are cut and their lengths tell.
    """

    data: Mapping[str, Any]
    rollout_id: int | None
    rank: int | None
    steps: Mapping[int, int]
    part: tuple[int, int] | None = None

    def find_slice(self) -> None:
        """Find out which slice of its samples the dump holds."""
        cut, sizes = False, []
        for position in range(len(self.data["tokens"])):
            response = integer(self._item("response_lengths", position))
            values = next((v for v in self._values(position) if v is not None), None)
            total = len(_entries(self._item("tokens", position)))
            if values is None or response is None or not 0 <= response < total:
                continue
            cut |= len(values) < response
            sizes.append((total - response, response, self._padded(position), len(values)))
        if cut:
            self.part = find_slice(sizes, self.rank)

    def _values(self, position: int) -> Iterator[Array | None]:
        return (packed(self._item(key, position)) for key, _ in _MEANS)

    def _padded(self, position: int) -> int | None:
        return integer(self._item("max_seq_lens", position))

    def row(self, position: int) -> dict[str, Any]:
        """Return the trace row of one local sample."""
        tokens = self._item("tokens", position)
        response = integer(self._item("response_lengths", position))
        mask = _flags(self._item("loss_masks", position), response)
        total = len(_entries(tokens)) or None
        row: dict[str, Any] = {
            "rollout_id": self.rollout_id,
            "evaluation": False,
            "trajectory": integer(self._item("group_ids", position)),
            "sample_index": integer(self._item("sample_indices", position)),
            "tokens_hash": None if total is None else tokens_digest(tokens),
            "prompt_tokens": None if total is None or response is None else total - response,
            "response_tokens": response,
            "trainable_tokens": None if mask is None else int(mask.sum()),
            "advantage_raw": number(self._item("rewards", position)),
            "trained": True,
            "train_rank": self.rank,
            "train_position": position,
            "train_step": self.steps.get(position),
        }
        masks = [] if mask is None else [mask]
        if self.part is not None and total is not None and response is not None:
            row["train_slice"], row["train_slices"] = self.part
            places = slice_places(*self.part, total - response, response, self._padded(position))
            masks += [mask[places] for mask in masks]
        row.update(self._per_token(position, response, masks))
        return row

    def _per_token(self, position: int, response: int | None, masks: Sequence[Array]) -> dict[str, Any]:
        cells: dict[str, Any] = {}
        arrays: dict[str, Array] = {}
        for key in ("rollout_log_probs", *(key for key, _ in _MEANS)):
            values = packed(self._item(key, position))
            if values is not None:
                arrays[key] = values
        if not arrays:
            return cells
        count = min(len(values) for values in arrays.values())
        cells["train_tokens"] = count
        cells["train_partial"] = response is not None and count < response
        fitting = [mask for mask in masks if len(mask) == count]
        cells["train_weight"] = int(fitting[-1].sum()) if fitting else count
        chosen = {key: _trained(values, masks) for key, values in arrays.items()}
        for key, column in _MEANS:
            if key in chosen:
                cells[column] = _mean(chosen[key])
        advantages = chosen.get("advantages")
        if advantages is not None and len(advantages):
            cells["advantage_min"], cells["advantage_max"] = (
                number(advantages.min()),
                number(advantages.max()),
            )
        sampler = chosen.get("rollout_log_probs")
        if sampler is not None and not cells["train_partial"]:
            cells.update(zip(_LOGPROBS, logprob_cells(sampler, [len(sampler)])[0], strict=True))
        cells.update(_difference(chosen.get("log_probs"), sampler))
        return cells

    def _item(self, key: str, position: int) -> Any:
        values = _entries(self.data.get(key))
        return values[position] if position < len(values) else None


def _entries(values: Any) -> Sequence[Any] | Array:
    """Return a list or a flat array as it is, nothing for anything else."""
    if isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim == 1):
        return values
    return ()


def _flags(values: Any, response: int | None) -> Array | None:
    mask = packed(values)
    return None if mask is None or len(mask) != response else mask != 0.0


def _trained(values: Array, masks: Sequence[Array]) -> Array:
    """Return the values at trainable tokens; all of them where no mask fits, as in an unknown slice."""
    return next((values[mask] for mask in masks if len(mask) == len(values)), values)


def _mean(values: Array) -> float | None:
    return number(values.mean()) if len(values) else None


def _difference(trainer: Array | None, sampler: Array | None) -> dict[str, Any]:
    if trainer is None or sampler is None or len(trainer) != len(sampler) or not len(trainer):
        return {}
    difference = trainer - sampler
    size = np.abs(difference)
    return {
        "train_logprob_diff": number(difference.mean()),
        "train_logprob_abs_diff": number(size.mean()),
        "train_logprob_max_diff": number(size.max()),
    }


def _steps(data: Mapping[str, Any], count: int) -> dict[int, int]:
    """Return the optimiser step of each local sample: micro-batches in order, so many to each step."""
    batches = _entries(data.get("micro_batch_indices"))
    steps: dict[int, int] = {}
    counts = [integer(value) or 0 for value in _entries(data.get("num_microbatches"))]
    owners = (step for step, size in enumerate(counts) for _ in range(min(size, len(batches))))
    for step, positions in zip(owners, batches, strict=False):
        for position in _entries(positions):
            place = integer(position)
            if place is not None and 0 <= place < count:
                steps[place] = step
    return steps
