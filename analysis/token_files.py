"""Token arrays of single traces, read from the files where they lie, and no more of these files than needed.

Of a session's JSON file only the bytes of the wanted arrays are decoded. A dump has to be decoded as a whole;
the last few are kept, as flat arrays, so that a look at a neighbour costs nothing. Knows files and places in
them; which trace belongs to which row is the caller's business.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from analysis.errors import ForeignFileError, LoadError
from analysis.safe_pickle import load_pt
from analysis.sources.base import ReadOptions
from analysis.sources.files import decode_json
from analysis.sources.polar_places import Places, places_of
from analysis.sources.token_stats import mask_from_json

__all__ = ["Place", "TokenFiles", "TraceArrays"]

Ids = NDArray[np.int32]
Flags = NDArray[np.int8]
Numbers = NDArray[np.float32]

_Reader = Callable[["Place", ReadOptions], Sequence["TraceArrays | str"]]
"""Reads a file as a whole: for each of its traces the arrays, or why they cannot be read."""

KEPT_BYTES = 512 * 2**20
"""Decoded files are kept up to this much, the last one in any case."""

_KEPT_PLACES = 256
_INTS = msgspec.json.Decoder(list[int])
_LAX_INTS = msgspec.json.Decoder(list[int], strict=False)
_NUMBERS = msgspec.json.Decoder(list[float])
_LAX_NUMBERS = msgspec.json.Decoder(list[float | None], strict=False)
_CHANGED = "the file changed since it was loaded: call refresh()"


@dataclass(frozen=True, eq=False)
class TraceArrays:
    """What one file says about the tokens of one trace.

    Attributes
    ----------
    prompt, response
        Token ids, int32.
    mask
        int8, 0 or 1 per response token; None where there is none.
    logprobs
        float32 per response token, NaN where missing, under the policy that sampled; None if there are none.
    removed
        The whole trace is to be trained on as if its mask were 0.
    trainable
        int8, the mask that the trainer used, where the file has it beside the server's.
    trained
        Per-token values of a train dump by their name there, float32; under context parallelism only a slice.
    rank
        Global rank of the trainer process that dumped them.
    max_seq_len
        Padded length that slices were cut from; None where sequences are packed.
    """

    prompt: Ids
    response: Ids
    mask: Flags | None = None
    logprobs: Numbers | None = None
    removed: bool = False
    trainable: Flags | None = None
    trained: Mapping[str, Numbers] | None = None
    rank: int = 0
    max_seq_len: int | None = None


@dataclass(frozen=True)
class Place:
    """Where the arrays of a trace lie: one row of `analysis.schema.TOKEN_REFS`."""

    path: str
    source: str
    item: int
    result: int | None
    state: tuple[int | None, int | None] = (None, None)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Place:
        """Read a row."""
        state = row.get("file_bytes"), row.get("file_mtime_ns")
        return cls(row["path"], row["source"], row["item"] or 0, row.get("result"), state)


class TokenFiles:
    """Reads token arrays; remembers the last files it had to decode as a whole.

    Parameters
    ----------
    options
        As the run was loaded.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._kept: OrderedDict[tuple[Any, ...], tuple[int, Sequence[TraceArrays | str]]] = OrderedDict()
        self._places: OrderedDict[tuple[Any, ...], list[Places] | None] = OrderedDict()

    def read(self, place: Place, window: slice = slice(None)) -> TraceArrays:
        """Return the arrays of one trace.

        Parameters
        ----------
        place
            Where they lie.
        window
            Which of its tokens are of interest, prompt included: values outside may be 0 or NaN, but lengths
            and masks are always whole.

        Raises
        ------
        LoadError
            If they are not there any more, or cannot be read.
        OSError
            If the file cannot be read.
        """
        if (ranges := self._ranges(place)) is not None:
            return _from_ranges(place, ranges, window)
        reader = _READERS.get(place.source)
        if reader is None:
            raise LoadError(f"{place.path}: no token arrays are read from files of {place.source!r}")
        traces = self._decoded(place, reader)
        if not 0 <= place.item < len(traces):
            raise LoadError(f"{place.path}: no trace {place.item}", _CHANGED)
        found = traces[place.item]
        if isinstance(found, str):
            raise LoadError(f"{place.path}: token arrays cannot be read", found)
        return found

    def _ranges(self, place: Place) -> Places | None:
        """Return the bytes of the arrays, None where the file has to be decoded as a whole."""
        if place.source != "polar":
            return None
        key = _key(place)
        if key not in self._places:
            with open(place.path, "rb") as stream:
                self._places[key] = places_of(stream.read(self._options.memory_limit()), place.result)
            if len(self._places) > _KEPT_PLACES:
                self._places.popitem(last=False)
        found = self._places[key]
        return found[place.item] if found is not None and 0 <= place.item < len(found) else None

    def _decoded(self, place: Place, reader: _Reader) -> Sequence[TraceArrays | str]:
        key = _key(place)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        traces = reader(place, self._options)
        self._kept[key] = (sum(_bytes(trace) for trace in traces), traces)
        while len(self._kept) > 1 and sum(size for size, _ in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return traces


def _key(place: Place) -> tuple[Any, ...]:
    status = os.stat(place.path)
    now = status.st_size, status.st_mtime_ns
    # A file of rejected groups only grows; in any other the places of one state are not those of another.
    if place.source != "rejected" and None not in place.state and now != place.state:
        raise LoadError(f"{place.path}: it is not the file that was loaded", _CHANGED)
    return place.path, place.result, *now


def _bytes(trace: TraceArrays | str) -> int:
    if isinstance(trace, str):
        return 0
    arrays = [trace.prompt, trace.response, trace.mask, trace.logprobs, *(trace.trained or {}).values()]
    return sum(array.nbytes for array in arrays if array is not None)


def _from_ranges(place: Place, ranges: Places, window: slice) -> TraceArrays:
    texts: dict[str, bytes] = {}
    with open(place.path, "rb") as stream:
        for name, (offset, length) in ranges.items():
            texts[name] = os.pread(stream.fileno(), length, offset)
            if len(texts[name]) != length or texts[name][:1] != b"[" or texts[name][-1:] != b"]":
                raise LoadError(f"{place.path}: no {name} array at byte {offset:,}", _CHANGED)
    try:
        mask, logprobs = texts.get("mask", b"[]"), texts.get("logprob")
        prompt, response = _JsonArray(texts.get("prompt", b"[]")), _JsonArray(texts.get("response", b"[]"))
        start, stop, _ = window.indices(len(prompt) + len(response))
        first, last = max(0, start - len(prompt)), max(0, stop - len(prompt))
        numbers = _JsonArray(logprobs or b"[]").part(first, last, _NUMBERS, _LAX_NUMBERS, np.float32)
        return TraceArrays(
            prompt=prompt.part(start, stop, _INTS, _LAX_INTS, np.int32),
            response=response.part(first, last, _INTS, _LAX_INTS, np.int32),
            mask=None if mask == b"[]" else _flags_of(mask),
            logprobs=None if logprobs is None else numbers,
        )
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise LoadError(f"{place.path}: a token array cannot be read", str(error)[:200]) from error


class _JsonArray:
    """A JSON array of numbers, of which only what is asked for is decoded."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._commas = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord(","))
        self._empty = not len(self._commas) and not text.strip(b"[] \n\r\t")

    def __len__(self) -> int:
        return 0 if self._empty else len(self._commas) + 1

    def part(self, start: int, stop: int, strict: Any, lax: Any, dtype: Any) -> Any:
        """Return an array of the whole length in which the part is filled in."""
        count = len(self)
        start, stop = min(start, count), min(stop, count)
        whole = np.full(count, np.nan if dtype is np.float32 else 0, dtype=dtype)
        if start < stop:
            begin = 1 if start == 0 else int(self._commas[start - 1]) + 1
            end = len(self._text) - 1 if stop == count else int(self._commas[stop - 1])
            values = _decoded_list(b"[" + self._text[begin:end] + b"]", strict, lax)
            with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
                whole[start:stop] = values
        return whole


def _flags_of(text: bytes) -> Flags:
    flags = mask_from_json(text)
    if flags is None:
        raise ValueError("a mask entry that is neither 0 nor 1")
    return np.frombuffer(flags, dtype=np.int8)


def _decoded_list(text: bytes, strict: Any, lax: Any) -> Any:
    try:
        return strict.decode(text)
    except msgspec.MsgspecError:
        return lax.decode(text)


def _ids(values: Any) -> Ids:
    # Lists, arrays or tensors: only None means that there are none, for an array has no truth value.
    return np.asarray([] if values is None else values, dtype=np.int32)


def _flags(values: Any) -> Flags:
    return np.asarray(values, dtype=np.int8)


def _numbers(values: Any) -> Numbers:
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        return np.asarray(values, dtype=np.float32)  # None becomes NaN


def _each(items: Iterable[Any], make: Callable[[Any], TraceArrays]) -> list[TraceArrays | str]:
    """Read trace by trace; of one that cannot be read it is kept why, and the others are unharmed."""
    found: list[TraceArrays | str] = []
    for position, item in enumerate(items):
        try:
            found.append(make(item))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            found.append(f"trace {position}: {type(error).__name__}: {str(error)[:200]}")
    return found


def _of_sample(sample: Mapping[str, Any]) -> TraceArrays:
    tokens = _ids(sample.get("tokens"))
    cut = len(tokens) - int(sample.get("response_length") or 0)
    if not 0 <= cut <= len(tokens):
        raise ValueError(f"a response of {len(tokens) - cut:,} tokens in a sample of {len(tokens):,}")
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    return TraceArrays(
        prompt=tokens[:cut],
        response=tokens[cut:],
        mask=None if mask is None else _flags(mask),
        logprobs=None if logprobs is None else _numbers(logprobs),
        removed=bool(sample.get("remove_sample")),
    )


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ForeignFileError(f"{path}: holds {type(value).__name__} where a mapping is expected", _CHANGED)
    return value


def _from_rollout_dump(place: Place, options: ReadOptions) -> list[TraceArrays | str]:
    content = load_pt(place.path, trusted=options.trusted, max_bytes=options.memory_limit())
    return _each(_mapping(content, place.path).get("samples") or (), _of_sample)


def _from_rejected(place: Place, options: ReadOptions) -> list[TraceArrays | str]:
    with open(place.path, "rb") as stream:
        stream.seek(place.result or 0)
        group = decode_json(stream.readline(options.memory_limit()))
    return _each(_mapping(group, place.path).get("samples") or (), _of_sample)


def _from_polar(place: Place, options: ReadOptions) -> list[TraceArrays | str]:
    with open(place.path, "rb") as stream:
        content = _mapping(decode_json(stream.read(options.memory_limit())), place.path)
    if place.result is not None:
        results = content.get("results") or []
        if place.result >= len(results):
            raise LoadError(f"{place.path}: no result {place.result}", _CHANGED)
        content = _mapping(results[place.result], place.path)
    traces = _mapping(content.get("trajectory") or {}, place.path).get("traces") or ()
    return _each(traces, _of_trace)


def _of_trace(trace: Mapping[str, Any]) -> TraceArrays:
    mask, logprobs = trace.get("loss_mask"), trace.get("response_logprobs")
    return TraceArrays(
        prompt=_ids(trace.get("prompt_ids")),
        response=_ids(trace.get("response_ids")),
        mask=_flags(mask) if mask else None,
        logprobs=None if logprobs is None else _numbers(logprobs),
    )


_PER_TOKEN = (
    *("log_probs", "advantages", "returns", "values", "ref_log_probs", "teacher_log_probs", "kl", "entropy"),
    "rollout_log_probs",
)


def _from_train_dump(place: Place, options: ReadOptions) -> list[TraceArrays | str]:
    loaded = load_pt(place.path, trusted=options.trusted, max_bytes=options.memory_limit())
    content = _mapping(loaded, place.path)
    data = _mapping(content.get("rollout_data"), place.path)
    rank, tokens = content.get("rank"), data.get("tokens")
    trained = partial(_trained, data, rank if isinstance(rank, int) else 0)
    return _each(range(0 if tokens is None else len(tokens)), trained)


def _trained(data: Mapping[str, Any], rank: int, item: int) -> TraceArrays:
    ids = _ids(data["tokens"][item])
    cut = len(ids) - int(data["response_lengths"][item])
    masks, padded = data.get("loss_masks"), data.get("max_seq_lens")
    lists = {name: data.get(name) for name in _PER_TOKEN}
    return TraceArrays(
        prompt=ids[:cut],
        response=ids[cut:],
        mask=None if masks is None else _flags(masks[item]),
        trained={
            name: _numbers(values[item])
            for name, values in lists.items()
            if isinstance(values, list | tuple) and item < len(values)
        },
        rank=rank,
        max_seq_len=None if padded is None else int(padded[item]),
    )


def _from_parquet(place: Place, options: ReadOptions) -> list[TraceArrays | str]:
    import pyarrow.parquet as pq

    found: list[TraceArrays | str] = []
    for batch in pq.ParquetFile(place.path).iter_batches(batch_size=256, columns=_LISTS):
        for row in range(len(batch)):
            lists = {name: _list(batch.column(name), row) for name in _LISTS}
            found.append(
                TraceArrays(
                    prompt=_ids(lists["prompt_ids"]),
                    response=_ids(lists["response_ids"]),
                    mask=lists["mask"],
                    trainable=lists["trainable"],
                    logprobs=lists["logprob"],
                    trained={
                        name: lists[column]
                        for name, column in (("log_probs", "train_logprob"), ("advantages", "advantage"))
                        if lists[column] is not None
                    },
                )
            )
    return found


_LISTS = ["prompt_ids", "response_ids", "mask", "trainable", "logprob", "train_logprob", "advantage"]


def _list(column: Any, row: int) -> Any:
    """Return one row's list as an array of its own, None where it is missing."""
    return column[row].values.to_numpy(zero_copy_only=False).copy() if column[row].is_valid else None


_READERS: Mapping[str, _Reader] = {
    "polar": _from_polar,
    "rollout_dump": _from_rollout_dump,
    "train_dump": _from_train_dump,
    "rejected": _from_rejected,
    "parquet": _from_parquet,
}
