"""Two of a kind side by side: what numbers say of each, and where two transcripts part. Knows no widget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import ExplorerError
from analysis.explorers.advantages import advantages_of_traces
from analysis.explorers.lookup import GroupKey
from analysis.explorers.state import SelectionState
from analysis.html.text import escaped
from analysis.html.transcript import transcript_html
from analysis.stats.columns import Floats, Ints, flags, floats, texts
from analysis.stats.sessions import session_seconds
from analysis.transcripts.model import Message, Transcript

__all__ = ["KINDS", "Part", "beside_html", "compare_frame", "first_difference", "part_of"]

KINDS = ("session", "group", "rollout", "run")
"""What can be compared."""


@dataclass(frozen=True)
class Part:
    """Some sessions and their traces: one side of a comparison.

    Parameters
    ----------
    kind
        One of `KINDS`.
    label
        What it is called.
    groups, sessions, traces
        Their rows in the run's tables.
    """

    kind: str
    label: str
    groups: Ints
    sessions: Ints
    traces: Ints


def part_of(state: SelectionState, kind: str, key: str | int | GroupKey) -> Part:
    """Return one side of a comparison.

    Parameters
    ----------
    state
        Of the run.
    kind
        One of `KINDS`.
    key
        The session's id, the group's key or number, the rollout's id, or the run's name.

    Raises
    ------
    ExplorerError
        If there is no such thing.
    """
    tables = state.tables
    if kind == "session":
        row = tables.session_row(str(key))
        if row is None:
            raise ExplorerError(f"this run has no session {key!r}; run.sessions() lists all")
        group = int(tables.group_of_session[row])
        sessions = np.array([row], dtype=np.int64)
        groups = np.array([group], dtype=np.int64)[[group >= 0]]
        label = str(key)
    elif kind == "group":
        found = tables.find_group(key)
        row = tables.group_row(found)
        groups = np.array([-1 if row is None else row], dtype=np.int64)
        sessions = np.flatnonzero(tables.group_of_session == groups[0])
        label = found.label()
    elif kind in ("rollout", "run"):
        groups = np.flatnonzero(_belongs(tables.groups, kind, key))
        sessions = np.flatnonzero(_belongs(tables.sessions, kind, key))
        label = f"rollout {key}" if kind == "rollout" else str(key)
        if not len(groups) and not len(sessions):
            raise ExplorerError(f"nothing here belongs to {label}")
    else:
        raise ExplorerError(f"{kind!r} cannot be compared: there are {', '.join(KINDS)}")
    traces = np.flatnonzero(np.isin(tables.session_of_trace, sessions))
    return Part(kind, label, groups, sessions, traces)


def _belongs(frame: pd.DataFrame, kind: str, key: object) -> np.ndarray:
    if kind == "run":
        return np.asarray(texts(frame, "run") == key)
    own = (frame["rollout_id"] == key).fillna(False).to_numpy(dtype=bool)
    return np.asarray(own & ~flags(frame, "evaluation"))


def compare_frame(state: SelectionState, first: Part, second: Part) -> pd.DataFrame:
    """Return what numbers say of two parts.

    Parameters
    ----------
    state
        Of the run; its estimator decides on the advantages.
    first, second
        The two.

    Returns
    -------
    DataFrame
        One row per quantity that is known of one of them: `quantity`, `unit`, `first`, `second`,
        `difference` (second minus first), missing where it is not known of both.
    """
    advantages, _ = advantages_of_traces(state)
    names = [name for name in _QUANTITIES if first.kind != "session" or name not in _ONLY_MANY]
    sides = [_numbers(state, part, advantages, names) for part in (first, second)]
    rows = []
    for name in names:
        left, right = (side[name] for side in sides)
        if not np.isnan(left) or not np.isnan(right):
            unit = _QUANTITIES[name][0]
            unit = _UNITS_OF_ONE.get(unit, unit) if first.kind == "session" else unit
            rows.append((name, unit, left, right, right - left))
    frame = pd.DataFrame(rows, columns=["quantity", "unit", "first", "second", "difference"])
    frame = frame.astype({"quantity": "string", "unit": "string"})
    for name in ("first", "second", "difference"):
        values = frame[name].to_numpy(dtype=np.float64)
        frame[name] = pd.arrays.FloatingArray(np.nan_to_num(values, nan=0.0), np.isnan(values))
    return frame


@dataclass(frozen=True)
class _Columns:
    """What quantities are computed from: the rows of one part."""

    groups: pd.DataFrame
    sessions: pd.DataFrame
    traces: pd.DataFrame
    advantages: Floats


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _spread(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.std(ddof=1)) if len(known) > 1 else float("nan")


def _most(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.abs(known).max()) if len(known) else float("nan")


def _share(frame: pd.DataFrame, name: str) -> float:
    known = frame[name].dropna()
    return float(known.astype(float).mean()) if len(known) else float("nan")


def _rewards(part: _Columns) -> Floats:
    """Rewards of the sessions that can be trained on; those of others are no measure of the policy."""
    usable = part.sessions["usable"].fillna(True).to_numpy(dtype=bool)
    return np.where(usable, floats(part.sessions, "reward"), np.nan)


def _total(frame: pd.DataFrame, name: str) -> float:
    values = floats(frame, name)
    known = values[np.isfinite(values)]
    return float(known.sum()) if len(known) else float("nan")


_QUANTITIES: Mapping[str, tuple[str, Callable[[_Columns], float]]] = MappingProxyType(
    {
        "groups": ("", lambda part: float(len(part.groups))),
        "groups rejected": ("share", lambda part: 1.0 - _share(part.groups, "accepted")),
        "sessions": ("", lambda part: float(len(part.sessions))),
        "sessions completed": ("share", lambda part: _share(part.sessions, "completed")),
        "sessions usable": ("share", lambda part: _share(part.sessions, "usable")),
        "reward": ("mean", lambda part: _mean(_rewards(part))),
        "reward spread": ("std", lambda part: _spread(_rewards(part))),
        "advantage": ("mean", lambda part: _mean(part.advantages)),
        "advantage spread": ("std", lambda part: _spread(part.advantages)),
        "advantage, largest": ("absolute", lambda part: _most(part.advantages)),
        "traces": ("", lambda part: float(len(part.traces))),
        "turns": ("per session", lambda part: _mean(floats(part.sessions, "turns"))),
        "prompt tokens": ("per session", lambda part: _mean(floats(part.sessions, "prompt_tokens"))),
        "response tokens": ("per session", lambda part: _mean(floats(part.sessions, "response_tokens"))),
        "trainable tokens": ("sum", lambda part: _total(part.sessions, "trainable_tokens")),
        "logprob": ("nats per token", lambda part: _mean(floats(part.traces, "logprob_mean"))),
        "train − rollout": ("nats", lambda part: _mean(floats(part.traces, "train_logprob_diff"))),
        "policy version": ("", lambda part: _mean(floats(part.sessions, "policy_version"))),
        "lag": ("rollouts", lambda part: _mean(floats(part.sessions, "staleness"))),
        "time": ("s per session", lambda part: _mean(session_seconds(part.sessions))),
    }
)
_UNITS_OF_ONE = dict.fromkeys(("mean", "share", "sum", "per session"), "") | {"s per session": "s"}
_ONLY_MANY = frozenset(
    {"groups", "groups rejected", "sessions", "reward spread", "advantage spread", "advantage, largest"}
)


def _numbers(state: SelectionState, part: Part, advantages: Floats, names: Sequence[str]) -> dict[str, float]:
    tables = state.tables
    columns = _Columns(
        tables.groups.iloc[part.groups],
        tables.sessions.iloc[part.sessions],
        tables.traces.iloc[part.traces],
        advantages[part.traces],
    )
    return {name: _QUANTITIES[name][1](columns) for name in names}


# Transcripts


def first_difference(first: Transcript, second: Transcript) -> int | None:
    """Return the number of the first message that differs in role or text; None if all are the same.

    Where one of them merely goes on, it is the first message that the other one lacks.
    """
    ours, theirs = first.messages, second.messages
    for number, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if _said(own) != _said(other):
            return number
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _said(message: Message) -> tuple[str, str]:
    return message.role, message.text


def beside_html(first: Transcript, second: Transcript, labels: tuple[str, str]) -> Markup:
    """Return two transcripts side by side: what they share once, then the rest of both.

    Parameters
    ----------
    first, second
        The two.
    labels
        What they are called.
    """
    parted = first_difference(first, second)
    heads = [
        Markup('<div class="wb-beside-title wb-code">{}</div>').format(escaped(label, 80)) for label in labels
    ]
    if parted is None:
        same = transcript_html(first, tools=False)
        note = Markup('<p class="wb-note">The same from beginning to end.</p>')
        return Markup('<div class="wb-beside">{}{}<div class="wb-beside-same">{}{}</div></div>').format(
            *heads, note, same
        )
    shared = Markup("")
    if parted:
        title = f"{parted} message{'' if parted == 1 else 's'} the same in both"
        shared = Markup(
            '<div class="wb-beside-same"><details class="wb-more"><summary>{}</summary>{}</details></div>'
        ).format(title, transcript_html(first, messages=slice(0, parted), tools=False))
    sides = [Markup("<div>{}</div>").format(_rest(transcript, parted)) for transcript in (first, second)]
    return Markup('<div class="wb-beside">{}{}{}{}{}</div>').format(*heads, shared, *sides)


def _rest(transcript: Transcript, parted: int) -> Markup:
    if parted >= len(transcript.messages):
        return Markup('<p class="wb-note">It ends here.</p>')
    return transcript_html(transcript, messages=slice(parted, None), marked={parted}, tools=False)
