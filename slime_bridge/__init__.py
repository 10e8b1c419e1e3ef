"""The production bridge between the Slime trainer and Polar's rollout server.

Importing this package starts nothing and loads no trainer: Slime, torch and the rollout server are only
touched by the functions that need them. The names that launch scripts use live in the modules, as dotted
paths:

``slime_bridge.rollout.generate_rollout_polar_async``, ``slime_bridge.reward.reward_func``,
``slime_bridge.reward_post_process.post_process_rewards`` and
``slime_bridge.data_source.CeilEpochRolloutDataSourceWithBuffer``.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
