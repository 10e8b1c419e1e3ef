"""Every error the bridge raises, as one tree.

::

    BridgeError
    ├── ConfigError                 (ValueError)       a key, template or topology is wrong
    │   └── TemplateError                              a placeholder or its value is wrong
    ├── SlimeNotInstalledError      (ImportError)      THUDM's Slime is missing, or its namesake in its place
    ├── ProtocolError               (ValueError)       bytes from Polar that are not what the protocol says
    ├── ConversionError             (ValueError)       a session that cannot become samples
    │   ├── RolloutLogprobError                        masks or logprobs missing, misaligned or not finite
    │   └── MissingRewardError                         no reward where `polar_missing_reward` is ``error``
    ├── AdvantageError              (ValueError)       an estimator got arrays or parameters it cannot use
    ├── DataSourceError             (RuntimeError)     the data source broke its contract
    │   └── DataSourceExhaustedError                   it has no prompts left to give
    ├── TransportError              (ConnectionError)  no usable answer: refused, timed out, 5xx
    ├── SubmitRejectedError         (ValueError)       the server refused a request for good (3xx, 4xx)
    ├── TaskUnknownError            (LookupError)      the server does not know this task (any more)
    ├── TaskConflictError           (RuntimeError)     the server already runs this task
    ├── TaskFailedError             (RuntimeError)     the server gave a task up as a whole
    ├── InfrastructureError         (RuntimeError)     a group got no result within its deadline and attempts
    ├── CallbackBindError           (OSError)          the callback listener could not bind its address
    ├── WorkerError                 (RuntimeError)     the rollout worker cannot go on
    │   ├── WorkerStoppedError                         it was stopped while a call was waiting
    │   ├── PolarOutageError        (TimeoutError)     the rollout server stayed away longer than allowed
    │   ├── InfrastructureStreakError                  too many groups in a row failed without a trace
    │   ├── CandidatePoolError                         too few sessions complete before training has begun
    │   ├── NoTrainableTokensError                     too many groups in a row carried nothing to train on
    │   └── FilterError                                a hook of the trainer raised
    ├── ConservationError           (AssertionError)   the books of groups do not add up: a bug
    ├── EvaluationError             (RuntimeError)     an evaluation could not be prepared or finished
    ├── WeightBarrierError          (RuntimeError)     generation could not be held back for a weight push
    ├── PatchRefusedError           (RuntimeError)     a checkout of Slime is not what the patch was made for
    └── JournalError                (OSError)          the journal's folder cannot be used

Each class also derives from the builtin that a caller would already catch. Errors about one group or session
are data for the worker (they become a verdict, a retry or a requeue); errors under `WorkerError` and
`ConfigError` reach the trainer.
"""

from __future__ import annotations

__all__ = [
    "AdvantageError",
    "BridgeError",
    "CallbackBindError",
    "CandidatePoolError",
    "ConfigError",
    "ConservationError",
    "ConversionError",
    "DataSourceError",
    "DataSourceExhaustedError",
    "EvaluationError",
    "FilterError",
    "InfrastructureError",
    "InfrastructureStreakError",
    "JournalError",
    "MissingRewardError",
    "NoTrainableTokensError",
    "PatchRefusedError",
    "PolarOutageError",
    "ProtocolError",
    "RolloutLogprobError",
    "SlimeNotInstalledError",
    "SubmitRejectedError",
    "TaskConflictError",
    "TaskFailedError",
    "TaskUnknownError",
    "TemplateError",
    "TransportError",
    "WeightBarrierError",
    "WorkerError",
    "WorkerStoppedError",
]


class BridgeError(Exception):
    """Base of every error that the bridge raises on purpose."""


class ConfigError(BridgeError, ValueError):
    """Raised when a configuration key, a template or the topology file is unusable.

    Attributes
    ----------
    key
        The key to correct; empty where it is not one alone.
    problems
        The single errors, where this one stands for several; else empty.
    """

    key: str = ""
    problems: tuple[ConfigError, ...] = ()


class TemplateError(ConfigError):
    """Raised when a template names an unknown path or renders to something unusable."""


class SlimeNotInstalledError(BridgeError, ImportError):
    """Raised when real Slime is needed and THUDM's package cannot be imported."""


class ProtocolError(BridgeError, ValueError):
    """Raised when bytes from a Polar server do not decode to the type that the protocol promises."""


