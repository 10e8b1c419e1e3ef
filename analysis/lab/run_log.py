"""Where the words of a run go: everything to its log file, warnings also to the screen, past the bar.

Attaches handlers for the duration of a block and takes them away again; knows nothing about what is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.lab.progress import NoteHandler, Progress

__all__ = ["run_logging", "shown_warnings"]

_OWN = ("analysis", "slime_bridge")


@contextmanager
def run_logging(path: Path) -> Iterator[None]:
    """Log this process's own packages, and Python's warnings, to `path` while the block runs.

    Parameters
    ----------
    path
        The log file; its folder is created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    to_file = logging.FileHandler(path, encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    own = [logging.getLogger(name) for name in _OWN]
    warned = logging.getLogger("py.warnings")
    levels = [logger.level for logger in own]
    propagated = warned.propagate
    logging.captureWarnings(True)
    # Python's warnings are for the file: on the screen they would only interrupt.
    warned.propagate = False
    warned.addHandler(to_file)
    for logger in own:
        logger.setLevel(logging.INFO)
        logger.addHandler(to_file)
    try:
        yield
    finally:
        for logger, level in zip(own, levels, strict=True):
            logger.removeHandler(to_file)
            logger.setLevel(level)
        warned.removeHandler(to_file)
        warned.propagate = propagated
        logging.captureWarnings(False)
        to_file.close()


@contextmanager
def shown_warnings(progress: Progress) -> Iterator[None]:
    """Show warnings and errors of our own packages while the block runs, so that they never tear a bar."""
    to_screen = NoteHandler(progress)
    own = [logging.getLogger(name) for name in _OWN]
    for logger in own:
        logger.addHandler(to_screen)
    try:
        yield
    finally:
        for logger in own:
            logger.removeHandler(to_screen)
