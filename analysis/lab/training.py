"""The training loop of a run, in the order of Slime's asynchronous driver, through the production hook.

Per rollout: collect, dump, post-process and train, dump, push weights, one line of metrics. While the trainer
works the bridge's worker keeps its window of groups in flight, so what is trained on is really one or more
updates old. Knows the engine only as something that takes weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from analysis.errors import LabError
from analysis.lab.arguments import EVAL_DATASET, REWARD_KEY
from analysis.lab.dumps import flatten_samples, write_rollout_dump, write_train_dump
from analysis.lab.files import append_json_line
from analysis.lab.policy import CheckpointPolicy
from analysis.lab.progress import Task
from analysis.lab.rollout_stats import rollout_statistics
from analysis.lab.run_folder import RunFolder
from analysis.lab.train_batch import make_train_batch
from analysis.lab.trainer import Trainer
from slime_bridge.rollout import generate_rollout_polar_async
from slime_bridge.sample_view import polar_metadata

__all__ = ["Evaluation", "TrainingLoop"]

PushWeights = Callable[[Path, str], None]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation came to.

    Attributes
    ----------
    reward
        Mean over its usable sessions; NaN without any.
    session_seconds
        Median duration of its sessions on the rollout server; NaN where none says.
    """

    reward: float
    session_seconds: float


@dataclass
class TrainingLoop:
    """One run's loop; use it from one thread.

    Attributes
    ----------
    args
        The trainer's namespace.
    source
        The data source that the rollout function draws prompts from.
    policy, trainer
        What is trained, and what trains it.
    folder
        Where dumps, metrics and the live checkpoint go.
    push_weights
        Called with the live checkpoint and its version after each update; returns when every engine samples
        from it.
    check
        Called between steps; may raise to end the run.
    """

    args: Any
    source: Any
    policy: CheckpointPolicy
    trainer: Trainer
    folder: RunFolder
    push_weights: PushWeights
    check: Callable[[], None]

    def run(self, task: Task) -> None:
        """Train for `num_rollout` rollouts, showing each on `task`."""
        accepted = rejected = 0
        for rollout_id in range(self.args.start_rollout_id, self.args.num_rollout):
            self.check()
            record = self._rollout(rollout_id)
            append_json_line(self.folder.metrics, record)
            accepted += int(record["lab/groups"])
            rejected += int(record.get("polar/dropped_groups", 0))
            task.advance(
                reward=f"{record['lab/reward_mean']:.3f}",
                lag=f"{record['lab/lag_mean']:.1f}",
                total=f"{accepted} accepted, {rejected} rejected",
            )

    def push(self, version: int) -> float:
        """Save the policy and give it to the engines as `version`; return the seconds that it took."""
        started = time.monotonic()
        live = self.folder.checkpoint / "live"
        self.policy.save(live)
        # Behind closed gates no model call is in flight, so no turn is sampled from two policies.
        hook: Any = generate_rollout_polar_async
        hook.pause_for_weight_update(self.args)
        try:
            self.push_weights(live, str(version))
        finally:
            hook.resume_after_weight_update(self.args)
        return time.monotonic() - started

    def evaluate(self, rollout_id: int) -> Evaluation:
        """Ask the held-out questions through the evaluation path.

        Parameters
        ----------
        rollout_id
            Number of updates that the policy has had.

        Returns
        -------
        Evaluation
            The mean reward and how long sessions took.
        """
        started = time.monotonic()
        output = generate_rollout_polar_async(self.args, rollout_id, self.source, evaluation=True)
        if EVAL_DATASET not in output.data:
            raise LabError(f"the evaluation returned data sets {sorted(output.data)}, not {EVAL_DATASET!r}")
        result = output.data[EVAL_DATASET]
        samples = flatten_samples(result["samples"])
        write_rollout_dump(self.folder.rollout_data, rollout_id, samples, evaluation=True)
        rewards = [float(value) for value in result["rewards"]]
        record = {
            "kind": "evaluation",
            "rollout_id": rollout_id,
            "ts": time.time(),
            **(output.metrics or {}),
            f"eval/{EVAL_DATASET}": sum(rewards) / len(rewards),
            **rollout_statistics(samples, reward_key=REWARD_KEY),
            "perf/eval_time": time.monotonic() - started,
        }
        append_json_line(self.folder.metrics, record)
        return Evaluation(float(record["lab/reward_mean"]), _session_seconds(samples))

    def _rollout(self, rollout_id: int) -> dict[str, Any]:
        started = time.monotonic()
        output = generate_rollout_polar_async(self.args, rollout_id, self.source)
        samples = flatten_samples(output.samples)
        write_rollout_dump(self.folder.rollout_data, rollout_id, samples)
        collected = time.monotonic()
        self.check()
        batch = make_train_batch(self.args, samples)
        step = self.trainer.step(batch)
        write_train_dump(self.folder.train_data, rollout_id, step.rollout_data)
        trained = time.monotonic()
        self.check()
        pushed = self.push(rollout_id + 1)
        return {
            "kind": "rollout",
            "rollout_id": rollout_id,
            "ts": time.time(),
            **(output.metrics or {}),
            **rollout_statistics(samples, reward_key=REWARD_KEY, engine_version=rollout_id),
            **step.metrics,
            "rollout/raw_reward": sum(batch.raw_rewards) / len(batch),
            "rollout/rewards": sum(batch.rewards) / len(batch),
            "rollout/truncated_ratio": sum(batch.truncated) / len(batch),
            "perf/rollout_time": collected - started,
            "perf/train_time": trained - collected,
            "perf/update_weights_time": pushed,
            "perf/step_time": time.monotonic() - started,
        }


def _session_seconds(samples: Sequence[Any]) -> float:
    """Median of the stage times' sums over sessions, in seconds."""
    totals = {}
    for sample in samples:
        timing = polar_metadata(sample).get("timing") or {}
        stages = [timing.get(f"{stage}_ms") for stage in ("init", "ready_queue", "run", "postrun")]
        known = [value for value in stages if isinstance(value, int | float)]
        if known:
            totals[sample.session_id] = sum(known) / 1000.0
    return median(totals.values()) if totals else math.nan
