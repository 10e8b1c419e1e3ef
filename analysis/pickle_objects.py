"""What a pickle may hold besides plain values, rebuilt by functions of our own: arrays, sets, bytes.

A pickle names functions and has them called. Here a name only ever leads to an `Allowed` object that checks
its arguments and builds a plain value: NumPy's own functions are not reachable, nothing named in a file is
imported, and no object that a pickle can touch outlives the load or is shared between loads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from analysis.errors import FileLimitError, LoadError, UnsafePickleError

__all__ = ["Allowed", "Budget", "LoadedArray", "checked_shape", "plain_names", "refused"]

_MAX_DIMENSIONS = 32
_SET_ENTRY = 48
_DTYPE_CODE = re.compile(r"[?bBhHiIlLqQefdFD]|b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,8}")


class Budget:
    """Memory that loading one file may take.

    Parameters
    ----------
    limit
        In bytes.
    """

    __slots__ = ("_left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = limit

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return self._left

    def spend(self, size: int) -> None:
        """Take some bytes.

        Raises
        ------
        FileLimitError
            If they are not left.
        """
        self._left -= size
        if self._left < 0:
            raise FileLimitError(
                "would take too much memory",
                f"more than {self.limit / 2**20:,.0f} MiB",
                "pass a larger `max_bytes` if the file is genuine",
            )


class Allowed:
    """What an allowed name leads to: a function with checked arguments, or a mere marker.

    Immutable, so that a pickle's BUILD cannot change it.
    """

    __slots__ = ("function", "name", "value")
    function: Callable[..., Any] | None
    name: str
    value: Any

    def __init__(self, name: str, function: Callable[..., Any] | None = None, value: Any = None) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "value", value)

    def __call__(self, *args: Any) -> Any:
        """Build the object."""
        if self.function is None:
            raise refused(f"{self.name} is called, which no dump does")
        try:
            return self.function(*args)
        except LoadError:
            raise
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise refused(f"{self.name} with unusual arguments: {type(error).__name__}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("immutable")

    def __setstate__(self, state: Any) -> None:
        raise refused(f"{self.name} is modified, which no dump does")

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")

    def __repr__(self) -> str:
        return f"<{self.name}>"


class LoadedArray(np.ndarray[Any, Any]):
    """An array from a file. Like any other, but a pickle can fill it only once, and only with numbers."""

    _budget: Budget | None = None

    def __array_finalize__(self, obj: Any) -> None:
        """Leave views and copies closed: only the array itself can be filled."""

    def __setstate__(self, state: Any) -> None:
        """Take shape, type and content from a pickle, once checked."""
        budget = self.__dict__.pop("_budget", None)
        if budget is None:
            raise refused("an array is filled twice")
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes) or type(fortran) is not bool:
            raise refused("an array of objects, or with unusual content")
        kind = dtype.resolved()
        if _count(shape) * kind.itemsize != len(raw):
            raise refused("an array whose content does not fit its shape")
        budget.spend(len(raw))
        super().__setstate__((1, shape, kind, fortran, raw))  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


class _DType:
    """An element type while its pickle is read."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: Any, align: Any = False, copy: Any = True) -> None:
        if not isinstance(code, str) or not _DTYPE_CODE.fullmatch(code):
            raise refused(f"a NumPy dtype {str(code)[:40]!r}, which is no plain number or text")
        self._code = code
        self._order = "="

    def __setstate__(self, state: Any) -> None:
        _, order, subarray, names, fields, *rest = state
        if order not in ("<", ">", "|", "=") or len(rest) != 3:
            raise refused("an unusual NumPy dtype")
        if subarray is not None or names is not None or fields is not None:
            raise refused("a NumPy dtype with fields")
        self._order = order

    def resolved(self) -> np.dtype[Any]:
        """Return NumPy's dtype."""
        return np.dtype(self._code).newbyteorder(self._order)  # type: ignore[arg-type]


