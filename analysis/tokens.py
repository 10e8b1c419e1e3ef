"""Tokens of traces as flat arrays with offsets, read when asked for, joined from every file that knows them.

Ids, mask and logprobs come from the server's file where it is there, else from the dump; what the trainer
learns from, from the dumps; advantages and the trainer's own logprobs from the train dumps, put together
again from context-parallel slices. Knows nothing about how tables are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis._identity import Ints, codes, find, with_occurrence
from analysis._tables import codes_of_both, counterparts, one_array, take_rows
from analysis.context_parallel import assemble, find_layout
from analysis.errors import LoadError
from analysis.problems import Problem
from analysis.records import widen
from analysis.schema import TOKEN_REFS, to_array, to_frame
from analysis.token_files import Place, TokenFiles, TraceArrays
from analysis.token_text import TokenText

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MISSING_FLAG", "TRACE_COLUMNS", "TokenArrays", "Window", "read_tokens", "refs_of"]

Window = tuple[int | None, int | None] | slice | None

MISSING_FLAG = -1
"""Stands in the flags of `TokenArrays` where nothing is known, and in `turn` where a token is in none."""

_ID_COLUMNS = ("run", "rollout_id", "evaluation", "group_index", "session_id", "trace_index", "sample_index")
TRACE_COLUMNS = [*_ID_COLUMNS, "tokens_hash", "placeholder"]
"""Columns of the trace table that reading tokens needs."""

_BASE = ("parquet", "polar", "rollout_dump", "rejected", "train_dump")
_TRAINED_ON = ("parquet", "train_dump", "rollout_dump", "rejected")


@dataclass(frozen=True, eq=False)
class TokenArrays:
    """Tokens of traces, one after another: trace i owns ``offsets[i]`` to ``offsets[i + 1]``, end excluded.

    Attributes
    ----------
    table
        `traces` as an Arrow table.
    rows
        int64, shape (n,): place of each trace among those that were asked for; traces without tokens are out.
    offsets
        int64, shape (n + 1,).
    ids
        int32, shape (N,): prompt and response.
    position
        int32, shape (N,): place in the whole trace, prompt included, from 0.
    mask
        int8, shape (N,): 1 where the policy sampled the token, 0 where not, prompts included; -1 unknown.
    trainable
        int8, shape (N,): 1 where the trainer learns from it; -1 where no dump says.
    logprob, train_logprob, advantage
        float32, shape (N,): under the policy that sampled, recomputed by the trainer, and as trained; NaN in
        prompts and where not known.
    turn
        int32, shape (N,): number of the sampled stretch, from 0; what came back between two of them belongs
        to the earlier one. -1 in prompts and without a mask.
    problems
        What could not be read.
    """

    table: pa.Table
    rows: Ints
    offsets: Ints
    ids: NDArray[np.int32]
    position: NDArray[np.int32]
    mask: NDArray[np.int8]
    trainable: NDArray[np.int8]
    logprob: NDArray[np.float32]
    train_logprob: NDArray[np.float32]
    advantage: NDArray[np.float32]
    turn: NDArray[np.int32]
    problems: tuple[Problem, ...] = ()
    text: TokenText | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def traces(self) -> pd.DataFrame:
        """One row per trace: ids, ``prompt_tokens``, ``response_tokens`` (of the whole trace), ``start``.

        ``start`` is the position of the trace's first token here.
        """
        return to_frame(self.table)

    def frame(self, *, text: bool | None = None) -> pd.DataFrame:
        """Return one row per token, with the ids of its trace.

        Parameters
        ----------
        text
            Whether to add the text of each token; by default where a tokenizer is known.

        Raises
        ------
        LoadError
            Text is asked for without a tokenizer, or the tokenizer cannot be loaded.
        """
        return _frame(self, text)


@dataclass
class _Parts:
    """Arrays of one trace, already cut to the window."""

    ids: Any
    position: Any
    mask: Any
    trainable: Any
    logprob: Any
    train_logprob: Any
    advantage: Any
    turn: Any
    prompt: int
    response: int


def refs_of(traces: pa.Table, refs: pa.Table) -> tuple[pa.Table, Ints]:
    """Find where the tokens of traces lie.

    Parameters
    ----------
    traces
        Rows of the trace table.
    refs
        Rows of `TOKEN_REFS`, with a column ``run``.

    Returns
    -------
    refs, owner
        The refs that belong to one of the traces, and the place of their trace.
    """
    chosen = _candidates(traces, refs)
    near = refs.filter(chosen)
    keys = (
        ("run", "session_id", "trace_index"),
        ("run", "evaluation", "rollout_id", "sample_index", "tokens_hash"),
    )
    owner = counterparts(near, traces, keys[:1])
    loose = np.flatnonzero(owner < 0)
    if len(loose):
        owner[loose] = _by_sample(near.take(pa.array(loose)), traces, keys[1])
    belongs = owner >= 0
    return near.filter(pa.array(belongs)), owner[belongs]


def _by_sample(refs: pa.Table, traces: pa.Table, names: tuple[str, ...]) -> Ints:
    """Find traces by sample and tokens; equal samples of one file are told apart by their order."""
    both = codes_of_both(
        [one_array(refs.column(name)) for name in names], [one_array(traces.column(name)) for name in names]
    )
    files = codes([pa.chunked_array([one_array(refs.column("path")), pa.array([""] * len(traces))])])
    numbered = with_occurrence(both, files)
    return find([numbered[: len(refs)]], [numbered[len(refs) :]])


def _candidates(traces: pa.Table, refs: pa.Table) -> Any:
    """Sort out quickly: refs of these sessions, and refs without a session but with one of these samples."""
    mask = pc.is_in(
        refs.column("session_id"), value_set=one_array(traces.column("session_id").drop_null()).unique()
    )
    samples = one_array(traces.column("sample_index").drop_null()).unique()
    if len(samples):
        of_sample = pc.is_in(refs.column("sample_index"), value_set=samples)
        mask = pc.or_(mask, pc.and_(of_sample, pc.is_null(refs.column("session_id"))))
    return mask


def read_tokens(
    traces: pa.Table,
    refs: pa.Table,
    files: TokenFiles,
    *,
    window: Window = None,
    text: TokenText | None = None,
) -> TokenArrays:
    """Read the tokens of traces.

    Parameters
    ----------
    traces
        Rows of the trace table.
    refs
        Rows of `TOKEN_REFS` with a column ``run``; those of other traces are passed over.
    files
        Reads single traces.
    window
        Which tokens of each trace: a slice, or (start, stop) as in one, prompt included; None for all.
    text
        Gives tokens their text.
    """
    chosen = _bounds(window)
    mine, owner = refs_of(traces, refs)
    problems: list[Problem] = []
    places: dict[int, list[Place]] = {}
    for row, trace in zip(
        widen(mine.drop_columns(["run"]), TOKEN_REFS).to_pylist(), owner.tolist(), strict=True
    ):
        places.setdefault(trace, []).append(Place.of(row))
    parts: list[_Parts] = []
    kept: list[int] = []
    for trace in range(len(traces)):
        found = _read_all(places.get(trace, ()), files, problems, chosen)
        if found:
            parts.append(_cut(found, chosen))
            kept.append(trace)
    return _flat(traces, kept, parts, tuple(problems), text)


def _bounds(window: Window) -> slice:
    if window is None:
        return slice(None)
    chosen = window if isinstance(window, slice) else slice(*window)
    if chosen.step not in (None, 1):
        raise ValueError(f"window must take every token, got step {chosen.step}")
    return chosen


def _read_all(
    places: Iterable[Place], files: TokenFiles, problems: list[Problem], window: slice
) -> dict[str, list[TraceArrays]]:
    """Read what each source says; a file that fails is noted, the others count."""
    found: dict[str, list[TraceArrays]] = {}
    for place in places:
        if place.source not in ("train_dump",) and place.source in found:
            continue  # a copy of what is known
        try:
            found.setdefault(place.source, []).append(files.read(place, window))
        except OSError as error:
            problems.append(Problem(place.path, "token arrays cannot be read", error.strerror or str(error)))
        except ValueError as error:
            problems.append(Problem(place.path, "token arrays cannot be read", str(error)))
    return {source: arrays for source, arrays in found.items() if arrays}


def _cut(found: Mapping[str, Sequence[TraceArrays]], window: slice) -> _Parts:
    base = next(found[source][0] for source in _BASE if source in found)
    prompt, response = len(base.prompt), len(base.response)
    length = prompt + response
    start, stop, _ = window.indices(length)
    stop = max(start, stop)
    mask = _fitting(base.mask, response, MISSING_FLAG, np.int8)
    trained = _trained(found, prompt, response)
    logprobs = base.logprobs if base.logprobs is not None else trained.get("rollout_log_probs")

    def cut(values: Any, in_prompt: Any, dtype: Any) -> Any:
        lead = np.full(max(0, min(stop, prompt) - start), in_prompt, dtype=dtype)
        return np.concatenate([lead, values[max(0, start - prompt) : max(0, stop - prompt)]])

    nan = np.float32(np.nan)
    return _Parts(
        ids=np.concatenate(
            [base.prompt[start:stop], base.response[max(0, start - prompt) : max(0, stop - prompt)]]
        ),
        position=np.arange(start, stop, dtype=np.int32),
        mask=cut(mask, 0, np.int8),
        trainable=cut(_trainable(found, response), 0, np.int8),
        logprob=cut(_fitting(logprobs, response, nan, np.float32), nan, np.float32),
        train_logprob=cut(_fitting(trained.get("log_probs"), response, nan, np.float32), nan, np.float32),
        advantage=cut(_fitting(trained.get("advantages"), response, nan, np.float32), nan, np.float32),
        turn=cut(_turns(mask), MISSING_FLAG, np.int32),
        prompt=prompt,
        response=response,
    )


def _fitting(values: Any, length: int, missing: Any, dtype: Any) -> Any:
    """Return values of the response's length; all missing where there are none or they do not fit."""
    if values is None or len(values) != length:
        return np.full(length, missing, dtype=dtype)
    return values


