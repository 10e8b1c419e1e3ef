"""Work beside a rollout that must never cost it: a daemon thread, a short wait, one warning for failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

__all__ = ["Courtesy"]

logger = logging.getLogger(__name__)


class Courtesy:
    """Does one piece of work at a time.

    Parameters
    ----------
    who
        Who does the work, for the one warning that there may be.
    timeout
        How long (seconds) a call may wait. Whatever takes longer goes on in the background; while it does,
        further work is left out.
    """

    def __init__(self, who: str, *, timeout: float) -> None:
        self._who = who
        self._timeout = timeout
        self._thread: threading.Thread | None = None
        self._warned = False

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Do steps in order; one that raises does not keep the others from being done. Never raises."""
        if self._thread is not None and self._thread.is_alive():
            self.warn("%s is still busy with an earlier rollout; what comes meanwhile is left out", self._who)
            return
        self._thread = threading.Thread(target=self._work, args=(work,), name="polar-courtesy", daemon=True)
        self._thread.start()
        if not self.wait(self._timeout):
            self.warn("%s takes more than %g s; it goes on in the background", self._who, self._timeout)

    def wait(self, timeout: float) -> bool:
        """Wait for the end of the work at hand, at most `timeout` seconds; tell whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def warn(self, message: str, *values: object) -> None:
        """Log a warning, the first time only."""
        if not self._warned:
            self._warned = True
            logger.warning(message, *values)

    def _work(self, work: Sequence[Callable[[], None]]) -> None:
        for step in work:
            try:
                step()
            except Exception as error:  # whatever it is, none of it may reach the trainer
                self.warn("%s refused: %s: %s", self._who, type(error).__name__, error)
