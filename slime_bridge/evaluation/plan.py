"""What an evaluation is going to submit: samples per prompt, and the task request of each attempt.

Everything is rendered once when it is planned, so that a broken template or prompt is an error before the
first submit. Limits per dataset reach the task in two ways: templates see the dataset's values under the
trainer's own names (``{args.rollout_temperature}``, ``{args.eval_temperature}`` and so on), so one template
serves training and evaluation; and the task's metadata gains ``eval_dataset`` and ``sampling_params`` unless
the template sets them.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slime_bridge import _slime
from slime_bridge._messages import prompt_to_instruction_text
from slime_bridge.config import PolarSlimeConfig, render_instruction, render_task_payload
from slime_bridge.errors import EvaluationError
from slime_bridge.evaluation.data import EvalDataset, load_prompts, resolve_eval_datasets
from slime_bridge.protocol import TaskRequest

__all__ = ["EvalGroup", "plan_evaluation"]

logger = logging.getLogger(__name__)

_DEFAULT_TIMEOUT = 600.0
_MAX_SLUG = 40


@dataclass(frozen=True, slots=True)
class EvalGroup:
    """One prompt with its sessions.

    Parameters
    ----------
    dataset
        Name of its dataset.
    position
        Its place in the dataset.
    samples
        One prompt sample per session.
    build_request
        Makes the request of an attempt, 1 for the first; every attempt has a task id of its own.
    deadline_seconds
        What the group may take from its first submit.
    """

    dataset: str
    position: int
    samples: list[Any]
    build_request: Callable[[int], TaskRequest]
    deadline_seconds: float


def plan_evaluation(
    args: Any, config: PolarSlimeConfig, rollout_id: int, data_source: Any
) -> list[EvalGroup]:
    """Plan one evaluation.

    Parameters
    ----------
    args
        Trainer arguments.
    config
        The bridge's configuration.
    rollout_id
        The training rollout that it belongs to.
    data_source
        The training source. Only without `eval_datasets` one batch is drawn from it, and handed back at once.

    Returns
    -------
    list of EvalGroup
        Datasets in order, prompts in order; at least one group.

    Raises
    ------
    EvaluationError
        A dataset or its file cannot be used, or the trainer's own pass rate could not be computed.
    ConfigError
        A template or a prompt's metadata cannot be rendered.
    """
    datasets = resolve_eval_datasets(args)
    if datasets:
        prompts = load_prompts(datasets, integrity=config.eval_data_integrity)
        groups = [
            [_samples(row.prompt, row.label, row.metadata, d) for row in rows]
            for d, rows in zip(datasets, prompts, strict=True)
        ]
    else:
        dataset, drawn = _training_batch(args, config, data_source)
        datasets, groups = [dataset], [drawn]
    _check_pass_rate(args, datasets, [len(samples) for samples in groups])
    planner = _Planner(args, config, rollout_id)
    return planner.plan(datasets, groups)


def _samples(prompt: Any, label: Any, metadata: dict[str, Any], dataset: EvalDataset) -> list[Any]:
    sample_class = _slime.sample_class()
    return [
        sample_class(prompt=copy.deepcopy(prompt), label=label, metadata=copy.deepcopy(metadata))
        for _ in range(dataset.n_samples_per_eval_prompt)
    ]


def _training_batch(
    args: Any, config: PolarSlimeConfig, data_source: Any
) -> tuple[EvalDataset, list[list[Any]]]:
    """Copy one batch of training prompts; the drawn groups go back to the source."""
    logger.warning(
        "There are no eval_datasets: %s evaluates one batch of training prompts; set --eval-prompt-data",
        config.eval_dataset_name,
    )
    drawn = data_source.get_samples(config.rollout_batch_size) if data_source is not None else []
    drawn = [group for group in drawn if group]
    if not drawn:
        raise EvaluationError(
            "there are no eval_datasets, and the training data source gave no prompt to evaluate"
        )
    try:
        data_source.add_samples(drawn)
    except RuntimeError as error:
        logger.warning("The %d prompts drawn for evaluation cannot be handed back: %s", len(drawn), error)
    values = {"name": config.eval_dataset_name, "path": "training prompts"}
    (dataset,) = resolve_eval_datasets(_with(args, {"eval_datasets": [values]}))
    groups = [_samples(g[0].prompt, g[0].label, g[0].metadata or {}, dataset) for g in drawn]
    return dataset, groups


def _check_pass_rate(args: Any, datasets: Sequence[EvalDataset], sizes: Sequence[int]) -> None:
    """Refuse what the trainer's pass-rate assertion would refuse after the evaluation."""
    repeat = getattr(args, "n_samples_per_eval_prompt", None) or 1
    if not getattr(args, "log_passrate", False) or repeat == 1:
        return
    for dataset, prompts in zip(datasets, sizes, strict=True):
        own = dataset.n_samples_per_eval_prompt
        if prompts * own % repeat:
            raise EvaluationError(
                f"--log-passrate: Slime reshapes the {prompts} x {own} rewards of {dataset.name!r} by "
                f"n_samples_per_eval_prompt = {repeat}, which does not divide them; use one value for both"
            )
        if own != repeat:
            logger.warning(
                "--log-passrate groups the rewards of %r by %d, but each prompt has %d sessions: "
                "read polar/eval/%s/pass@k instead of Slime's",
                dataset.name,
                repeat,
                own,
                dataset.name,
            )