def _trainable(found: Mapping[str, Sequence[TraceArrays]], response: int) -> Any:
    """Return what the trainer learns from; a clipped sample has nothing to learn from behind its end."""
    for source in _TRAINED_ON:
        for arrays in found.get(source, ()):
            own = arrays.trainable if source == "parquet" else arrays.mask
            if own is None and source in ("rollout_dump", "rejected"):
                own = np.ones(len(arrays.response), dtype=np.int8)  # Slime: no mask means all of it
            if own is None or len(own) > response:
                continue
            flags = np.zeros(response, dtype=np.int8)
            flags[: len(own)] = 0 if arrays.removed else own
            return flags
    return np.full(response, MISSING_FLAG, dtype=np.int8)


def _trained(found: Mapping[str, Sequence[TraceArrays]], prompt: int, response: int) -> dict[str, Any]:
    """Return the trainer's per-token values, put together from all ranks."""
    dumps = found.get("train_dump") or found.get("parquet") or ()
    files = [(arrays.rank, arrays.trained or {}) for arrays in dumps]
    if not files:
        return {}
    own = len(dumps[0].response)  # of a clipped sample, shorter than the server's
    padded = dumps[0].max_seq_len
    layout = find_layout(files, prompt, own, padded)
    if layout is None:
        return {}
    values: dict[str, Any] = {}
    for name in sorted({name for _, known in files for name in known}):
        whole = np.full(response, np.nan, dtype=np.float32)
        assembled = assemble(layout, [known.get(name) for _, known in files], prompt, own, padded)
        whole[: min(own, response)] = assembled[:response]
        values[name] = whole
    return values


