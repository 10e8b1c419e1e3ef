"""What may leave: credentials are removed from every text of a page, and content too where it is asked for.

All text of a report goes through one `Redactor` on its way into HTML (`analysis.html.passing`), whatever
table or transcript it is part of; frames that are drawn go through it before. It counts what it removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from slime_bridge.redaction import names_a_secret, redact_counting

__all__ = ["CONTENT", "Redactor"]

CONTENT: Mapping[str, str] = {
    "prompt_preview": "prompt",
    "task_metadata": "task's data",
    "evaluation_report": "evaluation report",
    "label": "task's data",
    "text": "text",
    "detail": "detail of a failure",
    "evidence": "detail of a failure",
    "error": "detail of a failure",
    "last_error": "detail of a failure",
    "why": "detail of a failure",
}
"""Columns that may quote what a user, a task or a model wrote, and what they hold."""

_WITHHELD = "withheld"
_QUOTING = ("task_template",)


class Redactor:
    """Removes credentials from text, and content from frames, and counts both.

    Parameters
    ----------
    content
        Whether texts of users, tasks and models may be shown.
    emails
        Whether e-mail addresses may be shown.

    Attributes
    ----------
    removed
        Credentials by kind. What is shown twice is counted twice.
    withheld
        Texts by kind.
    """

    def __init__(self, *, content: bool = True, emails: bool = True) -> None:
        self.content = content
        self._emails = emails
        self.removed: Counter[str] = Counter()
        self.withheld: Counter[str] = Counter()

    def __call__(self, text: str) -> str:
        """Return text without credentials."""
        clean, counts = redact_counting(text, emails=not self._emails)
        self.removed.update(counts)
        return clean

    def finds(self, text: str) -> bool:
        """Tell whether there are credentials in a text; nothing is counted."""
        return bool(redact_counting(text, emails=not self._emails)[1])

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a frame for a table: columns of content withheld where content may not be shown."""
        if self.content:
            return frame
        return frame.assign(**{name: self._without(frame, name) for name in CONTENT if name in frame})

    def drawn(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a frame for a figure: like `frame`, and without credentials in columns of content."""
        clean = self.frame(frame)
        named = [name for name in CONTENT if name in clean] if self.content else []
        return clean.assign(**{name: self._clean(clean[name]) for name in named})

    def setting(self, name: str, value: Any) -> str:
        """Return the value of a setting as text, or a mask where its name says that it is a credential."""
        if value not in (None, "", False) and not isinstance(value, bool) and names_a_secret(name):
            self.removed["setting named like a secret"] += 1
            return "***"
        if name in _QUOTING and value and not self.content:
            self.withhold("setting that may quote a task")
            return _WITHHELD
        return str(value)

    def withhold(self, kind: str, count: int = 1) -> None:
        """Count texts that are not shown."""
        self.withheld[kind] += count

    def _without(self, frame: pd.DataFrame, name: str) -> pd.Series:
        there = frame[name].notna()
        self.withheld[CONTENT[name]] += int(there.sum())
        return pd.Series(_WITHHELD, index=frame.index, dtype="string").where(there)

    def _clean(self, values: pd.Series) -> pd.Series:
        known = {value: self(str(value)) for value in values.dropna().unique()}
        return values.map(known, na_action="ignore").astype("string")