class _Planner:
    """Numbers the samples of one evaluation and renders its tasks."""

    def __init__(self, args: Any, config: PolarSlimeConfig, rollout_id: int) -> None:
        self._args = args
        self._config = config
        self._rollout_id = rollout_id
        # A restarted trainer must not meet the tasks of its former life under its own ids.
        self._token = secrets.token_hex(4)
        self._next_group = 0
        self._next_index = 0

    def plan(self, datasets: Sequence[EvalDataset], groups: Sequence[list[list[Any]]]) -> list[EvalGroup]:
        planned = []
        for dataset, prompts in zip(datasets, groups, strict=True):
            view = _with(self._args, _sampling_names(dataset))
            planned += [
                self._group(dataset, view, position, samples) for position, samples in enumerate(prompts)
            ]
        return planned

    def _group(self, dataset: EvalDataset, view: Any, position: int, samples: list[Any]) -> EvalGroup:
        for sample in samples:
            sample.group_index, sample.index = self._next_group, self._next_index
            self._next_index += 1
        self._next_group += 1

        def build_request(attempt: int) -> TaskRequest:
            return self._request(dataset, view, position, samples, attempt)

        timeout = build_request(1).timeout_seconds
        seconds = float(timeout) if isinstance(timeout, int | float) else _DEFAULT_TIMEOUT
        return EvalGroup(dataset.name, position, samples, build_request, self._config.group_deadline(seconds))

    def _request(
        self, dataset: EvalDataset, view: Any, position: int, samples: list[Any], attempt: int
    ) -> TaskRequest:
        common = {
            "args": view,
            "config": self._config,
            "sample": samples[0],
            "rollout_id": self._rollout_id,
            "task_position": position,
            "num_rollouts": len(samples),
        }
        again = f"a{attempt}" if attempt > 1 else ""
        payload = render_task_payload(
            **common,
            instruction=render_instruction(
                **common, prompt_text=prompt_to_instruction_text(samples[0].prompt)
            ),
            evaluation=True,
            task_id_suffix=f"-{self._token}{again}-eval-{_slug(dataset.name)}-{self._rollout_id}-{position}",
        )
        added = {"eval_dataset": dataset.name, "sampling_params": dataset.sampling_params}
        payload["metadata"] = {**added, **payload["metadata"]}
        if dataset.eval_task_timeout is not None:
            payload["timeout_seconds"] = max(dataset.eval_task_timeout, self._config.task_timeout_floor or 0)
        return TaskRequest.from_payload(payload)


def _with(args: Any, values: dict[str, Any]) -> Any:
    """Return a shallow copy of the trainer's arguments with other values."""
    view = copy.copy(args)
    for name, value in values.items():
        setattr(view, name, value)
    return view


def _sampling_names(dataset: EvalDataset) -> dict[str, Any]:
    """Name a dataset's sampling limits as the trainer's arguments for training and for evaluation."""
    return {
        f"{scope}_{name}": v for name, v in dataset.sampling_params.items() for scope in ("rollout", "eval")
    }


def _slug(name: str) -> str:
    """Return a dataset name for use in task ids; a hash keeps changed names apart."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_MAX_SLUG]
    return (
        safe
        if safe == name
        else f"{safe}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"
    )
