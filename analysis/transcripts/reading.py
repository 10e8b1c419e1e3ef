"""The transcript of a session: its messages from the best file that has them, joined with its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from analysis.errors import LoadError
from analysis.merge import SOURCE_OF_KIND
from analysis.problems import Problem
from analysis.run import Run
from analysis.sources.values import integer, mapping, text
from analysis.store import Store
from analysis.tokens import TokenArrays
from analysis.transcripts.files import MessagePlaces, RawTrace, has_messages, read_traces
from analysis.transcripts.model import Block, Message, SessionTranscript, Transcript, Turn
from analysis.transcripts.parsing import messages_of, tools_of

__all__ = ["read_transcript", "session_arrays", "transcript_of"]

_PLACES: WeakKeyDictionary[Store, MessagePlaces] = WeakKeyDictionary()


def read_transcript(
    run: Any,
    session_id: str,
    *,
    name: str | None = None,
    tokens: bool | TokenArrays | None = True,
) -> SessionTranscript:
    """Return what was said in a session.

    Messages come from Polar's result, else from a captured model call, else from a dump. Where nobody kept
    messages they are made from the token ids, if the run has a tokenizer.

    Parameters
    ----------
    run
        A loaded run. Of mappings of frames no messages are known.
    session_id
        Polar's id; a session that is not there has no traces.
    name
        Name of the run, where several are loaded that have the session.
    tokens
        Whether to read the token arrays, for the numbers of each turn; or the session's arrays, where they
        were read already.
    """
    if not isinstance(run, Run):
        return SessionTranscript(session_id, name)
    store, problems = run.store, []
    for file in _places(store).files(session_id, name):
        try:
            raw = read_traces(file, session_id, store.settings.options)
        except OSError as error:
            problems.append(Problem(file.path, "messages cannot be read", error.strerror or str(error)))
            continue
        except LoadError as error:
            problems.append(Problem(file.path, "messages cannot be read", str(error)))
            continue
        if has_messages(raw):
            source = SOURCE_OF_KIND[file.kind]
            arrays = _given(run, session_id, name, tokens)
            traces = tuple(_joined(trace, arrays) for trace in raw)
            return SessionTranscript(session_id, name, traces, source, file.path, tuple(problems))
    decoded = _decoded(_given(run, session_id, name, True if tokens is False else tokens))
    source = "tokens" if decoded else ""
    return SessionTranscript(session_id, name, decoded, source, "", tuple(problems))


def transcript_of(trace: RawTrace) -> Transcript:
    """Return the messages of a trace as data, without the numbers that only its tokens tell."""
    response = messages_of(_response(trace.response))
    calls = [place for place, message in enumerate(response) if message.role == "assistant"]
    told = trace.turns if len(trace.turns) == len(calls) else ()
    turns = tuple(_told_turn(number, told[number] if told else {}) for number in range(len(calls)))
    for number, place in enumerate(calls):
        response[place] = replace(response[place], turn=number)
    return Transcript(
        trace_index=trace.trace_index,
        prompt=tuple(messages_of(trace.prompt)),
        response=tuple(response),
        turns=turns,
        tools=tools_of(trace.tools),
        finish_reason=trace.finish_reason,
        reward=trace.reward,
    )


def _places(store: Store) -> MessagePlaces:
    if store not in _PLACES:
        _PLACES[store] = MessagePlaces(store)
    return _PLACES[store]


def _response(value: Any) -> Any:
    """Take a bare text, which is all that some dumps hold, as the answer that it is."""
    return [{"role": "assistant", "content": value}] if isinstance(value, str) else value


def _told_turn(number: int, told: Mapping[str, Any]) -> Turn:
    spans = _spans(told)
    single = text(told.get("weight_version"))
    versions = [version for version, _, _ in spans] or ([] if single is None else [single])
    return Turn(
        number,
        start=integer(told.get("start")),
        stop=integer(told.get("end")),
        weight_versions=tuple(versions),
        version_spans=spans,
        finish_reason=text(told.get("finish_reason")),
    )


def _spans(told: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    listed = told.get("weight_versions")
    spans = []
    for item in listed if isinstance(listed, list) else ():
        about = mapping(item)
        version, start, stop = (
            text(about.get("version")),
            integer(about.get("start")),
            integer(about.get("end")),
        )
        if version is not None and start is not None and stop is not None:
            spans.append((version, start, stop))
    return tuple(spans)


def _moved(turn: Turn, offset: int | None) -> Turn:
    """Return a turn with positions counted from elsewhere; None forgets them."""
    if offset is None or turn.start is None or turn.stop is None:
        return replace(turn, start=None, stop=None, version_spans=())
    spans = tuple((version, start + offset, stop + offset) for version, start, stop in turn.version_spans)
    return replace(turn, start=turn.start + offset, stop=turn.stop + offset, version_spans=spans)


def _given(
    run: Run, session_id: str, name: str | None, tokens: bool | TokenArrays | None
) -> TokenArrays | None:
    if tokens is True:
        return session_arrays(run, session_id, name)
    return None if tokens is False else tokens


def session_arrays(run: Run, session_id: str, name: str | None = None) -> TokenArrays | None:
    """Return the token arrays of a session's traces; None if it has no trace.

    Parameters
    ----------
    run
        A loaded run.
    session_id, name
        Which session, and of which run where several are loaded.
    """
    view = run if name is None or len(run.names) < 2 else run.filter(run=name)
    try:
        return view.token_arrays(session_id)
    except KeyError:  # a session without a trace
        return None


def _joined(trace: RawTrace, arrays: TokenArrays | None) -> Transcript:
    """Add to a trace what its tokens tell."""
    plain = transcript_of(trace)
    place = _place(trace.trace_index, arrays)
    if arrays is None or place is None:
        # Positions in the response say nothing without the prompt's length.
        return replace(plain, turns=tuple(_moved(turn, None) for turn in plain.turns))
    own = slice(int(arrays.offsets[place]), int(arrays.offsets[place + 1]))
    prompt = int(arrays.table.column("prompt_tokens")[place].as_py())
    turns = _with_tokens(plain.turns, arrays, own, prompt)
    return replace(plain, turns=turns, prompt_tokens=prompt, response_tokens=own.stop - own.start - prompt)


def _place(index: int | None, arrays: TokenArrays | None) -> int | None:
    if arrays is None:
        return None
    known: list[int | None] = arrays.table.column("trace_index").to_pylist()
    if index in known:
        return known.index(index)
    return 0 if index is None and len(known) == 1 else None


def _with_tokens(turns: Sequence[Turn], arrays: TokenArrays, own: slice, prompt: int) -> tuple[Turn, ...]:
    """Add what the sampled stretches tell, where there are as many as turns."""
    turn = arrays.turn[own]
    count = int(turn.max(initial=-1)) + 1
    if count != len(turns):
        return tuple(_moved(turn, prompt) for turn in turns)
    mask, trainable = arrays.mask[own] == 1, arrays.trainable[own]
    bounds = np.searchsorted(turn, np.arange(count + 1))  # turns grow along the trace
    found = []
    for number, told in enumerate(turns):
        whole = slice(int(bounds[number]), int(bounds[number + 1]))
        sampled = mask[whole]
        size = int(sampled.sum())
        trained = trainable[whole][sampled]
        # Spans of a turn that nobody located are counted from its first token.
        spans = (
            _moved(told, prompt)
            if told.start is not None
            else _moved(replace(told, start=0, stop=0), whole.start)
        )
        found.append(
            replace(
                spans,
                start=whole.start,
                stop=whole.start + size,
                sampled=size,
                trainable=None if (trained < 0).any() else int(trained.sum()),
                answered=whole.stop - whole.start - size,
                logprob_mean=_mean(arrays.logprob[own][whole][sampled]),
                advantage=_mean(arrays.advantage[own][whole][trainable[whole] == 1]),
            )
        )
    return tuple(found)


def _mean(values: Any) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else None


def _decoded(arrays: TokenArrays | None) -> tuple[Transcript, ...]:
    """Make messages from token ids: one per stretch that was sampled, and one for what stands between."""
    if arrays is None or arrays.text is None or not len(arrays):
        return ()
    return tuple(_decoded_trace(arrays, place) for place in range(len(arrays.table)))


def _decoded_trace(arrays: TokenArrays, place: int) -> Transcript:
    own = slice(int(arrays.offsets[place]), int(arrays.offsets[place + 1]))
    prompt = int(arrays.table.column("prompt_tokens")[place].as_py())
    ids, mask, turn = arrays.ids[own], arrays.mask[own], arrays.turn[own]
    count = int(turn.max(initial=-1)) + 1
    text_of = arrays.text
    assert text_of is not None

    def message(role: str, part: Any, number: int | None = None) -> Message:
        return Message(role, (Block("text", "".join(text_of.texts(part))),) if len(part) else (), turn=number)

    messages = []
    edges = np.flatnonzero(np.diff(mask[prompt:])) + 1 + prompt
    for start, stop in zip([prompt, *edges], [*edges, len(ids)], strict=True):
        if stop > start:
            sampled = mask[start] == 1
            role = "assistant" if sampled else "context" if mask[start] == 0 else "response"
            messages.append(message(role, ids[start:stop], int(turn[start]) if sampled else None))
    index = arrays.table.column("trace_index")[place].as_py()
    return Transcript(
        trace_index=index,
        prompt=(message("prompt", ids[:prompt]),) if prompt else (),
        response=tuple(messages),
        turns=_with_tokens([Turn(number) for number in range(count)], arrays, own, prompt),
        prompt_tokens=prompt,
        response_tokens=len(ids) - prompt,
        decoded=True,
    )
