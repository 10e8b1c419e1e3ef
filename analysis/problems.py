"""What went wrong while loading, and what was left out on purpose: kept as data, shown as frames.

A `Problem` names a file, what is wrong with it, why, and what to do. A `Skipped` names a file that nobody
tried to load, and the reason. Neither ever stops the loading of another file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

from analysis.errors import LoadError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Problem", "Skipped", "problems_frame", "skipped_frame"]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong with a file, or with one row of it.

    Parameters
    ----------
    path
        The file; with the place inside it where there is one, as in ``journal.jsonl:17``.
    what
        What is wrong.
    why
        The cause, as far as it is known.
    fix
        What the user can do; "" if there is nothing to do.
    """

    path: str
    what: str
    why: str = ""
    fix: str = ""

    @classmethod
    def of(cls, path: str, error: LoadError) -> Problem:
        """Make a problem of an error."""
        return cls(path, error.what, error.why, error.fix)

    def __str__(self) -> str:
        text = f"{self.path}: " + ": ".join(part for part in (self.what, self.why) if part)
        return f"{text} ({self.fix})" if self.fix else text


@dataclass(frozen=True, slots=True, order=True)
class Skipped:
    """One file or folder that was not loaded, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def problems_frame(problems: Iterable[Problem]) -> pd.DataFrame:
    """Return problems as a frame with the columns path, what, why and fix, all of dtype ``string``."""
    return _frame(problems, Problem)


def skipped_frame(skipped: Iterable[Skipped]) -> pd.DataFrame:
    """Return skipped files as a frame with the columns path and reason, both of dtype ``string``."""
    return _frame(skipped, Skipped)


def _frame(items: Iterable[Problem | Skipped], kind: type[Problem | Skipped]) -> pd.DataFrame:
    import pandas as pd  # here: processes that only read files need no frames

    rows = [astuple(item) for item in items]
    return pd.DataFrame(rows, columns=[field.name for field in fields(kind)], dtype="string")
