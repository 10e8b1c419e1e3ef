"""Work spread over a Ray cluster, for `analysis.parallel`. Ray is imported when the work begins.

The nodes see the same files under the same paths (a shared file system), and have this package in the same
version: on one machine that is always so. Knows nothing about what is computed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from analysis.errors import EngineUnavailableError
from analysis.ray_address import check_address
from analysis.worker_pool import Lost

__all__ = ["RayPool"]

_AHEAD_PER_CPU = 2


class RayPool:
    """Tasks for one function on Ray; use as a context manager.

    Parameters
    ----------
    function
        Takes one piece of work, returns its result; importable by name on every node.
    workers
        Tasks that run at once; with a cluster given or already connected None means all its CPUs.
    address
        Of the cluster, as for ``ray.init``; by default ``RAY_ADDRESS``, else a Ray of our own on this
        machine, which ends with the work. A Ray that the process is connected to already is used as it is.

    Raises
    ------
    EngineUnavailableError
        Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(
        self, function: Callable[[Any], Any], workers: int | None = None, *, address: str | None = None
    ) -> None:
        self._function = function
        self._workers = workers
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._ray: Any = None
        self._ours = False

    def __enter__(self) -> RayPool:
        try:
            import ray
        except ImportError as error:
            raise EngineUnavailableError(
                'engine="ray" needs Ray, which is not installed: pip install ray, or use engine="processes"'
            ) from error
        self._ray = ray
        if not ray.is_initialized():
            self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def _connect(self) -> None:
        if self._address:
            check_address(self._address)
        local = {} if self._address else {"num_cpus": self._workers, "include_dashboard": False}
        try:
            with _quiet():
                self._ray.init(address=self._address, log_to_driver=False, logging_level="ERROR", **local)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            where = f"at {self._address}" if self._address else "on this machine"
            raise EngineUnavailableError(f"no Ray {where}: {error}") from error
        self._ours = True

    def map(self, work: Sequence[Any], *, retries: int = 1) -> Iterator[Any]:
        """Yield the function's results in the order of `work`; at most a few wait to be taken.

        Yields
        ------
        Any
            The result, or `Lost` where the task's worker died `retries` + 1 times.

        Raises
        ------
        Exception
            Whatever the function raised.
        """
        remote = self._ray.remote(_call).options(max_retries=retries, num_cpus=1)
        function = self._ray.put(self._function)
        cpus = self._workers or int(self._ray.cluster_resources().get("CPU", 1))
        references: list[Any] = []
        try:
            for wanted in range(len(work)):
                while len(references) < min(len(work), wanted + max(2, _AHEAD_PER_CPU * cpus)):
                    references.append(remote.remote(function, work[len(references)]))
                yield self._result(references[wanted])
                references[wanted] = None
        finally:
            for reference in references:
                if reference is not None:
                    self._ray.cancel(reference, force=True)

    def map_isolated(self, work: Sequence[Any]) -> Iterator[Any]:
        """Yield results in order like `map`; a piece that kills its worker is tried once."""
        return self.map(work, retries=0)

    def _result(self, reference: Any) -> Any:
        failures = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except failures.RayTaskError as error:
            raise error.as_instanceof_cause() from error
        except (failures.WorkerCrashedError, failures.OutOfMemoryError):
            return Lost(None)


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns of its own future; nothing that our users could change
        yield
