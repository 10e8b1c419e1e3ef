"""Which weights served each turn of a trace, and which turns a weight push may have cut short.

A push of new weights makes SGLang end the requests in flight. The partial text reaches the agent like any
other answer, so the only traces of it are a finish reason ``abort`` (where nothing on the way rewrote it) and
a change of the weight version from one turn to the next. An engine that pauses in place instead goes on with
the same answer under the new weights, and lists which tokens came from which: such a turn is whole, and of
several versions. The module reads all of this from a trace's metadata and maps turns to runs of trainable
tokens. It changes nothing; what becomes of a suspect turn is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_bridge.conversion.trace_tokens import trainable_spans

__all__ = ["Turn", "TurnReport", "WeightSpan", "oldest_and_newest", "read_turns"]


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """The tokens [start, end) of one turn that one version of the weights sampled, counted from its first."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call within a trace.

    Parameters
    ----------
    weight_version
        Version of the weights that served it, the first one of several; None if nobody said.
    finish_reason
        As reported for this call, None if nobody said.
    spans
        Which tokens came from which version, in order, where the weights changed during the call; else empty.
    """

    weight_version: str | None
    finish_reason: str | None
    spans: tuple[WeightSpan, ...] = ()

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that served it, in order; empty if nobody said."""
        if self.spans:
            return tuple(span.version for span in self.spans)
        return () if self.weight_version is None else (self.weight_version,)


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What is known about the turns of one trace.

    Parameters
    ----------
    turns
        In order of the calls.
    spans
        Token range [start, end) of each turn in the response; None where the runs of trainable tokens do not
        match the number of calls, so that turns cannot be located, or where nothing is known about any turn.
    aborted
        Positions in `turns` that ended with ``abort``.
    before_jump
        Positions in `turns` after which the weight version changed.
    """

    turns: tuple[Turn, ...]
    spans: tuple[tuple[int, int], ...] | None
    aborted: tuple[int, ...]
    before_jump: tuple[int, ...]

    @property
    def versions(self) -> list[str]:
        """The known weight versions in order of the calls; a turn of several versions gives each of them."""
        return [version for turn in self.turns for version in turn.versions]

    def to_list(self) -> list[dict[str, Any]]:
        """Return one plain dict per turn: its token range where known, weight version and finish reason.

        A turn of several versions has ``weight_versions`` besides: ``[{version, start, end}, ...]``, as
        positions in the response where the turn is located, else counted from the turn's own first token.
        """
        places = self.spans or [(None, None)] * len(self.turns)
        return [
            {
                "start": start,
                "end": end,
                "weight_version": turn.weight_version,
                "finish_reason": turn.finish_reason,
                **({"weight_versions": _located(turn.spans, start, end)} if turn.spans else {}),
            }
            for turn, (start, end) in zip(self.turns, places, strict=True)
        ]


def read_turns(
    metadata: Mapping[str, Any], finish_reason: str | None, flags: bytes, submitted_version: Any = None
) -> TurnReport:
    """Read the turns of one trace.

    Parameters
    ----------
    metadata
        The trace's metadata. ``completion_metadata`` holds one mapping per call of a merged trace; without it
        the trace is one call and its own metadata describes it. A call's version is its ``weight_version``,
        or the one in its ``meta_info``; failing both, its ``policy_version`` where that tells turns apart
        (see Notes). ``weight_versions``, there or in its ``meta_info``, are the spans ``[{version, start,
        end}, ...]`` of a call during which the weights changed; they come before all of these.
    finish_reason
        The trace's own: that of its last call.
    flags
        The mask as received, one byte per response token.
    submitted_version
        The policy version stamped on the task.

    Notes
    -----
    Servers copy the task's ``policy_version`` into every call's metadata, and some overwrite it there with
    the version that was live at the call. It is taken as evidence only where some call's value differs from
    the submitted one or from another call's: a constant equal to the stamp says nothing.
    """
    calls = metadata.get("completion_metadata")
    entries: list[Mapping[str, Any]] = [metadata]
    if isinstance(calls, list) and calls:
        entries = [call if isinstance(call, dict) else {} for call in calls]
    versions = _versions(entries, submitted_version)
    reasons = [_finish_reason(entry) for entry in entries]
    if finish_reason is not None:
        reasons[-1] = "abort" if "abort" in (finish_reason, reasons[-1]) else finish_reason
    aborted = tuple(i for i, reason in enumerate(reasons) if reason == "abort")
    # Most traces have neither versions nor aborts, and then nobody asks where their turns are.
    turns = [Turn(version, reason, spans) for (version, spans), reason in zip(versions, reasons, strict=True)]
    located = bool(aborted) or any(turn.versions for turn in turns)
    return TurnReport(
        turns=tuple(turns),
        spans=_spans(flags, len(entries)) if located else None,
        aborted=aborted,
        before_jump=_before_jump(turns),
    )


def oldest_and_newest(versions: Sequence[str]) -> tuple[str, str] | None:
    """Return the lowest and the highest version; where they are not all integers, the first and the last.

    None without versions.
    """
    if not versions:
        return None
    if versions.count(versions[0]) == len(versions):
        return versions[0], versions[0]
    if all(version.removeprefix("-").isdecimal() for version in versions):
        return min(versions, key=int), max(versions, key=int)
    return versions[0], versions[-1]


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _versions(
    entries: Sequence[Mapping[str, Any]], submitted: Any
) -> list[tuple[str | None, tuple[WeightSpan, ...]]]:
    """Return each call's version, and its spans where it has several."""
    engine = [_engine_versions(entry) for entry in entries]
    if any(version is not None for version, _ in engine):
        return engine
    stamped = [_text(entry.get("policy_version")) for entry in entries]
    known = {version for version in stamped if version is not None}
    stamp = _text(submitted)
    if len(known) > 1 or (stamp is not None and known - {stamp}):
        return [(version, ()) for version in stamped]
    return [(None, ())] * len(entries)


