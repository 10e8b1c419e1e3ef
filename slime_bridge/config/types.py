"""The resolved configuration, as frozen values with the limits that follow from them.

The module knows what the values mean to one another, and not where they come from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from slime_bridge._display import pairs_html
from slime_bridge.redaction import names_a_secret, redact

__all__ = ["BarrierSettings", "PolarSlimeConfig", "RewardSettings"]


@dataclass(frozen=True, kw_only=True)
class PolarSlimeConfig:
    """Everything the bridge was told, checked and resolved.

    Fields are named like their keys without ``polar_``; `describe_keys` tells each one's meaning and accepted
    values. Times are seconds. `rollout_url`, `reward_key`, `callback_bind_host` and `run_dir` are resolved.

    Parameters
    ----------
    max_tokens
        Derived: the most prompt and response tokens that a trace may have, or None for no limit.
    """

    rollout_url: str
    task_template: dict[str, Any] = field(hash=False)
    topology_path: str | None = None
    task_id_template: str = "polar-slime-{rollout_id}-{sample.group_index}"
    instruction_template: str | None = None
    reward_key: str = "score"
    hf_checkpoint: str | None = None
    rollout_batch_size: int = 1
    n_samples_per_prompt: int = 1
    update_weights_interval: int = 1
    over_sampling_batch_size: int | None = None
    dynamic_sampling_filter_path: str | None = None
    rollout_sample_filter_path: str | None = None
    rollout_all_samples_process_path: str | None = None
    max_async_level: int = 2
    fully_async: bool = False
    request_timeout: float | None = None
    group_timeout: float | None = None
    outage_timeout: float = 1800.0
    trust_env: bool = False
    callback_host: str = "127.0.0.1"
    callback_bind_host: str = "127.0.0.1"
    callback_port: int = 0
    control_plane_token: str | None = field(default=None, repr=False)
    scoring_mode: str = "group"
    min_complete_accept_fraction: float = 0.0
    max_prompt_attempts: int = 8
    max_prompt_deadlines: int = 2
    missing_reward: str = "zero"
    overlong_traces: str = "drop"
    aborted_turns: str = "mask"
    max_trajectory_tokens: int | None = None
    allow_single_sample_over_token_cap: bool = False
    max_tokens: int | None = None
    add_generation_prompt: bool = True
    advantage_estimator: str | None = None
    advantage_estimator_kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    gdpo_reward_keys: tuple[str, ...] | None = None
    dvao_reward_keys: tuple[str, ...] | None = None
    max_consecutive_infrastructure_failures: int = 0
    candidate_pool_health_gate_enabled: bool = False
    candidate_pool_health_gate_min_observed_sessions: int = 16
    candidate_pool_health_gate_min_completion_fraction: float = 0.1
    early_stop_grace_sessions: int = 2
    task_timeout_floor: float | None = None
    train_agent_timeout: float | None = None
    eval_agent_timeout: float | None = None
    drop_all_wrong_groups: bool = False
    balance_all_correct_groups: bool = False
    weight_update_pause_timeout: float = 300.0
    eval_dataset_name: str = "polar_eval"
    eval_max_concurrent_sessions: int | None = None
    eval_data_integrity: str | None = None
    run_dir: str | None = None
    rollout_example_interval: int = 10
    rollout_example_count: int = 2
    rollout_examples_dir: str | None = None
    rollout_examples_wandb: bool = False

    @property
    def max_groups_in_flight(self) -> int:
        """Groups that may be drawn and not yet delivered, rejected or returned."""
        return self.rollout_batch_size * self.max_async_level

    @property
    def max_sessions_in_flight(self) -> int:
        """Sessions of all groups in flight."""
        return self.max_groups_in_flight * self.n_samples_per_prompt

    @property
    def max_staleness(self) -> int:
        """Rollouts between the policy that a group was submitted under and its delivery, at most."""
        return self.max_async_level + self.update_weights_interval

    @property
    def fingerprint(self) -> str:
        """Hash of every value, equal in every process, as 16 hexadecimal digits."""
        return hashlib.sha256(_canonical(dataclasses.asdict(self))).hexdigest()[:16]

    def min_complete_sessions(self, sessions: int) -> int:
        """Return how many of a group's sessions must complete with a trainable token.

        ``ceil(sessions * fraction)`` of the fraction as it is written: 7 percent of 100 is 7.
        """
        return math.ceil(sessions * Fraction(repr(self.min_complete_accept_fraction)))

    def early_stop_min_usable_sessions(self, sessions: int) -> int | None:
        """Return after how many usable sessions a group's stragglers may be stopped, or None for never."""
        if self.min_complete_accept_fraction == 0:
            return None
        enough = self.min_complete_sessions(sessions) + self.early_stop_grace_sessions
        return enough if enough < sessions else None

    def group_deadline(self, task_timeout: float) -> float:
        """Return the seconds that one group may take from its first submit.

        Parameters
        ----------
        task_timeout
            The task's own ``timeout_seconds``.

        Returns
        -------
        float
            `group_timeout`, else twice the task's timeout plus 180: a server may look for a gateway for one
            timeout, run the session for another, wait two more minutes for its result, and has a minute to
            deliver it.
        """
        return 2 * task_timeout + 180 if self.group_timeout is None else self.group_timeout

    def describe(self) -> dict[str, Any]:
        """Return every value and the derived limits as JSON builtins, credentials replaced by ``***``."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        values |= {name: getattr(self, name) for name in ("max_groups_in_flight", "max_sessions_in_flight")}
        values |= {"max_staleness": self.max_staleness, "fingerprint": self.fingerprint}
        return {name: _shown(name, value) for name, value in values.items()}

    def _repr_html_(self) -> str:
        values = self.describe()
        usual = {item.name: item.default for item in dataclasses.fields(self)}
        changed = [(k, v) for k, v in values.items() if k not in usual or v != _shown(k, usual[k])]
        note = "values that differ from their defaults, and what follows from them; describe() has all"
        return pairs_html("Configuration of the bridge", values["fingerprint"], changed, note)


@dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """What the reward hooks need; resolves without any rollout server.

    Parameters
    ----------
    reward_key
        Key of the reward in a sample's reward mapping.
    slime_estimator
        Slime's ``advantage_estimator``.
    rewards_normalization, grpo_std_normalization
        Slime's switches of the same names.
    advantage_estimator, advantage_estimator_kwargs, gdpo_reward_keys, dvao_reward_keys
        As in `PolarSlimeConfig`.
    """

    reward_key: str = "score"
    slime_estimator: str = "grpo"
    rewards_normalization: bool = True
    grpo_std_normalization: bool = True
    advantage_estimator: str | None = None
    advantage_estimator_kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    gdpo_reward_keys: tuple[str, ...] | None = None
    dvao_reward_keys: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class BarrierSettings:
    """What holding generation back during a weight push needs; the fields are `PolarSlimeConfig`'s.

    Parameters
    ----------
    rollout_url
        Base URL of the rollout server.
    weight_update_pause_timeout
        Seconds to wait for running generations.
    control_plane_token
        Sent as ``X-Polar-Control-Token``.
    trust_env
        Whether proxy variables of the environment are used.
    run_dir
        Where pushes are noted; None for nowhere.
    """

    rollout_url: str
    weight_update_pause_timeout: float = 300.0
    control_plane_token: str | None = field(default=None, repr=False)
    trust_env: bool = False
    run_dir: str | None = None


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, default=repr).encode("utf-8", "surrogatepass")


def _shown(name: object, value: Any) -> Any:
    """Return a value as JSON builtins; an entry's name and a string's shape tell credentials."""
    if isinstance(value, Mapping):
        return {str(key): _shown(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, item) for item in value]
    if isinstance(value, str):
        return "***" if names_a_secret(str(name)) else redact(value)
    return value if value is None or isinstance(value, bool | int | float) else repr(value)
