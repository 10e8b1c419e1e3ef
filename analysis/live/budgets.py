"""What a submission may cost at most: seconds, tokens, sessions. Pure; measuring is others' work."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

__all__ = ["Budget", "Spent"]


@dataclass(frozen=True)
class Spent:
    """What was used so far.

    Attributes
    ----------
    seconds
        Since the start.
    tokens
        Response tokens of the sessions whose results are here.
    sessions
        Sessions that were submitted, whatever became of them.
    """

    seconds: float = 0.0
    tokens: int = 0
    sessions: int = 0


@dataclass(frozen=True)
class Budget:
    """Upper bounds; None is no bound.

    Attributes
    ----------
    max_seconds
        Work that is still under way then is cancelled, also on the server.
    max_tokens
        Response tokens. They are known once a group's result is here, so what is under way at that moment
        is cancelled and not counted.
    max_sessions
        A group whose sessions do not all fit is not submitted.

    Raises
    ------
    ValueError
        For a bound that is not above zero.
    """

    max_seconds: float | None = None
    max_tokens: int | None = None
    max_sessions: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_seconds", "max_tokens", "max_sessions"):
            value = getattr(self, name)
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be above 0, or None for no bound; got {value!r}")

    def reached(self, spent: Spent) -> str | None:
        """Return which bound ends the work, as a sentence; None while there is none."""
        if self.max_seconds is not None and spent.seconds >= self.max_seconds:
            return f"max_seconds reached: {self.max_seconds:g} s"
        if self.max_tokens is not None and spent.tokens >= self.max_tokens:
            return f"max_tokens reached: {spent.tokens:,} of {self.max_tokens:,}"
        return None

    def refuses(self, spent: Spent, sessions: int) -> str | None:
        """Return why a group of so many sessions may not be submitted; None if it may."""
        if self.max_sessions is not None and spent.sessions + sessions > self.max_sessions:
            return f"max_sessions reached: {spent.sessions} of {self.max_sessions} submitted"
        return self.reached(spent)
