"""Stand-ins for classes that a trusted dump names and that are not installed."""

from __future__ import annotations

import builtins
import importlib
from typing import Any

import pytest

from analysis.pickle_standins import StandIn, find_or_stand_in


def find(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def test_what_is_installed_is_itself() -> None:
    """An importable class is not replaced."""
    assert find_or_stand_in("builtins", "dict", find) is builtins.dict


def test_both_numpys() -> None:
    """Either spelling of NumPy's modules finds the one that is installed, without a warning."""
    old = find_or_stand_in("numpy.core.multiarray", "scalar", find)
    assert old is find_or_stand_in("numpy._core.multiarray", "scalar", find)


def test_a_stand_in_keeps_what_it_was_told() -> None:
    """Class, arguments and state of the missing object are there to look at."""
    kind = find_or_stand_in("trainer.types", "Sample", find)
    value = kind(1, name="x")
    value.__setstate__({"a": 2})
    assert isinstance(value, StandIn)
    assert (value.args, value.kwargs, value.state) == ((1,), {"name": "x"}, {"a": 2})
    assert repr(value) == "<trainer.types.Sample {'a': 2}>"
    assert repr(kind.Status("done")) == "<trainer.types.Sample.Status ('done',)>"


def test_special_names_are_no_stand_ins() -> None:
    """Python's own protocol names are not answered: nothing mistakes a stand-in for something else."""
    kind = find_or_stand_in("trainer.types", "Sample", find)
    with pytest.raises(AttributeError):
        _ = kind.__reduce_cython__
