"""Starting trainings: one, or several that differ in their estimator only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.errors import SubmissionError
from analysis.lab.settings import LabSettings
from analysis.live.estimators import EstimatorChoice, choose_estimator
from analysis.live.registry import LiveFolder
from analysis.live.shield import shielded
from analysis.live.side_by_side import TrainingsSideBySide
from analysis.live.training import TrainingHandle, training_process

__all__ = ["start_trainings"]

_EVAL_PROMPTS = 64
"""Held-out questions of a training from a notebook, asked before and after it."""


def start_trainings(
    runs: Path,
    estimator: Any,
    *,
    rollouts: int,
    seed: int,
    name: str | None,
    settings: Mapping[str, Any],
) -> TrainingHandle | TrainingsSideBySide:
    """Start a training, or, for a list of estimators, one for each; see `Lab.train`.

    None is left when one of them cannot be started, or when an interrupt comes in between.
    """
    several = isinstance(estimator, list | tuple)
    choices = [choose_estimator(one) for one in (estimator if several else [estimator])]
    if not choices:
        raise SubmissionError("there is no estimator to train with")
    labels = _labels(choices)
    plans = [_settings_of(choice, rollouts, seed, settings) for choice in choices]
    handles: list[TrainingHandle] = []
    side_by_side = TrainingsSideBySide(handles)
    try:
        with shielded():
            for place, (label, chosen) in enumerate(zip(labels, plans, strict=True)):
                own = name if name is None or not several else f"{name}-{place}-{_slug(label)}"
                handles.append(_start(runs, chosen, own, label if several else "", side_by_side))
    except BaseException:
        with shielded():
            for handle in handles:
                handle.close()
        raise
    return side_by_side if several else handles[0]


def _start(
    runs: Path, settings: LabSettings, name: str | None, label: str, beside: TrainingsSideBySide
) -> TrainingHandle:
    folder = LiveFolder.new(runs, "training", name, server="")
    try:
        process = training_process(folder.path, settings)
        handle = TrainingHandle(
            folder, process, rollouts=settings.rollouts, label=label, on_look=beside.refresh
        )
        handle.start()
    except BaseException:
        folder.end("failed")
        raise
    return handle


def _labels(choices: list[EstimatorChoice]) -> list[str]:
    """Return a label for each; equal ones are numbered, since a run is looked up by its label."""
    labels = [choice.label for choice in choices]
    return [
        label if labels.count(label) == 1 else f"{label} #{labels[: place + 1].count(label)}"
        for place, label in enumerate(labels)
    ]


def _settings_of(choice: EstimatorChoice, rollouts: int, seed: int, given: Mapping[str, Any]) -> LabSettings:
    values = {
        "eval_prompts": _EVAL_PROMPTS,
        **given,
        "rollouts": rollouts,
        "seed": seed,
        "advantage_estimator": choice.name,
        "advantage_estimator_kwargs": dict(choice.kwargs),
    }
    try:
        return LabSettings.from_dict(values)
    except (ValueError, TypeError) as error:
        raise SubmissionError(f"settings of the training: {error}") from error


def _slug(text: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in text).strip("-")[:40] or "estimator"