def plain_names(budget: Budget) -> dict[str, Allowed]:
    """Return what each allowed global leads to, PyTorch's left out, made afresh for one load.

    Parameters
    ----------
    budget
        Charged for everything that is built.

    Returns
    -------
    dict
        Keys are module and name with a blank between, in Python 3's and NumPy 1's spelling.
    """
    array = Allowed("numpy.ndarray")
    functions: Mapping[str, Callable[..., Any]] = {
        "_codecs encode": lambda text, encoding: _encode(budget, text, encoding),
        "collections OrderedDict": lambda items=(): _dict(budget, items),
        "builtins set": lambda items=(): set(_listed(budget, items)),
        "builtins frozenset": lambda items=(): frozenset(_listed(budget, items)),
        "builtins bytes": lambda: b"",
        "builtins bytearray": lambda content=b"", encoding=None: _bytearray(budget, content, encoding),
        "builtins complex": lambda real, imaginary: complex(float(real), float(imaginary)),
        "numpy dtype": _DType,
        "numpy.core.multiarray _reconstruct": lambda kind, shape, code: _empty(budget, kind is array, shape),
        "numpy.core.multiarray scalar": _scalar,
        "numpy.core.numeric _frombuffer": lambda raw, dtype, shape, order: _from_buffer(
            budget, raw, dtype, shape, order
        ),
    }
    names = {name: Allowed(name.replace(" ", "."), call) for name, call in functions.items()}
    return {**names, "numpy ndarray": array}


def refused(why: str) -> UnsafePickleError:
    """Return the error for something that no plain dump holds."""
    return UnsafePickleError(
        "holds more than plain data",
        why,
        "pass `trusted=True` only if you trust its writer like your own shell",
    )


def _encode(budget: Budget, text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise refused("`_codecs.encode` with unusual arguments")
    budget.spend(len(text))
    return text.encode("latin1")


def _listed(budget: Budget, items: Any) -> list[Any]:
    if not isinstance(items, list) and items != ():
        raise refused("a set of something else than a list")
    budget.spend(_SET_ENTRY * len(items))
    return list(items)


def _dict(budget: Budget, items: Any) -> dict[Any, Any]:
    if not isinstance(items, list) and items != ():
        raise refused("`OrderedDict` with unusual arguments")
    budget.spend(2 * _SET_ENTRY * len(items))
    return {key: value for key, value in items}  # pairs only: dict() would accept more


def _bytearray(budget: Budget, content: Any, encoding: Any) -> bytearray:
    raw = content if encoding is None else _encode(budget, content, encoding)
    if not isinstance(raw, bytes):
        raise refused("a bytearray of something else than bytes")
    budget.spend(len(raw))
    return bytearray(raw)


def checked_shape(sizes: Any) -> tuple[int, ...]:
    """Return a shape, or strides, from a pickle.

    Raises
    ------
    UnsafePickleError
        If it is no short sequence of non-negative integers.
    """
    if not isinstance(sizes, tuple | list) or len(sizes) > _MAX_DIMENSIONS:
        raise refused("an array of unusual shape")
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise refused("an array of unusual shape")
    return tuple(sizes)


def _count(sizes: Any) -> int:
    return math.prod(checked_shape(sizes))


def _empty(budget: Budget, known: bool, shape: Any) -> LoadedArray:
    if not known or shape != (0,):
        raise refused("an array of an unknown class")
    array: LoadedArray = np.ndarray.__new__(LoadedArray, (0,), dtype=np.int8)
    array._budget = budget
    return array


def _plain_dtype(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, _DType):
        raise refused("an array without a plain dtype")
    return dtype.resolved()


def _scalar(dtype: Any, raw: Any) -> Any:
    kind = _plain_dtype(dtype)
    if not isinstance(raw, bytes) or len(raw) != kind.itemsize:
        raise refused("a NumPy scalar with unusual content")
    return np.frombuffer(raw, dtype=kind, count=1)[0].item()


def _from_buffer(budget: Budget, raw: Any, dtype: Any, shape: Any, order: Any) -> LoadedArray:
    kind = _plain_dtype(dtype)
    if not isinstance(raw, bytes | bytearray) or order not in ("C", "F"):
        raise refused("an array with unusual content")
    if _count(shape) * kind.itemsize != len(raw):
        raise refused("an array whose content does not fit its shape")
    budget.spend(len(raw))
    return np.frombuffer(bytes(raw), dtype=kind).reshape(shape, order=order).view(LoadedArray)
