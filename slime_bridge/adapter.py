"""One session result of Polar becomes training samples: one sample per trace, or one placeholder.

Token ids are the server's own: never encoded again, appended to or, unless clipping was asked for, cut. Masks
and logprobs are checked before anything is built, so that no token is trained on without a finite logprob of
its own. The lists of the result are taken over, not copied.

What the wire leaves open is decided here, always in favour of not training on a token that might be wrong:

- A status that is neither ``COMPLETED``, ``TIMEOUT`` nor ``ERROR`` counts as failed.
- An empty mask beside response ids, which the protocol allows, says nothing about who wrote the tokens: the
sample is
  kept and its mask is all zeros.
- A reward that is null or not finite follows `ConversionOptions.missing_reward`.

The module knows neither groups nor verdicts, and does no I/O.
"""

from __future__ import annotations

from typing import Any

from slime_bridge import _slime
from slime_bridge.conversion.trace_samples import TraceBuilder, new_sample, polar_metadata, session_standing
from slime_bridge.conversion.turns import oldest_and_newest
from slime_bridge.conversion.types import ConversionOptions, SampleIdentity, SessionConversion, SessionReason
from slime_bridge.errors import ConversionError, RolloutLogprobError
from slime_bridge.protocol import SessionResult, SessionStatus

__all__ = [
    "ConversionOptions",
    "RolloutLogprobError",
    "SampleIdentity",
    "SessionConversion",
    "SessionReason",
    "convert_session",
    "placeholder_sample",
    "session_result_to_samples",
    "was_early_stopped",
]


def session_result_to_samples(
    result: SessionResult,
    group_index: int | None,
    *,
    trajectory_index: int | None,
    reward_key: str = "score",
    max_tokens: int | None = None,
) -> list[Any]:
    """Convert one session result into samples, with the default options.

    Parameters
    ----------
    result
        A decoded session result; its lists are taken over.
    group_index
        Number of the prompt group.
    trajectory_index
        Becomes ``index`` and the trajectory key of every sample.
    reward_key
        Key of the reward in each sample's reward mapping.
    max_tokens
        Most prompt and response tokens a trace may have; longer traces are dropped. None for no limit.

    Returns
    -------
    list of Sample
        One per usable trace in the server's order, or one placeholder.

    Raises
    ------
    RolloutLogprobError
        If a mask or logprob array is misaligned, or a trainable token has no finite logprob.
    ConversionError
        If a token id is not a non-negative int.
    """
    options = ConversionOptions(reward_key=reward_key, max_tokens=max_tokens)
    return convert_session(result, SampleIdentity(group_index, trajectory_index), options).samples


def convert_session(
    result: SessionResult, identity: SampleIdentity, options: ConversionOptions, sample_cls: Any = None
) -> SessionConversion:
    """Convert one session result into samples and an account of them.

    Parameters
    ----------
    result
        A decoded session result; its lists are taken over.
    identity
        What the samples inherit.
    options
        How to treat what is not plainly usable.
    sample_cls
        Type of the samples, None for Slime's or its stand-in. Finding that out takes longer than converting a
        short session, so callers with many sessions ask once.

    Raises
    ------
    RolloutLogprobError
        If a mask or logprob array is misaligned, or a trainable token has no finite logprob.
    ConversionError
        If a token id is not a non-negative int.
    MissingRewardError
        If a trainable trace has no reward and that is to be an error.
    """
    done = SessionConversion()
    sample_cls = sample_cls or _slime.sample_class()
    build = TraceBuilder(result, identity, options, done, sample_cls)
    for position, trace in enumerate(result.trajectory.traces):
        try:
            sample = build.sample(position, trace)
        except ConversionError as exc:
            raise type(exc)(f"session {result.session_id}, trace {position}: {exc}") from exc
        if sample is not None:
            done.samples.append(sample)
    done.weight_versions = oldest_and_newest(build.versions)
    if options.missing_reward == "reject" and done.missing_rewards:
        return _rejected(done, result, identity, options, sample_cls)
    if done.trainable_tokens == 0:
        done.reason = _reason(result, done)
        done.detail = _detail(result, done.reason)
    if not done.samples:
        done.samples.append(placeholder_sample(identity, options, done.reason, result, sample_cls))
    return done


