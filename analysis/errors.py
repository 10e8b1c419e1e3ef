"""Every error that the analysis package raises on purpose, as one tree.

::

    AnalysisError
    ├── LoadError                  (ValueError)       a run, or one of its files, cannot be loaded
    │   ├── IncompleteFileError    (EOFError)         it ends too early: torn, or still being written
    │   ├── ForeignFileError                          it is whole, and something else than expected
    │   ├── UnsafePickleError                         it holds what only running foreign code could load
    │   ├── FileLimitError         (MemoryError)      it is larger, or would become larger, than allowed
    │   ├── StrictLoadError                           strict loading met its first problem
    │   ├── EngineUnavailableError (RuntimeError)     the engine that was to spread the work is not there
    │   └── WorkerError            (RuntimeError)     a worker process failed
    ├── StatsError                 (ValueError)       a question that these frames cannot answer
    ├── PlotError                  (ValueError)       a figure cannot be drawn from what it was given
    ├── ReportError                (ValueError)       there is nothing, or too much, to report on
    ├── ExplorerError              (ValueError)       something is selected or shown that is not there
    ├── LiveError                      (RuntimeError)     a live run cannot do what it was asked
    │   ├── ConnectError           (ConnectionError)  a server that was named cannot be used
    │   │   ├── PolarUnreachableError                 no rollout server answers at the address
    │   │   └── RouterUnreachableError                no router answers at the address
    │   ├── SubmissionError        (ValueError)       prompts or settings that cannot be submitted
    │   ├── RunNameError           (ValueError)       a name that is taken or cannot name a folder
    │   ├── RunNotFoundError       (LookupError)      no live run of this name, or no run in this folder
    │   ├── RunBusyError                              another process drives this run
    │   └── TrainingError                             the training process ended without finishing
    ├── NotebookError              (RuntimeError)     a notebook of the documentation is missing or fails
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
    "ConnectError",
    "EngineError",
    "EngineStoppedError",
    "EngineUnavailableError",
    "ExplorerError",
    "FileLimitError",
    "ForeignFileError",
    "IncompleteFileError",
    "LabError",
    "LiveError",
    "LoadError",
    "NotebookError",
    "PlotError",
    "PolarUnreachableError",
    "ProcessError",
    "ProcessExitedError",
    "ProcessNotReadyError",
    "ReportError",
    "RequestError",
    "RouterError",
    "RouterUnreachableError",
    "RunBusyError",
    "RunNameError",
    "RunNotFoundError",
    "StatsError",
    "StrictLoadError",
    "SubmissionError",
    "TaskError",
    "TrainingError",
    "UnsafePickleError",
    "WeightUpdateError",
    "WorkerError",
]


class AnalysisError(Exception):
    """Base of every error that the analysis package raises on purpose."""


class LoadError(AnalysisError, ValueError):
    """Raised when a run or one of its files, or something that was asked of it, cannot be loaded.

    Parameters
    ----------
    what
        What is wrong, in a few words.
    why
        The cause, as far as it is known; never the file's content at length.
    fix
        What the user can do about it.
    """

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(": ".join(part for part in (what, why) if part) + (f" ({fix})" if fix else ""))
        self.what = what
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[type[LoadError], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.fix)


class IncompleteFileError(LoadError, EOFError):
    """Raised when a file ends too early: torn by a killed writer, or still being written."""


class ForeignFileError(LoadError):
    """Raised when a file is whole, but something else than its name or place says."""


class UnsafePickleError(LoadError):
    """Raised when a pickle holds what only running foreign code could load; names the way to allow it."""


class FileLimitError(LoadError, MemoryError):
    """Raised when a file is larger, or would become larger in memory, than the loader may use."""


class StrictLoadError(LoadError):
    """Raised by strict loading at the first problem; the message names the file."""


class EngineUnavailableError(LoadError, RuntimeError):
    """Raised when work is to be spread by an engine that is not installed or cannot be reached."""


class WorkerError(LoadError, RuntimeError):
    """Raised when a worker process failed with an error that cannot travel; the message holds its text."""


class StatsError(AnalysisError, ValueError):
    """Raised when a statistic is asked for that the given frames, or the given options, cannot answer."""


class PlotError(AnalysisError, ValueError):
    """Raised when a figure cannot be drawn from a frame; names the columns that it lacks.

    Parameters
    ----------
    message
        What is wrong, and what would be accepted.
    missing
        Columns that the frame lacks.
    """

    def __init__(self, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing

    def __reduce__(self) -> tuple[type[PlotError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.missing)


class ExplorerError(AnalysisError, ValueError):
    """Raised when an explorer is to select or show something that the run, or the explorer, does not have."""


class LiveError(AnalysisError, RuntimeError):
    """Raised when a live run cannot do what it was asked."""


class ConnectError(LiveError, ConnectionError):
    """Raised when a server that was named cannot be used; the message holds no credentials."""


class PolarUnreachableError(ConnectError):
    """Raised when nothing at an address answers as a Polar rollout server does."""


class RouterUnreachableError(ConnectError):
    """Raised when nothing at an address answers as a router or an engine does."""


class SubmissionError(LiveError, ValueError):
    """Raised when prompts or settings cannot be submitted; nothing was sent then."""


class RunNameError(LiveError, ValueError):
    """Raised for a name that is taken already, or that cannot be the name of a folder."""


class RunNotFoundError(LiveError, LookupError):
    """Raised when there is no live run of a name, or nothing of a run in a folder."""


class RunBusyError(LiveError):
    """Raised when another process, or another part of this one, drives the run."""


class TrainingError(LiveError):
    """Raised when a training process ended without finishing; the message holds the end of its log."""


class ReportError(AnalysisError, ValueError):
    """Raised when a report cannot be made of a run: nothing is in it, or several runs are."""


class NotebookError(AnalysisError, RuntimeError):
    """Raised when a notebook of the documentation is missing, or fails when it is executed."""


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
