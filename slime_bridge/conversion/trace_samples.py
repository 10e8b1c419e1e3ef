"""Builds the sample of one trace: its mask, logprobs, reward, status and metadata.

Works on one session at a time and writes what it notices into the session's account. Which samples a session
ends up with is the adapter's decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from slime_bridge import _slime
from slime_bridge._messages import messages_to_text
from slime_bridge.conversion.trace_tokens import checked_logprobs, checked_mask, joined_ids
from slime_bridge.conversion.turns import TurnReport, read_turns
from slime_bridge.conversion.types import ConversionOptions, SampleIdentity, SessionConversion, SessionReason
from slime_bridge.errors import MissingRewardError, RolloutLogprobError
from slime_bridge.protocol import SessionResult, SessionStatus, Trace

__all__ = ["TraceBuilder", "new_sample", "polar_metadata", "session_standing", "stamp"]

_STAMPS = ("group_id", "policy_version", "rollout_step")


def session_standing(result: SessionResult) -> SessionStatus:
    """Return COMPLETED, TIMEOUT or ERROR for a session, whatever its server wrote.

    TIMEOUT wins over an error text, which every timeout carries. A status that is none of the three is an
    ERROR: nobody knows whether such a session is whole.
    """
    statuses = {result.status, result.trajectory.status}
    if SessionStatus.TIMEOUT in statuses:
        return SessionStatus.TIMEOUT
    if result.error or result.trajectory.error or statuses != {SessionStatus.COMPLETED}:
        return SessionStatus.ERROR
    return SessionStatus.COMPLETED


def stamp(result: SessionResult | None, name: str, trace: Trace | None = None) -> Any:
    """Return a value that the submitter stamped on the task, wherever the server left a copy of it.

    Looked for in the result's metadata, the trajectory's, the trajectory's copy of the task's, and the
    trace's (every trace's where none is given). None if nobody has it.
    """
    if result is None:
        return None
    trajectory = result.trajectory
    traces = trajectory.traces if trace is None else [trace]
    places = [result.metadata, trajectory.metadata, trajectory.metadata.get("task_metadata")]
    for place in [*places, *(t.metadata for t in traces)]:
        if isinstance(place, dict) and (value := place.get(name)) is not None:
            return value
    return None


def polar_metadata(result: SessionResult | None, trace: Trace | None, trace_index: int) -> dict[str, Any]:
    """Return what a sample's ``metadata["polar"]`` says about the session and trace it came from.

    Every key is there; values are None without a session.
    """
    trajectory = None if result is None else result.trajectory
    return {
        "session_id": None if result is None else result.session_id,
        "task_id": None if result is None else result.task_id,
        "node_id": None if result is None else result.node_id,
        "session_status": None if result is None else result.status,
        "trajectory_status": None if trajectory is None else trajectory.status,
        "result_error": None if result is None else result.error,
        "trajectory_error": None if trajectory is None else trajectory.error,
        "result_metadata": None if result is None else result.metadata,
        "trajectory_metadata": None if trajectory is None else trajectory.metadata,
        "trace_metadata": None if trace is None else trace.metadata,
        "trace_index": trace_index,
        "timing": None if result is None else result.timing.to_dict(),
        **{name: stamp(result, name, trace) for name in _STAMPS},
        "trace_debug": {
            "finish_reason": None if trace is None else trace.finish_reason,
            "response_messages": [] if trace is None else trace.response_messages,
        },
    }


def new_sample(sample_cls: Any, identity: SampleIdentity, polar: dict[str, Any], **fields: Any) -> Any:
    """Return a sample with an identity, Polar's metadata and the given fields."""
    sample = sample_cls()
    metadata = identity.metadata if isinstance(identity.metadata, dict) else {}
    values = {
        "group_index": identity.group_index,
        "index": identity.index,
        _slime.trajectory_key(sample_cls): identity.index,
        "label": identity.label,
        "session_id": polar["session_id"],
        "metadata": {**metadata, "polar": polar},
        "train_metadata": {"policy_staleness": None, "policy_version": polar["policy_version"]},
        **fields,
    }
    for name, value in values.items():
        setattr(sample, name, value)
    return sample


@dataclass(frozen=True, slots=True)
class _Standing:
    """How a trace is to be treated, from its session's status and the server's own filter."""

    status: str
    trainable: bool = True
    zero_reward: bool = False
    removed: bool = False