def _rejected(
    done: SessionConversion,
    result: SessionResult,
    identity: SampleIdentity,
    options: ConversionOptions,
    sample_cls: Any,
) -> SessionConversion:
    reason = SessionReason.MISSING_REWARD
    return SessionConversion(
        samples=[placeholder_sample(identity, options, reason, result, sample_cls)],
        reason=reason,
        detail=f"session {result.session_id}: {done.missing_rewards} trainable traces without a reward",
        dropped_traces=len(result.trajectory.traces),
        dropped_tokens=sum(len(t.prompt_ids) + len(t.response_ids) for t in result.trajectory.traces),
        missing_rewards=done.missing_rewards,
        weight_versions=done.weight_versions,
    )


def placeholder_sample(
    identity: SampleIdentity,
    options: ConversionOptions,
    reason: SessionReason | None,
    result: SessionResult | None = None,
    sample_cls: Any = None,
) -> Any:
    """Return the smallest sample that keeps a trajectory's place in the batch without being trained on.

    Two tokens, one of them a masked response token. It is removed, aborted and worth 0.

    Parameters
    ----------
    reason
        Noted in the sample's metadata.
    result
        The session it stands for, None if there is none.
    sample_cls
        Type of the sample, None for Slime's or its stand-in.
    """
    polar = polar_metadata(result, None, -1)
    polar["placeholder"] = True
    polar["placeholder_reason"] = None if reason is None else str(reason)
    sample_cls = sample_cls or _slime.sample_class()
    return new_sample(
        sample_cls,
        identity,
        polar,
        prompt="",
        tokens=[0, 0],
        response="",
        response_length=1,
        reward={options.reward_key: 0.0},
        loss_mask=[0],
        rollout_log_probs=[0.0],
        remove_sample=True,
        status=sample_cls.Status.ABORTED,
    )


def was_early_stopped(result: SessionResult) -> bool:
    """Tell whether the server stopped the session because enough of its siblings were usable."""
    places = (result.metadata, result.trajectory.metadata)
    return any(place.get("early_stop_cancelled") is True for place in places)


def _reason(result: SessionResult, done: SessionConversion) -> SessionReason:
    standing = session_standing(result)
    if was_early_stopped(result):
        return SessionReason.EARLY_STOPPED
    if standing != SessionStatus.COMPLETED:
        return SessionReason.TIMEOUT if standing == SessionStatus.TIMEOUT else SessionReason.FAILED
    if not result.trajectory.traces:
        return SessionReason.NO_TRACES
    # A session whose traces went for several reasons is named after the one a user can do most about.
    order = (
        SessionReason.OVERLONG,
        SessionReason.ABORTED_TURNS,
        SessionReason.NO_LOSS_MASK,
        SessionReason.MASKED,
        SessionReason.NO_TOKEN_IDS,
    )
    return next((reason for reason in order if reason in done.causes), SessionReason.ZERO_TRAINABLE)


def _detail(result: SessionResult, reason: SessionReason) -> str:
    traces = len(result.trajectory.traces)
    error = result.error or result.trajectory.error or f"status {result.status}"
    text = {
        SessionReason.EARLY_STOPPED: "stopped by the server because enough of its siblings were usable",
        SessionReason.TIMEOUT: error,
        SessionReason.FAILED: error,
        SessionReason.NO_TRACES: "completed without a trace",
        SessionReason.OVERLONG: f"its {traces} traces are longer than the trainer can take",
        SessionReason.ABORTED_TURNS: "what it sampled may have been cut short by a weight push",
        SessionReason.NO_LOSS_MASK: f"its {traces} traces have token ids but no loss mask",
        SessionReason.MASKED: f"the server marked its {traces} traces as unusable",
        SessionReason.NO_TOKEN_IDS: (
            f"none of its {traces} traces has prompt and response token ids: the inference engine, or the"
            " router in front of it, returned no token ids with its answers"
        ),
        SessionReason.ZERO_TRAINABLE: f"the masks of its {traces} traces are all zeros",
    }
    return f"session {result.session_id}: {text[reason]}"
