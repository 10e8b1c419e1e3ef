"""What a fidelity check is, what it looks at, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.stats.columns import Bools, Floats, Ints, flags
from analysis.stats.frames import Frames, session_rows
from analysis.stats.token_tables import TokenTable

__all__ = ["AuditData", "Check", "Found", "Grain", "at_positions", "of_rows", "unchecked"]

Grain = Literal["trace", "session", "group"]
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, eq=False)
class Found:
    """What one check gave.

    Parameters
    ----------
    rows
        Rows of the table at fault.
    details
        What is wrong, one text per row.
    examined
        Rows that could be checked.
    positions
        First place in the response, per row; -1 where it has none.
    grain
        Which table the rows are of.
    skipped
        Why nothing could be checked; None if something was.
    """

    rows: Ints
    details: Sequence[str]
    examined: int
    positions: Ints | None = None
    grain: Grain = "trace"
    skipped: str | None = None


@dataclass(frozen=True, eq=False)
class AuditData:
    """The tables of a run, and what several checks need of them.

    Parameters
    ----------
    frames
        The tables.
    tokenizer
        Has ``encode`` and ``decode``; None for none.
    vocabulary
        Number of token ids; None if unknown.
    """

    frames: Frames
    tokenizer: Any = None
    vocabulary: int | None = None

    @property
    def traces(self) -> pd.DataFrame:
        """The table of traces."""
        return self.frames.traces

    @cached_property
    def tokens(self) -> TokenTable:
        """Token arrays of all traces but placeholders."""
        tokens = self.frames.tokens
        return tokens.select(~flags(self.traces, "placeholder")[tokens.rows])

    @cached_property
    def sampled(self) -> Bools:
        """Which response tokens were sampled, shape (N,); none of a trace whose mask does not fit."""
        return np.asarray(np.nan_to_num(self.tokens.aligned("mask")) == 1, dtype=bool)

    @cached_property
    def logprob(self) -> Floats:
        """The sampler's logprobs, shape (N,); NaN of a trace whose logprobs do not fit."""
        return self.tokens.aligned("logprob")

    @cached_property
    def session_of_trace(self) -> Ints:
        """Row of each trace's session, -1 for none."""
        if not len(self.frames.sessions):
            return np.full(len(self.traces), -1, dtype=np.int64)
        return session_rows(self.frames.sessions, self.traces)

    def count(self, where: Bools) -> Floats:
        """Count per trace of the token table where a condition over tokens holds, shape (k,)."""
        owner = self.tokens.response.owner[where]
        return np.asarray(np.bincount(owner, minlength=len(self.tokens)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Parameters
    ----------
    name
        Short word.
    severity
        ``error``: such data must not be trained on; ``warning``: something is not as it should be; ``note``:
        worth knowing.
    meaning
        What is wrong where it finds something.
    function
        Does it.
    needs
        What must be there, for people.
    """

    name: str
    severity: Severity
    meaning: str
    function: Callable[[AuditData], Found] = field(repr=False)
    needs: str = "traces"


def unchecked(reason: str, grain: Grain = "trace") -> Found:
    """Return that nothing could be checked, and why."""
    return Found(np.zeros(0, dtype=np.int64), [], 0, grain=grain, skipped=reason)


def at_positions(data: AuditData, wrong: Bools, what: str, examined: int) -> Found:
    """Return one finding per trace with a wrong token: how many there are, and where the first is.

    Parameters
    ----------
    data
        What is audited.
    wrong
        Shape (N,): over the response tokens.
    what
        What is wrong with a token, in the plural.
    examined
        Traces that were looked at.
    """
    places = np.flatnonzero(wrong)
    owner = data.tokens.response.owner[places]
    items, first, counts = np.unique(owner, return_index=True, return_counts=True)
    positions = data.tokens.response.position[places[first]]
    details = [f"{n} {what}, the first at {p}" for n, p in zip(counts, positions, strict=True)]
    return Found(data.tokens.rows[items], details, examined, positions.astype(np.int64))


def of_rows(wrong: Bools, details: Sequence[str] | str, examined: int, grain: Grain = "trace") -> Found:
    """Return one finding per row of a table at fault.

    Parameters
    ----------
    wrong
        Shape (n,): over the rows of the table.
    details
        One text for all, or one per row of the table.
    examined
        Rows that were looked at.
    grain
        Which table.
    """
    rows = np.flatnonzero(wrong)
    texts = [details] * len(rows) if isinstance(details, str) else [details[int(row)] for row in rows]
    return Found(rows.astype(np.int64), texts, examined, grain=grain)
