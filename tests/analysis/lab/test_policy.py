"""The trainable policy is the checkpoint: Transformers' log-probs, trainable, saved in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from analysis.lab.checkpoint import create_checkpoint
from analysis.lab.policy import CheckpointPolicy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_checkpoint(tmp_path_factory.mktemp("policy") / "model", seed=1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_reference_implementation(folder: Path, temperature: float) -> None:
    """Padded rows included, each token's log-prob equals a plain forward pass within float32 error."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 300, (3, 17), generator=generator)
    tokens[1, 11:] = 0
    model = AutoModelForCausalLM.from_pretrained(folder).float()
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1] / temperature
        own = CheckpointPolicy(folder).log_probs(tokens, temperature=temperature)
    wanted = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    assert own.shape == (3, 16)
    assert float((own - wanted)[0].abs().max()) < 1e-4
    assert float((own - wanted)[1, :10].abs().max()) < 1e-4


def test_every_weight_gets_a_gradient_and_is_saved(folder: Path, tmp_path: Path) -> None:
    """All parameters train, and what is saved is what is loaded again."""
    policy = CheckpointPolicy(folder)
    loss = policy.log_probs(torch.tensor([[5, 6, 7, 8]])).sum()
    loss.backward()
    parameters = list(policy.parameters())
    assert all(
        parameter.grad is not None and bool(parameter.grad.abs().sum() > 0) for parameter in parameters
    )
    with torch.no_grad():
        parameters[0].add_(1.0)
    target = create_checkpoint(tmp_path / "other", seed=2)
    policy.save(target)
    again = list(CheckpointPolicy(target).parameters())
    assert all(torch.equal(a, b) for a, b in zip(parameters, again, strict=True))
