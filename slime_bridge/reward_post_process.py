"""Slime's reward post-process hook: advantages per trajectory, centred within the prompt group.

For ``--custom-reward-post-process-path slime_bridge.reward_post_process.post_process_rewards``. Slime
broadcasts the number it gets for a sample over the sample's tokens, so that the estimator here must be one
that gives a number per trace.

The groups are those that the samples name; nothing depends on their order or on how many there are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from slime_bridge.advantages import (
    SPREAD_FLOOR,
    LeaveOneTrajectoryOut,
    RewardBatch,
    checked_advantages,
    get_estimator,
    group_spreads,
)
from slime_bridge.config import RewardSettings, resolve_reward_settings
from slime_bridge.errors import AdvantageError
from slime_bridge.sample_view import (
    group_of,
    is_failed,
    polar_metadata,
    response_tokens,
    reward_component,
    reward_value,
    trainable_tokens,
    trajectory_of,
)

__all__ = [
    "NORMALIZED_ESTIMATORS",
    "PostProcessStats",
    "last_post_process",
    "post_process_rewards",
    "production_estimator",
    "require_estimator",
    "reward_batch",
]

logger = logging.getLogger(__name__)

NORMALIZED_ESTIMATORS = frozenset({"grpo", "gspo", "reinforce_plus_plus_baseline"})
"""Slime's estimators that take a centred reward; the others need the raw one."""


@dataclass(frozen=True)
class PostProcessStats:
    """What one call of the hook saw.

    Parameters
    ----------
    estimator
        Its representation, with hyper-parameters.
    traces
        Samples handed over.
    groups
        Prompt groups among them.
    trajectories, valid_trajectories
        All, and those that did not fail and have a trainable token and a reward.
    lone_groups
        Groups with a single valid trajectory: nothing to compare it with.
    degenerate_groups
        Groups of several valid trajectories whose rewards are all equal: no signal.
    empty_groups
        Groups without a valid trajectory.
    missing_rewards
        Samples that did not fail and have a trainable token but no finite reward.
    """

    estimator: str
    traces: int
    groups: int
    trajectories: int
    valid_trajectories: int
    lone_groups: int
    degenerate_groups: int
    empty_groups: int
    missing_rewards: int


class _Recorder:
    """Keeps the latest call's statistics for whoever reports metrics."""

    def __init__(self) -> None:
        self.last: PostProcessStats | None = None


_recorder = _Recorder()


