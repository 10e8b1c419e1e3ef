"""What all live runs have in common: a name, a state, an end to wait for, numbers to look at, a `Run`.

The work itself goes on elsewhere, in a thread or a process: nothing here blocks a cell unless it is asked
to, and an interrupt of a cell that waits ends the waiting and not the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from markupsafe import Markup

from analysis.live.progress import Snapshot
from analysis.live.progress_view import Headline, progress_html, progress_text, with_style
from analysis.live.view import LiveView

if TYPE_CHECKING:
    from analysis.run import Run

__all__ = ["LiveHandle"]

R = TypeVar("R")

_LOOK_SECONDS = 0.25
_LINE_SECONDS = 2.0


class LiveHandle(ABC, Generic[R]):
    """A live run.

    Parameters
    ----------
    name
        Of the run.
    folder
        Where its files are.
    tokenizer
        Folder of its tokenizer, for the text of tokens; None if nobody knows.

    Attributes
    ----------
    name : str
        As given.
    folder : Path
        As given.
    """

    def __init__(self, name: str, folder: Path, *, tokenizer: Path | None = None) -> None:
        self.name = name
        self.folder = folder
        self._tokenizer = tokenizer
        self._done = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._callbacks_lock = threading.Lock()
        self._run: Run | None = None
        self._run_lock = threading.Lock()
        self._view = LiveView(self.html)

    # What it is

    @property
    @abstractmethod
    def state(self) -> str:
        """``running``, or how it ended."""

    @property
    @abstractmethod
    def progress(self) -> Snapshot:
        """The numbers at this moment."""

    @abstractmethod
    def headline(self) -> Headline:
        """Return what stands above the numbers."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask for an early end and return at once; what is done is kept. Harmless to repeat."""

    @abstractmethod
    def _outcome(self) -> R:
        """Return the result of a run that has ended, or raise why it has none."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    @property
    def run(self) -> Run:
        """The run so far, as `analysis.load` gives it; each access reads what is new."""
        # Here, because pandas and PyArrow are not needed before.
        from analysis.loading import load

        with self._run_lock:
            if self._run is None:
                self._run = load(
                    {self.name: self.folder}, index=False, progress=False, tokenizer=self._tokenizer
                )
            else:
                self._run.refresh()
            return self._run

    # Waiting

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> bool:
        """Wait for the end.

        Parameters
        ----------
        timeout
            Seconds to wait at most; None for as long as it takes.
        progress
            Write a line to standard error now and then.

        Returns
        -------
        bool
            Whether it has ended.
        """
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        next_line = now
        # In pieces, because a wait without end lets no interrupt through on some platforms.
        while not self.done:
            now = time.monotonic()
            if progress and now >= next_line:
                sys.stderr.write(self.text().splitlines()[0] + "\n")
                next_line = now + _LINE_SECONDS
            left = _LOOK_SECONDS if deadline is None else min(_LOOK_SECONDS, deadline - now)
            if left <= 0:
                return False
            self._done.wait(left)
        return True

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end and return the result.

        Parameters
        ----------
        timeout
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            If it has not ended by then; it goes on.
        BridgeError, LiveError
            If it failed as a whole.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"{self.name} has not ended after {timeout:g} s; it goes on")
        return self._outcome()

    def __await__(self) -> Generator[Any, None, R]:
        return self._awaited().__await__()

    async def _awaited(self) -> R:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            # The cell that waited may be gone, and its loop with it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, ended)

        self._when_done(tell)
        while not ended.done():
            # In pieces: ipykernel notes the interrupt of a cell that awaits without waking its loop, and
            # would act on it only when something else does. Cancelled, this leaves `ended` alone.
            await asyncio.wait([ended], timeout=_LOOK_SECONDS)
        return self._outcome()

    def _when_done(self, callback: Callable[[], None]) -> None:
        with self._callbacks_lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def _set_done(self) -> None:
        with self._callbacks_lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        self._view.refresh()

    # Display

    def html(self) -> Markup:
        """Return the present state as HTML that looks right by itself."""
        return with_style(progress_html(self.headline(), self.progress))

    def text(self) -> str:
        """Return the present state as a few lines of text."""
        return progress_text(self.headline(), self.progress)

    def show(self) -> None:
        """Show the live view: in a notebook a widget that keeps up to date, elsewhere text as it stands."""
        if self._view.mimebundle():
            from IPython.display import display

            display(self)
        else:
            sys.stdout.write(self.text() + "\n")

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return str(self.html())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {**self._view.mimebundle(), "text/plain": self.text(), "text/html": self._repr_html_()}


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
