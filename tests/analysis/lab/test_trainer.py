"""The training step against a per-token computation in plain Python."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from analysis.lab.settings import TrainerSettings
from analysis.lab.train_batch import TrainBatch
from analysis.lab.trainer import Trainer, clipped_policy_loss

VOCABULARY = 11


class TinyModel(torch.nn.Module):
    """Causal on purpose: the logits at a place depend on the tokens up to there."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = torch.nn.Embedding(VOCABULARY, 6)
        self.head = torch.nn.Linear(6, VOCABULARY)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cumsum(self.embed(tokens), dim=1))

    def log_probs(self, tokens: torch.Tensor, *, temperature: float) -> torch.Tensor:
        scores = self(tokens)[:, :-1] / temperature
        return torch.log_softmax(scores, dim=-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def _sampled_log_probs(
    model: TinyModel, tokens: list[int], response: int, temperature: float = 1.0
) -> list[float]:
    """Log-probabilities one prefix at a time: no padding, no batching, no shared code with the trainer."""
    values = []
    for place in range(len(tokens) - response, len(tokens)):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[:place]]))[0, -1] / temperature
        weights = [math.exp(value) for value in logits.tolist()]
        values.append(math.log(weights[tokens[place]] / sum(weights)))
    return values


def _batch(
    model: TinyModel, *, noise: float = 0.0, rewards: list[float] | None = None, temperature: float = 1.0
) -> TrainBatch:
    """Five samples: a trajectory of two traces, one of one, one masked out, and one without advantage."""
    generator = torch.Generator().manual_seed(7)
    tokens = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in (9, 5, 12, 4, 7)]
    responses = [5, 3, 8, 1, 4]
    masks = [[1, 0, 1, 1, 1], [0, 1, 1], [1, 1, 0, 0, 0, 1, 1, 1], [0], [1, 1, 1, 1]]
    old = [
        torch.tensor(_sampled_log_probs(model, row.tolist(), n, temperature))
        for row, n in zip(tokens, responses, strict=True)
    ]
    old = [row + noise * torch.randn(row.shape, generator=generator) for row in old]
    group_ids = [4, 4, 2, 9, 1]
    sums = {4: 6, 2: 5, 9: 0, 1: 4}
    rewards = [1.2, 1.2, -0.7, 0.0, 0.0] if rewards is None else rewards
    return TrainBatch(
        tokens=tokens,
        response_lengths=responses,
        loss_masks=[torch.tensor(mask, dtype=torch.int32) for mask in masks],
        rollout_log_probs=old,
        rewards=rewards,
        raw_rewards=[1.0, 1.0, 0.0, 0.0, 1.0],
        truncated=[0] * 5,
        sample_indices=[4, 4, 2, 9, 1],
        group_ids=group_ids,
        group_mask_sums=torch.tensor([float(sums[group]) for group in group_ids]),
    )


def _plain_loss(model: TinyModel, batch: TrainBatch, low: float, high: float) -> tuple[float, float, float]:
    """Loss, clip fraction and old minus new, token by token: mean in a trajectory, then over all."""
    by_trajectory: dict[int, list[tuple[float, float, float]]] = {group: [] for group in batch.group_ids}
    for i in range(len(batch)):
        new = _sampled_log_probs(model, batch.tokens[i].tolist(), batch.response_lengths[i])
        for t, value in enumerate(new):
            if int(batch.loss_masks[i][t]) == 0:
                continue
            old, advantage = float(batch.rollout_log_probs[i][t]), batch.rewards[i]
            ratio = math.exp(value - old)
            plain, clipped = -ratio * advantage, -min(max(ratio, 1 - low), 1 + high) * advantage
            by_trajectory[batch.group_ids[i]].append(
                (max(plain, clipped), float(clipped > plain), old - value)
            )
    columns = [[row[k] for row in rows] for k in range(3) for rows in by_trajectory.values()]
    means = [sum(column) / max(len(column), 1) for column in columns]
    count = len(by_trajectory)
    return sum(means[:count]) / count, sum(means[count : 2 * count]) / count, sum(means[2 * count :]) / count


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 32])
def test_loss_equals_the_per_token_computation(noise: float, micro_batch_size: int) -> None:
    """One vote per trajectory, masked tokens out, masked trajectories counted, at any micro-batch size."""
    model = TinyModel()
    batch = _batch(model, noise=noise)
    loss, clipped, kl = _plain_loss(model, batch, 0.2, 0.28)
    step = Trainer(model, TrainerSettings(micro_batch_size=micro_batch_size)).step(batch)
    assert step.metrics["train/loss"] == pytest.approx(loss, abs=1e-5)
    assert step.metrics["train/pg_clipfrac"] == pytest.approx(clipped, abs=1e-6)
    assert step.metrics["train/ppo_kl"] == pytest.approx(kl, abs=1e-5)
    if noise:
        assert clipped > 0
    else:
        assert step.metrics["train/train_rollout_logprob_abs_diff_max"] < 1e-4
    assert step.metrics["train/global_batch_size"] == 4
    assert step.metrics["train/trained_samples"] == 3


