"""What is searched for: a plain text, or a regular expression between slashes.

Expressions come from whoever types, and on the right text some of them never end. Python's own engine would
hold the whole kernel meanwhile; the one of `regex` lets others work, and gives up in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import regex as expressions

from analysis.errors import ExplorerError

__all__ = ["BoundedPattern", "compiled", "query_pattern"]

_LONGEST = 1_000
_SECONDS = 1.0


class BoundedPattern:
    """A compiled query that gives up on a text in time.

    Parameters
    ----------
    pattern
        Compiled by `regex`.
    seconds
        How long one text may take; how long all texts together may take where it is lenient.
    lenient
        Whether it finds nothing more once the time is over, instead of raising.
    """

    def __init__(self, pattern: Any, *, seconds: float = _SECONDS, lenient: bool = False) -> None:
        self._pattern = pattern
        self._seconds = seconds
        self._lenient = lenient

    def finditer(self, text: str) -> Iterator[Any]:
        """Yield the matches in a text.

        Raises
        ------
        ExplorerError
            If the text took too long and that is not to be passed over.
        """
        began = time.monotonic()
        try:
            if self._seconds > 0:
                yield from self._pattern.finditer(text, timeout=self._seconds, concurrent=True)
        except TimeoutError:
            if not self._lenient:
                raise ExplorerError(
                    f"the expression {self._pattern.pattern!r} takes more than {self._seconds:g} s on a text "
                    f"of {len(text):,} characters: repetitions within repetitions, such as (a+)+, do that"
                ) from None
            self._seconds = 0.0
        finally:
            if self._lenient:
                self._seconds = max(0.0, self._seconds - (time.monotonic() - began))

    def search(self, text: str) -> Any | None:
        """Return the first match in a text, or None; raises as `finditer`."""
        return next(self.finditer(text), None)


def compiled(query: str, *, regex: bool = False, case: bool = False) -> BoundedPattern | None:
    """Return a query as a pattern; None where there is nothing to look for.

    Parameters
    ----------
    query
        What to look for. Between slashes it is a regular expression in any case.
    regex
        Whether it is one without slashes.
    case
        Whether capitals count.

    Raises
    ------
    ExplorerError
        If it is an expression that nobody understands, or too long.
    """
    pattern = _compiled(query, regex=regex, case=case)
    return None if pattern is None else BoundedPattern(pattern)


def query_pattern(query: str) -> BoundedPattern | None:
    """Return what a query marks in the texts of one view.

    An expression that nobody understands marks nothing, and one that takes too long nothing more.
    """
    try:
        pattern = _compiled(query)
    except ExplorerError:
        return None
    return None if pattern is None else BoundedPattern(pattern, lenient=True)


def _compiled(query: str, *, regex: bool = False, case: bool = False) -> Any | None:
    wanted = query.strip()
    if not wanted:
        return None
    if len(wanted) > _LONGEST:
        raise ExplorerError(f"a query has at most {_LONGEST:,} characters, got {len(wanted):,}")
    if len(wanted) > 2 and wanted.startswith("/") and wanted.endswith("/"):
        wanted, regex = wanted[1:-1], True
    flags = 0 if case else expressions.IGNORECASE
    try:
        return expressions.compile(wanted if regex else expressions.escape(wanted), flags)
    except (expressions.error, OverflowError, RecursionError, ValueError) as error:
        raise ExplorerError(f"{wanted!r} is no regular expression: {error}") from error
