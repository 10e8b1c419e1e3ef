"""`workbench lab`, start to end: warm start, stack, training through the production hook, figures, table.

Every resource is released in one place, shielded from further signals, whatever ended the run: the normal
end, an error or Ctrl-C. Knows the order of things; each thing is somebody else's.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import shutil
import sys
from argparse import Namespace
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, is_dataclass
from importlib import metadata
from typing import Any

import torch

from analysis.lab.arguments import REWARD_KEY, polar_keys, trainer_arguments, write_polar_config
from analysis.lab.captures import convert_captures
from analysis.lab.checkpoint import create_checkpoint
from analysis.lab.files import sweep_partial_files, write_text
from analysis.lab.interrupts import Interrupts
from analysis.lab.policy import CheckpointPolicy
from analysis.lab.progress import Progress
from analysis.lab.run_folder import RunFolder
from analysis.lab.run_log import run_logging, shown_warnings
from analysis.lab.settings import LabSettings
from analysis.lab.stack import Stack
from analysis.lab.summary import Summary, format_summary, summarise
from analysis.lab.task_shelf import ShelfTask
from analysis.lab.tasks import write_prompts
from analysis.lab.trainer import Trainer
from analysis.lab.training import Evaluation, TrainingLoop
from analysis.lab.warm_start import WarmStartRecipe, copy_checkpoint, warm_start
from slime_bridge.data_source import CeilEpochRolloutDataSourceWithBuffer
from slime_bridge.rollout import stop_global_worker

__all__ = ["run_lab"]

logger = logging.getLogger(__name__)

HELD_OUT_SEEDS = 500_000_000
"""Episode seeds of held-out questions start here; training questions start at 0."""

UNMEASURED_TIMEOUT = 10.0
"""Seconds that a session may take until the first evaluation has shown how fast this machine is."""

TIMEOUT_FACTOR = 8.0
SHORTEST_TIMEOUT = 5.0
"""A session may take so many times the median of the first evaluation, and at least so many seconds."""

_TOKENIZER_FILES = ("tokenizer*", "chat_template*", "special_tokens_map.json", "vocab.json", "merges.txt")


def run_lab(
    settings: LabSettings,
    folder: RunFolder,
    *,
    progress: Progress,
    interrupts: Interrupts,
    figures: bool = True,
) -> Summary:
    """Run the whole job.

    Parameters
    ----------
    settings
        What to run.
    folder
        Where to; exists and is empty.
    progress
        Shows what goes on.
    interrupts
        Owns the process's signals; clean-up is shielded through it.
    figures
        Whether to draw the figures at the end.

    Returns
    -------
    Summary
        What the printed table says.
    """
    torch.set_num_threads(1)
    with run_logging(folder.logs / "lab.log"):
        _train(settings, folder, progress, interrupts)
        (folder.checkpoint / "live").rename(folder.checkpoint / "final")
        interrupts.check()
        return _report(settings, folder, progress, figures)


def _train(settings: LabSettings, folder: RunFolder, progress: Progress, interrupts: Interrupts) -> None:
    """Everything that needs resources; they are gone when this returns or raises."""
    resources = ExitStack()
    # The release stands twice: a signal between the end of the body and the shield must not skip it, and
    # releasing what is released already does nothing.
    try:
        try:
            _with_resources(resources, settings, folder, progress, interrupts)
        finally:
            _release(resources, folder, interrupts)
    finally:
        _release(resources, folder, interrupts)


def _release(resources: ExitStack, folder: RunFolder, interrupts: Interrupts) -> None:
    with interrupts.shielded():
        resources.close()
        sweep_partial_files(folder.root)


def _with_resources(
    resources: ExitStack, settings: LabSettings, folder: RunFolder, progress: Progress, interrupts: Interrupts
) -> None:
    live = folder.checkpoint / "live"
    create_checkpoint(live, seed=settings.seed)
    stack = Stack(settings, folder, model=live)
    resources.callback(stack.stop)
    progress.stage("starting engine, router and rollout server")
    stack.start()
    policy = _initial_policy(settings, folder, progress)
    interrupts.check()
    stack.wait_ready(progress.stage)
    args = _prepare(settings, folder, stack)
    _configure(args, settings, folder, stack, _session_timeout(settings, None))
    resources.callback(stop_global_worker)
    loop = TrainingLoop(
        args=args,
        source=CeilEpochRolloutDataSourceWithBuffer(args),
        policy=policy,
        trainer=Trainer(policy, settings.train, total_steps=settings.rollouts),
        folder=folder,
        push_weights=stack.push_weights,
        check=interrupts.check,
    )
    loop.push(0)
    with shown_warnings(progress):
        evaluation = _evaluate(loop, 0, "before", settings, progress)
        _configure(args, settings, folder, stack, _session_timeout(settings, evaluation))
        progress.stage(f"training on {settings.rollouts} rollouts of {_batch(settings)}")
        with progress.task("rollout", settings.rollouts, every_step=True) as task:
            loop.run(task)
    # What is still in flight would only slow the evaluation down; its prompts go back to the data source.
    stop_global_worker()
    with shown_warnings(progress):
        _evaluate(loop, settings.rollouts, "after", settings, progress)
    progress.stage("stopping engine, router and rollout server")


def _evaluate(
    loop: TrainingLoop, updates: int, when: str, settings: LabSettings, progress: Progress
) -> Evaluation | None:
    if not settings.eval_prompts:
        return None
    progress.stage(f"asking {settings.eval_prompts} held-out questions {when} training")
    evaluation = loop.evaluate(updates)
    progress.stage(f"held-out reward {evaluation.reward:.3f}")
    return evaluation


def _session_timeout(settings: LabSettings, evaluation: Evaluation | None) -> float:
    """Return the timeout that the settings name, else one that suits the speed of this machine."""
    if settings.troubles.session_timeout is not None:
        return settings.troubles.session_timeout
    if evaluation is None or math.isnan(evaluation.session_seconds):
        return UNMEASURED_TIMEOUT
    return round(max(SHORTEST_TIMEOUT, TIMEOUT_FACTOR * evaluation.session_seconds), 1)


def _batch(settings: LabSettings) -> str:
    return f"{settings.rollout_batch_size} groups of {settings.n_samples_per_prompt}"


def _initial_policy(settings: LabSettings, folder: RunFolder, progress: Progress) -> CheckpointPolicy:
    recipe = WarmStartRecipe(steps=settings.warm_start_steps, p_right=settings.demonstrator_skill)
    progress.stage("warm start: a few supervised steps on noisy demonstrations")
    with progress.task("warm start", recipe.steps) as task:
        result = warm_start(
            seed=settings.seed,
            recipe=recipe,
            progress=lambda step, steps, loss: task.advance(loss=f"{loss:.3f}"),
        )
    if result.cached:
        progress.stage(f"warm start found in {result.path}")
    initial = copy_checkpoint(result.path, folder.checkpoint / "initial")
    folder.tokenizer.mkdir()
    for pattern in _TOKENIZER_FILES:
        for path in initial.glob(pattern):
            shutil.copy(path, folder.tokenizer / path.name)
    return CheckpointPolicy(initial)


def _prepare(settings: LabSettings, folder: RunFolder, stack: Stack) -> Namespace:
    """Write the data sets, and return the trainer's namespace for a machine of unknown speed."""
    task = ShelfTask()
    questions = settings.rollouts * settings.rollout_batch_size * 2
    first = settings.seed * 1_000_000
    write_prompts(folder.prompts / "train.jsonl", task, range(first, first + questions))
    first += HELD_OUT_SEEDS
    write_prompts(folder.prompts / "held_out.jsonl", task, range(first, first + settings.eval_prompts))
    polar = polar_keys(
        settings, folder, rollout_url=stack.rollout_url, session_timeout=_session_timeout(settings, None)
    )
    return trainer_arguments(
        settings, folder, polar=polar, router_host=stack.router_host, router_port=stack.router_port
    )


