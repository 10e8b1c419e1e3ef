"""What follows from a configuration: its derived limits, and values that work against each other.

Works on a resolved configuration and never on the trainer's arguments. Nothing here is an error: each finding
is a sentence for the log, or for a check before a run.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from slime_bridge.config.types import PolarSlimeConfig

__all__ = ["contradictions", "derived_limits"]


def derived_limits(config: PolarSlimeConfig) -> str:
    """Return the limits that follow from several keys, as one sentence for the log."""
    tokens = (
        "no limit on trace tokens"
        if config.max_tokens is None
        else f"traces of at most {config.max_tokens} tokens"
    )
    return (
        f"limits: {config.max_groups_in_flight} groups and {config.max_sessions_in_flight} sessions in "
        "flight "
        f"(rollout_batch_size {config.rollout_batch_size}, polar_max_async_level {config.max_async_level}, "
        f"n_samples_per_prompt {config.n_samples_per_prompt}); samples at most {config.max_staleness} "
        "rollouts old "
        f"(polar_max_async_level {config.max_async_level} + update_weights_interval "
        f"{config.update_weights_interval}); {tokens}"
    )


def contradictions(config: PolarSlimeConfig) -> list[str]:
    """Return one sentence for each pair of values that work against each other."""
    return [*_scheduling(config), *_timeouts(config), *_addresses(config)]


def _scheduling(config: PolarSlimeConfig) -> list[str]:
    found = []
    if config.update_weights_interval > config.max_async_level:
        found.append(
            f"update_weights_interval {config.update_weights_interval} is above polar_max_async_level "
            f"{config.max_async_level}: samples may be {config.max_staleness} rollouts old, most of it "
            "from the "
            "interval; lower the interval if that is too stale"
        )
    if config.allow_single_sample_over_token_cap and config.max_tokens is None:
        found.append(
            "polar_allow_single_sample_over_token_cap is on and seq_length is not set: nothing bounds a "
            "trace; "
            "polar_max_trajectory_tokens would"
        )
    gate = config.candidate_pool_health_gate_min_observed_sessions
    if config.candidate_pool_health_gate_enabled and gate > config.max_sessions_in_flight:
        found.append(
            f"polar_candidate_pool_health_gate_min_observed_sessions {gate} is more than the "
            f"{config.max_sessions_in_flight} sessions in flight: the gate may decide only after a "
            "replacement"
        )
    return found


def _timeouts(config: PolarSlimeConfig) -> list[str]:
    found = []
    task = config.task_template.get("timeout_seconds", 600.0)
    if isinstance(task, int | float) and not isinstance(task, bool):
        task = max(task, config.task_timeout_floor or 0.0)
        if config.group_timeout is not None and config.group_timeout < task:
            found.append(
                f"polar_group_timeout {config.group_timeout:g} s is below the task's timeout_seconds "
                f"{task:g}: groups "
                "are given up while Polar still runs them"
            )
        for key, agent in (
            ("polar_train_agent_timeout", config.train_agent_timeout),
            ("polar_eval_agent_timeout", config.eval_agent_timeout),
        ):
            if agent is not None and agent >= task:
                found.append(
                    f"{key} {agent:g} s is not below the task's timeout_seconds {task:g}, which also "
                    "covers set-up and "
                    "evaluation: the session ends first; raise timeout_seconds or polar_task_timeout_floor"
                )
    if config.request_timeout is not None and config.request_timeout > config.outage_timeout:
        found.append(
            f"polar_request_timeout {config.request_timeout:g} s is above polar_outage_timeout "
            f"{config.outage_timeout:g} s: a single silent request counts as an outage"
        )
    return found


def _addresses(config: PolarSlimeConfig) -> list[str]:
    server = urlsplit(config.rollout_url).hostname or ""
    if _is_loopback(config.callback_host) and not _is_loopback(server):
        return [
            f"polar_callback_host is {config.callback_host}, but the rollout server is on {server}: its "
            "callbacks "
            "cannot arrive and every result waits for a poll; set polar_callback_host to this machine's "
            "address"
        ]
    if _is_loopback(config.callback_bind_host) and not _is_loopback(config.callback_host):
        return [
            f"polar_callback_bind_host {config.callback_bind_host} is a loopback address, but Polar is "
            "told to call "
            f"{config.callback_host}: callbacks cannot arrive unless something forwards them"
        ]
    return []


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
