"""Keys that are set and have no effect, whatever the rollout server can do: the bridge's own, and Slime's.

Each finding names the key and the reason. Slime's flags are looked at because a replaced rollout function
silently switches those off that Slime's own one serves. What a server lacks is another module's business.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from slime_bridge.config.types import PolarSlimeConfig

__all__ = ["keys_without_effect"]

_OWN_HOOKS = {
    "custom_megatron_init_path": "slime_bridge.megatron_hooks.install_weight_update_barrier",
    "custom_reward_post_process_path": "slime_bridge.reward_post_process.post_process_rewards",
    "custom_rm_path": "slime_bridge.reward.reward_func",
}
_ADVANTAGE_KEYS = (
    "polar_advantage_estimator",
    "polar_advantage_estimator_kwargs",
    "gdpo_reward_keys",
    "dvao_reward_keys",
)
_AGENTS_GENERATE = "Polar's agents generate, not Slime's default rollout"
_EVALUATOR_REWARDS = "rewards come from Polar's evaluator (polar_task_template.evaluator)"
_SLIME_FLAGS = {
    "custom_generate_function_path": _AGENTS_GENERATE,
    "partial_rollout": "unfinished groups go on instead of being cut (polar_fully_async)",
    "mask_offpolicy_in_partial_rollout": "no partial answer is continued under other weights",
    "rm_type": _EVALUATOR_REWARDS,
    "rm_url": _EVALUATOR_REWARDS,
    "group_rm": _EVALUATOR_REWARDS,
}
_SAMPLING = {
    "rollout_temperature": (1.0, "temperature", "; the trainer divides its logits by it all the same"),
    "rollout_top_p": (1.0, "top_p", ""),
    "rollout_top_k": (-1, "top_k", ""),
    "rollout_stop": (None, "stop", ""),
    "rollout_stop_token_ids": (None, "stop_token_ids", ""),
    "rollout_max_response_len": (None, "max_tokens", ""),
}


def keys_without_effect(args: Any, config: PolarSlimeConfig) -> dict[str, str]:
    """Return the keys that are set and do nothing, each with its reason.

    Parameters
    ----------
    args
        Trainer arguments.
    config
        The configuration they resolve to.
    """
    return {
        key: reason
        for found in (_own_keys, _hook_keys, _environment_keys, _slime_flags, _sampling_flags)
        for key, reason in found(args, config)
    }


def _is_set(args: Any, name: str) -> bool:
    return getattr(args, name, None) is not None


def _own_keys(args: Any, config: PolarSlimeConfig) -> Iterable[tuple[str, str]]:
    sessions = 1 if config.scoring_mode == "individual" else config.n_samples_per_prompt
    gate = "polar_candidate_pool_health_gate_"
    gate_is_off = None if config.candidate_pool_health_gate_enabled else f"{gate}enabled is off"
    estimator = config.advantage_estimator or config.gdpo_reward_keys or config.dvao_reward_keys
    for name, reason in (
        ("polar_early_stop_grace_sessions", _never_stops(config, sessions)),
        (f"{gate}min_observed_sessions", gate_is_off),
        (f"{gate}min_completion_fraction", gate_is_off),
        ("polar_advantage_estimator_kwargs", None if estimator else "no polar_advantage_estimator is chosen"),
        (
            "polar_eval_dataset_name",
            "eval_datasets have names of their own" if getattr(args, "eval_datasets", None) else None,
        ),
        (
            "polar_topology_path",
            "polar_rollout_url names the server" if _is_set(args, "polar_rollout_url") else None,
        ),
    ):
        if reason is not None and _is_set(args, name):
            yield name, reason
    if not config.add_generation_prompt:
        yield (
            "polar_add_generation_prompt",
            "no chat template is applied here: agents get the prompt, and the engine renders what they say",
        )


def _never_stops(config: PolarSlimeConfig, sessions: int) -> str | None:
    if config.early_stop_min_usable_sessions(sessions) is not None:
        return None
    return (
        f"with polar_min_complete_accept_fraction {config.min_complete_accept_fraction:g} and {sessions} "
        "sessions in a task a group is never stopped early"
    )


def _hook_keys(args: Any, config: PolarSlimeConfig) -> Iterable[tuple[str, str]]:
    """Find keys whose hook a launch script leaves out; a trainer without the flag calls the hook itself."""
    for keys, flag in (
        (("polar_weight_update_pause_timeout",), "custom_megatron_init_path"),
        (_ADVANTAGE_KEYS, "custom_reward_post_process_path"),
    ):
        if not hasattr(args, flag) or getattr(args, flag) == _OWN_HOOKS[flag]:
            continue
        for key in keys:
            if _is_set(args, key):
                yield key, f"it belongs to {_OWN_HOOKS[flag]}, which --{flag.replace('_', '-')} does not name"


def _environment_keys(args: Any, config: PolarSlimeConfig) -> Iterable[tuple[str, str]]:
    if config.rollout_examples_dir or config.rollout_examples_wandb:
        return
    for name in ("POLAR_ROLLOUT_EXAMPLE_INTERVAL", "POLAR_ROLLOUT_EXAMPLE_COUNT"):
        if os.environ.get(name):
            yield name, "neither POLAR_ROLLOUT_EXAMPLES_DIR nor POLAR_ROLLOUT_EXAMPLES_WANDB says where to"


def _slime_flags(args: Any, config: PolarSlimeConfig) -> Iterable[tuple[str, str]]:
    for name, reason in _SLIME_FLAGS.items():
        if getattr(args, name, None):
            yield name, reason
    rewards = getattr(args, "custom_rm_path", None)
    if rewards and rewards != _OWN_HOOKS["custom_rm_path"]:
        yield "custom_rm_path", _EVALUATOR_REWARDS
    size = config.over_sampling_batch_size or 0
    if size > config.rollout_batch_size and config.fully_async:
        yield "over_sampling_batch_size", "polar_fully_async keeps the whole window in flight anyway"
    elif size > config.max_groups_in_flight:
        yield (
            "over_sampling_batch_size",
            f"of its {size} groups at most {config.max_groups_in_flight} are drawn (rollout_batch_size "
            f"{config.rollout_batch_size} * polar_max_async_level {config.max_async_level})",
        )


def _sampling_flags(args: Any, config: PolarSlimeConfig) -> Iterable[tuple[str, str]]:
    """Find sampling limits that the task template does not hand on; an entry of that name stands for one."""
    template = json.dumps(config.task_template, default=str)
    for name, (default, entry, besides) in _SAMPLING.items():
        value = getattr(args, name, None)
        if value in (None, [], default) or f"args.{name}" in template or f'"{entry}"' in template:
            continue
        yield name, f"only polar_task_template carries it to the agent, as {{args.{name}}}{besides}"