def test_gradient_is_that_of_the_plain_loss() -> None:
    """The accumulated gradient agrees with central differences of the plain computation."""
    model = TinyModel()
    batch = _batch(model, noise=0.3)
    twin = copy.deepcopy(model)
    trainer = Trainer(model, TrainerSettings(micro_batch_size=2, max_grad_norm=1e9))
    captured: list[torch.Tensor] = []
    original = trainer._optimizer.step
    trainer._optimizer.step = lambda: captured.append(model.head.bias.grad.clone()) or original()
    trainer.step(batch)
    for place in range(0, VOCABULARY, 3):
        values = []
        for change in (2e-3, -2e-3):
            with torch.no_grad():
                twin.head.bias[place] += change
            values.append(_plain_loss(twin, batch, 0.2, 0.28)[0])
            with torch.no_grad():
                twin.head.bias[place] -= change
        assert float(captured[0][place]) == pytest.approx((values[0] - values[1]) / 4e-3, abs=1e-3)


def test_micro_batches_do_not_change_the_update() -> None:
    """The same weights result from one micro-batch and from five."""
    results = []
    for size in (1, 32):
        model = TinyModel()
        Trainer(model, TrainerSettings(micro_batch_size=size)).step(_batch(model, noise=0.3))
        results.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.allclose(results[0], results[1], atol=1e-6)


def test_a_long_trajectory_has_one_vote() -> None:
    """Repeating each token of a trajectory's trace does not raise its weight in the loss."""
    ratio_loss, _ = clipped_policy_loss(
        torch.zeros(3), torch.zeros(3), torch.tensor([1.0, 2.0, -1.0]), 0.2, 0.28
    )
    assert ratio_loss.tolist() == [-1.0, -2.0, 1.0]
    model = TinyModel()
    one = _batch(model)
    # Trajectory 4 has two traces (6 trainable tokens), trajectory 2 one (5): with ratio 1 the loss is the
    # mean of -A.
    assert Trainer(model).step(one).metrics["train/loss"] == pytest.approx(-(1.2 - 0.7) / 4, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.5, 1.0, -1.28, True),
        (1.5, -1.0, 1.5, False),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (1.2, 1.0, -1.2, False),
        (1.5, 0.0, 0.0, False),
    ],
)
def test_clip_takes_the_pessimistic_branch(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    """Gains are clipped at 1.28 and 0.8; losses are not."""
    got, where = clipped_policy_loss(
        torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), 0.2, 0.28
    )
    assert float(got) == pytest.approx(loss, abs=1e-6)
    assert bool(where) is clipped


def test_temperature_divides_the_logits() -> None:
    """At the engine's temperature the ratio is one; at another it is not."""
    model = TinyModel()
    batch = _batch(model, temperature=0.7)
    fits = Trainer(copy.deepcopy(model), TrainerSettings(temperature=0.7)).step(batch)
    assert fits.metrics["train/train_rollout_logprob_abs_diff_max"] < 1e-4
    misfit = Trainer(copy.deepcopy(model)).step(batch)
    assert misfit.metrics["train/train_rollout_logprob_abs_diff_max"] > 1e-2


