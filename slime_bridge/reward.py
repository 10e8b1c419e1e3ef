"""Slime's reward hook: the reward that Polar's evaluator gave, which every sample carries already.

For ``--custom-rm-path slime_bridge.reward.reward_func``. Nothing is computed or requested here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from slime_bridge.config import resolve_reward_settings
from slime_bridge.errors import MissingRewardError
from slime_bridge.sample_view import reward_value

__all__ = ["reward_func"]

logger = logging.getLogger(__name__)


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """Return the reward of a sample, or of each sample of a list.

    Parameters
    ----------
    args
        Trainer arguments; everything is read with a default.
    sample
        One sample, or a list of them, which is what Slime hands over for groups and for rollouts that split.
    kwargs
        Ignored.

    Returns
    -------
    float, mapping, or list of these
        What Slime stores as the sample's reward: a number, or where ``args.reward_key`` is set a mapping that
        holds that key. A missing or non-finite reward is 0.0, with a warning once per process.

    Raises
    ------
    ConfigError
        If a sample's reward is a mapping without the configured key.
    MissingRewardError
        If a reward is missing and ``args.polar_missing_reward`` is ``error``.
    """
    if isinstance(sample, list):
        return [_reward(args, each) for each in sample]
    return _reward(args, sample)


def _reward(args: Any, sample: Any) -> Any:
    slime_key = getattr(args, "reward_key", None)
    value = reward_value(sample, resolve_reward_settings(args).reward_key)
    if not math.isfinite(value):
        if getattr(args, "polar_missing_reward", None) == "error":
            raise MissingRewardError(
                f"sample {getattr(sample, 'index', None)} has the reward {value}, and polar_missing_reward is"
                " `error`"
            )
        _warn_once()
        value = 0.0
    if not slime_key:
        return value
    parts = sample.reward if isinstance(sample.reward, Mapping) else {}
    return {**parts, slime_key: value}


@lru_cache(maxsize=1)
def _warn_once() -> None:
    logger.warning("a sample without a finite reward counts as 0.0 (further ones are not reported)")
