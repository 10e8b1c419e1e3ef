"""Loads what `torch.save` wrote, without PyTorch and without running anything that the file names.

Dumps are hostile input. The pickle inside is looked over before it is executed (`analysis.pickle_scan`), and
then executed by an unpickler that knows nothing but plain values, NumPy arrays, tensors, sets and bytes
(`analysis.pickle_objects`, `analysis.pickle_tensors`). A file that needs more is refused with an error that
names what it needs and the option ``trusted=True``, which hands the file to Python's own unpickler.

Tensors come as NumPy arrays, on whatever device they were; bfloat16 comes as float32. NumPy scalars come as
Python numbers, an `OrderedDict` as a dict, a `torch.Size` as a tuple.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
from collections.abc import Iterator
from typing import Any

from analysis.errors import FileLimitError, IncompleteFileError, LoadError, UnsafePickleError
from analysis.pickle_objects import Allowed, Budget, plain_names
from analysis.pickle_scan import scan_pickle
from analysis.pickle_sharing import check_sharing
from analysis.pickle_standins import find_or_stand_in
from analysis.pickle_tensors import Storage, storage_dtype, tensor_names
from analysis.torch_archive import TorchArchive

__all__ = ["DEFAULT_MAX_BYTES", "load_pt"]

DEFAULT_MAX_BYTES = 4 << 30
"""Memory that one file may take unless the caller says otherwise, in bytes."""

_BUFFER_BYTES = 1 << 20
_TRUST = "pass `trusted=True` only if you trust its writer like your own shell"


def load_pt(
    path: str | os.PathLike[str], *, trusted: bool = False, max_bytes: int = DEFAULT_MAX_BYTES
) -> Any:
    """Load a file that `torch.save` wrote.

    Parameters
    ----------
    path
        The file.
    trusted
        Load it with Python's own unpickler, which runs whatever the file says. Classes that cannot be
        imported become inert stand-ins then.
    max_bytes
        Most memory that its content may take, in bytes, estimated before anything is built.

    Returns
    -------
    object
        Usually a dict.

    Raises
    ------
    IncompleteFileError
        If it ends too early.
    ForeignFileError
        If it is no such archive.
    UnsafePickleError
        If it holds what only running foreign code could rebuild; names the class and the option.
    FileLimitError
        If it is larger than allowed.
    LoadError
        If it is damaged in another way.
    OSError
        If it cannot be read.
    """
    budget = Budget(max_bytes)
    with TorchArchive(path, budget) as archive, _collector_paused():
        data = archive.pickle()
        if trusted:
            return _executed(_Trusting(data, archive, budget))
        scan = scan_pickle(data, memory_limit=budget.left)
        names = _spelled({**plain_names(budget), **tensor_names(budget)})
        strangers = scan.names - names.keys()
        if strangers:
            raise _needs(strangers)
        budget.spend(scan.memory)
        check_sharing(data[: scan.length], scan)
        return _executed(_Restricted(data[: scan.length], archive, budget, names))


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking over millions of new objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _executed(unpickler: pickle.Unpickler) -> Any:
    try:
        return unpickler.load()
    except LoadError:
        raise
    except MemoryError as error:
        raise FileLimitError("would take too much memory", "the system has no more") from error
    except EOFError as error:
        raise IncompleteFileError("ends too early", str(error)[:200]) from error
    except (
        Exception
    ) as error:  # the unpickler raises whatever its input provokes; the caller sees one kind of error
        raise LoadError("is damaged", f"{type(error).__name__}: {str(error)[:200]}") from error


class _TorchUnpickler(pickle.Unpickler):
    """Resolves the storages of tensors."""

    def __init__(self, data: bytes, archive: TorchArchive, budget: Budget) -> None:
        # Without a buffer that can be peeked into, the unpickler asks for every number separately.
        super().__init__(io.BufferedReader(io.BytesIO(data), _BUFFER_BYTES))
        self._archive = archive
        self._budget = budget
        self._big_endian = archive.big_endian
        self._storages: dict[tuple[str, str], Storage] = {}

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage that a persistent id names."""
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise UnsafePickleError("holds more than plain data", "an unusual persistent id", _TRUST)
        _, kind, key, _, count = pid
        dtype = storage_dtype(kind)
        if not isinstance(key, str) or type(count) is not int:
            raise UnsafePickleError("holds more than plain data", "an unusual storage", _TRUST)
        found = self._storages.get((key, dtype))
        if found is None:
            found = Storage(self._archive.storage(key), dtype, big_endian=self._big_endian)
            if count < 0 or len(found.numbers(dtype)) < count:
                raise LoadError("is damaged", f"storage {key[:40]!r} is smaller than it claims")
            self._storages[key, dtype] = found
        return found


class _Restricted(_TorchUnpickler):
    """Knows the allowed names and nothing else."""

    def __init__(
        self, data: bytes, archive: TorchArchive, budget: Budget, names: dict[tuple[str, str], Allowed]
    ) -> None:
        super().__init__(data, archive, budget)
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        """Return what an allowed name leads to."""
        found = self._names.get((module, name))
        if found is None:
            raise _needs({(module, name)})
        return found


class _Trusting(_TorchUnpickler):
    """Imports what the file names; tensors still become arrays."""

    def __init__(self, data: bytes, archive: TorchArchive, budget: Budget) -> None:
        super().__init__(data, archive, budget)
        self._names = _spelled(tensor_names(budget))

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name leads to, or a stand-in."""
        return self._names.get((module, name)) or find_or_stand_in(module, name, super().find_class)


def _spelled(names: dict[str, Allowed]) -> dict[tuple[str, str], Allowed]:
    """Return names in every spelling: protocol 2 has Python 2's builtins, NumPy 1 and 2 differ."""
    result: dict[tuple[str, str], Allowed] = {}
    for key, value in names.items():
        module, name = key.split(" ")
        result[module, name] = value
        other = "__builtin__" if module == "builtins" else module.replace("numpy.core", "numpy._core")
        result[other, name] = value
    return result


def _needs(strangers: set[tuple[str, str]]) -> UnsafePickleError:
    plumbing = ("builtins", "__builtin__", "copyreg", "copy_reg")
    ordered = sorted(strangers, key=lambda pair: (pair[0] in plumbing, pair))
    shown = ", ".join(f"{module}.{name}"[:120] for module, name in ordered[:5])
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return UnsafePickleError("holds more than plain data", f"it needs {shown}{more}", _TRUST)
