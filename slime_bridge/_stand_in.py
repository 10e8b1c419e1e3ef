"""Stand-ins for Slime's sample and rollout outputs, for machines without Slime.

`Sample` has the fields, methods and status values of Slime v0.3.0, so that samples made here load in Slime
and the other way round through `to_dict` and `from_dict`; dumps made from either look alike.

Nothing here knows torch or Polar.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["DynamicFilterOutput", "RolloutFnEvalOutput", "RolloutFnTrainOutput", "Sample"]


@dataclass
class _Counters:
    """Integer counters that travel as a plain dict."""

    def to_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return dataclasses.asdict(self)

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Any:
        return cls(**{f.name: data.get(f.name, 0) for f in dataclasses.fields(cls)})


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator > 0 else 0.0


@dataclass
class _SpecInfo(_Counters):
    """Counters of speculative decoding, summed over the calls of a sample."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    @property
    def spec_accept_rate(self) -> float:
        """Accepted over drafted tokens, 0.0 without drafts."""
        return _ratio(self.spec_accept_token_num, self.spec_draft_token_num)

    @property
    def spec_accept_length(self) -> float:
        """Generated tokens per verification step, 0.0 without one."""
        return _ratio(self.completion_token_num, self.spec_verify_ct)

    def add(self, meta_info: Mapping[str, Any]) -> None:
        """Add the counters of one engine answer."""
        self.spec_accept_token_num += meta_info.get("spec_accept_token_num", 0)
        self.spec_draft_token_num += meta_info.get("spec_draft_token_num", 0)
        self.spec_verify_ct += meta_info.get("spec_verify_ct", 0)
        self.completion_token_num += meta_info.get("completion_tokens", 0)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> _SpecInfo:
        """Read counters by name; absent ones are 0."""
        info: _SpecInfo = _SpecInfo._read(data)
        return info


@dataclass
class _PrefixCacheInfo(_Counters):
    """Counters of the prefix cache, summed over the calls of a sample."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Cached over all prompt tokens, 0.0 without any."""
        return _ratio(self.cached_tokens, self.total_prompt_tokens)

    def add(self, meta_info: Mapping[str, Any]) -> None:
        """Add the counters of one engine answer."""
        self.cached_tokens += meta_info.get("cached_tokens", 0)
        self.total_prompt_tokens += meta_info.get("prompt_tokens", 0)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> _PrefixCacheInfo:
        """Read counters by name; absent ones are 0."""
        info: _PrefixCacheInfo = _PrefixCacheInfo._read(data)
        return info


class _Status(Enum):
    """Where a sample stands; the values are what dumps hold."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


_FINISH_STATUS = {"length": _Status.TRUNCATED, "abort": _Status.ABORTED, "stop": _Status.COMPLETED}


@dataclass
class Sample:
    """One training sample, field for field like Slime v0.3.0's.

    `group_id` is the trajectory: all samples of one session share it, and None means `index`. Further
    attributes may be set and survive `to_dict` and `from_dict`. `rollout_id` is a write-only, deprecated name
    of `group_id`.
    """

    Status = _Status
    SpecInfo = _SpecInfo
    PrefixCacheInfo = _PrefixCacheInfo

    group_index: int | None = None
    index: int | None = None
    group_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any | None = None
    remove_sample: bool = False
    teacher_log_probs: Any | None = None
    status: _Status = _Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: _SpecInfo = field(default_factory=_SpecInfo)
    prefix_cache_info: _PrefixCacheInfo = field(default_factory=_PrefixCacheInfo)

    def _set_rollout_id(self, value: int | None) -> None:
        if value is None:
            return
        warnings.warn("Sample.rollout_id is deprecated; set group_id", DeprecationWarning, stacklevel=2)
        self.group_id = value

    rollout_id = property(None, _set_rollout_id)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes in a new dict, containers shared, status and counters as plain values."""
        return {
            **self.__dict__,
            "status": self.status.value,
            "spec_info": self.spec_info.to_dict(),
            "prefix_cache_info": self.prefix_cache_info.to_dict(),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Sample:
        """Build a sample from what `to_dict` returned, or from an older dump.

        Raises
        ------
        KeyError
            Without a ``status``.
        ValueError
            If the status is unknown.
        """
        values = dict(data)
        legacy = values.pop("rollout_id", None)
        values["status"] = _Status(values["status"])
        values["spec_info"] = _SpecInfo.from_dict(values.get("spec_info", {}))
        values["prefix_cache_info"] = _PrefixCacheInfo.from_dict(values.get("prefix_cache_info", {}))
        if values.get("group_id") is None:
            values["group_id"] = legacy
        sample = Sample()
        for name, value in values.items():
            setattr(sample, name, value)
        return sample

    def get_reward_value(self, args: Any) -> Any:
        """Return the reward, or its entry `args.reward_key` where that is set."""
        if not args.reward_key:
            return self.reward
        if not isinstance(self.reward, Mapping):
            raise TypeError(f"reward_key is {args.reward_key!r}, but the reward is {self.reward!r}")
        return self.reward[args.reward_key]

    @property
    def effective_response_length(self) -> int:
        """Number of trainable response tokens."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def update_from_meta_info(self, args: Any, meta_info: Mapping[str, Any]) -> None:
        """Take over counters, weight version and finish reason of one engine answer."""
        if args.sglang_speculative_algorithm:
            self.spec_info.add(meta_info)
        self.prefix_cache_info.add(meta_info)
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])
        self.status = _FINISH_STATUS.get(meta_info["finish_reason"]["type"], self.status)


@dataclass
class RolloutFnTrainOutput:
    """What a training rollout returns: groups of samples, and metrics by name."""

    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """What an evaluation returns: ``rewards``, ``truncated`` and ``samples`` per dataset, and metrics."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


@dataclass
class DynamicFilterOutput:
    """What a dynamic sampling filter says of a group."""

    keep: bool
    reason: str | None = None