def _standing(session: SessionStatus, trace: Trace) -> _Standing:
    verdict = trace.metadata.get("training_filter")
    verdict = verdict if isinstance(verdict, dict) else {}
    failed = "ABORTED" if session == SessionStatus.TIMEOUT else "FAILED"
    if verdict.get("masked"):
        return _Standing(failed, trainable=False, zero_reward=True, removed=True)
    good = "TRUNCATED" if trace.finish_reason == "length" else "COMPLETED"
    if verdict.get("trainable") and session != SessionStatus.ERROR:
        # The agent ran out of its own time: what it sampled until then is whole, only cut at the end.
        return _Standing("TRUNCATED" if session == SessionStatus.TIMEOUT else good, zero_reward=True)
    if session != SessionStatus.COMPLETED:
        return _Standing(failed, trainable=False)
    return _Standing(good)


class TraceBuilder:
    """Builds the samples of one session, trace by trace.

    Parameters
    ----------
    result
        The session.
    identity
        What its samples inherit.
    options
        How to treat what is not plainly usable.
    done
        The session's account; `sample` adds to it.
    sample_cls
        Slime's sample type, or its stand-in.
    """

    def __init__(
        self,
        result: SessionResult,
        identity: SampleIdentity,
        options: ConversionOptions,
        done: SessionConversion,
        sample_cls: Any,
    ) -> None:
        self._result = result
        self._identity = identity
        self._options = options
        self._done = done
        self._session = session_standing(result)
        self._sample_cls = sample_cls
        self.versions: list[str] = []

    def sample(self, trace_index: int, trace: Trace) -> Any | None:
        """Return the trace's sample, or None if the trace is dropped.

        Raises
        ------
        ConversionError
            If a token id is not a non-negative int.
        MissingRewardError
            If a missing reward is to be an error.
        RolloutLogprobError
            If the mask or the logprobs cannot be used.
        """
        done = self._done
        if not trace.prompt_ids or not trace.response_ids:
            done.drop(trace, SessionReason.NO_TOKEN_IDS)
            return None
        standing = _standing(self._session, trace)
        kept = self._kept_response(trace, standing)
        if kept <= 0:
            done.drop(trace, SessionReason.OVERLONG)
            return None
        polar = polar_metadata(self._result, trace, trace_index)
        flags = self._flags(trace, standing, polar)
        if flags is None:
            done.drop(trace, SessionReason.ABORTED_TURNS)
            return None
        clipped = kept < len(trace.response_ids)
        if clipped:
            polar["clipped"] = {"response_tokens": len(trace.response_ids), "kept": kept}
            flags = flags[:kept]
            if "turns" in polar:
                polar["turns"] = [_clipped_turn(turn, kept) for turn in polar["turns"]]
        if clipped and 1 not in flags:
            done.drop(trace, SessionReason.OVERLONG)
            return None
        return self._finished(trace, standing, polar, flags, clipped)

    def _finished(
        self, trace: Trace, standing: _Standing, polar: dict[str, Any], flags: bytes, clipped: bool
    ) -> Any:
        done = self._done
        trainable = flags.count(1)
        logprobs = self._logprobs(trace, standing, flags)
        response_ids = trace.response_ids[: len(flags)] if clipped else trace.response_ids
        sample = new_sample(
            self._sample_cls,
            self._identity,
            polar,
            prompt=trace.prompt_messages or "",
            tokens=joined_ids(trace.prompt_ids, response_ids),
            response=messages_to_text(trace.response_messages),
            response_length=len(response_ids),
            reward={self._options.reward_key: self._reward(trace, standing, trainable)},
            loss_mask=list(flags),
            weight_versions=[version for turn in polar.get("turns", ()) for version in _versions_of(turn)],
            rollout_log_probs=logprobs,
            remove_sample=standing.removed,
            status=self._sample_cls.Status["TRUNCATED" if clipped else standing.status],
        )
        done.clipped_traces += clipped
        done.trainable_tokens += trainable
        done.response_tokens += len(response_ids)
        if standing.removed:
            done.causes.append(SessionReason.MASKED)
        return sample

    def _kept_response(self, trace: Trace, standing: _Standing) -> int:
        """Return how many response tokens fit; 0 or less if the trace must be dropped."""
        limit = self._options.max_tokens
        whole = len(trace.response_ids)
        if limit is None or len(trace.prompt_ids) + whole <= limit:
            return whole
        if self._options.overlong_traces != "clip" or not standing.trainable:
            return 0
        return limit - len(trace.prompt_ids)

    def _flags(self, trace: Trace, standing: _Standing, polar: dict[str, Any]) -> bytes | None:
        """Return the final mask over the whole response; None to drop the trace."""
        length = len(trace.response_ids)
        if not trace.loss_mask:
            if standing.trainable:
                self._done.causes.append(SessionReason.NO_LOSS_MASK)
            flags = bytes(length)
        else:
            flags = checked_mask(trace.loss_mask, length) if standing.trainable else bytes(length)
        turns = read_turns(trace.metadata, trace.finish_reason, flags, stamp(self._result, "policy_version"))
        if turns.versions:
            self.versions.extend(turns.versions)
            polar["turns"] = turns.to_list()
        suspects = set(turns.aborted)
        if not self._options.pushes_wait_for_turns:
            suspects.update(turns.before_jump)
        if not suspects:
            return flags
        return self._without_suspects(flags, turns, suspects, polar)

    def _without_suspects(
        self, flags: bytes, turns: TurnReport, suspects: set[int], polar: dict[str, Any]
    ) -> bytes | None:
        action = self._options.aborted_turns
        masked = bytearray(flags)
        for start, end in _suspect_spans(turns, suspects, len(flags)) if action == "mask" else ():
            masked[start:end] = bytes(end - start)
        lost = flags.count(1) - masked.count(1)
        polar["aborted_turns"] = {
            "action": action,
            "turns": sorted(suspects),
            "aborted": list(turns.aborted),
            "before_jump": list(turns.before_jump),
            "located": turns.spans is not None,
            "masked_tokens": lost,
        }
        if action == "drop":
            return None
        self._done.masked_tokens += lost
        if lost:
            self._done.causes.append(SessionReason.ABORTED_TURNS)
        return bytes(masked)

    def _logprobs(self, trace: Trace, standing: _Standing, flags: bytes) -> list[float]:
        logprobs = trace.response_logprobs
        if logprobs is not None and len(logprobs) != len(trace.response_ids):
            if standing.trainable:
                raise RolloutLogprobError(
                    f"{len(logprobs)} logprobs for {len(trace.response_ids)} response ids"
                )
            # Nothing of this trace is trained on: wrong logprobs are as good as none.
            logprobs = None
        if logprobs is not None and len(logprobs) > len(flags):
            logprobs = logprobs[: len(flags)]
        return checked_logprobs(logprobs, flags)

    def _reward(self, trace: Trace, standing: _Standing, trainable: int) -> float:
        known = standing.zero_reward or (trace.reward is not None and math.isfinite(trace.reward))
        reward = 0.0 if standing.zero_reward or not known else float(trace.reward or 0.0)
        if trainable and known:
            self._done.rewards.append(reward)
        elif trainable:
            self._done.missing_rewards += 1
            if self._options.missing_reward == "error":
                raise MissingRewardError(
                    f"the reward is {trace.reward} and polar_missing_reward is `error`: the task needs an"
                    " evaluator that gives every completed session a reward"
                )
        return reward


def _versions_of(turn: dict[str, Any]) -> list[str]:
    if "weight_versions" in turn:
        return [span["version"] for span in turn["weight_versions"]]
    return [turn["weight_version"]] if turn["weight_version"] else []


def _clipped_turn(turn: dict[str, Any], kept: int) -> dict[str, Any]:
    if turn["end"] is None:
        return turn
    clipped = {**turn, "start": min(turn["start"], kept), "end": min(turn["end"], kept)}
    if "weight_versions" in turn:
        spans = [span for span in turn["weight_versions"] if span["start"] < kept]
        clipped["weight_versions"] = [{**span, "end": min(span["end"], kept)} for span in spans]
    return clipped


def _suspect_spans(turns: TurnReport, suspects: set[int], length: int) -> list[tuple[int, int]]:
    """Return the token ranges of suspect turns; everything where turns cannot be located."""
    if turns.spans is None:
        return [(0, length)]
    return [turns.spans[turn] for turn in sorted(suspects)]
