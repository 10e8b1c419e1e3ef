"""The policy's first steps by imitation: from random weights to one that acts, right one time in three.

Reinforcement needs something to reinforce. A short imitation of an unreliable demonstrator teaches the form
of calls and answers and leaves the choice between right and wrong to training. The result depends on the
recipe, the task, the tokenizer and the seed only, so it is cached under a hash of these.

Knows nothing about engines, servers or rollouts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from analysis.lab.checkpoint import (
    CheckpointSpec,
    create_checkpoint,
    load_config,
    load_parameters,
    load_tokenizer,
    publish_folder,
    save_parameters,
)
from analysis.lab.files import cache_folder
from analysis.lab.model import Weights, rotary_table, sequence_logits
from analysis.lab.task_shelf import Message, ShelfTask, demonstrate

__all__ = [
    "WarmStartRecipe",
    "WarmStartResult",
    "cache_folder",
    "copy_checkpoint",
    "demonstrations",
    "learning_rate_at",
    "warm_start",
]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, float], None]
DEMONSTRATION_SEEDS = 1_000_000_000
"""Episode seeds of demonstrations start here: training and evaluation prompts share none with them."""


@dataclass(frozen=True)
class WarmStartRecipe:
    """Everything that decides the result besides the seed; the defaults take about 20 s on one core.

    Parameters
    ----------
    steps
        Optimiser steps. 150 mostly suffice; after 100 the policy still guesses, and training then settles
        there.
    batch_size
        Demonstrations per step.
    demonstrations
        Size of the pool that batches are drawn from.
    p_right
        Share of plays in which the demonstrator does what is right.
    learning_rate
        AdamW's highest rate, reached after `ramp_steps`, then falling linearly to `final_rate` of it.
    betas, weight_decay, max_grad_norm
        Of AdamW, and of the gradient clipping before it.
    whole_text_weight
        Weight of the loss on all tokens, beside weight 1 on the assistant's.
    spec
        Sizes and initialisation of the model.
    """

    steps: int = 200
    batch_size: int = 16
    demonstrations: int = 2000
    p_right: float = 0.2
    learning_rate: float = 5e-3
    ramp_steps: int = 20
    final_rate: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    whole_text_weight: float = 0.1
    spec: CheckpointSpec = field(default_factory=CheckpointSpec)


@dataclass(frozen=True)
class WarmStartResult:
    """A warm-started checkpoint.

    Parameters
    ----------
    path
        The checkpoint. Copy it before changing it: it may be the cached one.
    cached
        Whether it was found instead of made.
    seconds
        Time that it took.
    losses
        Training loss per step, as recorded when it was made.
    """

    path: Path
    cached: bool
    seconds: float
    losses: tuple[float, ...]


def warm_start(
    *,
    seed: int,
    recipe: WarmStartRecipe | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> WarmStartResult:
    """Make a warm-started checkpoint, or find the one made before from the same recipe and seed.

    Parameters
    ----------
    seed
        Decides initial weights, demonstrations and their order.
    recipe
        `WarmStartRecipe()` when None.
    cache
        Folder of earlier results; `cache_folder()` when None.
    progress
        Called as ``progress(step, steps, loss)`` after each step, from the caller's thread.

    Returns
    -------
    WarmStartResult
        Its path lies in the cache and appears there complete or not at all, also when several processes make
        it.
    """
    recipe = recipe or WarmStartRecipe()
    cache = cache or cache_folder()
    started = time.monotonic()
    partial = cache / f".warm-start.{os.getpid()}.{time.monotonic_ns()}.partial"
    try:
        create_checkpoint(partial, seed=seed, spec=recipe.spec)
        conversations = demonstrations(recipe, seed)
        final = cache / f"warm-start-{_digest(recipe, conversations, partial)}-seed{seed}"
        cached = (final / "warm_start.json").is_file()
        if cached:
            losses = tuple(json.loads((final / "warm_start.json").read_text(encoding="utf-8"))["losses"])
        else:
            losses = tuple(_imitate(partial, conversations, recipe, seed, progress))
            record = {"seed": seed, "recipe": asdict(recipe), "losses": losses}
            (partial / "warm_start.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
            publish_folder(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    seconds = time.monotonic() - started
    logger.info("warm start %s %s in %.1f s", final, "found" if cached else "made", seconds)
    return WarmStartResult(path=final, cached=cached, seconds=seconds, losses=losses)


def copy_checkpoint(source: Path, target: Path) -> Path:
    """Copy a checkpoint to a new folder that appears complete or not at all; return `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial)
        if not publish_folder(partial, target):
            raise FileExistsError(f"{target} exists already; name a new folder")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def demonstrations(recipe: WarmStartRecipe, seed: int) -> list[list[Message]]:
    """Play the recipe's demonstrations; equal recipe and seed give equal conversations."""
    task = ShelfTask()
    conversations = []
    for number in range(recipe.demonstrations):
        rng = random.Random(f"demonstration/{seed}/{number}")
        episode = task.episode(DEMONSTRATION_SEEDS + seed * recipe.demonstrations + number)
        conversations.append(demonstrate(episode, rng, p_right=recipe.p_right))
    return conversations


def learning_rate_at(step: int, recipe: WarmStartRecipe) -> float:
    """Learning rate of step 0, 1, ...: linear ramp, then linear decay to `final_rate` of the highest."""
    if step < recipe.ramp_steps:
        return recipe.learning_rate * (step + 1) / recipe.ramp_steps
    done = (step - recipe.ramp_steps) / max(recipe.steps - recipe.ramp_steps, 1)
    return recipe.learning_rate * (1.0 - (1.0 - recipe.final_rate) * done)


def _imitate(
    folder: Path,
    conversations: Sequence[list[Message]],
    recipe: WarmStartRecipe,
    seed: int,
    progress: Progress | None,
) -> list[float]:
    """Train the checkpoint in `folder` on the conversations; return the loss per step."""
    config = load_config(folder)
    parameters = {name: tensor.requires_grad_() for name, tensor in load_parameters(folder, config).items()}
    rotary = rotary_table(config)
    examples = _tokenize(load_tokenizer(folder), conversations)
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay
    )
    order = random.Random(f"warm-start/{seed}")
    losses = []
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, recipe)
        batch = order.sample(examples, recipe.batch_size)
        loss = _imitation_loss(Weights.fuse(parameters, config, rotary), batch, recipe.whole_text_weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), recipe.max_grad_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress(step + 1, recipe.steps, losses[-1])
    save_parameters(folder, parameters, tied=config.tie_word_embeddings)
    return losses


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, conversations: Sequence[list[Message]]
) -> list[tuple[Tensor, Tensor]]:
    """Token ids and assistant mask (1 on sampled tokens, end of turn included), each (T,), one pair each."""
    encoded = tokenizer.apply_chat_template(
        list(conversations), tools=ShelfTask().tools, return_dict=True, return_assistant_tokens_mask=True
    )
    pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    return [(torch.tensor(ids), torch.tensor(mask, dtype=torch.float32)) for ids, mask in pairs]


def _imitation_loss(
    weights: Weights, batch: Sequence[tuple[Tensor, Tensor]], whole_text_weight: float
) -> Tensor:
    """Mean cross entropy of the assistant's tokens, plus `whole_text_weight` times that of all tokens."""
    ids = pad_sequence([ids for ids, _ in batch], batch_first=True)
    own = pad_sequence([mask for _, mask in batch], batch_first=True)[:, 1:]
    real = pad_sequence([torch.ones_like(mask) for _, mask in batch], batch_first=True)[:, 1:]
    logits = sequence_logits(weights, ids)[:, :-1]
    entropy = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(own)
    return (entropy * own).sum() / own.sum() + whole_text_weight * (entropy * real).sum() / real.sum()


def _digest(recipe: WarmStartRecipe, conversations: Sequence[list[Message]], folder: Path) -> str:
    """Hash of what decides the result: recipe, task as demonstrated, tokenizer and chat template."""
    parts: list[Any] = [asdict(recipe), conversations]
    parts.extend(
        (folder / name).read_text(encoding="utf-8") for name in ("tokenizer.json", "chat_template.jinja")
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
