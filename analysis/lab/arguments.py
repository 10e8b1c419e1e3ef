"""The trainer's namespace of a lab run: what Slime's command line would hold, and the `polar_*` keys.

The keys for Polar are one plain mapping, written to the run folder as YAML in the form that
``--custom-config-path`` takes, so that the same file drives a run on a cluster. Knows nothing about
processes; it is told their addresses.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from analysis.lab.files import write_text
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import LabSettings

__all__ = [
    "EVAL_DATASET",
    "REWARD_KEY",
    "EvalDataset",
    "polar_keys",
    "task_template",
    "trainer_arguments",
    "write_polar_config",
]

REWARD_KEY = "score"
EVAL_DATASET = "held_out"


@dataclass(frozen=True)
class EvalDataset:
    """One evaluation data set, with what a rollout function reads of Slime's `EvalDatasetConfig`."""

    name: str
    path: str
    input_key: str = "prompt"
    label_key: str | None = "label"
    metadata_key: str = "metadata"
    tool_key: str | None = None
    n_samples_per_eval_prompt: int = 1
    metadata_overrides: Mapping[str, Any] = field(default_factory=dict)

    def inject_metadata(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a copy of a row's metadata with this data set's overrides on top."""
        return {**(metadata or {}), **self.metadata_overrides}


def polar_keys(
    settings: LabSettings, folder: RunFolder, *, rollout_url: str, session_timeout: float
) -> dict[str, Any]:
    """Return the bridge's own keys.

    Parameters
    ----------
    settings, folder
        The run.
    rollout_url
        Base URL of the rollout server.
    session_timeout
        Seconds that a session may take.
    """
    estimator: dict[str, Any] = {}
    if settings.advantage_estimator is not None:
        estimator["polar_advantage_estimator"] = settings.advantage_estimator
    if settings.advantage_estimator_kwargs:
        estimator["polar_advantage_estimator_kwargs"] = dict(settings.advantage_estimator_kwargs)
    return {
        **estimator,
        "polar_rollout_url": rollout_url,
        "polar_run_dir": str(folder.bridge),
        "polar_reward_key": REWARD_KEY,
        "polar_max_async_level": settings.max_async_level,
        "polar_fully_async": settings.fully_async,
        "polar_min_complete_accept_fraction": settings.min_complete_accept_fraction,
        "polar_outage_timeout": 60.0,
        "polar_task_template": task_template(settings, session_timeout),
    }


def task_template(settings: LabSettings, session_timeout: float) -> dict[str, Any]:
    """Return what each task request looks like before its placeholders are filled in."""
    troubles = settings.troubles
    return {
        "timeout_seconds": session_timeout,
        "agent": {
            "harness": "lab_tool_agent",
            "model_name": "lab-policy",
            "settings": {
                "temperature": settings.train.temperature,
                "tool_latency_median": troubles.tool_latency_median,
                "tool_latency_sigma": troubles.tool_latency_sigma,
                "failure_rate": troubles.failure_rate,
                "seed": settings.seed,
                "episode": "{sample.metadata}",
            },
        },
        "builder": {"strategy": "prefix_merging"},
        "evaluator": {"strategy": "lab_task"},
    }


def trainer_arguments(
    settings: LabSettings, folder: RunFolder, *, polar: Mapping[str, Any], router_host: str, router_port: int
) -> argparse.Namespace:
    """Return the namespace that Slime would hand to its plug-ins, with the keys of `polar` as attributes."""
    held_out = EvalDataset(EVAL_DATASET, str(folder.prompts / "held_out.jsonl"))
    return argparse.Namespace(
        hf_checkpoint=str(folder.checkpoint / "initial"),
        rollout_batch_size=settings.rollout_batch_size,
        n_samples_per_prompt=settings.n_samples_per_prompt,
        global_batch_size=settings.rollout_batch_size * settings.n_samples_per_prompt,
        num_rollout=settings.rollouts,
        start_rollout_id=0,
        update_weights_interval=1,
        rollout_global_dataset=True,
        prompt_data=str(folder.prompts / "train.jsonl"),
        input_key="prompt",
        label_key="label",
        metadata_key="metadata",
        tool_key=None,
        multimodal_keys=None,
        apply_chat_template=False,
        apply_chat_template_kwargs={},
        rollout_max_prompt_len=None,
        buffer_filter_path=None,
        dump_details=None,
        rollout_shuffle=True,
        rollout_seed=settings.seed,
        rollout_temperature=settings.train.temperature,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        reward_key=REWARD_KEY,
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=True,
        normalize_advantages=False,
        use_rollout_logprobs=True,
        eps_clip=settings.train.eps_clip,
        eps_clip_high=settings.train.eps_clip_high,
        kl_coef=0.0,
        use_kl_loss=False,
        entropy_coef=0.0,
        max_tokens_per_gpu=4096,
        context_parallel_size=1,
        eval_datasets=[held_out] if settings.eval_prompts else [],
        n_samples_per_eval_prompt=1,
        sglang_router_ip=router_host,
        sglang_router_port=router_port,
        use_wandb=False,
        save=None,
        load=None,
        **polar,
    )


def write_polar_config(folder: RunFolder, polar: Mapping[str, Any]) -> None:
    """Write the bridge's keys as the YAML file that a launch script would name."""
    write_text(folder.polar_config, yaml.safe_dump(dict(polar), sort_keys=False, allow_unicode=True))
