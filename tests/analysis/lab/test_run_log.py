"""A run's words go to its log; warnings also to the screen; nothing stays attached."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path

from analysis.lab.progress import Progress
from analysis.lab.run_log import run_logging, shown_warnings


def test_own_records_are_kept_and_warnings_are_shown(tmp_path: Path) -> None:
    """Information and warnings are in the file, only warnings on the screen, others' records in neither."""
    stream, path = io.StringIO(), tmp_path / "logs" / "lab.log"
    with warnings.catch_warnings(), run_logging(path), shown_warnings(Progress(stream)):
        warnings.simplefilter("default")
        logging.getLogger("slime_bridge.worker").info("quiet %d", 1)
        logging.getLogger("analysis.lab.run").warning("late")
        logging.getLogger("somebody.else").info("foreign")
        warnings.warn("python says so", UserWarning, stacklevel=1)
    text = path.read_text()
    assert "INFO slime_bridge.worker: quiet 1" in text
    assert "WARNING analysis.lab.run: late" in text
    assert "python says so" in text
    assert "foreign" not in text
    assert stream.getvalue() == "WARNING analysis.lab.run: late\n"


def test_everything_is_as_before_afterwards(tmp_path: Path) -> None:
    """Levels, handlers and Python's own warnings come back, also after an error."""
    loggers = [logging.getLogger(name) for name in ("analysis", "slime_bridge", "py.warnings")]
    before = [(logger.level, list(logger.handlers), logger.propagate) for logger in loggers]
    show = warnings.showwarning
    try:
        with run_logging(tmp_path / "lab.log"), shown_warnings(Progress(io.StringIO())):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert [(logger.level, list(logger.handlers), logger.propagate) for logger in loggers] == before
    assert warnings.showwarning is show
