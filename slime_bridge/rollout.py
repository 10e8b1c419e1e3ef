"""The entry point that Slime calls, and the workers behind it.

`generate_rollout_polar_async` is an ordinary blocking function: everything asynchronous runs in threads of
its own, so it works inside a running event loop as well as outside. Workers live on between calls. There is
one per data source; when the configuration of a data source changes, its worker is stopped, hands its
unfinished prompts back, and another one takes over. Importing this module starts nothing.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from slime_bridge import _slime
from slime_bridge.batch import Batch, Report
from slime_bridge.config import PolarSlimeConfig, require_reward_key, resolve_polar_slime_config
from slime_bridge.evaluation import run_evaluation
from slime_bridge.journal import NullJournal, open_journal
from slime_bridge.metrics import rollout_metrics
from slime_bridge.reward_post_process import require_estimator
from slime_bridge.rollout_examples import RolloutExamples
from slime_bridge.tracking import Tracker, WandbTracker
from slime_bridge.weight_barrier import (
    open_all,
    open_stray_gates,
    pause_for_weight_update,
    resume_after_weight_update,
)
from slime_bridge.worker import PolarWorker

__all__ = ["generate_rollout_polar_async", "get_global_async_worker", "stop_global_worker"]

logger = logging.getLogger(__name__)

_POST_PROCESS = "slime_bridge.reward_post_process.post_process_rewards"


def generate_rollout_polar_async(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> Any:
    """Roll out one training batch, or evaluate, over Polar.

    Parameters
    ----------
    args
        Slime's arguments, with the bridge's ``polar_*`` keys; not changed.
    rollout_id
        The trainer's rollout.
    data_source
        Slime's data source. It is touched by this thread only, and only while this call lasts.
    evaluation
        Evaluate instead of training.

    Returns
    -------
    RolloutFnTrainOutput or RolloutFnEvalOutput
        For training, `rollout_batch_size` groups, oldest drawn first, each a list of samples (one per trace,
        or one placeholder per session without any), with metrics. For evaluation, one block per dataset, with
        metrics.

    Raises
    ------
    ConfigError
        A key, a template or the prompt data cannot be used.
    AdvantageError
        Training: the chosen estimator cannot be made.
    WorkerError, CallbackBindError, DataSourceError
        Training: the worker cannot start or go on; see `slime_bridge.worker`.
    EvaluationError
        Evaluation: a dataset cannot be used.
    """
    config = resolve_polar_slime_config(args)
    train_output, eval_output = _slime.rollout_output_classes()
    resume_after_weight_update(config)
    if evaluation:
        worker = _workers.find(data_source, config)
        journal = worker.journal if worker is not None else NullJournal()
        data, metrics = run_evaluation(
            args, rollout_id, data_source, config=config, slots=worker, journal=journal
        )
        return eval_output(data=data, metrics=metrics)
    require_reward_key(args, config)
    if _workers.find(data_source, config) is None:
        if getattr(args, "custom_reward_post_process_path", _POST_PROCESS) == _POST_PROCESS:
            require_estimator(args)
        # No push is under way yet; a gate that a killed run left closed would hold every agent of this one.
        open_stray_gates(config)
    worker = _workers.get(args, data_source, config)
    batch, report = worker.collect(rollout_id)
    _warn_about_losses(batch)
    metrics = _metrics(batch, report, worker)
    _workers.tracker.rollout_done(rollout_id, [sample for group in batch.groups for sample in group])
    conversions = [delivery.result.conversion for delivery in batch.deliveries]
    _workers.examples.rollout_done(config, rollout_id, conversions)
    return train_output(samples=batch.groups, metrics=metrics)


def get_global_async_worker(args: Any, data_source: Any) -> PolarWorker:
    """Return the worker of this data source, a new one if there is none for this configuration.

    Raises
    ------
    ConfigError
        A key cannot be used.
    JournalError
        `polar_run_dir` cannot be used.
    """
    return _workers.get(args, data_source, resolve_polar_slime_config(args))


def stop_global_worker() -> None:
    """Stop every worker of this process within about two seconds, whatever their servers do.

    Unfinished prompts go back to their data sources, and gates that this process closed are opened. Harmless
    without any worker.
    """
    _workers.stop_all()
    open_all()


# For trainers that call the pair on the rollout function itself.
for _step in (pause_for_weight_update, resume_after_weight_update):
    setattr(generate_rollout_polar_async, _step.__name__, _step)


def _advantage_switches(args: Any) -> dict[str, Any]:
    """Return what Slime itself is told about advantages; an analysis cannot recompute them without it."""
    names = ("advantage_estimator", "rewards_normalization", "grpo_std_normalization")
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


@dataclass(slots=True, eq=False)
class _Workers:
    """The workers of this process, one per data source."""

    tracker: Tracker = field(default_factory=WandbTracker)
    examples: RolloutExamples = field(default_factory=RolloutExamples)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _workers: list[PolarWorker] = field(default_factory=list, init=False)

    def find(self, data_source: Any, config: PolarSlimeConfig) -> PolarWorker | None:
        """Return the usable worker for this source and configuration, if there is one."""
        with self._lock:
            for worker in self._workers:
                same = worker.data_source is data_source and worker.config.fingerprint == config.fingerprint
                if same and worker.usable:
                    return worker
        return None

    def get(self, args: Any, data_source: Any, config: PolarSlimeConfig) -> PolarWorker:
        """Return the worker for this source and configuration; others of this source are stopped."""
        with self._lock:
            found = self.find(data_source, config)
            if found is not None:
                return found
            for other in [worker for worker in self._workers if worker.data_source is data_source]:
                if other.usable:
                    logger.warning("The configuration has changed: the data source gets another worker")
                other.stop()
                self._workers.remove(other)
            journal = open_journal(
                config.run_dir,
                config={**config.describe(), "slime": _advantage_switches(args)},
                versions={"slime": _slime.slime_info().version},
            )
            worker = PolarWorker(config, args, data_source, journal=journal)
            self._workers.append(worker)
            return worker

    def stop_all(self) -> None:
        """Stop and forget all workers."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.begin_stop()
        for worker in workers:
            worker.stop()


_workers = _Workers()


def _metrics(batch: Batch, report: Report, worker: PolarWorker) -> dict[str, float]:
    try:
        ledger = report.ledger.to_dict()
        further = {
            "journal_dropped_records": worker.journal.dropped,
            "inactive_features": len(worker.inactive_features),
        }
        metrics = rollout_metrics(
            delivered=batch.facts(),
            rejected=report.window.rejected,
            scheduler=report.counts,
            ledger=ledger,
            window=report.window.decisions,
            counters={**report.window.counters, **further},
            filter_drops=report.window.filter_drops,
            wait_seconds=batch.wait_seconds,
        )
        worker.journal.record("rollout_summary", rollout_id=batch.rollout_id, metrics=metrics, ledger=ledger)
    except Exception:  # numbers about a batch must not cost the batch
        logger.exception("The metrics of rollout %d could not be computed", batch.rollout_id)
        return {}
    return metrics


def _warn_about_losses(batch: Batch) -> None:
    """Say once per rollout what was left out of it or filled in."""
    sessions = [s for facts in batch.facts() for s in facts.sessions]
    overlong = [s for s in sessions if s.dropped_traces]
    if overlong:
        logger.warning(
            "Rollout %d: %d traces with %d tokens in %d sessions were left out, most often because they are "
            "longer than the trainer can take",
            batch.rollout_id,
            sum(s.dropped_traces for s in overlong),
            sum(s.dropped_tokens for s in overlong),
            len(overlong),
        )
