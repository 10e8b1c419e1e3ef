"""Every error that the analysis package raises on purpose, as one tree.

::

    AnalysisError
    └── LabError                       (RuntimeError)     the embedded stack cannot do what it was asked
        ├── TaskError                  (ValueError)       a task name or a stored prompt is unusable
        ├── CheckpointError            (ValueError)       a model folder is incomplete or does not fit
        ├── EngineError                                   the engine refused or failed
        │   ├── RequestError           (ValueError)       a request that can never be served as it stands
        │   ├── WeightUpdateError      (ValueError)       new weights that cannot replace the old ones
        │   └── EngineStoppedError                        the engine's loop has ended
        ├── ProcessError                                  a child process is not what it should be
        │   ├── ProcessExitedError     (ChildProcessError)  it ended by itself
        │   └── ProcessNotReadyError   (TimeoutError)     it runs, but did not get ready in time
        └── RouterError                                   the router answers something unknown

Each class also derives from the builtin that a caller would already catch.
"""

from __future__ import annotations

__all__ = [
    "AnalysisError",
    "CheckpointError",
    "EngineError",
    "EngineStoppedError",
    "LabError",
    "ProcessError",
    "ProcessExitedError",
    "ProcessNotReadyError",
    "RequestError",
    "RouterError",
    "TaskError",
    "WeightUpdateError",
]


class AnalysisError(Exception):
    """Base of every error that the analysis package raises on purpose."""


class LabError(AnalysisError, RuntimeError):
    """Raised when the embedded stack cannot do what it was asked."""


class TaskError(LabError, ValueError):
    """Raised when a task is unknown, or when a stored prompt does not say which episode it belongs to."""


class CheckpointError(LabError, ValueError):
    """Raised when a model folder is incomplete, describes another architecture, or its weights do not fit."""


class EngineError(LabError):
    """Raised when the engine refuses a request or fails while serving it."""


class RequestError(EngineError, ValueError):
    """Raised when a request can never be served as it stands; the HTTP side answers 400.

    Parameters
    ----------
    message
        What is wrong, and what would be accepted.
    param
        The field at fault, or None.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class WeightUpdateError(EngineError, ValueError):
    """Raised when new weights cannot replace the loaded ones; the loaded ones stay in use."""


class EngineStoppedError(EngineError):
    """Raised when the engine's loop has ended, by request or by a failure that the message names."""


class ProcessError(LabError):
    """Raised when a child process is not in the state that the caller needs."""


class ProcessExitedError(ProcessError, ChildProcessError):
    """Raised when a child process ended by itself; the message holds the end of its log."""


class ProcessNotReadyError(ProcessError, TimeoutError):
    """Raised when a child process runs but was not ready in time; the message holds the end of its log."""


class RouterError(LabError):
    """Raised when a router answers in no form that is known here."""
