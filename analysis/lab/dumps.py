"""Slime's dump files: what a real trainer leaves on disk, in the same layout and with the same names.

`rollout_data/<id>.pt` and `rollout_data/eval_<id>.pt` hold the samples as the rollout function returned them;
`train_data/<id>_<rank>.pt` holds what the trainer made of them. Unlike Slime these files appear whole or not
at all. They contain only plain values and tensors, so that PyTorch's weights-only loader reads them. Knows
nothing about training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from analysis.lab.files import atomic_path

__all__ = [
    "flatten_samples",
    "read_dump",
    "rollout_dump_path",
    "train_dump_path",
    "write_rollout_dump",
    "write_train_dump",
]


def rollout_dump_path(folder: Path, rollout_id: int, *, evaluation: bool = False) -> Path:
    """Return the name of one rollout dump under `folder` (the `rollout_data` folder)."""
    return folder / f"{'eval_' if evaluation else ''}{rollout_id}.pt"


def train_dump_path(folder: Path, rollout_id: int, rank: int = 0) -> Path:
    """Return the name of one rank's train dump under `folder` (the `train_data` folder)."""
    return folder / f"{rollout_id}_{rank}.pt"


def flatten_samples(nested: Iterable[Any]) -> list[Any]:
    """Flatten what a rollout function returns to samples in training order.

    Parameters
    ----------
    nested
        Samples, or lists of them to any depth.
    """
    flat: list[Any] = []
    for item in nested:
        if isinstance(item, list | tuple):
            flat.extend(flatten_samples(item))
        else:
            flat.append(item)
    return flat


def write_rollout_dump(
    folder: Path, rollout_id: int, samples: Iterable[Any], *, evaluation: bool = False
) -> Path:
    """Write one rollout dump.

    Parameters
    ----------
    folder
        The `rollout_data` folder.
    rollout_id
        Id of the rollout, or of the training rollout at which an evaluation ran.
    samples
        Samples (anything with Slime's ``to_dict``), flat or nested, in training order.
    evaluation
        Whether the samples come from an evaluation; the file name then starts with ``eval_``.

    Returns
    -------
    Path
        The file: ``{"rollout_id": int, "samples": [dict, ...]}``.
    """
    content = {"rollout_id": rollout_id, "samples": [sample.to_dict() for sample in flatten_samples(samples)]}
    path = rollout_dump_path(folder, rollout_id, evaluation=evaluation)
    with atomic_path(path) as partial:
        torch.save(content, partial)
    return path


def write_train_dump(
    folder: Path, rollout_id: int, rollout_data: Mapping[str, Any], *, rank: int = 0
) -> Path:
    """Write one rank's train dump.

    Parameters
    ----------
    folder
        The `train_data` folder.
    rollout_id
        Id of the rollout that was trained on.
    rollout_data
        Per-sample lists and tensors under Slime's key names (`TrainStep.rollout_data`).
    rank
        Rank of the writer; the lab has one.

    Returns
    -------
    Path
        The file: ``{"rollout_id": int, "rank": int, "rollout_data": dict}``.
    """
    path = train_dump_path(folder, rollout_id, rank)
    with atomic_path(path) as partial:
        torch.save({"rollout_id": rollout_id, "rank": rank, "rollout_data": _owned(rollout_data)}, partial)
    return path


def read_dump(path: Path) -> dict[str, Any]:
    """Read a dump written here, with the weights-only loader: no code in the file can run."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping at the top level, found {type(content).__name__}")
    return content


def _owned(value: Any) -> Any:
    """Copy tensors that are views: `torch.save` would store the whole buffer behind each of them."""
    if isinstance(value, torch.Tensor):
        detached = value.detach()
        whole = detached.untyped_storage().nbytes() == detached.numel() * detached.element_size()
        return detached if whole else detached.clone()
    if isinstance(value, Mapping):
        return {key: _owned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_owned(item) for item in value]
    return value