def _turns(mask: Any) -> Any:
    """Return numbers of the sampled stretches; what follows one belongs to it, what leads them to none."""
    if not len(mask) or mask[0] == MISSING_FLAG:
        return np.full(len(mask), MISSING_FLAG, dtype=np.int32)
    begins = (mask == 1) & (np.r_[0, mask[:-1]] != 1)
    return (np.cumsum(begins) - 1).astype(np.int32)


def _flat(
    traces: pa.Table,
    kept: list[int],
    parts: list[_Parts],
    problems: tuple[Problem, ...],
    text: TokenText | None,
) -> TokenArrays:
    rows = np.array(kept, dtype=np.int64)
    names = [name for name in _ID_COLUMNS if name in traces.column_names]
    table = pa.table({name: take_rows(traces.column(name), rows) for name in names})
    for name, values in (
        ("prompt_tokens", [part.prompt for part in parts]),
        ("response_tokens", [part.response for part in parts]),
        ("start", [int(part.position[0]) if len(part.position) else 0 for part in parts]),
    ):
        table = table.append_column(name, pa.array(values, pa.int64()))

    def flat(name: str, dtype: Any) -> Any:
        pieces = [getattr(part, name) for part in parts]
        return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.zeros(0, dtype=dtype)

    return TokenArrays(
        table=table,
        rows=rows,
        offsets=np.r_[0, np.cumsum([len(part.ids) for part in parts], dtype=np.int64)].astype(np.int64),
        ids=flat("ids", np.int32),
        position=flat("position", np.int32),
        mask=flat("mask", np.int8),
        trainable=flat("trainable", np.int8),
        logprob=flat("logprob", np.float32),
        train_logprob=flat("train_logprob", np.float32),
        advantage=flat("advantage", np.float32),
        turn=flat("turn", np.int32),
        problems=problems,
        text=text,
    )


def _frame(tokens: TokenArrays, text: bool | None) -> pd.DataFrame:
    import pandas as pd

    if text and tokens.text is None:
        raise LoadError(
            "no tokenizer to give tokens their text", "", "load the run with tokenizer=<HF folder>"
        )
    owner = pa.array(np.repeat(np.arange(len(tokens.table)), np.diff(tokens.offsets)))
    columns: dict[str, Any] = {}
    for name in _ID_COLUMNS:
        values = one_array(tokens.table.column(name)).take(owner)
        columns[name] = to_array(values)
    columns["position"] = pd.array(tokens.position, dtype="Int32")
    columns["token"] = pd.array(tokens.ids, dtype="Int32")
    if text or (text is None and tokens.text is not None):
        assert tokens.text is not None
        columns["text"] = pd.array(tokens.text.texts(tokens.ids), dtype="string")
    for name in ("mask", "trainable", "turn"):
        values = getattr(tokens, name)
        dtype = pd.Int32Dtype() if name == "turn" else pd.Int8Dtype()
        columns[name] = pd.array(np.where(values < 0, 0, values), dtype=dtype)
        columns[name][values < 0] = pd.NA
    for name in ("logprob", "train_logprob", "advantage"):
        values = getattr(tokens, name)
        columns[name] = pd.arrays.FloatingArray(values.copy(), np.isnan(values))
    return pd.DataFrame(columns)
