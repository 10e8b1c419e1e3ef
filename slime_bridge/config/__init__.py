"""The bridge's configuration: trainer ``args`` in, one frozen `PolarSlimeConfig` out."""

from slime_bridge.config.reading import (
    BarrierSettings,
    PolarSlimeConfig,
    RewardSettings,
    check_polar_slime_config,
    describe_keys,
    keys_without_effect,
    render_instruction,
    render_task_payload,
    render_topology_template,
    require_reward_key,
    resolve_barrier_settings,
    resolve_polar_slime_config,
    resolve_reward_settings,
    resolve_sglang_router_base_url,
)
from slime_bridge.config.values import unknown_keys

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
    "unknown_keys",
]
