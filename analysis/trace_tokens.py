"""The tokens of one trace with all that is known of each: mask, logprobs, advantage, weights, place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.errors import ExplorerError
from analysis.token_glyphs import Glyph, TokenGlyphs
from analysis.tokens import TokenArrays, Window
from analysis.transcripts.model import Transcript
from analysis.transcripts.reading import read_transcript

__all__ = ["TraceTokens", "read_trace_tokens", "trace_tokens"]


@dataclass(frozen=True, eq=False)
class TraceTokens:
    """Tokens of one trace, or of a window of it, as flat arrays of shape (n,).

    Attributes
    ----------
    session_id, run, trace_index
        Whose they are.
    prompt_tokens, total
        Of the whole trace.
    ids, position, mask, trainable, logprob, train_logprob, advantage, turn
        As in `analysis.tokens.TokenArrays`.
    turn_position
        int32: place in the sampled stretch, from 0; -1 where nothing was sampled.
    version
        int16: place in `versions`; -1 where nobody said.
    versions
        Weight versions that served the trace, in the order of their tokens.
    starts
        Position of each turn's first token in the whole trace, and its number of sampled tokens.
    glyphs
        How tokens are written.
    """

    session_id: str | None
    run: str | None
    trace_index: int | None
    prompt_tokens: int
    total: int
    ids: NDArray[np.int32]
    position: NDArray[np.int32]
    mask: NDArray[np.int8]
    trainable: NDArray[np.int8]
    logprob: NDArray[np.float32]
    train_logprob: NDArray[np.float32]
    advantage: NDArray[np.float32]
    turn: NDArray[np.int32]
    turn_position: NDArray[np.int32]
    version: NDArray[np.int16]
    versions: tuple[str, ...]
    starts: tuple[tuple[int, int], ...]
    glyphs: TokenGlyphs

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sampled(self) -> NDArray[np.bool_]:
        """Where the policy sampled the token, or nobody knows: elsewhere a logprob means nothing."""
        return np.asarray((self.position >= self.prompt_tokens) & (self.mask != 0))

    @cached_property
    def learns(self) -> NDArray[np.bool_]:
        """Where the trainer learns from the token; every sampled one where no dump says."""
        return np.asarray(self.sampled & (self.trainable != 0))

    @cached_property
    def difference(self) -> NDArray[np.float32]:
        """The trainer's logprob minus the sampler's, nats; NaN where one is not known."""
        return np.where(self.sampled, self.train_logprob - self.logprob, np.float32(np.nan))

    def written(self) -> list[Glyph]:
        """Return how each token is written.

        Raises
        ------
        LoadError
            If the tokenizer cannot be loaded.
        """
        return self.glyphs.glyphs(self.ids)


def trace_tokens(
    arrays: TokenArrays,
    place: int = 0,
    *,
    transcript: Transcript | None = None,
    glyphs: TokenGlyphs | None = None,
    advantage: float | None = None,
) -> TraceTokens:
    """Return one trace of token arrays with what is laid over it.

    Parameters
    ----------
    arrays
        Of a session or several, whole or a window.
    place
        Which of its traces.
    transcript
        Of the same trace: tells which weights served which turn.
    glyphs
        To share what is known of a tokenizer; by default that of the arrays.
    advantage
        Stands on every trainable token in place of the trained advantages, as another estimator gives it.

    Raises
    ------
    ExplorerError
        If there is no such trace.
    """
    if not 0 <= place < len(arrays.table):
        raise ExplorerError(f"no trace {place}: there are token ids of {len(arrays.table)} traces")
    own = slice(int(arrays.offsets[place]), int(arrays.offsets[place + 1]))
    about = {name: arrays.table.column(name)[place].as_py() for name in arrays.table.column_names}
    position, mask, turn = arrays.position[own], arrays.mask[own], arrays.turn[own]
    version, versions = _versions(position, turn, mask, transcript)
    trainable = arrays.trainable[own]
    shown = arrays.advantage[own]
    if advantage is not None:
        learns = np.where(trainable >= 0, trainable == 1, mask == 1)
        shown = np.where(learns, np.float32(advantage), np.float32(np.nan))
    turns = () if transcript is None else transcript.turns
    told = tuple((t.start, t.sampled or 0) for t in turns if t.start is not None)
    return TraceTokens(
        session_id=about.get("session_id"),
        run=about.get("run"),
        trace_index=about.get("trace_index"),
        prompt_tokens=int(about["prompt_tokens"]),
        total=int(about["prompt_tokens"]) + int(about["response_tokens"]),
        ids=arrays.ids[own],
        position=position,
        mask=mask,
        trainable=trainable,
        logprob=arrays.logprob[own],
        train_logprob=arrays.train_logprob[own],
        advantage=shown,
        turn=turn,
        turn_position=_places_in_turn(turn, mask),
        version=version,
        versions=versions,
        starts=told or _starts(position, turn, mask),
        glyphs=glyphs if glyphs is not None else TokenGlyphs(arrays.text),
    )


def read_trace_tokens(
    run: Any, session_id: str, trace_index: int | None = None, *, window: Window = None
) -> TraceTokens:
    """Read the tokens of one trace with everything that is known of them.

    Parameters
    ----------
    run
        A loaded run.
    session_id, trace_index
        Which trace; the session's first one that has tokens for None.
    window
        As in `analysis.run.Run.token_arrays`.

    Raises
    ------
    ExplorerError
        If there are no token ids of it.
    KeyError
        If the run has no such session.
    """
    arrays = run.token_arrays(session_id, trace_index=trace_index, window=window)
    if not len(arrays.table):
        raise ExplorerError(f"no token ids of session {session_id} were kept")
    index = arrays.table.column("trace_index")[0].as_py()
    return trace_tokens(arrays, transcript=read_transcript(run, session_id).trace(index))


def _places_in_turn(turn: NDArray[np.int32], mask: NDArray[np.int8]) -> NDArray[np.int32]:
    """Return how far into its sampled stretch each token is; a window may begin inside one."""
    places = np.full(len(turn), -1, dtype=np.int32)
    sampled = mask == 1
    if sampled.any():
        begins = sampled & np.r_[True, (mask[:-1] != 1) | (turn[:-1] != turn[1:])]
        first = np.maximum.accumulate(np.where(begins, np.arange(len(turn)), 0))
        places[sampled] = (np.arange(len(turn)) - first)[sampled]
    return places


def _starts(
    position: NDArray[np.int32], turn: NDArray[np.int32], mask: NDArray[np.int8]
) -> tuple[tuple[int, int], ...]:
    sampled = mask == 1
    if not sampled.any():
        return ()
    numbers, first, count = np.unique(turn[sampled], return_index=True, return_counts=True)
    places = position[sampled][first]
    return tuple((int(p), int(c)) for n, p, c in zip(numbers, places, count, strict=True) if n >= 0)


def _versions(
    position: NDArray[np.int32],
    turn: NDArray[np.int32],
    mask: NDArray[np.int8],
    transcript: Transcript | None,
) -> tuple[NDArray[np.int16], tuple[str, ...]]:
    codes = np.full(len(position), -1, dtype=np.int16)
    if transcript is None:
        return codes, ()
    names: dict[str, int] = {}
    for number, told in enumerate(transcript.turns):
        if not told.weight_versions:
            continue
        if told.start is not None and told.stop is not None:
            own = (position >= told.start) & (position < told.stop) & (mask != 0)
        else:
            own = (turn == number) & (mask == 1)
        codes[own] = names.setdefault(told.weight_versions[0], len(names))
        for version, start, stop in told.version_spans:
            code = names.setdefault(version, len(names))
            codes[own & (position >= start) & (position < stop)] = code
    return codes, tuple(names)
