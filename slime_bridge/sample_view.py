"""The single answer to what a sample earned, how much of it is trained, whose it is and whether it failed.

Works on Slime's `Sample`, on the stand-in, on the dicts that dumps hold, and on any object with the same
attributes. It only reads. It does not know which samples were accepted, nor what any trainer makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

from slime_bridge.errors import ConfigError, ConversionError

__all__ = [
    "group_of",
    "is_failed",
    "is_placeholder",
    "polar_metadata",
    "policy_version",
    "response_tokens",
    "reward_component",
    "reward_value",
    "status_name",
    "trainable_tokens",
    "trajectory_of",
]

_FAILED = frozenset({"failed", "aborted"})
_TRAJECTORY_FIELDS = ("group_id", "rollout_id", "index")
_NOTHING: Mapping[str, Any] = {}


def _get(sample: Any, name: str, default: Any = None) -> Any:
    if isinstance(sample, Mapping):
        return sample.get(name, default)
    return getattr(sample, name, default)


def _number(value: Any, what: str) -> float:
    if value is None:
        return math.nan
    # NumPy's scalars are no Python numbers but convert like them.
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ConversionError(f"{what} must be a number, got {type(value).__name__}")
    return float(value)


def reward_value(sample: Any, reward_key: str | None = None) -> float:
    """Return the sample's reward as a float.

    Parameters
    ----------
    sample
        A sample; its reward is a number, None, or a mapping from names to numbers.
    reward_key
        Which entry of a mapping is the reward. None accepts a mapping with a single entry. A plain number
        needs no key.

    Returns
    -------
    float
        NaN where there is no reward. Non-finite rewards are returned as they are.

    Raises
    ------
    ConfigError
        If the reward is a mapping and the key does not name one of its entries.
    ConversionError
        If the reward is neither a number nor a mapping.
    """
    reward = _get(sample, "reward")
    if not isinstance(reward, Mapping):
        return _number(reward, "a reward")
    if reward_key is None and len(reward) == 1:
        return _number(next(iter(reward.values())), "a reward")
    if reward_key not in reward:
        raise ConfigError(
            f"reward_key {reward_key!r} is not in a sample's reward, which has {sorted(map(str, reward))};"
            " set polar_reward_key (and Slime's --reward-key) to one of these"
        )
    return _number(reward[reward_key], f"reward[{reward_key!r}]")


def reward_component(sample: Any, name: str) -> float:
    """Return one of several reward components, NaN where the sample has none of that name.

    Looked up in the reward itself, then in the trace's metadata, then in what Polar's evaluator reported
    (``trajectory.metadata.evaluation``). A value that is not a number counts as absent.
    """
    reward = _get(sample, "reward")
    polar = polar_metadata(sample)
    trajectory_metadata = polar.get("trajectory_metadata")
    evaluation = trajectory_metadata.get("evaluation") if isinstance(trajectory_metadata, Mapping) else None
    for place in (reward, polar.get("trace_metadata"), evaluation):
        if isinstance(place, Mapping) and isinstance(value := place.get(name), int | float):
            return float(value)
    return math.nan


def trainable_tokens(sample: Any) -> int:
    """Return how many response tokens the trainer learns from: 0 for a removed sample, all without a mask."""
    if _get(sample, "remove_sample", False):
        return 0
    mask = _get(sample, "loss_mask")
    return response_tokens(sample) if mask is None else int(sum(mask))


def response_tokens(sample: Any) -> int:
    """Return how many tokens follow the prompt, sampled or not; 0 for a placeholder."""
    return 0 if is_placeholder(sample) else int(_get(sample, "response_length", 0) or 0)


def group_of(sample: Any) -> Hashable:
    """Return the prompt group's number, None where the sample belongs to none."""
    value: Hashable = _get(sample, "group_index")
    return value


def trajectory_of(sample: Any) -> Hashable:
    """Return what all samples of a trajectory share: `group_id` or `rollout_id`, if set, else `index`."""
    for name in _TRAJECTORY_FIELDS:
        value: Hashable = _get(sample, name)
        if value is not None:
            return value
    return None


def status_name(sample: Any) -> str:
    """Return the status as text, such as ``completed``; "" where there is none."""
    status = _get(sample, "status")
    return str(getattr(status, "value", status) or "")


def is_failed(sample: Any) -> bool:
    """Tell whether the sample failed or was aborted; placeholders did."""
    return status_name(sample) in _FAILED


def is_placeholder(sample: Any) -> bool:
    """Tell whether the sample only stands for a session that gave nothing to train on."""
    return bool(polar_metadata(sample).get("placeholder"))


def polar_metadata(sample: Any) -> Mapping[str, Any]:
    """Return ``metadata["polar"]``, an empty mapping where the sample did not come from Polar."""
    metadata = _get(sample, "metadata")
    polar = metadata.get("polar") if isinstance(metadata, Mapping) else None
    return polar if isinstance(polar, Mapping) else _NOTHING


def policy_version(sample: Any) -> Any:
    """Return the policy version stamped on the sample's task, None where unknown."""
    return polar_metadata(sample).get("policy_version")
