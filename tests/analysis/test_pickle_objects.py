"""What an allowed name leads to: plain values, from checked arguments, within a budget."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from analysis.errors import FileLimitError, UnsafePickleError
from analysis.pickle_objects import Allowed, Budget, checked_shape, plain_names
from analysis.safe_pickle import load_pt

torch = pytest.importorskip("torch")


def test_budget() -> None:
    """What is spent is gone; what is not there raises and names the option."""
    budget = Budget(10)
    budget.spend(10)
    assert budget.left == 0
    with pytest.raises(FileLimitError, match="max_bytes"):
        budget.spend(1)


def test_allowed_objects_cannot_be_changed() -> None:
    """No attribute can be set, no state taken, and calling a mere marker is refused."""
    marker = Allowed("numpy.ndarray")
    with pytest.raises(AttributeError):
        marker.name = "x"  # type: ignore[misc]
    with pytest.raises(UnsafePickleError):
        marker.__setstate__({"name": "x"})
    with pytest.raises(UnsafePickleError):
        marker()
    with pytest.raises(TypeError):
        pickle.dumps(marker)


def test_names_are_made_afresh() -> None:
    """Two loads share no object that a pickle can touch."""
    first, second = plain_names(Budget(1)), plain_names(Budget(1))
    assert first.keys() == second.keys()
    assert all(first[name] is not second[name] for name in first)


def test_nothing_real_is_reachable() -> None:
    """No name leads to a class or function of NumPy, PyTorch or the standard library."""
    for name, found in plain_names(Budget(1)).items():
        assert type(found) is Allowed, name
        assert found.function is None or found.function.__module__ == "analysis.pickle_objects", name


@pytest.mark.parametrize("shape", [(-1,), (1.0,), (True,), "ab", 3, None, (0,) * 33, (1 << 63,)])
def test_shapes(shape: object) -> None:
    """Only a short sequence of non-negative integers is a shape."""
    with pytest.raises(UnsafePickleError):
        checked_shape(shape)


def test_loaded_arrays_are_arrays(tmp_path: Path) -> None:
    """Arrays of a dump can be computed with, copied, and pickled on to other processes as plain ones."""
    torch.save(np.arange(3.0), tmp_path / "1.pt")
    found = load_pt(tmp_path / "1.pt")
    assert float((found * 2).sum()) == 6.0
    assert float(copy.deepcopy(found)[2]) == 2.0
    assert type(pickle.loads(pickle.dumps(found))) is np.ndarray