class ConversionError(BridgeError, ValueError):
    """Raised when a session's result cannot be turned into samples."""


class RolloutLogprobError(ConversionError):
    """Raised when a trace's mask or logprobs are missing, misaligned or not finite where they are needed."""


class MissingRewardError(ConversionError):
    """Raised when a trainable sample has no reward and `polar_missing_reward` is ``error``."""


class AdvantageError(BridgeError, ValueError):
    """Raised when an advantage estimator is unknown, or gets parameters or arrays that it cannot use."""


class DataSourceError(BridgeError, RuntimeError):
    """Raised when the data source returns something other than non-empty groups of samples."""


class DataSourceExhaustedError(DataSourceError):
    """Raised when the data source has nothing left while the trainer still needs groups."""


class TransportError(BridgeError, ConnectionError):
    """Raised when a request got no usable answer: refused, timed out, cut, or answered with a server error.

    Parameters
    ----------
    message
        The request and what happened to it, with secrets removed.
    reason
        A short stable word: ``refused``, ``timeout``, ``cut``, ``proxy``, ``busy`` or ``server_error``.
    ambiguous
        True when the server may have received and carried out the request.
    status_code
        The HTTP status, None without an answer.
    retry_after
        The wait that the server asked for, in seconds, None when it asked for none.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "cut",
        ambiguous: bool = True,
        status_code: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.ambiguous = ambiguous
        self.status_code = status_code
        self.retry_after = retry_after


class SubmitRejectedError(BridgeError, ValueError):
    """Raised when the rollout server refuses a request for good.

    Parameters
    ----------
    message
        What was sent and what came back, with secrets removed.
    status_code
        The HTTP status, 300 to 499 (redirects are not followed).
    """

    def __init__(self, message: str, *, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


class TaskUnknownError(BridgeError, LookupError):
    """Raised when the rollout server answers that it does not know a task: it restarted, or never got it."""


class TaskConflictError(BridgeError, RuntimeError):
    """Raised when a task is submitted that the server is already running."""


class TaskFailedError(BridgeError, RuntimeError):
    """Raised when a task ended as a whole in a status other than completed.

    Parameters
    ----------
    message
        The task and its status.
    status
        The task status that the server reported, such as ``failed`` or ``cancelled``.
    body
        The server's task record as received, so that nothing it holds is lost.
    """

    def __init__(self, message: str, *, status: str, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class InfrastructureError(BridgeError, RuntimeError):
    """Raised when a group got no result within its deadline and attempts; its prompt is worth another try.

    Parameters
    ----------
    message
        What was tried and what failed last.
    reason
        A short stable word for metrics and the journal, such as ``deadline``, ``refused`` or ``forgotten``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class CallbackBindError(BridgeError, OSError):
    """Raised when the callback listener cannot bind the configured address."""


class WorkerError(BridgeError, RuntimeError):
    """Raised in the trainer's call when the rollout worker cannot go on."""


class WorkerStoppedError(WorkerError):
    """Raised in a waiting call when the worker was stopped from elsewhere."""


class PolarOutageError(WorkerError, TimeoutError):
    """Raised when the rollout server stayed unreachable longer than `polar_outage_timeout`."""


class InfrastructureStreakError(WorkerError):
    """Raised when more groups in a row than allowed ended without a single trace."""


class CandidatePoolError(WorkerError):
    """Raised when too few sessions completed before the first training step, rejected groups counted."""


class NoTrainableTokensError(WorkerError):
    """Raised when group after group came back without a token to train on."""


class FilterError(WorkerError):
    """Raised when one of the trainer's filter hooks raised."""


class ConservationError(BridgeError, AssertionError):
    """Raised when a group or session is lost, counted twice or ends twice: a bug in the bridge."""


class EvaluationError(BridgeError, RuntimeError):
    """Raised when an evaluation cannot be prepared or cannot be finished."""


class WeightBarrierError(BridgeError, RuntimeError):
    """Raised when the gateways' generation gates could not all be closed; those that were are opened again.

    Parameters
    ----------
    message
        Which gates stayed open or busy, and why.
    report
        The `slime_bridge.weight_barrier.PauseReport` with the state of every gate.
    """

    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class PatchRefusedError(BridgeError, RuntimeError):
    """Raised when a checkout of Slime is of an unknown version, or has been changed, and is left as it is."""


class JournalError(BridgeError, OSError):
    """Raised when the journal's folder cannot be created or written at start-up."""
