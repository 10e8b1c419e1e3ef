"""The thread that steps a batch, and the two ways into it: requests, and calls that run between two steps.

A failure inside a step ends the loop: every request and call that waits is told, since numbers computed after
it could not be trusted. Knows nothing about checkpoints, text or HTTP.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from analysis.errors import EngineStoppedError
from analysis.lab.engine.batch import Batch
from analysis.lab.engine.request import Finish, GenerationRequest

__all__ = ["BatchLoop"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BatchLoop:
    """Steps a batch while there is something to do, and sleeps otherwise.

    Parameters
    ----------
    batch
        Touched by the loop's thread only, once it runs.

    Attributes
    ----------
    paused
        While True nothing is admitted or sampled. Set it from within `call`.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.paused = False
        self._wake = threading.Condition()
        self._arrivals: deque[GenerationRequest] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread is not None and self._thread.is_alive() and self._failure is None

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is not None:
            raise EngineStoppedError("the engine was started before; make a new one")
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; requests in flight are aborted. Harmless when repeated."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; `EngineStoppedError` when the loop has ended."""
        with self._wake:
            self._raise_if_ended()
            self._arrivals.append(request)
            self._wake.notify_all()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the loop's thread between two steps; wait for its result or its exception."""
        return self.post(function).result()

    def post(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the loop's thread between two steps, without waiting for it."""
        future: Future[T] = Future()
        with self._wake:
            self._raise_if_ended()
            self._calls.append((function, future))
            self._wake.notify_all()
        return future

    def abort(self, chosen: Callable[[GenerationRequest], bool], message: str) -> int:
        """End the chosen requests with what they have, from within `call` or `post`; return their number."""
        ended = self.batch.abort(chosen, message)
        self._tell(ended)
        return len(ended)

    def _raise_if_ended(self) -> None:
        if self._failure is not None:
            raise EngineStoppedError(self._reason()) from self._failure
        if self._stopping:
            raise EngineStoppedError(self._reason())

    def _reason(self) -> str:
        return "the engine was stopped" if self._failure is None else f"the engine failed: {self._failure!r}"

    def _can_step(self) -> bool:
        return not self.paused and not self.batch.idle

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._turn():
                    pass
        except Exception as error:  # whatever failed, nobody may wait for an answer that cannot come
            logger.exception("the engine's loop failed")
            with self._wake:
                self._failure = error
        self._drain()

    def _turn(self) -> bool:
        """Do what is due once; sleep while nothing is. False ends the loop."""
        with self._wake:
            while not (self._stopping or self._calls or self._arrivals or self._can_step()):
                self._wake.wait()
            if self._stopping:
                return False
            calls, self._calls = self._calls, deque()
            arrivals, self._arrivals = self._arrivals, deque()
        for request in arrivals:
            self.batch.add(request)
        for function, future in calls:
            try:
                future.set_result(function())
            except Exception as error:  # it is the caller's, who gets it
                future.set_exception(error)
        if self._can_step():
            self._tell(self.batch.step())
        return True

    def _tell(self, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            if request.on_event is not None and (request.stream or request.finish is not None):
                request.on_event(request)

    def _drain(self) -> None:
        """Tell everybody who still waits that the loop has ended."""
        with self._wake:
            self._stopping = True
            calls, self._calls = self._calls, deque()
            arrivals, self._arrivals = self._arrivals, deque()
        batch = self.batch
        left = [request for request in (*batch.running, *batch.waiting, *arrivals) if request.finish is None]
        for request in left:
            request.close(Finish("abort", message=self._reason(), failed=True), batch.version)
        self._tell(left)
        for _, future in calls:
            future.set_exception(EngineStoppedError(self._reason()))
