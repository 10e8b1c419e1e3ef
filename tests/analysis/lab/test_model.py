"""The forward pass: equal to Transformers' model, differentiable, clear about what it does not support."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from analysis.errors import CheckpointError
from analysis.lab.checkpoint import CheckpointSpec
from analysis.lab.model import ModelConfig, Weights, grouped_attention, sequence_logits, token_logprobs

torch.set_num_threads(1)


def spec(**changes: Any) -> dict[str, Any]:
    base = CheckpointSpec(vocab_size=96, hidden_size=32, intermediate_size=48, head_dim=16, max_positions=64)
    return {**base.to_config(eos_token_id=2, pad_token_id=0), **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_attention_heads": 4, "num_key_value_heads": 2},
        {"num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 3},
        {"tie_word_embeddings": False},
    ],
    ids=["plain", "two-query-heads-per-key", "one-key-head", "untied"],
)
def test_logits_equal_those_of_transformers(changes: dict[str, Any]) -> None:
    """The functional pass is the model: within 1e-4 on random weights, for each way of sharing heads."""
    torch.manual_seed(0)
    raw = spec(**changes)
    if raw["num_hidden_layers"] != 2:
        raw["layer_types"] = ["full_attention"] * raw["num_hidden_layers"]
    model = Qwen3ForCausalLM(Qwen3Config(**raw)).eval()
    config = ModelConfig.from_mapping(raw)
    parameters = {name: tensor for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        parameters.pop("lm_head.weight")
    config.check_parameters(parameters)
    ids = torch.randint(0, 96, (3, 40))
    with torch.inference_mode():
        ours, theirs = sequence_logits(Weights.fuse(parameters, config), ids), model(ids).logits
    assert float((ours - theirs).abs().max()) < 1e-4


def test_gradients_reach_every_parameter() -> None:
    """Fusing is part of the graph, so a trainer's own parameters learn."""
    config = ModelConfig.from_mapping(spec())
    torch.manual_seed(0)
    parameters = {
        name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.1).requires_grad_()
        for name, shape in config.parameter_shapes().items()
    }
    ids = torch.randint(0, 96, (2, 12))
    token_logprobs(Weights.fuse(parameters, config), ids, temperature=0.7).sum().backward()
    silent = [name for name, tensor in parameters.items() if tensor.grad is None or not tensor.grad.any()]
    assert silent == []


def test_padding_on_the_right_changes_nothing() -> None:
    """A batch of unequal lengths gives each sequence what it gets alone."""
    config = ModelConfig.from_mapping(spec())
    torch.manual_seed(1)
    weights = Weights.fuse({n: torch.randn(s) * 0.1 for n, s in config.parameter_shapes().items()}, config)
    ids = torch.randint(0, 96, (1, 20))
    padded = torch.cat([ids, torch.full((1, 15), 5)], dim=1)
    alone, together = sequence_logits(weights, ids), sequence_logits(weights, padded)[:, :20]
    assert torch.allclose(alone, together, atol=1e-5)


def test_attention_equals_a_plain_loop() -> None:
    """Stacking the queries that share a key head is only a rearrangement."""
    torch.manual_seed(2)
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = torch.rand(2, 1, 3, 5) < 0.7
    mask[..., 0] = True
    found = grouped_attention(query, key, value, mask)
    for b in range(2):
        for h in range(4):
            for t in range(3):
                scores = [float(query[b, h, t] @ key[b, h // 2, s]) / 8**0.5 for s in range(5)]
                kept = [s for s in range(5) if mask[b, 0, t, s]]
                weights = torch.tensor([scores[s] for s in kept]).softmax(0)
                expected = sum(weights[i] * value[b, h // 2, s] for i, s in enumerate(kept))
                assert torch.allclose(found[b, h, t], torch.as_tensor(expected), atol=1e-5)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 100.0, "rope_parameters": None},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
        {"rope_theta": 100.0, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
    ],
    ids=["old", "new", "both"],
)
def test_rotary_base_is_read_from_either_place(rope: dict[str, Any]) -> None:
    """Versions write it in different places; missing it would give another model without a word."""
    assert ModelConfig.from_mapping(spec(**rope)).rope_theta == 100.0


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model_type": "llama"}, "llama"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"use_sliding_window": True}, "sliding"),
        ({"attention_bias": True}, "bias"),
        ({"hidden_size": None}, "not a number"),
        ({"vocab_size": "many"}, "not a number"),
    ],
)
def test_foreign_architectures_are_refused_by_name(changes: dict[str, Any], names: str) -> None:
    """A model that this pass would compute wrongly is refused, with the feature named."""
    with pytest.raises(CheckpointError, match=names):
        ModelConfig.from_mapping(spec(**changes))


def test_missing_size_is_named() -> None:
    """An incomplete config.json says what it lacks."""
    raw = spec()
    del raw["num_hidden_layers"]
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        ModelConfig.from_mapping(raw)


def test_parameters_that_do_not_fit_are_named() -> None:
    """Missing, misshapen and foreign parameters each say which one."""
    config = ModelConfig.from_mapping(spec())
    good = {name: torch.zeros(shape) for name, shape in config.parameter_shapes().items()}
    config.check_parameters(good | {"lm_head.weight": torch.zeros(96, 32)})
    missing = {name: tensor for name, tensor in good.items() if name != "model.norm.weight"}
    for bad, message in (
        (missing, "model.norm.weight is missing"),
        (good | {"model.norm.weight": torch.zeros(3)}, r"shape \(3,\), not \(32,\)"),
        (good | {"model.extra.weight": torch.zeros(3)}, "model.extra.weight does not belong"),
    ):
        with pytest.raises(CheckpointError, match=message):
            config.check_parameters(bad)
    untied = dataclasses.replace(config, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lm_head.weight is missing"):
        untied.check_parameters(good)
