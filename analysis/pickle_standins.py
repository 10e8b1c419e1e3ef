"""Inert stand-ins for classes that a trusted pickle names and that are not installed here.

A dump written inside a trainer may hold its enums and dataclasses; somebody who trusts the dump can look at
the rest of it without installing the trainer. Used for trusted files only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["StandIn", "find_or_stand_in"]


class _StandInType(type):
    """Makes attributes of stand-in classes stand-in classes: enum members come by `getattr`."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(cls.__module__, f"{cls.__qualname__}.{name}")


class StandIn(metaclass=_StandInType):
    """An object whose class is not installed: keeps what its pickle said and does nothing.

    Parameters
    ----------
    *args, **kwargs
        As the pickle passes them to the class.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Accept whatever the real class accepts."""
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        kind = type(self)
        return f"<{kind.__module__}.{kind.__qualname__} {self.state or getattr(self, 'args', ())!r:.80}>"


def _make(module: str, name: str) -> type[StandIn]:
    made: Any = _StandInType(
        name.rpartition(".")[2], (StandIn,), {"__module__": module, "__qualname__": name}
    )
    return made  # type: ignore[no-any-return]


def find_or_stand_in(module: str, name: str, find: Callable[[str, str], Any]) -> Any:
    """Return what a pickle's global names, or a stand-in where it is not installed.

    Parameters
    ----------
    module, name
        The global.
    find
        Python's own lookup, which imports.
    """
    # NumPy 2 still has the old name, but warns; NumPy 1 only has the old one.
    new = module.replace("numpy.core", "numpy._core")
    for spelling in dict.fromkeys((new, new.replace("numpy._core", "numpy.core"), module)):
        try:
            return find(spelling, name)
        except (ImportError, AttributeError):
            continue
    return _make(module, name)
