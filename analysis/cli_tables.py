"""A run's tables as text for a terminal: the columns that matter first, and as many as fit.

Knows no options and loads nothing; it is handed frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "Shown", "choose", "fit"]

COLUMNS = {
    "rollouts": (
        "rollout_id", "evaluation", "delivered_groups", "rejected_groups", "sessions", "usable_sessions",
        "reward_mean", "reward_std", "staleness_mean", "staleness_max", "trainable_tokens",
    ),
    "groups": (
        "rollout_id", "evaluation", "group", "state", "reward_mean", "reject_reason", "sessions",
        "usable_sessions", "reward_std", "advantage_abs_max", "staleness", "trainable_tokens",
        "prompt_preview",
    ),
    "sessions": (
        "session_id", "rollout_id", "evaluation", "group", "status", "reward", "advantage", "reason", "turns",
        "trainable_tokens", "e2e_ms", "error",
    ),
    "traces": (
        "session_id", "trace_index", "rollout_id", "group", "reward", "advantage", "prompt_tokens",
        "response_tokens", "trainable_tokens", "turns", "finish_reason",
    ),
    "events": ("seq", "at", "event", "rollout_id", "group", "task_id", "reason"),
    "completions": (
        "session_id", "completion_number", "model_used", "finish_reason", "prompt_tokens",
        "completion_tokens", "e2e_ms", "weight_version", "error",
    ),
    "metrics": ("rollout_id", "evaluation", "name", "value", "text", "unit"),
}  # fmt: skip
"""The columns of each table that are shown unless others are asked for, the most telling first."""

_NAMES = ("path", "run", "name", "event", "column")
_TEXT_WIDTHS = (60, 40, 24)
_FEWEST = 3


@dataclass(frozen=True)
class Shown:
    """A table as text.

    Parameters
    ----------
    text
        Its lines.
    columns
        How many columns they have.
    """

    text: str
    columns: int


def choose(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a table with the columns worth a first look.

    Parameters
    ----------
    frame
        All columns.
    name
        The table's.

    Returns
    -------
    DataFrame
        Those of `COLUMNS` that have values, the run's name in front where there are several; where none of
        them has values, all that have.
    """
    known = frame.dropna(axis="columns", how="all")
    several = ["run"] if "run" in known and known["run"].nunique() > 1 else []
    wanted = [column for column in COLUMNS[name] if column in known]
    return known[[*several, *wanted]] if wanted else known


def fit(frame: pd.DataFrame, width: int | None) -> Shown:
    """Lay rows out within a width.

    Parameters
    ----------
    frame
        The rows and columns to show.
    width
        Characters of a line. Texts are cut first, then columns are left out from the right; three of them
        stay, however narrow the terminal is. Names, ids and numbers are never cut. With None all is shown.
    """
    if width is None:
        return Shown(_laid_out(frame), frame.shape[1])
    text = ""
    for most in _TEXT_WIDTHS:
        text = _laid_out(_cut(frame, most))
        if _width(text) <= width:
            return Shown(text, frame.shape[1])
    columns = frame.shape[1]
    while _width(text) > width and columns > _FEWEST:
        columns -= 1
        text = _laid_out(_cut(frame.iloc[:, :columns], _TEXT_WIDTHS[-1]))
    return Shown(text, columns)


def _laid_out(frame: pd.DataFrame) -> str:
    return str(frame.to_string(index=False))


def _cut(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    def cut(value: object) -> object:
        return f"{value[: most - 3]}..." if isinstance(value, str) and len(value) > most else value

    texts = [name for name in frame if name not in _NAMES and not str(name).endswith("_id")]
    return frame.assign(**{name: frame[name].map(cut) for name in texts if _is_text(frame[name])})


def _is_text(column: pd.Series) -> bool:
    return any(isinstance(value, str) for value in column)


def _width(text: str) -> int:
    return max((len(line) for line in text.split("\n")), default=0)
