"""Cells of the group table from the numbers that decided a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.sources.values import integer

__all__ = ["number_cells"]

_NUMBERS = {
    "sessions": "expected_sessions",
    "completed": "completed_sessions",
    "usable": "usable_sessions",
    "complete_usable": "complete_usable_sessions",
    "required": "required_sessions",
    "early_stopped": "early_stopped_sessions",
    "traceless": "traceless_sessions",
    "staleness": "staleness",
}


def number_cells(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that have a column; a verdict need not have all of them."""
    return {
        column: value
        for name, column in _NUMBERS.items()
        if name in numbers and (value := integer(numbers[name])) is not None
    }
