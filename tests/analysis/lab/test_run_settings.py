"""Settings of a run: validated once, small enough for a quick look, plain enough to be written down."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from analysis.lab.settings import AgentTroubles, LabSettings, TrainerSettings


def test_defaults_are_the_documented_run() -> None:
    """Forty rollouts of sixteen groups of eight, two batches in flight across rollouts."""
    settings = LabSettings()
    assert (settings.rollouts, settings.rollout_batch_size, settings.n_samples_per_prompt) == (40, 16, 8)
    assert settings.max_async_level == 2
    assert settings.fully_async
    assert settings.train.learning_rate == 1.5e-3
    assert (1 - settings.train.eps_clip, 1 + settings.train.eps_clip_high) == pytest.approx((0.8, 1.28))


@pytest.mark.parametrize(
    "change",
    [
        {"rollouts": 0},
        {"rollouts": math.nan},
        {"seed": -1},
        {"n_samples_per_prompt": 0},
        {"min_complete_accept_fraction": 1.5},
        {"eval_prompts": -1},
        {"warm_start_steps": 0},
        {"demonstrator_skill": 1.1},
    ],
)
def test_values_out_of_range_are_named(change: dict[str, Any]) -> None:
    """The error says which setting is wrong and what was given."""
    (name,) = change
    with pytest.raises(ValueError, match=f"^{name} must be between .* got {change[name]}"):
        LabSettings(**change)


@pytest.mark.parametrize(
    "change", [{"failure_rate": 1.1}, {"session_timeout": 0}, {"tool_latency_sigma": -1}]
)
def test_troubles_are_checked_too(change: dict[str, float]) -> None:
    """So are the settings of the agents' world."""
    (name,) = change
    with pytest.raises(ValueError, match=name):
        AgentTroubles(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 0.0},
        {"micro_batch_size": 0},
        {"eps_clip": 1.0},
        {"temperature": float("nan")},
        {"ramp_steps": -1},
        {"final_fraction": 0.0},
    ],
)
def test_hyper_parameters_that_make_no_sense_are_refused(change: dict[str, float]) -> None:
    """Hyper-parameters are checked when they are set."""
    with pytest.raises(ValueError, match="must be"):
        TrainerSettings(**change)


def test_faster_shrinks_and_never_grows() -> None:
    """The quick run has at most eight rollouts of eight groups, and a smaller one stays as it is."""
    assert LabSettings().faster().rollouts == 8
    assert LabSettings(rollouts=3, rollout_batch_size=2).faster().rollouts == 3
    assert LabSettings(rollouts=3, rollout_batch_size=2).faster().rollout_batch_size == 2
    assert LabSettings().with_rollouts(5).rollouts == 5


def test_settings_are_plain_data() -> None:
    """All settings, nested ones included, can be written as JSON and tell what was used."""
    text = json.dumps(LabSettings(seed=7).to_dict())
    back = json.loads(text)
    assert back["seed"] == 7
    assert back["train"]["learning_rate"] == 1.5e-3
    assert back["troubles"]["failure_rate"] > 0


def test_settings_load_nothing_heavy() -> None:
    """The first line of a run must not wait for PyTorch: options, progress and settings do not import it."""
    code = (
        "import sys, analysis.cli, analysis.lab.command\n"
        "assert not {'torch', 'pandas', 'matplotlib', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
