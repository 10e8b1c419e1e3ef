"""Bounds on a submission: which one ends it, and which group may still begin."""

from __future__ import annotations

import math
from typing import Any

import pytest

from analysis.live.budgets import Budget, Spent


def test_no_bound_is_never_reached() -> None:
    """Without bounds everything may be submitted."""
    spent = Spent(1e9, 10**12, 10**9)
    assert Budget().reached(spent) is None
    assert Budget().refuses(spent, 8) is None


@pytest.mark.parametrize(
    ("budget", "spent", "word"),
    [
        (Budget(max_seconds=2), Spent(seconds=2.0), "max_seconds reached: 2 s"),
        (Budget(max_tokens=100), Spent(tokens=100), "max_tokens reached: 100 of 100"),
        (Budget(max_seconds=5, max_tokens=10), Spent(1.0, 11), "max_tokens reached: 11 of 10"),
    ],
)
def test_the_bound_that_is_reached_is_named(budget: Budget, spent: Spent, word: str) -> None:
    """The sentence says which one, and how far it went."""
    assert budget.reached(spent) == word
    assert budget.refuses(spent, 1) == word


def test_just_below_a_bound_nothing_ends() -> None:
    """Bounds are reached at their value, not before."""
    assert Budget(2.0, 100, 10).reached(Spent(1.999, 99, 10)) is None


def test_a_group_fits_into_the_sessions_as_a_whole() -> None:
    """With 8 of 10 sessions submitted a group of 2 fits, one of 3 does not; nothing is cancelled."""
    budget, spent = Budget(max_sessions=10), Spent(sessions=8)
    assert budget.refuses(spent, 2) is None
    assert budget.refuses(spent, 3) == "max_sessions reached: 8 of 10 submitted"
    assert budget.reached(Spent(sessions=10)) is None


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, "5", True])
@pytest.mark.parametrize("name", ["max_seconds", "max_tokens", "max_sessions"])
def test_bounds_are_above_zero(name: str, wrong: Any) -> None:
    """The error names the bound and the value."""
    with pytest.raises(ValueError, match=rf"{name} must be above 0.*got {wrong!r}"):
        Budget(**{name: wrong})
