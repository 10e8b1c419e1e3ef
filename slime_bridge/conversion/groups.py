"""All sessions of one task become the samples of one prompt group, each with an account of what became of it.

One bad session never sinks its siblings: it is stood in for by a placeholder, so that every trajectory keeps
its place in the batch, and its outcome says why. Whether the group as a whole is good enough is not decided
here.

Pure computation without I/O or shared state, meant to run in a worker thread.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from slime_bridge import _slime
from slime_bridge._collection import collection_paused
from slime_bridge.adapter import (
    ConversionOptions,
    SampleIdentity,
    SessionConversion,
    SessionReason,
    convert_session,
    placeholder_sample,
    was_early_stopped,
)
from slime_bridge.conversion.trace_samples import session_standing, stamp
from slime_bridge.errors import ConversionError, DataSourceError, MissingRewardError, RolloutLogprobError
from slime_bridge.protocol import MalformedSession, SessionResult, SessionStatus, SessionTiming
from slime_bridge.sample_view import is_placeholder

if TYPE_CHECKING:
    from slime_bridge.config import PolarSlimeConfig

__all__ = ["GroupConversion", "SessionOutcome", "conversion_options", "convert_group", "mark_delivered"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """What became of one session.

    Parameters
    ----------
    position
        Its place in the group, 0-based.
    session_id, node_id
        Polar's; None where there is no result that says.
    status
        Polar's session status as received; "" where there is no result.
    completed
        The status is COMPLETED and neither the result nor the trajectory holds an error.
    usable
        It has a token to train on.
    trainable_tokens, response_tokens
        Of its samples; placeholders count as nothing.
    n_traces
        Traces that became samples.
    dropped_traces, dropped_tokens
        Traces that did not, and their prompt and response tokens.
    clipped_traces
        Traces whose response was cut to fit.
    masked_tokens
        Sampled tokens masked out because a weight push may have cut their turn.
    missing_rewards
        Trainable traces without a reward.
    reward
        Mean over the trainable traces that have one; without any, that of the last trace that has one, else
        the evaluator's outcome; NaN where nobody gave one. Failed sessions may carry one: read it together
        with `usable`.
    reason
        A `SessionReason` where there is nothing to train on, else None.
    detail
        The reason for people.
    timing
        Stage times in milliseconds, None where there is no result.
    weight_versions
        Oldest and newest weights that served one of its turns, None if nobody said.
    policy_version
        The version stamped on its task, as echoed by the server.
    early_stopped
        The server stopped it as surplus; neither a success nor a failure.
    """

    position: int
    session_id: str | None = None
    node_id: str | None = None
    status: str = ""
    completed: bool = False
    usable: bool = False
    trainable_tokens: int = 0
    response_tokens: int = 0
    n_traces: int = 0
    dropped_traces: int = 0
    dropped_tokens: int = 0
    clipped_traces: int = 0
    masked_tokens: int = 0
    missing_rewards: int = 0
    reward: float = math.nan
    reason: str | None = None
    detail: str | None = None
    timing: SessionTiming | None = None
    weight_versions: tuple[str, str] | None = None
    policy_version: Any = None
    early_stopped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a dict that JSON can hold: NaN becomes None, times a plain dict."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["reward"] = None if math.isnan(self.reward) else self.reward
        values["reason"] = None if self.reason is None else str(self.reason)
        values["timing"] = None if self.timing is None else _without_nan(self.timing.to_dict())
        values["weight_versions"] = None if self.weight_versions is None else list(self.weight_versions)
        return values


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


@dataclass(frozen=True, slots=True)
class GroupConversion:
    """The samples of one group in order of session and trace, and one outcome per expected session."""

    samples: list[Any]
    sessions: list[SessionOutcome]


def conversion_options(config: PolarSlimeConfig, *, pushes_wait_for_turns: bool = False) -> ConversionOptions:
    """Return the options that a configuration asks for.

    Parameters
    ----------
    pushes_wait_for_turns
        Whether a barrier keeps weight pushes from cutting turns short.
    """
    return ConversionOptions(
        reward_key=config.reward_key,
        max_tokens=config.max_tokens,
        overlong_traces=config.overlong_traces,
        aborted_turns=config.aborted_turns,
        missing_reward=config.missing_reward,
        pushes_wait_for_turns=pushes_wait_for_turns,
    )


def convert_group(
    results: Sequence[SessionResult | MalformedSession | None],
    prompt_samples: Sequence[Any],
    *,
    config: PolarSlimeConfig,
    pushes_wait_for_turns: bool = False,
) -> GroupConversion:
    """Convert a task's results into the samples of its prompt group.

    Parameters
    ----------
    results
        As decoded, in the server's order; None stands for a session that is known to have no result. A
        session that is listed twice counts once, the first time; surplus sessions are ignored.
    prompt_samples
        The group as drawn from the data source, one sample per expected session: position i stands for result
        i. They give group, index, label and metadata, and are not changed.
    config
        The bridge's configuration.
    pushes_wait_for_turns
        Whether a barrier keeps weight pushes from cutting turns short.

    Raises
    ------
    DataSourceError
        If the group is empty or a prompt sample has no index: its trajectories could not be told apart.
    MissingRewardError
        If a trainable trace has no reward and `missing_reward` is ``error``.
    """
    options = conversion_options(config, pushes_wait_for_turns=pushes_wait_for_turns)
    with collection_paused():
        return _converted(results, prompt_samples, options)


def _converted(
    results: Sequence[SessionResult | MalformedSession | None],
    prompt_samples: Sequence[Any],
    options: ConversionOptions,
) -> GroupConversion:
    sample_cls = _slime.sample_class()
    if not prompt_samples:
        raise DataSourceError("the data source gave a prompt group without samples")
    wanted = _distinct(results)
    if len(wanted) > len(prompt_samples):
        logger.warning("ignoring %d surplus sessions of a task", len(wanted) - len(prompt_samples))
    samples: list[Any] = []
    sessions: list[SessionOutcome] = []
    for position, prompt in enumerate(prompt_samples):
        identity = _identity(prompt, position)
        result = wanted[position] if position < len(wanted) else None
        done = _convert(result, identity, options, sample_cls)
        samples.extend(done.samples)
        sessions.append(_outcome(position, result, done))
    return GroupConversion(samples, sessions)


def mark_delivered(
    samples: Sequence[Any],
    *,
    rollout_id: int,
    policy_version: int | None,
    staleness: int | None,
    scheduler_group_id: int,
) -> None:
    """Write into a group's samples what is only known when it is handed to the trainer.

    Parameters
    ----------
    samples
        The group's samples, changed in place.
    rollout_id
        The rollout that takes the group.
    policy_version
        The version the group was submitted under. None leaves what the server echoed.
    staleness
        Rollouts between the two.
    scheduler_group_id
        The group's number in this run.
    """
    for sample in samples:
        polar = sample.metadata["polar"]
        version = polar["policy_version"] if policy_version is None else policy_version
        polar.update(
            accepted_rollout_id=rollout_id,
            policy_staleness=staleness,
            policy_version=version,
            scheduler_group_id=scheduler_group_id,
        )
        sample.train_metadata = {"policy_staleness": staleness, "policy_version": version}


def _distinct(
    results: Sequence[SessionResult | MalformedSession | None],
) -> list[SessionResult | MalformedSession | None]:
    """Leave out sessions that are listed again; those without an id are kept."""
    seen: set[str] = set()
    kept: list[SessionResult | MalformedSession | None] = []
    for result in results:
        if result is not None and result.session_id is not None:
            if result.session_id in seen:
                continue
            seen.add(result.session_id)
        kept.append(result)
    return kept


def _identity(prompt: Any, position: int) -> SampleIdentity:
    if prompt.index is None:
        raise DataSourceError(
            f"the data source gave a prompt group whose sample {position} has no `index`: trajectories are"
            " told apart by it, so it must be unique in the run"
        )
    return SampleIdentity(prompt.group_index, prompt.index, prompt.label, prompt.metadata)


def _convert(
    result: SessionResult | MalformedSession | None,
    identity: SampleIdentity,
    options: ConversionOptions,
    sample_cls: Any,
) -> SessionConversion:
    reason, detail = SessionReason.MISSING, "the server returned no result for it"
    if isinstance(result, MalformedSession):
        reason = SessionReason.MALFORMED
        detail = f"session {result.session_id or 'of unknown id'}: {result.error}"
    elif result is not None:
        try:
            return convert_session(result, identity, options, sample_cls)
        except MissingRewardError:
            raise
        except RolloutLogprobError as exc:
            reason, detail = SessionReason.LOGPROB_ERROR, str(exc)
        except ConversionError as exc:
            reason, detail = SessionReason.INVALID_TOKENS, str(exc)
    known = result if isinstance(result, SessionResult) else None
    done = SessionConversion(
        samples=[placeholder_sample(identity, options, reason, known, sample_cls)],
        reason=reason,
        detail=detail,
    )
    for trace in known.trajectory.traces if known is not None else ():
        done.drop(trace, reason)
    return done


def _outcome(
    position: int,
    result: SessionResult | MalformedSession | None,
    done: SessionConversion,
) -> SessionOutcome:
    if not isinstance(result, SessionResult):
        return SessionOutcome(
            position,
            session_id=None if result is None else result.session_id,
            reason=done.reason,
            detail=done.detail,
        )
    return SessionOutcome(
        position=position,
        session_id=result.session_id,
        node_id=result.node_id,
        status=result.status,
        completed=session_standing(result) == SessionStatus.COMPLETED,
        usable=done.trainable_tokens > 0,
        trainable_tokens=done.trainable_tokens,
        response_tokens=done.response_tokens,
        n_traces=sum(not is_placeholder(sample) for sample in done.samples),
        dropped_traces=done.dropped_traces,
        dropped_tokens=done.dropped_tokens,
        clipped_traces=done.clipped_traces,
        masked_tokens=done.masked_tokens,
        missing_rewards=done.missing_rewards,
        reward=_session_reward(result, done),
        reason=done.reason,
        detail=done.detail,
        timing=result.timing,
        weight_versions=done.weight_versions,
        policy_version=stamp(result, "policy_version"),
        early_stopped=was_early_stopped(result),
    )


def _session_reward(result: SessionResult, done: SessionConversion) -> float:
    if done.rewards:
        return math.fsum(done.rewards) / len(done.rewards)
    evaluation = result.trajectory.metadata.get("evaluation")
    outcome = evaluation.get("outcome_reward") if isinstance(evaluation, Mapping) else None
    known = [*(trace.reward for trace in reversed(result.trajectory.traces)), outcome]
    return next((float(reward) for reward in known if _is_reward(reward)), math.nan)


def _is_reward(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
