"""Functions that worker processes import by name, for the tests of the pools."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.errors import WorkerError


def square(chunk: Sequence[int]) -> list[int]:
    """The plain case."""
    return [number * number for number in chunk]


def pid_and_items(chunk: Sequence[Any]) -> tuple[int, list[Any]]:
    """Which process did it."""
    time.sleep(0.05)
    return os.getpid(), list(chunk)


def deadly(chunk: Sequence[Any]) -> list[Any]:
    """Dies over the item ``"poison"`` as the kernel's memory killer would have it."""
    if "poison" in chunk:
        os.kill(os.getpid(), signal.SIGKILL)
    return list(chunk)


def picky(chunk: Sequence[int]) -> list[int]:
    """Fails over a negative number with an error that travels."""
    if min(chunk) < 0:
        raise WorkerError(f"negative: {min(chunk)}")
    return list(chunk)


class Untransportable(RuntimeError):
    """An error that cannot be pickled and read back."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def unpicklable(chunk: Sequence[int]) -> list[int]:
    """Fails with an error that does not travel."""
    raise Untransportable(*chunk)


def slow(chunk: Sequence[str]) -> None:
    """Says that it began (in the folder that is its item) and then takes for ever."""
    (Path(chunk[0]) / f"{os.getpid()}").touch()
    time.sleep(600)


def megabytes(chunk: Sequence[int]) -> bytes:
    """A big result."""
    return bytes(chunk[0] * 2**20)


def wait_for_worker(chunk: Sequence[Any]) -> bytes | bool:
    """In a worker: say that a piece began, and give a big result. In the caller: tell whether two began."""
    folder, caller, piece = chunk
    if os.getpid() != caller:
        (Path(folder) / str(piece)).touch()
        return bytes(4 * 2**20)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.02)
    return len(list(Path(folder).iterdir())) == 2


def imports(chunk: Sequence[str]) -> bool:
    """Whether a library can be imported."""
    try:
        importlib.import_module(chunk[0])
    except ImportError:
        return False
    return True
