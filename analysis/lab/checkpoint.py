"""The tiny policy as an ordinary Hugging Face folder: created from a seed, loaded, given new weights.

Transformers (4 and 5), SGLang and Slime read such a folder: Qwen3 architecture, float32 safetensors,
tokenizer with a chat template. The configuration is written with the rotary base in both of its places,
because a reader that looks only in the old one would silently use another base. Knows nothing about training
or serving.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from analysis.errors import CheckpointError
from analysis.lab.files import atomic_path, write_text
from analysis.lab.model import ModelConfig
from analysis.lab.task_shelf import ShelfTask, demonstrate
from analysis.lab.tokenizer import build_tokenizer, save_tokenizer

__all__ = [
    "CheckpointSpec",
    "create_checkpoint",
    "load_config",
    "load_parameters",
    "load_tokenizer",
    "publish_folder",
    "save_parameters",
    "task_texts",
]

WEIGHTS_NAME = "model.safetensors"
TOKENIZER_TEXTS = 400


@dataclass(frozen=True)
class CheckpointSpec:
    """Sizes and initialisation of the policy.

    Parameters
    ----------
    vocab_size
        Rows of the embedding. A multiple of 64, like the tables of larger models; the last rows stay without
        a token.
    hidden_size, num_layers, num_heads, num_kv_heads, head_dim, intermediate_size
        Sizes. A head of 64 is what attention kernels on GPUs commonly support.
    max_positions
        Longest sequence, in tokens.
    initializer_range
        Standard deviation of the initial weights; about 1 / sqrt(hidden_size). With the customary 0.02 a
        model of this size never learns to copy an argument out of its prompt.
    rope_theta
        Base of the rotary frequencies; 100 suits contexts of a few hundred tokens, 10000 learns later and
        less.
    """

    vocab_size: int = 448
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 192
    max_positions: int = 1024
    initializer_range: float = 0.1
    rope_theta: float = 100.0
    rms_norm_eps: float = 1e-6

    def to_config(self, *, eos_token_id: int, pad_token_id: int) -> dict[str, Any]:
        """Give the ``config.json`` of a Qwen3 model of these sizes."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "initializer_range": self.initializer_range,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "rope_scaling": None,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": self.num_layers,
            "layer_types": ["full_attention"] * self.num_layers,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
            "dtype": "float32",
            "torch_dtype": "float32",
        }


def task_texts(count: int = TOKENIZER_TEXTS, *, p_right: float = 0.2) -> list[str]:
    """Texts for the tokenizer: demonstrated conversations with their role names, always the same ones."""
    task = ShelfTask()
    functions = [tool["function"] for tool in task.tools]
    signatures = ", ".join(f"{f['name']}({', '.join(f['parameters']['properties'])})" for f in functions)
    texts = [f"system\nTools: {signatures}\n"] * count
    for seed in range(count):
        messages = demonstrate(task.episode(seed), random.Random(f"tokenizer/{seed}"), p_right=p_right)
        texts.extend(f"{message['role']}\n{message['content']}\n" for message in messages)
    return texts


def create_checkpoint(folder: Path, *, seed: int, spec: CheckpointSpec | None = None) -> Path:
    """Write a checkpoint with random weights; equal seed and spec give equal files.

    Parameters
    ----------
    folder
        Must not exist, or be empty. It appears complete or not at all.
    seed
        Decides the weights. The tokenizer does not depend on it.
    spec
        Sizes; `CheckpointSpec()` when None.

    Returns
    -------
    Path
        `folder`.

    Raises
    ------
    CheckpointError
        When `folder` already holds something.
    """
    spec = spec or CheckpointSpec()
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} is not empty; name a new folder, or remove this one")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        tokenizer = build_tokenizer(task_texts(), vocab_size=spec.vocab_size, max_length=spec.max_positions)
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        config = spec.to_config(eos_token_id=eos, pad_token_id=pad)
        generation = {"do_sample": True, "eos_token_id": eos, "pad_token_id": pad, "temperature": 1.0}
        _write_json(partial / "config.json", config)
        _write_json(partial / "generation_config.json", generation)
        save_tokenizer(tokenizer, partial)
        save_parameters(partial, _initial_parameters(ModelConfig.from_mapping(config), spec, seed))
        publish_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def publish_folder(partial: Path, folder: Path) -> bool:
    """Move a finished folder to its final name in one step, readable by other users.

    Returns
    -------
    bool
        False when somebody else published `folder` meanwhile; theirs is left alone.
    """
    for path in (partial, *partial.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        os.rename(partial, folder)
    except OSError:
        if folder.is_dir() and any(folder.iterdir()):
            return False
        raise
    return True


def load_config(folder: Path) -> ModelConfig:
    """Read a checkpoint's architecture; `CheckpointError` when it is absent or not supported."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return ModelConfig.from_mapping(raw)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Read a checkpoint's tokenizer; `CheckpointError` when it is absent or unusable."""
    if not (folder / "tokenizer_config.json").is_file():
        raise CheckpointError(f"{folder} holds no tokenizer_config.json")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the library raises whatever its parts raise on files that it cannot use
        raise CheckpointError(f"the tokenizer in {folder} cannot be loaded: {error}") from error
    return tokenizer


def load_parameters(folder: Path, config: ModelConfig | None = None) -> dict[str, Tensor]:
    """Read a checkpoint's weights as float32 tensors under Hugging Face's names.

    Parameters
    ----------
    folder
        Holds ``model.safetensors``, or several ``*.safetensors`` shards.
    config
        The architecture that they must fit; None reads it from the folder.

    Raises
    ------
    CheckpointError
        When files are missing or torn, or when names or shapes do not fit. A tied ``lm_head.weight`` is
        dropped.
    """
    config = config or load_config(folder)
    single = folder / WEIGHTS_NAME
    paths = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder} holds no *.safetensors file")
    parameters: dict[str, Tensor] = {}
    for path in paths:
        try:
            parameters.update(load_file(path))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error
    if config.tie_word_embeddings:
        parameters.pop("lm_head.weight", None)
    config.check_parameters(parameters)
    return {name: tensor.to(torch.float32) for name, tensor in parameters.items()}


def save_parameters(folder: Path, parameters: Mapping[str, Tensor], *, tied: bool = True) -> Path:
    """Replace a checkpoint's weights in one step; a reader meets the old file or the new one.

    Parameters
    ----------
    folder
        The checkpoint.
    parameters
        Under Hugging Face's names, such as a model's ``state_dict()``.
    tied
        Leave ``lm_head.weight`` out, since it is the embedding.
    """
    tensors = {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in parameters.items()
        if not (tied and name == "lm_head.weight")
    }
    path = folder / WEIGHTS_NAME
    with atomic_path(path) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
    return path


def _initial_parameters(config: ModelConfig, spec: CheckpointSpec, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape)
        if name.endswith("norm.weight")
        else torch.randn(shape, generator=generator) * spec.initializer_range
        for name, shape in config.parameter_shapes().items()
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")
