"""A small run folder by the real writers: the production hook, a Polar-compatible server, Slime's dumps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from analysis.lab.dumps import flatten_samples, write_rollout_dump, write_train_dump
from analysis.lab.files import append_json_line
from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from analysis.lab.run_folder import RunFolder
from analysis.lab.train_batch import make_train_batch
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.slime_bridge.rollouts import Source, make_args

ROLLOUTS = 3
GROUPS = 3
SESSIONS = 4
EVAL_ROWS = 3

SCRIPT = FaultScript(
    seed=5,
    sessions=SessionProfile(separate_traces=True, turns=(1, 3), duration=0.01),
    faults=[
        Fault("session_error", tasks=[1], sessions=[0]),
        Fault("session_error", tasks=[4], sessions=[0, 1, 2]),
        Fault("no_traces", tasks=[2], sessions=[3]),
    ],
)


def trainer_args(url: str, folder: RunFolder, **settings: Any) -> SimpleNamespace:
    """What Slime would hand to the hook, with an evaluation data set."""
    folder.prompts.mkdir(parents=True, exist_ok=True)
    held_out = folder.prompts / "held_out.jsonl"
    rows = [json.dumps({"input": f"question {number}", "metadata": {}}) for number in range(EVAL_ROWS)]
    held_out.write_text("\n".join(rows) + "\n")
    dataset = {"name": "held_out", "path": str(held_out), "input_key": "input", "metadata_key": "metadata"}
    return make_args(
        url,
        rollout_batch_size=GROUPS,
        n_samples_per_prompt=SESSIONS,
        global_batch_size=GROUPS * SESSIONS,
        polar_run_dir=str(folder.bridge),
        polar_min_complete_accept_fraction=0.5,
        polar_max_async_level=1,
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=False,
        eval_datasets=[dataset],
        n_samples_per_eval_prompt=1,
        **settings,
    )


def train_data(args: Any, samples: Sequence[Any]) -> dict[str, Any]:
    """What a trainer with one rank would dump: advantages broadcast, logprobs a little off."""
    batch = make_train_batch(args, samples)
    rng = np.random.default_rng(0)
    noise = [torch.from_numpy(rng.normal(0, 0.01, len(mask)).astype(np.float32)) for mask in batch.loss_masks]
    advantages = [
        torch.full((length,), reward, dtype=torch.float32)
        for length, reward in zip(batch.response_lengths, batch.rewards, strict=True)
    ]
    count = len(batch)
    return {
        "tokens": batch.tokens,
        "response_lengths": batch.response_lengths,
        "total_lengths": [len(tokens) for tokens in batch.tokens],
        "rewards": batch.rewards,
        "raw_reward": batch.raw_rewards,
        "truncated": batch.truncated,
        "sample_indices": batch.sample_indices,
        "group_ids": batch.group_ids,
        "loss_masks": batch.loss_masks,
        "group_mask_sums": batch.group_mask_sums,
        "rollout_log_probs": batch.rollout_log_probs,
        "log_probs": [a + b for a, b in zip(batch.rollout_log_probs, noise, strict=True)],
        "advantages": advantages,
        "returns": advantages,
        "micro_batch_indices": [list(range(count // 2)), list(range(count // 2, count))],
        "num_microbatches": [1, 1],
        "global_batch_sizes": [GROUPS * SESSIONS // 2] * 2,
    }


def make_embedded_run(folder: Path, script: FaultScript = SCRIPT) -> RunFolder:
    """Train for a few rollouts with one evaluation, and leave behind what a real run leaves behind."""
    run = RunFolder(folder)
    with serve_polar(script, save_dir=run.polar_results, newer=True) as polar:
        args = trainer_args(polar.url, run)
        source = Source(SESSIONS)
        try:
            for rollout_id in range(ROLLOUTS):
                output = generate_rollout_polar_async(args, rollout_id, source)
                samples = flatten_samples(output.samples)
                write_rollout_dump(run.rollout_data, rollout_id, samples)
                write_train_dump(run.train_data, rollout_id, train_data(args, samples))
                append_json_line(run.metrics, {"kind": "rollout", "rollout_id": rollout_id, **output.metrics})
            output = generate_rollout_polar_async(args, ROLLOUTS, source, evaluation=True)
            samples = flatten_samples(output.data["held_out"]["samples"])
            write_rollout_dump(run.rollout_data, ROLLOUTS, samples, evaluation=True)
            append_json_line(
                run.metrics, {"kind": "evaluation", "rollout_id": ROLLOUTS, **(output.metrics or {})}
            )
        finally:
            stop_global_worker()
    return run
