"""Loading weights for serving: from a checkpoint folder to fused tensors that nothing else can change.

Knows nothing about requests or versions.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from analysis.errors import CheckpointError, WeightUpdateError
from analysis.lab.checkpoint import load_config, load_parameters
from analysis.lab.model import ModelConfig, Weights

__all__ = ["eos_token_ids", "load_weights", "reload_weights"]


def load_weights(folder: Path) -> Weights:
    """Load a checkpoint; `CheckpointError` when it cannot be served."""
    config = load_config(folder)
    return Weights.fuse(load_parameters(folder, config), config)


def reload_weights(folder: Path, config: ModelConfig) -> Weights:
    """Load new weights for a model that is being served.

    Parameters
    ----------
    folder
        A checkpoint, or a folder with nothing but ``*.safetensors``.
    config
        The served architecture.

    Raises
    ------
    WeightUpdateError
        When they are missing, torn, of another architecture, or hold numbers that are not finite.
    """
    try:
        if (folder / "config.json").exists() and load_config(folder) != config:
            raise WeightUpdateError(f"{folder} holds another architecture than the one being served")
        parameters = load_parameters(folder, config)
    except CheckpointError as error:
        raise WeightUpdateError(str(error)) from error
    for name, tensor in parameters.items():
        if not bool(torch.isfinite(tensor).all()):
            raise WeightUpdateError(f"parameter {name} in {folder} holds numbers that are not finite")
    return Weights.fuse(parameters, config)


def eos_token_ids(folder: Path, tokenizer_eos: int | None) -> frozenset[int]:
    """Collect the end-of-sequence tokens that a checkpoint names in any of its places."""
    found: set[int] = set() if tokenizer_eos is None else {tokenizer_eos}
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.exists():
            value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            values = value if isinstance(value, list) else [value]
            found.update(item for item in values if isinstance(item, int))
    return frozenset(found)
