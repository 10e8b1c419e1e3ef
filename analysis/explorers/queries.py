"""What is searched for: a plain text, or a regular expression between slashes."""

from __future__ import annotations

import re

from analysis.errors import ExplorerError

__all__ = ["compiled", "query_pattern"]

_LONGEST = 1_000


def compiled(query: str, *, regex: bool = False, case: bool = False) -> re.Pattern[str] | None:
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
        If it is an expression that Python does not understand, or too long.
    """
    wanted = query.strip()
    if not wanted:
        return None
    if len(wanted) > _LONGEST:
        raise ExplorerError(f"a query has at most {_LONGEST:,} characters, got {len(wanted):,}")
    if len(wanted) > 2 and wanted.startswith("/") and wanted.endswith("/"):
        wanted, regex = wanted[1:-1], True
    flags = re.NOFLAG if case else re.IGNORECASE
    try:
        return re.compile(wanted if regex else re.escape(wanted), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ExplorerError(f"{wanted!r} is no regular expression: {error}") from error


def query_pattern(query: str) -> re.Pattern[str] | None:
    """Return what a query marks in texts; an expression that Python does not understand marks nothing."""
    try:
        return compiled(query)
    except ExplorerError:
        return None
