"""What a lab run is told: one frozen, validated record of settings.

Imports nothing heavy. Knows nothing about processes; `analysis.lab.arguments` makes the trainer's namespace
of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

__all__ = ["AgentTroubles", "LabSettings", "TrainerSettings"]


@dataclass(frozen=True)
class TrainerSettings:
    """Hyper-parameters of the training step.

    Attributes
    ----------
    learning_rate
        Of AdamW, after the ramp.
    ramp_steps
        Linear ramp of the learning rate: the full rate on cold moments makes the reward dip.
    final_fraction
        The rate falls linearly to this fraction of itself at the last step: late in the run gradients are
        small and noisy, and Adam would still take full steps.
    betas, weight_decay
        Of AdamW.
    max_grad_norm
        Global norm to which the gradient is clipped.
    eps_clip, eps_clip_high
        The ratio is clipped to ``[1 - eps_clip, 1 + eps_clip_high]``.
    micro_batch_size
        Samples per forward pass; has no effect on the result.
    temperature
        At which the engine sampled; logits are divided by it.
    """

    learning_rate: float = 1.5e-3
    ramp_steps: int = 5
    final_fraction: float = 0.2
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    eps_clip: float = 0.2
    eps_clip_high: float = 0.28
    micro_batch_size: int = 32
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)!r}")
        if self.micro_batch_size < 1 or self.ramp_steps < 0:
            raise ValueError("micro_batch_size must be >= 1 and ramp_steps >= 0")
        if not 0 < self.final_fraction <= 1:
            raise ValueError(f"final_fraction must be above 0 and at most 1, got {self.final_fraction!r}")
        if not 0 <= self.eps_clip < 1 or self.eps_clip_high < 0:
            raise ValueError("eps_clip must be in [0, 1) and eps_clip_high >= 0")


@dataclass(frozen=True)
class AgentTroubles:
    """How the agents' world misbehaves, so that sessions really time out, fail and arrive late.

    Attributes
    ----------
    tool_latency_median
        Seconds that an ordinary tool call takes.
    tool_latency_sigma
        Spread of the log-normal latency: with 2.2, one call in a hundred takes 170 times the median.
    failure_rate
        Chance that a session's agent dies with an error.
    session_timeout
        Seconds after which the rollout server ends a session, counted from the start of its sandbox. None
        measures: a multiple of what sessions of the first evaluation take on this machine, so that on a slow
        one the tail is cut and not the bulk.
    """

    tool_latency_median: float = 0.015
    tool_latency_sigma: float = 2.2
    failure_rate: float = 0.04
    session_timeout: float | None = None

    def __post_init__(self) -> None:
        _check_range("tool_latency_median", self.tool_latency_median, 0.0, 60.0)
        _check_range("tool_latency_sigma", self.tool_latency_sigma, 0.0, 5.0)
        _check_range("failure_rate", self.failure_rate, 0.0, 1.0)
        if self.session_timeout is not None:
            _check_range("session_timeout", self.session_timeout, 0.5, 3600.0)


@dataclass(frozen=True)
class LabSettings:
    """One run.

    Attributes
    ----------
    seed
        Decides the questions, the initial weights and the sampling.
    rollouts
        Training rollouts, each followed by one optimiser step and one weight update.
    rollout_batch_size
        Prompt groups per rollout.
    n_samples_per_prompt
        Trajectories per group.
    max_async_level
        Batches in flight while the trainer works.
    fully_async
        Keep the window of groups in flight across rollout boundaries.
    min_complete_accept_fraction
        Share of a group's sessions that must complete for the group to be accepted.
    engines
        Inference engines behind the router.
    run_workers
        Sessions that the gateway runs at a time; more wait there without losing time of their own.
    eval_prompts
        Held-out questions, asked before and after training.
    warm_start_steps, demonstrator_skill
        Supervised steps before the policy learns by itself, on demonstrations by somebody who does what is
        right with this probability and else errs in one of many ways. More steps teach copying better, less
        skill leaves more to learn.
    advantage_estimator, advantage_estimator_kwargs
        As the bridge's keys of these names with ``polar_`` before them: a registered name or
        ``module:attribute``, and its hyper-parameters. None is the bridge's default.
    train
        Hyper-parameters of the training step.
    troubles
        How the agents' world misbehaves.
    """

    seed: int = 0
    rollouts: int = 40
    rollout_batch_size: int = 16
    n_samples_per_prompt: int = 8
    max_async_level: int = 2
    fully_async: bool = True
    min_complete_accept_fraction: float = 0.8
    engines: int = 1
    run_workers: int = 64
    eval_prompts: int = 128
    warm_start_steps: int = 350
    demonstrator_skill: float = 0.1
    advantage_estimator: str | None = None
    advantage_estimator_kwargs: Mapping[str, Any] = field(default_factory=dict)
    train: TrainerSettings = field(default_factory=TrainerSettings)
    troubles: AgentTroubles = field(default_factory=AgentTroubles)

    def __post_init__(self) -> None:
        for name in (
            "rollouts",
            "rollout_batch_size",
            "n_samples_per_prompt",
            "max_async_level",
            "engines",
            "run_workers",
        ):
            _check_range(name, getattr(self, name), 1, 100_000)
        _check_range("seed", self.seed, 0, 2**31 - 1)
        _check_range("eval_prompts", self.eval_prompts, 0, 100_000)
        _check_range("warm_start_steps", self.warm_start_steps, 1, 100_000)
        _check_range("demonstrator_skill", self.demonstrator_skill, 0.0, 1.0)
        _check_range("min_complete_accept_fraction", self.min_complete_accept_fraction, 0.0, 1.0)
        if not isinstance(self.fully_async, bool):
            raise ValueError(f"fully_async must be true or false, got {self.fully_async!r}")
        if not isinstance(self.advantage_estimator, str | None):
            raise ValueError(f"advantage_estimator must be a name, got {self.advantage_estimator!r}")
        kwargs = self.advantage_estimator_kwargs
        if not isinstance(kwargs, Mapping):
            raise ValueError(f"advantage_estimator_kwargs must be names and values, got {kwargs!r}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LabSettings:
        """Build settings from plain nested values, as `to_dict` gives them; what is absent has its default.

        Raises
        ------
        ValueError
            For an unknown name or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"settings are names and values, got a {type(values).__name__}")
        nested = {"train": TrainerSettings, "troubles": AgentTroubles}
        given = {
            name: _built(nested[name], value) if name in nested else value for name, value in values.items()
        }
        settings: LabSettings = _built(cls, given)
        return settings

    def faster(self) -> LabSettings:
        """Return a smaller run of the same kind: enough to see everything work, not enough to learn much."""
        return replace(
            self,
            rollouts=min(self.rollouts, 8),
            rollout_batch_size=min(self.rollout_batch_size, 8),
            eval_prompts=min(self.eval_prompts, 32),
        )

    def with_rollouts(self, rollouts: int) -> LabSettings:
        """Return the same run with another number of training rollouts."""
        return replace(self, rollouts=rollouts)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain nested values."""
        return asdict(self)


def _built(cls: type[Any], values: Any) -> Any:
    """Make one record of settings; JSON has lists where settings have tuples."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{cls.__name__} is made from names and values, got {type(values).__name__}")
    unknown = sorted(set(values) - {item.name for item in fields(cls)})
    if unknown:
        raise ValueError(
            f"unknown settings {', '.join(unknown)}; known: {', '.join(f.name for f in fields(cls))}"
        )
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number between {low} and {high}, got {value!r}")
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} must be between {low} and {high}, got {value!r}")
