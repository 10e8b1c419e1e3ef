"""When to stop: streaks of groups that bring nothing, and too few completed sessions before training begins.

Single bad groups are ordinary. What is watched here is that nothing else comes: then waiting on would burn
the data set, or the GPUs, for ever. Three streaks are counted, each in groups in a row:

- groups whose sessions all failed without a trace: stop at
  ``polar_max_consecutive_infrastructure_failures``, where 0 means that they alone never stop a run;
- groups without a token to train on, whatever the reason: stop at that number, else at twice the batch, at
  least 16;
- prompts given up after repeated failures: stop at that number, else at 8.

Each streak warns when it reaches 4, 8, 16, ... groups. Before the first delivery the pool of all sessions may
be watched as well (``polar_candidate_pool_health_gate_enabled``). It knows no time and does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from slime_bridge.acceptance import Accepted, Rejected, RejectReason
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import SessionOutcome
from slime_bridge.errors import (
    CandidatePoolError,
    InfrastructureStreakError,
    NoTrainableTokensError,
    WorkerError,
)

__all__ = ["HealthMonitor"]

logger = logging.getLogger(__name__)

_FIRST_WARNING = 4
_FIRST_FILTER_WARNING = 32
_MIN_TRAINABLE_LIMIT = 16
_GIVE_UP_LIMIT = 8
_NO_TOKEN_IDS = (
    "the engine or the router between the gateways and the engine gives no token ids; `slime-bridge doctor` "
    "tells which, and what to change"
)


@dataclass(slots=True, eq=False)
class HealthMonitor:
    """Hears how each group ended and says when to stop.

    Parameters
    ----------
    settings
        The configuration.
    """

    settings: PolarSlimeConfig
    _traceless: int = field(default=0, init=False)
    _untrainable: int = field(default=0, init=False)
    _given_up: int = field(default=0, init=False)
    _filtered: int = field(default=0, init=False)
    _observed: int = field(default=0, init=False)
    _completed: int = field(default=0, init=False)
    _gate_open: bool = field(default=True, init=False)
    _named_no_ids: bool = field(default=False, init=False)

    @property
    def trainable_limit(self) -> int:
        """Groups in a row without a trainable token that stop the run."""
        wished = self.settings.max_consecutive_infrastructure_failures
        return wished or max(_MIN_TRAINABLE_LIMIT, 2 * self.settings.rollout_batch_size)

    @property
    def give_up_limit(self) -> int:
        """Prompts given up in a row that stop the run."""
        return self.settings.max_consecutive_infrastructure_failures or _GIVE_UP_LIMIT

    def judged(
        self, sessions: Sequence[SessionOutcome], rejected: Rejected | None, trainable_tokens: int
    ) -> WorkerError | None:
        """Hear of a group that was judged.

        Parameters
        ----------
        sessions
            What became of its sessions.
        rejected
            The verdict, None for an accepted group.
        trainable_tokens
            Over all its sessions.

        Returns
        -------
        WorkerError or None
            The reason to stop.
        """
        reason = rejected.reason if rejected is not None else None
        self._given_up = 0
        self._traceless = self._traceless + 1 if reason is RejectReason.FAILED_TASK else 0
        self._untrainable = 0 if trainable_tokens else self._untrainable + 1
        if reason is RejectReason.NO_TOKEN_IDS and not self._named_no_ids:
            self._named_no_ids = True
            logger.warning(
                "Sessions complete without token ids, so nothing can be trained on: %s", _NO_TOKEN_IDS
            )
        return self._traceless_streak(sessions) or self._untrainable_streak(reason) or self._pool(sessions)

    def filtered(self, verdict: Accepted | Rejected) -> None:
        """Hear what the trainer's filter said of a group; long streaks are warned about and stop nothing."""
        self._filtered = self._filtered + 1 if isinstance(verdict, Rejected) else 0
        if self._filtered >= _FIRST_FILTER_WARNING and _worth_a_warning(self._filtered):
            logger.warning(
                "dynamic_sampling_filter_path dropped %d groups in a row; the last one: %s",
                self._filtered,
                verdict.numbers.get("filter_reason") or "it gave no reason",
            )

    def gave_up(self, error: str) -> WorkerError | None:
        """Hear of a prompt that was given up; the result is the reason to stop, if that is one."""
        self._given_up += 1
        if _worth_a_warning(self._given_up):
            logger.warning("%d prompts in a row were given up; the last failure: %s", self._given_up, error)
        if self._given_up < self.give_up_limit:
            return None
        return InfrastructureStreakError(
            f"{self._given_up} prompts in a row were given up after repeated failures, and nothing else came "
            f"back; the last failure: {error}"
        )

    def delivered(self) -> None:
        """Hear that the trainer got a batch: from now on the pool is not watched."""
        self._gate_open = False

    def _traceless_streak(self, sessions: Sequence[SessionOutcome]) -> WorkerError | None:
        detail = next((s.detail for s in sessions if s.detail), "no session says why")
        if _worth_a_warning(self._traceless):
            logger.warning(
                "In %d groups in a row every session failed without a trace; the last one: %s",
                self._traceless,
                detail,
            )
        limit = self.settings.max_consecutive_infrastructure_failures
        if not limit or self._traceless < limit:
            return None
        return InfrastructureStreakError(
            f"in {self._traceless} groups in a row every session failed without a trace "
            f"(polar_max_consecutive_infrastructure_failures is {limit}); the last one: {detail}"
        )

    def _untrainable_streak(self, reason: RejectReason | None) -> WorkerError | None:
        why = (
            _NO_TOKEN_IDS if reason is RejectReason.NO_TOKEN_IDS else f"the last one was rejected as {reason}"
        )
        if _worth_a_warning(self._untrainable):
            logger.warning("%d groups in a row had no token to train on: %s", self._untrainable, why)
        if self._untrainable < self.trainable_limit:
            return None
        return NoTrainableTokensError(f"{self._untrainable} groups in a row had no token to train on: {why}")

    def _pool(self, sessions: Sequence[SessionOutcome]) -> WorkerError | None:
        if not (self._gate_open and self.settings.candidate_pool_health_gate_enabled):
            return None
        counted = [session for session in sessions if not session.early_stopped]
        self._observed += len(counted)
        self._completed += sum(session.completed for session in counted)
        least = self.settings.candidate_pool_health_gate_min_completion_fraction
        if self._observed < self.settings.candidate_pool_health_gate_min_observed_sessions:
            return None
        if self._completed >= least * self._observed:
            return None
        return CandidatePoolError(
            f"before the first training step only {self._completed} of {self._observed} sessions completed, "
            f"and polar_candidate_pool_health_gate_min_completion_fraction is {least}"
        )


def _worth_a_warning(streak: int) -> bool:
    """Tell whether a streak has just reached 4, 8, 16, ..."""
    return streak >= _FIRST_WARNING and streak & (streak - 1) == 0
