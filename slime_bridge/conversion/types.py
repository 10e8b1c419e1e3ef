"""The vocabulary of converting sessions into samples: options, reasons and the account of one conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slime_bridge.protocol import Trace

__all__ = ["ConversionOptions", "SampleIdentity", "SessionConversion", "SessionReason"]


class SessionReason(StrEnum):
    """Why a session has nothing to train on."""

    MISSING = "missing"
    """The server returned no result for it."""
    MALFORMED = "malformed"
    """Its result could not be decoded."""
    LOGPROB_ERROR = "logprob_error"
    """A mask or a logprob is missing, misaligned or not finite."""
    INVALID_TOKENS = "invalid_tokens"
    """A token id is not a non-negative int."""
    MISSING_REWARD = "missing_reward"
    """A trainable trace has no reward, and such sessions are to be rejected."""
    EARLY_STOPPED = "early_stopped"
    """The server stopped it because enough of its siblings were usable; no failure."""
    TIMEOUT = "timeout"
    """It ran out of time."""
    FAILED = "failed"
    """It ended in an error, or in a status nobody knows."""
    NO_TRACES = "no_traces"
    """It completed without a single trace."""
    NO_TOKEN_IDS = "no_token_ids"
    """It completed, but no trace has prompt and response ids: the engine or the router gave none."""
    OVERLONG = "overlong"
    """Its traces are longer than the trainer can take."""
    ABORTED_TURNS = "aborted_turns"
    """What it sampled may have been cut short by a weight push."""
    NO_LOSS_MASK = "no_loss_mask"
    """Its traces do not say which tokens the policy sampled."""
    MASKED = "masked"
    """The server marked its traces as unusable."""
    ZERO_TRAINABLE = "zero_trainable"
    """Its masks are all zeros."""


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How to treat what is not plainly usable.

    Parameters
    ----------
    reward_key
        Key of the reward in each sample's reward mapping.
    max_tokens
        Most prompt and response tokens a trace may have; None for no limit.
    overlong_traces
        ``drop`` longer traces, or ``clip`` the end of their response.
    aborted_turns
        What becomes of turns that a weight push may have cut: ``mask`` their tokens, ``drop`` the trace, or
        ``keep``.
    missing_reward
        A trainable trace without a reward gets ``zero``, or its session is ``reject``ed, or it is an
        ``error``.
    pushes_wait_for_turns
        True where weight pushes wait until no turn is in flight: then a change of the weight version between
        two turns is no sign of a cut.
    """

    reward_key: str = "score"
    max_tokens: int | None = None
    overlong_traces: str = "drop"
    aborted_turns: str = "mask"
    missing_reward: str = "zero"
    pushes_wait_for_turns: bool = False


@dataclass(frozen=True, slots=True)
class SampleIdentity:
    """What the samples of one session inherit from the prompt sample at its position.

    Parameters
    ----------
    group_index
        Number of the prompt group.
    index
        Number of the prompt sample. Every trace of the session carries it, and as trajectory key too.
    label
        The prompt's label.
    metadata
        The prompt's metadata, shared by all its samples; the session's goes beside it under ``polar``.
    """

    group_index: int | None
    index: int | None
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SessionConversion:
    """The samples of one session, and what was noticed on the way.

    Parameters
    ----------
    samples
        One per kept trace, or one placeholder.
    reason
        Why there is nothing to train on; None if there is something.
    detail
        The same for people, with session, trace and position.
    trainable_tokens, response_tokens
        Of the kept traces.
    dropped_traces, dropped_tokens
        Traces that gave no sample, and their prompt and response tokens.
    clipped_traces
        Traces whose response was cut at `max_tokens`.
    masked_tokens
        Sampled tokens masked out because a weight push may have cut their turn.
    missing_rewards
        Trainable traces without a reward.
    rewards
        Of the trainable traces that have one.
    weight_versions
        Oldest and newest weights that served a turn, None if nobody said.
    causes
        Why traces were dropped or masked, one entry each.
    """

    samples: list[Any] = field(default_factory=list)
    reason: SessionReason | None = None
    detail: str | None = None
    trainable_tokens: int = 0
    response_tokens: int = 0
    dropped_traces: int = 0
    dropped_tokens: int = 0
    clipped_traces: int = 0
    masked_tokens: int = 0
    missing_rewards: int = 0
    rewards: list[float] = field(default_factory=list)
    weight_versions: tuple[str, str] | None = None
    causes: list[SessionReason] = field(default_factory=list)

    def drop(self, trace: Trace, cause: SessionReason) -> None:
        """Count a trace that gives no sample."""
        self.dropped_traces += 1
        self.dropped_tokens += len(trace.prompt_ids) + len(trace.response_ids)
        self.causes.append(cause)
