"""Checks that compare whole sequences: traces there twice, broken continuations, another encoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.stats._audit import AuditData, Check, Found, unchecked
from analysis.stats.columns import Floats, integers, texts

__all__ = ["SEQUENCE_CHECKS"]

_NO_TOKENS = "no token arrays are loaded"
_CERTAIN = -40.0
"""Sum of logprobs below which a second sample with the same tokens does not happen by chance (e^-40)."""


def duplicates(data: AuditData) -> Found:
    """Find traces that are there twice: in one session, or in two whose tokens no chance repeats."""
    tokens = data.tokens
    if not len(tokens):
        return unchecked(_NO_TOKENS)
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    for item in range(len(tokens)):
        prompt = tokens.arrays["prompt"][item].tobytes() if "prompt" in tokens.arrays else b""
        groups.setdefault((prompt, tokens.response[item].tobytes()), []).append(item)
    session = texts(data.traces, "session_id")[tokens.rows]
    chance = _log_chance(data)
    rows, details = [], []
    for members in groups.values():
        for place, item in enumerate(members):
            twin = next((m for m in members[:place] if _same(data, item, m, session, chance)), None)
            if twin is not None:
                rows.append(item)
                details.append(f"the same tokens as trace {_named(data, twin)}")
    return Found(tokens.rows[np.array(rows, dtype=np.int64)], details, len(tokens))


def _log_chance(data: AuditData) -> Floats:
    used = data.sampled & np.isfinite(data.logprob)
    return np.asarray(
        np.bincount(data.tokens.response.owner[used], weights=data.logprob[used], minlength=len(data.tokens)),
        dtype=np.float64,
    )


def _same(data: AuditData, item: int, other: int, session: np.ndarray, chance: Floats) -> bool:
    if session[item] is not None and session[item] == session[other]:
        return True
    return bool(chance[item] < _CERTAIN)


def _named(data: AuditData, item: int) -> str:
    row = int(data.tokens.rows[item])
    number = integers(data.traces, "trace_index", missing=-1)[row]
    return f"{number} of session {texts(data.traces, 'session_id')[row]}"


def prefix_breaks(data: AuditData) -> Found:
    """Find traces that continue another one of their session, but not with the tokens that were sampled."""
    tokens = data.tokens
    if "prompt" not in tokens.arrays:
        return unchecked("no prompts are loaded")
    session, index = texts(data.traces, "session_id"), integers(data.traces, "trace_index", missing=-1)
    order: dict[str, list[int]] = {}
    for item, row in enumerate(tokens.rows):
        if session[row] is not None:
            order.setdefault(session[row], []).append(item)
    rows, details, positions, examined = [], [], [], 0
    for members in order.values():
        members.sort(key=lambda item: index[tokens.rows[item]])
        for place, item in enumerate(members[1:], start=1):
            examined += 1
            broken = _break(tokens, item, members[:place])
            if broken is not None:
                rows.append(item)
                positions.append(broken[1])
                details.append(
                    f"its prompt leaves trace {_named(data, broken[0])} at response token {broken[1]}"
                )
    items = np.array(rows, dtype=np.int64)
    return Found(tokens.rows[items], details, examined, np.array(positions, dtype=np.int64))


def _break(tokens: Any, item: int, earlier: list[int]) -> tuple[int, int] | None:
    """Return where a prompt leaves the response of an earlier trace that it began to follow, if it does."""
    prompt = tokens.arrays["prompt"][item]
    best: tuple[int, int] | None = None
    for other in earlier:
        lead, reply = tokens.arrays["prompt"][other], tokens.response[other]
        whole = np.concatenate([lead, reply])
        size = min(len(whole), len(prompt))
        off = np.flatnonzero(whole[:size] != prompt[:size])
        agree = int(off[0]) if len(off) else size
        if agree >= len(whole):
            return None  # it continues this one token for token
        # A first reply token in common is chance; what follows the prompt for longer was meant to continue.
        if agree >= len(lead) + 4 and (best is None or agree > best[1]):
            best = (other, agree)
    if best is None:
        return None
    return best[0], best[1] - len(tokens.arrays["prompt"][best[0]])


def round_trip(data: AuditData) -> Found:
    """Find sampled stretches that the tokenizer would not encode as they were sampled."""
    tokens = data.tokens
    if data.tokenizer is None:
        return unchecked("no tokenizer is given")
    if not len(tokens):
        return unchecked(_NO_TOKENS)
    rows, details, positions = [], [], []
    for item in range(len(tokens)):
        part = slice(int(tokens.response.offsets[item]), int(tokens.response.offsets[item + 1]))
        turns, ids = tokens.turns[part], tokens.response[item]
        for turn in np.unique(turns[turns >= 0]):
            places = np.flatnonzero(turns == turn)
            own = ids[places].tolist()
            again = list(data.tokenizer.encode(data.tokenizer.decode(own)))
            if again != own:
                rows.append(item)
                first = next((i for i, (a, b) in enumerate(zip(own, again, strict=False)) if a != b), 0)
                positions.append(int(places[min(first, len(places) - 1)]))
                details.append(f"turn {turn}: {len(own)} tokens become {len(again)}")
                break
    items = np.array(rows, dtype=np.int64)
    return Found(tokens.rows[items], details, len(tokens), np.array(positions, dtype=np.int64))


SEQUENCE_CHECKS: tuple[Check, ...] = (
    Check("duplicates", "error", "a trace is there twice", duplicates),
    Check("prefix_breaks", "warning", "a trace does not go on with the sampled tokens", prefix_breaks),
    Check("round_trip", "note", "the tokenizer would encode the text differently", round_trip),
)
"""Checks of sequences."""