def _configure(
    args: Namespace, settings: LabSettings, folder: RunFolder, stack: Stack, session_timeout: float
) -> None:
    """Set what the first evaluation decided, and write down the configuration that training runs with."""
    polar = polar_keys(settings, folder, rollout_url=stack.rollout_url, session_timeout=session_timeout)
    vars(args).update(polar)
    write_polar_config(folder, polar)
    content = {"settings": settings.to_dict(), "versions": _versions(), "args": vars(args)}
    write_text(folder.config, json.dumps(content, indent=2, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Give JSON what it does not know: data sets as mappings, the rest as text."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _versions() -> dict[str, str]:
    names = ("slime-bridge", "torch", "transformers", "sglang-router", "numpy", "httpx", "anyio", "msgspec")
    return {"python": platform.python_version(), "platform": sys.platform, **{n: _version(n) for n in names}}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _report(settings: LabSettings, folder: RunFolder, progress: Progress, figures: bool) -> Summary:
    # Here, because pandas and Matplotlib are not needed before the end and take a second to load.
    from analysis.lab.frames import read_metrics, rejection_frame

    if figures:
        from analysis.lab.figures import draw_figures

        progress.stage("drawing figures")
        limit = settings.max_async_level + 1
        for path in draw_figures(folder, reward_key=REWARD_KEY, lag_limit=limit):
            logger.info("wrote %s", path)
    rejections = rejection_frame(folder.bridge).dropna(subset=["reason"])
    counts: Counter[str] = Counter()
    for reason, groups in zip(rejections["reason"], rejections["groups"], strict=True):
        counts[str(reason)] += int(groups)
    summary = summarise(read_metrics(folder.metrics), counts, wall_seconds=progress.elapsed())
    progress.note(format_summary(summary, convert_captures()))
    progress.note(f"\nto look at it: `make notebook`, or `workbench report {folder.root}`")
    progress.note(f"everything is in {folder.root}")
    return summary