def last_post_process() -> PostProcessStats | None:
    """Return the statistics of the latest call that computed advantages, None before the first."""
    return _recorder.last


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Turn rewards into advantages.

    Parameters
    ----------
    args
        Trainer arguments; everything is read with a default. `advantage_estimator`, `rewards_normalization`,
        `grpo_std_normalization` and `reward_key` are Slime's; `polar_advantage_estimator` with
        `polar_advantage_estimator_kwargs`, `gdpo_reward_keys` and `dvao_reward_keys` choose another estimator
        than the default, `LeaveOneTrajectoryOut`.
    samples
        The rollout's samples in training order. Samples without a group or trajectory stand for themselves.

    Returns
    -------
    raw_rewards, rewards
        One float per sample each. `rewards` are the raw ones where `rewards_normalization` is off or Slime's
        estimator is not one of `NORMALIZED_ESTIMATORS`. A missing reward is 0.0 among the raw ones and gets
        no advantage.

    Raises
    ------
    ConfigError
        If a reward is a mapping without the configured key, or the keys contradict one another.
    AdvantageError
        If the estimator is unknown, gives numbers per token, or returns something that cannot be trained on.
    """
    settings = resolve_reward_settings(args)
    known = [reward_value(sample, settings.reward_key) for sample in samples]
    raw = [value if math.isfinite(value) else 0.0 for value in known]
    if not _estimates(settings):
        if settings.advantage_estimator or settings.gdpo_reward_keys or settings.dvao_reward_keys:
            _warn_without_effect(settings.slime_estimator, settings.rewards_normalization)
        return raw, list(raw)
    estimator = production_estimator(args)
    batch = reward_batch(samples, known, components=getattr(estimator, "components", ()))
    advantages = checked_advantages(estimator, batch)
    _recorder.last = stats = _statistics(estimator, batch)
    logger.info("advantages: %s", stats)
    if stats.missing_rewards:
        logger.warning("%d samples without a finite reward get no advantage", stats.missing_rewards)
    return raw, advantages.tolist()


def require_estimator(args: Any) -> None:
    """Make the estimator once, where there will be use for it; for the start of a training.

    Slime calls the hook after the first rollout, when all of its generation has been paid for.

    Raises
    ------
    ConfigError, AdvantageError
        As `production_estimator`.
    """
    if _estimates(resolve_reward_settings(args)):
        production_estimator(args)


def _estimates(settings: RewardSettings) -> bool:
    """Tell whether the trainer gets advantages, or raw rewards."""
    return settings.rewards_normalization and settings.slime_estimator in NORMALIZED_ESTIMATORS


def production_estimator(args: Any) -> Callable[[RewardBatch], Any]:
    """Return the estimator that trainer arguments ask for.

    Raises
    ------
    ConfigError
        If the keys contradict one another.
    AdvantageError
        If it is unknown, its hyper-parameters do not fit, or it gives numbers per token.
    """
    settings = resolve_reward_settings(args)
    kwargs = dict(settings.advantage_estimator_kwargs)
    name = settings.advantage_estimator
    for candidate, keys in (("gdpo", settings.gdpo_reward_keys), ("dvao", settings.dvao_reward_keys)):
        if keys is not None:
            name = candidate
            kwargs.setdefault("keys", keys)
    if name is None:
        # Slime always has the switch; where there is none, nobody asked for a division.
        wanted = settings.grpo_std_normalization and hasattr(args, "grpo_std_normalization")
        return LeaveOneTrajectoryOut(
            std_normalization=wanted and settings.slime_estimator in ("grpo", "gspo")
        )
    estimator = get_estimator(name, kwargs)
    if getattr(estimator, "level", "trace") != "trace":
        alike = {"gae": "ppo", "reinforce_plus_plus": "reinforce_plus_plus"}.get(name)
        hint = f": let the trainer do it with --advantage-estimator {alike}" if alike else ""
        raise AdvantageError(
            f"polar_advantage_estimator {name} with {kwargs} gives a number per token, but Slime takes one"
            f" per sample{hint}"
        )
    return estimator


def reward_batch(
    samples: Sequence[Any], rewards: Sequence[float], *, components: Sequence[str] = ()
) -> RewardBatch:
    """Return samples as the arrays that estimators take.

    Parameters
    ----------
    samples
        In any order. A sample without a group or a trajectory is given one of its own.
    rewards
        One per sample, NaN where missing.
    components
        Further rewards to read from the samples.
    """
    groups: dict[Hashable, int] = {}
    trajectories: dict[Hashable, int] = {}
    for position, sample in enumerate(samples):
        for ids, value in ((groups, group_of(sample)), (trajectories, trajectory_of(sample))):
            ids.setdefault(_identity(value, position), len(ids))
    return RewardBatch(
        reward=np.asarray(rewards, dtype=np.float64),
        group=np.array([groups[_identity(group_of(s), i)] for i, s in enumerate(samples)], dtype=np.int64),
        trajectory=np.array(
            [trajectories[_identity(trajectory_of(s), i)] for i, s in enumerate(samples)], dtype=np.int64
        ),
        valid=np.array([not is_failed(s) for s in samples], dtype=bool),
        trainable_tokens=np.array([trainable_tokens(s) for s in samples], dtype=np.int64),
        response_tokens=np.array([response_tokens(s) for s in samples], dtype=np.int64),
        staleness=np.array([_staleness(s) for s in samples], dtype=np.float64),
        components={name: np.array([reward_component(s, name) for s in samples]) for name in components},
    )


def _identity(value: Hashable, position: int) -> Hashable:
    return ("alone", position) if value is None else value


def _staleness(sample: Any) -> float:
    staleness = polar_metadata(sample).get("policy_staleness")
    return float(staleness) if isinstance(staleness, int | float) else math.nan


def _statistics(estimator: object, batch: RewardBatch) -> PostProcessStats:
    grouping = batch.grouping
    spreads = group_spreads(grouping, grouping.trajectory_means(batch.reward))
    assert batch.valid is not None
    assert batch.trainable_tokens is not None
    wanted = batch.valid & (batch.trainable_tokens > 0)
    return PostProcessStats(
        estimator=repr(estimator),
        traces=len(batch),
        groups=grouping.n_groups,
        trajectories=len(grouping.group),
        valid_trajectories=int(grouping.valid.sum()),
        lone_groups=int((grouping.sizes == 1).sum()),
        degenerate_groups=int(((grouping.sizes > 1) & (spreads < SPREAD_FLOOR)).sum()),
        empty_groups=int((grouping.sizes == 0).sum()),
        missing_rewards=int((wanted & ~np.isfinite(batch.reward)).sum()),
    )


@lru_cache(maxsize=8)
def _warn_without_effect(slime_estimator: str, rewards_normalization: bool) -> None:
    logger.warning(
        "the chosen advantage estimator has no effect: Slime's advantage_estimator is %s and"
        " rewards_normalization is %s, so the trainer gets raw rewards",
        slime_estimator,
        rewards_normalization,
    )