def test_nothing_to_learn_leaves_the_weights_alone() -> None:
    """Without an advantage neither the weights nor the optimiser's momentum move, even after real steps."""
    model = TinyModel()
    trainer = Trainer(model)
    trainer.step(_batch(model))
    before = copy.deepcopy(model.state_dict())
    step = trainer.step(_batch(model, rewards=[0.0] * 5))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert step.metrics["train/trained_samples"] == 0
    assert step.metrics["train/grad_norm"] == 0
    assert trainer.steps == 1


def test_learning_rate_ramps_up() -> None:
    """The rate grows linearly over the ramp and then stays."""
    model = TinyModel()
    trainer = Trainer(model, TrainerSettings(learning_rate=1e-3, ramp_steps=4))
    rates = [trainer.step(_batch(model)).metrics["train/lr-pg_0"] for _ in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])
    assert Trainer(model, TrainerSettings(ramp_steps=0)).learning_rate() == 1.5e-3


def test_learning_rate_falls_to_its_final_fraction() -> None:
    """Over the announced steps the rate falls linearly, and stays at the final fraction beyond them."""
    model = TinyModel()
    settings = TrainerSettings(learning_rate=1e-3, ramp_steps=0, final_fraction=0.2)
    trainer = Trainer(model, settings, total_steps=5)
    rates = [trainer.step(_batch(model)).metrics["train/lr-pg_0"] for _ in range(6)]
    assert rates == pytest.approx([1e-3, 0.8e-3, 0.6e-3, 0.4e-3, 0.2e-3, 0.2e-3])
    assert Trainer(model, settings, total_steps=1).learning_rate() == 1e-3


def test_success_becomes_more_likely() -> None:
    """Steps on one batch raise the probability of what was good and lower that of what was bad."""
    model = TinyModel()
    batch = _batch(model)
    trainer = Trainer(model, TrainerSettings(learning_rate=2e-2, ramp_steps=0, eps_clip_high=5.0))
    before = trainer.step(batch).rollout_data["log_probs"]
    for _ in range(5):
        after = trainer.step(batch).rollout_data["log_probs"]
    mask = [m.bool() for m in batch.loss_masks]
    assert after[0][mask[0]].sum() > before[0][mask[0]].sum()
    assert after[2][mask[2]].sum() < before[2][mask[2]].sum()


def test_train_data_has_slimes_layout() -> None:
    """Per-sample lists in training order with Slime's dtypes; log-probs are those before the step."""
    model = TinyModel()
    batch = _batch(model, noise=0.2)
    expected = [
        _sampled_log_probs(model, row.tolist(), n)
        for row, n in zip(batch.tokens, batch.response_lengths, strict=True)
    ]
    data = Trainer(model, TrainerSettings(micro_batch_size=2)).step(batch).rollout_data
    for row, values in zip(data["log_probs"], expected, strict=True):
        assert row.dtype == torch.float32
        assert row.tolist() == pytest.approx(values, abs=1e-4)
    assert [row.tolist() for row in data["advantages"]][1] == pytest.approx([1.2] * 3)
    assert data["returns"][2].tolist() == pytest.approx([-0.7] * 8)
    assert [len(row) for row in data["kl"]] == batch.response_lengths
    assert data["total_lengths"] == [9, 5, 12, 4, 7]
    assert data["tokens"][0].dtype == torch.int64
    assert data["loss_masks"][0].dtype == torch.int32
    assert data["group_mask_sums"].dtype == torch.float32
    assert data["global_batch_sizes"] == [4]
    assert data["num_microbatches"] == [len(data["micro_batch_indices"])]
    assert sorted(i for rows in data["micro_batch_indices"] for i in rows) == list(range(5))
    assert all(len(rows) <= 2 for rows in data["micro_batch_indices"])


def test_gradient_that_is_not_finite_is_an_error() -> None:
    """A broken log-probability stops the run instead of poisoning the weights."""
    model = TinyModel()
    batch = _batch(model)
    batch.rollout_log_probs[0][0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        Trainer(model).step(batch)