def _engine_versions(entry: Mapping[str, Any]) -> tuple[str | None, tuple[WeightSpan, ...]]:
    meta_info = entry.get("meta_info")
    inner = meta_info if isinstance(meta_info, dict) else {}
    listed = entry.get("weight_versions")
    spans = _weight_spans(inner.get("weight_versions") if listed is None else listed)
    if spans:
        return spans[0].version, spans if len({span.version for span in spans}) > 1 else ()
    version = entry.get("weight_version")
    return _text(inner.get("weight_version") if version is None else version), ()


def _weight_spans(listed: Any) -> tuple[WeightSpan, ...]:
    """Read spans; a list with a malformed entry says nothing."""
    spans = []
    for item in listed if isinstance(listed, list) else ():
        if not isinstance(item, dict) or (version := _text(item.get("version"))) is None:
            return ()
        start, end = item.get("start"), item.get("end")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end):
            return ()
        spans.append(WeightSpan(version, start, end))
    return tuple(spans)


def _located(spans: Sequence[WeightSpan], start: int | None, end: int | None) -> list[dict[str, Any]]:
    """Return spans as plain dicts, moved to where their turn is and cut where it ends.

    A version whose tokens are all behind the end, such as a stop token that is not kept, has an empty span.
    """
    offset = 0 if start is None else start
    placed = ((span.version, offset + span.start, offset + span.end) for span in spans)
    return [
        {
            "version": version,
            "start": first if end is None else min(first, end),
            "end": last if end is None else min(last, end),
        }
        for version, first, last in placed
    ]


def _finish_reason(entry: Mapping[str, Any]) -> str | None:
    meta_info = entry.get("meta_info")
    reason = entry.get("finish_reason")
    if reason is None and isinstance(meta_info, dict):
        reason = meta_info.get("finish_reason")
    if isinstance(reason, dict):
        reason = reason.get("type")
    return reason if isinstance(reason, str) else None


def _before_jump(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Return the turns after which the next known version is another one.

    Weights that changed during a turn cut nothing: it ends under the version that the next one begins with.
    """
    jumps: list[int] = []
    last_known: int | None = None
    for position, turn in enumerate(turns):
        if not turn.versions:
            continue
        if last_known is not None and turns[last_known].versions[-1] != turn.versions[0]:
            # Turns of unknown version in between may be the ones that were cut.
            jumps.extend(range(last_known, position))
        last_known = position
    return tuple(jumps)


def _spans(flags: bytes, calls: int) -> tuple[tuple[int, int], ...] | None:
    if calls == 1:
        return ((0, len(flags)),)
    runs = trainable_spans(flags)
    return tuple(runs) if len(runs) == calls else None
