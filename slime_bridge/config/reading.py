"""The bridge's configuration: trainer ``args`` in, one frozen `PolarSlimeConfig` out.

This is the only reader of ``args``, which are never changed; everything else takes a config. The functions
that render task requests and the topology are offered here too, under the names that users know.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from slime_bridge import _parsing as parse
from slime_bridge._router_url import resolve_sglang_router_base_url
from slime_bridge.config.checks import contradictions, derived_limits
from slime_bridge.config.inactive_keys import keys_without_effect
from slime_bridge.config.keys import ENVIRONMENT_KEYS, KEYS, SLIME_KEYS
from slime_bridge.config.task_payload import render_instruction, render_task_payload
from slime_bridge.config.types import BarrierSettings, PolarSlimeConfig, RewardSettings
from slime_bridge.config.values import (
    read_key,
    resolve_reward_values,
    resolve_values,
    run_dir,
    slime_value,
    unknown_keys,
)
from slime_bridge.errors import ConfigError
from slime_bridge.topology import render_topology_template, resolve_rollout_url

__all__ = [
    "BarrierSettings",
    "PolarSlimeConfig",
    "RewardSettings",
    "check_polar_slime_config",
    "describe_keys",
    "keys_without_effect",
    "render_instruction",
    "render_task_payload",
    "render_topology_template",
    "require_reward_key",
    "resolve_barrier_settings",
    "resolve_polar_slime_config",
    "resolve_reward_settings",
    "resolve_sglang_router_base_url",
]

logger = logging.getLogger(__name__)


_REWARD_FIELDS = (
    "reward_key",
    "advantage_estimator",
    "advantage_estimator_kwargs",
    "gdpo_reward_keys",
    "dvao_reward_keys",
)
_BARRIER_FIELDS = ("rollout_url", "topology_path", "weight_update_pause_timeout", "trust_env", "run_dir")
_COUNT = parse.integer(at_least=1)


def resolve_polar_slime_config(args: Any) -> PolarSlimeConfig:
    """Read, check and resolve the configuration.

    Logs, once per process and finding: the derived limits at INFO; contradictory values, unknown ``polar_*``
    keys and a reward key that Slime's metrics cannot read as warnings.

    Parameters
    ----------
    args
        Trainer arguments; not changed.

    Raises
    ------
    ConfigError
        If a key is missing or has a value it cannot have; the message names the key, the value and the
        allowed form. Several such keys are named in one error.
    """
    config, warnings = check_polar_slime_config(args)
    _log_once(logging.INFO, derived_limits(config))
    for warning in warnings:
        _log_once(logging.WARNING, warning)
    return config


def check_polar_slime_config(args: Any) -> tuple[PolarSlimeConfig, list[str]]:
    """Resolve like `resolve_polar_slime_config`, and return the warnings instead of logging them.

    Raises
    ------
    ConfigError
        As `resolve_polar_slime_config`.
    """
    config = PolarSlimeConfig(**resolve_values(args))
    warnings = [
        *unknown_keys(args),
        *(f"{key} has no effect: {reason}" for key, reason in keys_without_effect(args, config).items()),
        *contradictions(config),
        *_reward_warnings(args, config),
        *_size_warnings(args, config),
    ]
    return config, warnings


def resolve_reward_settings(args: Any) -> RewardSettings:
    """Read only what the reward hooks need.

    Raises
    ------
    ConfigError
        As `resolve_polar_slime_config`, for these keys alone.
    """
    values = _read_fields(args, _REWARD_FIELDS)
    resolve_reward_values(args, values)
    estimator = getattr(args, "advantage_estimator", None)
    return RewardSettings(
        slime_estimator="grpo" if estimator is None else str(estimator),
        rewards_normalization=slime_value(args, "rewards_normalization", parse.boolean, default=True),
        grpo_std_normalization=slime_value(args, "grpo_std_normalization", parse.boolean, default=True),
        **values,
    )


def resolve_barrier_settings(args: Any) -> BarrierSettings | None:
    """Read only what the weight-update barrier needs; None where no rollout server is named.

    Raises
    ------
    ConfigError
        As `resolve_polar_slime_config`, for these keys alone.
    """
    values = _read_fields(args, _BARRIER_FIELDS)
    topology_path = values.pop("topology_path")
    if values["rollout_url"] is None:
        if topology_path is None:
            return None
        values["rollout_url"] = resolve_rollout_url(topology_path, args)
    values["run_dir"] = run_dir(args, values["run_dir"])
    [token] = (key for key in ENVIRONMENT_KEYS if key.field == "control_plane_token")
    return BarrierSettings(**values, control_plane_token=read_key(token, os.environ.get(token.name) or None))


def require_reward_key(args: Any, config: PolarSlimeConfig | RewardSettings) -> None:
    """Check that Slime will find a number under its own ``reward_key``; for the start of a training.

    Samples carry their reward as ``{reward_key: number}``. Slime's metrics look under ``args.reward_key``,
    and fail in the middle of a rollout on a mapping without it.

    Raises
    ------
    ConfigError
        If ``args`` has a ``reward_key`` that is null or another name than the configuration's.
    """
    problem = _reward_key_problem(args, config.reward_key)
    if problem:
        raise ConfigError(problem)


def describe_keys() -> list[dict[str, str]]:
    """Return one row for each key, for documentation.

    Returns
    -------
    list of dict
        ``key``, ``default``, ``allowed``, ``meaning`` and ``source`` (``args``, ``Slime`` or
        ``environment``).
    """
    return [
        {
            "key": key.name,
            "default": "required" if key.required else key.default_text or _shown_default(key.default),
            "allowed": key.parser.allowed,
            "meaning": key.meaning,
            "source": source,
        }
        for keys, source in ((KEYS, "args"), (SLIME_KEYS, "Slime"), (ENVIRONMENT_KEYS, "environment"))
        for key in keys
    ]


def _read_fields(args: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    return {key.field: read_key(key, getattr(args, key.name, None)) for key in KEYS if key.field in fields}


def _reward_warnings(args: Any, config: PolarSlimeConfig) -> Iterable[str]:
    problem = _reward_key_problem(args, config.reward_key)
    if problem:
        yield problem
    settings = resolve_reward_settings(args)
    if (
        config.n_samples_per_prompt == 1
        and settings.rewards_normalization
        and settings.slime_estimator
        in (
            "grpo",
            "gspo",
        )
    ):
        yield (
            f"n_samples_per_prompt is 1 with advantage_estimator {settings.slime_estimator}: a lone "
            "trajectory has no "
            "siblings for a baseline, so its advantage is its reward"
        )


def _size_warnings(args: Any, config: PolarSlimeConfig) -> Iterable[str]:
    """Find what Slime's own assertions on the size of a batch would end a run for."""
    pruning = [
        f"polar_{name}"
        for name in ("drop_all_wrong_groups", "balance_all_correct_groups")
        if getattr(config, name)
    ]
    size = slime_value(args, "global_batch_size", _COUNT, default=None)
    if pruning and size is not None and size > config.n_samples_per_prompt:
        yield (
            f"{' and '.join(pruning)} may leave fewer trajectories than global_batch_size {size} in a batch, "
            "and Slime ends the run then: lower it, or use --dynamic-sampling-filter-path, which replaces "
            "what it drops"
        )
    if slime_value(args, "log_passrate", parse.boolean, default=False):
        yield (
            "--log-passrate: Slime ends the run when a rollout has another number of samples than "
            "rollout_batch_size * n_samples_per_prompt, and a session may give several traces: leave it out, "
            "and read polar/rollout_success_rate"
        )


def _reward_key_problem(args: Any, reward_key: str) -> str | None:
    slime_key = getattr(args, "reward_key", reward_key)
    if slime_key == reward_key:
        return None
    return (
        f"reward_key is {slime_key!r}: expected {reward_key!r}, because samples carry their reward as "
        f"{{{reward_key!r}: number}} and Slime's metrics look under its own key; pass --reward-key "
        f"{reward_key}"
    )


def _shown_default(default: Any) -> str:
    if default is None:
        return "none"
    return (
        str(default).lower()
        if isinstance(default, bool)
        else f"`{default}`"
        if isinstance(default, str)
        else f"{default:g}"
    )


@lru_cache(maxsize=1024)
def _log_once(level: int, message: str) -> None:
    logger.log(level, "%s", message)
