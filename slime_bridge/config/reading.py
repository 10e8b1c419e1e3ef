"""The bridge's configuration: trainer ``args`` in, one frozen `PolarSlimeConfig` out.

This is the only reader of ``args``, which are never changed; everything else takes a config. The functions
that render task requests and the topology are offered here too, under the names that users know.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from slime_bridge import _parsing as parse
from slime_bridge._router_url import resolve_sglang_router_base_url
from slime_bridge.config.checks import contradictions, derived_limits
from slime_bridge.config.inactive_keys import keys_without_effect
from slime_bridge.config.keys import ENVIRONMENT_KEYS, KEYS, SLIME_KEYS, Key
from slime_bridge.config.task_payload import render_instruction, render_task_payload
from slime_bridge.config.types import BarrierSettings, PolarSlimeConfig, RewardSettings
from slime_bridge.errors import ConfigError
from slime_bridge.redaction import redact
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
_TOKENS = parse.integer(at_least=1)


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
        allowed form.
    """
    config, warnings = check_polar_slime_config(args)
    _log_once(logging.INFO, derived_limits(config))
    for warning in warnings:
        _log_once(logging.WARNING, warning)
    return config


def check_polar_slime_config(args: Any) -> tuple[PolarSlimeConfig, list[str]]:
    """Resolve like `resolve_polar_slime_config`, and return the warnings instead of logging them."""
    values = {key.field: _read(key, getattr(args, key.name, None)) for key in (*KEYS, *SLIME_KEYS)}
    values |= {key.field: _read(key, os.environ.get(key.name) or None) for key in ENVIRONMENT_KEYS}
    _check_agent(values["task_template"])
    _resolve_reward_values(args, values)
    values["rollout_url"] = values["rollout_url"] or _url_from_topology(values["topology_path"], args)
    values["callback_bind_host"] = values["callback_bind_host"] or values["callback_host"]
    values["run_dir"] = _run_dir(args, values["run_dir"])
    values["max_tokens"] = _max_tokens(args, values)
    if values["fully_async"]:
        _refuse_shared_gpus(args)
    config = PolarSlimeConfig(**values)
    warnings = [
        *_unknown_keys(args, config),
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
    values = {
        key.field: _read(key, getattr(args, key.name, None)) for key in KEYS if key.field in _REWARD_FIELDS
    }
    _resolve_reward_values(args, values)
    estimator = getattr(args, "advantage_estimator", None)
    return RewardSettings(
        slime_estimator="grpo" if estimator is None else str(estimator),
        rewards_normalization=_slime_value(args, "rewards_normalization", parse.boolean, default=True),
        grpo_std_normalization=_slime_value(args, "grpo_std_normalization", parse.boolean, default=True),
        **values,
    )


def resolve_barrier_settings(args: Any) -> BarrierSettings | None:
    """Read only what the weight-update barrier needs; None where no rollout server is named.

    Raises
    ------
    ConfigError
        As `resolve_polar_slime_config`, for these keys alone.
    """
    values = {
        key.field: _read(key, getattr(args, key.name, None)) for key in KEYS if key.field in _BARRIER_FIELDS
    }
    topology_path = values.pop("topology_path")
    if values["rollout_url"] is None:
        if topology_path is None:
            return None
        values["rollout_url"] = resolve_rollout_url(topology_path, args)
    values["run_dir"] = _run_dir(args, values["run_dir"])
    [token] = (key for key in ENVIRONMENT_KEYS if key.field == "control_plane_token")
    return BarrierSettings(**values, control_plane_token=_read(token, os.environ.get(token.name) or None))


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


def _read(key: Key, value: Any) -> Any:
    """Return the parsed value of a key; null, as an empty line in YAML gives it, is the same as absent."""
    if value is None:
        if key.required:
            raise ConfigError(f"{key.name} is not set: expected {key.parser.allowed}")
        return key.default
    try:
        return key.parser.convert(value)
    except (ValueError, RecursionError):
        pass
    shown = "***" if key.secret else redact(f"{value!r:.200}")
    raise ConfigError(f"{key.name} is {shown}: expected {key.parser.allowed}")


def _check_agent(task_template: Mapping[str, Any]) -> None:
    agent = task_template.get("agent")
    if not agent:
        raise ConfigError(
            "polar_task_template has no `agent`: expected a mapping that says which agent to run"
        )
    if not isinstance(agent, Mapping) and not (isinstance(agent, str) and agent.startswith("{")):
        raise ConfigError(
            f"polar_task_template.agent is {agent!r:.80}: expected a mapping such as {{harness: shell}}, "
            "or a "
            "placeholder for one"
        )


def _slime_value(args: Any, name: str, parser: parse.Parser, *, default: Any) -> Any:
    return _read(Key(name, default, parser, ""), getattr(args, name, None))


def _resolve_reward_values(args: Any, values: dict[str, Any]) -> None:
    values["reward_key"] = values["reward_key"] or _slime_value(
        args, "reward_key", parse.text, default="score"
    )
    values["advantage_estimator_kwargs"] = values["advantage_estimator_kwargs"] or {}
    for name in ("gdpo", "dvao"):
        other = "dvao" if name == "gdpo" else "gdpo"
        chosen = values["advantage_estimator"] or ("" if values[f"{other}_reward_keys"] is None else other)
        if values[f"{name}_reward_keys"] is not None and chosen not in ("", name):
            raise ConfigError(
                f"{name}_reward_keys chooses the estimator {name}, but {chosen!r} is chosen too: expected "
                "one of them"
            )


def _url_from_topology(topology_path: str | None, args: Any) -> str:
    if topology_path is None:
        raise ConfigError(
            "neither polar_rollout_url nor polar_topology_path is set: expected the rollout server's base "
            "URL "
            "such as `http://10.0.0.5:8080`, or the path of Polar's topology file"
        )
    return resolve_rollout_url(topology_path, args)


def _run_dir(args: Any, run_dir: str | None) -> str | None:
    save = getattr(args, "save", None)
    if run_dir is not None or getattr(args, "polar_run_dir", None) is not None:
        return run_dir
    return os.path.join(_slime_value(args, "save", parse.path, default=None), "polar") if save else None


def _max_tokens(args: Any, values: Mapping[str, Any]) -> int | None:
    """Return the most tokens a trace may have.

    Slime fills ``seq_length`` with a placeholder where a launch script leaves it out, so it counts only where
    one of the keys that rely on it is set.
    """
    per_gpu = _slime_value(args, "max_tokens_per_gpu", _TOKENS, default=None)
    ranks = _slime_value(args, "context_parallel_size", _TOKENS, default=1)
    own: int | None = values["max_trajectory_tokens"]
    over_cap: bool = values["allow_single_sample_over_token_cap"]
    capacity: dict[str, int] = {}
    if per_gpu is not None and not over_cap:
        capacity["max_tokens_per_gpu * context_parallel_size"] = per_gpu * ranks
    if own is not None or over_cap:
        seq_length = _slime_value(args, "seq_length", _TOKENS, default=None)
        if seq_length is not None:
            capacity["seq_length"] = seq_length
    for name, tokens in capacity.items():
        if own is not None and own > tokens:
            raise ConfigError(
                f"polar_max_trajectory_tokens is {own}: expected at most {tokens}, which is {name}, what "
                "the trainer "
                "can take in one trace"
            )
    return min([*capacity.values(), *([] if own is None else [own])], default=None)


def _refuse_shared_gpus(args: Any) -> None:
    for name in ("colocate", "offload", "offload_rollout", "offload_train"):
        if _slime_value(args, name, parse.boolean, default=False):
            raise ConfigError(
                f"polar_fully_async is true and {name} is on: expected one of them. Fully-async keeps "
                "sessions "
                "generating while the trainer works, but with shared or offloaded GPUs the engines must be "
                "quiet "
                "then: their memory release would wait for those sessions and time out"
            )


def _unknown_keys(args: Any, config: PolarSlimeConfig) -> Iterable[str]:
    known = [key.name for key in KEYS]
    templates = json.dumps(
        [config.task_template, config.task_id_template, config.instruction_template], default=str
    )
    for name in sorted(getattr(args, "__dict__", ())):
        own = name.startswith(("polar_", "polar-", "gdpo_", "dvao_"))
        if own and name not in known and f"args.{name}" not in templates:
            close = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
            yield f"{name} is not a known key and has no effect" + (
                f": did you mean {close[0]}?" if close else ""
            )


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
    size = _slime_value(args, "global_batch_size", _TOKENS, default=None)
    if pruning and size is not None and size > config.n_samples_per_prompt:
        yield (
            f"{' and '.join(pruning)} may leave fewer trajectories than global_batch_size {size} in a batch, "
            "and Slime ends the run then: lower it, or use --dynamic-sampling-filter-path, which replaces "
            "what it drops"
        )
    if _slime_value(args, "log_passrate", parse.boolean, default=False):
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
