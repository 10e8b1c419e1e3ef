"""What every command of this project owes its terminal: streams that are there, and endings in one line.

A reader that leaves early (`| head`), a stream that is closed (`>&-`) and Ctrl-C end a command with the exit
code that a shell expects, and never with a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

__all__ = ["complain", "reason", "run_command"]


def run_command(name: str, job: Callable[[], int]) -> int:
    """Run a command's job.

    Parameters
    ----------
    name
        The command, for messages.
    job
        Does the work; returns the exit code, or raises `SystemExit` as argparse does.

    Returns
    -------
    int
        What `job` returns; 2 where standard output is closed or cannot be written, as on a full disk; 141
        where what reads the output has gone; 130 after Ctrl-C, or what the interruption has as
        ``exit_code``.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        complain(f"{name}: standard output is closed, so there is nowhere to write the result")
        return 2
    try:
        try:
            code = job()
        except SystemExit:
            if not _is_written(name):
                return 2
            raise
        return code if _is_written(name) else code or 2
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as interruption:
        # A job that holds resources handles its own interruption; this one came before it could, or after it
        # was done.
        complain("interrupted")
        return int(getattr(interruption, "exit_code", 128 + signal.SIGINT))


def _is_written(name: str) -> bool:
    """Write what the output still holds; where that cannot be done, as on a full disk, say why."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        complain(f"{name}: the result could not be written: {reason(error)}")
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    # The interpreter flushes standard output once more on its way out, and must not complain either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Write a line to standard error, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def reason(error: BaseException) -> str:
    """Return why something failed, in words: no error number, and no quotes that only `KeyError` adds."""
    if isinstance(error, OSError) and error.strerror:
        words = error.strerror[:1].lower() + error.strerror[1:]
        return f"{os.fsdecode(error.filename)}: {words}" if isinstance(error.filename, str | bytes) else words
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    return str(error)
