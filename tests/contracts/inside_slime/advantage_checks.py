"""Our estimators beside Slime's own code: equal to 1e-6 on a thousand random ragged groups."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from slime_bridge.advantages import (
    GAE,
    GRPO,
    GSPO,
    DrGRPO,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    RewardBatch,
    TokenArrays,
)

GROUPS = 1000
TOLERANCE = 1e-6


def ragged_groups(seed: int, count: int = GROUPS) -> list[list[float]]:
    """Groups of 1 to 12 rewards: binary, graded, Gaussian and constant ones."""
    rng = random.Random(seed)
    kinds = (
        lambda: float(rng.random() < 0.3),
        lambda: rng.choice([0.0, 0.25, 0.5, 1.0]),
        lambda: rng.gauss(0, 1),
        lambda: 0.5,
    )
    return [[draw() for _ in range(rng.randint(1, 12))] for draw in (rng.choice(kinds) for _ in range(count))]


def batch_of(groups: list[list[float]], **fields: Any) -> RewardBatch:
    """One trace per trajectory, in shuffled order by the caller's choice of groups."""
    rewards = [reward for group in groups for reward in group]
    ids = [number for number, group in enumerate(groups) for _ in group]
    return RewardBatch(rewards, ids, list(range(len(rewards))), **fields)


def slimes_normalisation(group: list[float], estimator: str, *, std: bool) -> list[float]:
    """Slime's own post-process on one prompt group, which is the only way it keeps ragged groups apart."""
    import slime.ray.rollout as slime_rollout

    real = object.__new__(slime_rollout.RolloutManager)
    real.custom_reward_post_process_func = None
    real.args = SimpleNamespace(
        advantage_estimator=estimator,
        rewards_normalization=True,
        # Slime's argument parser switches the division off for groups of one.
        grpo_std_normalization=std and len(group) > 1,
        n_samples_per_prompt=len(group),
        rollout_batch_size=1,
        reward_key=None,
    )
    samples = [SimpleNamespace(get_reward_value=lambda args, r=reward: r) for reward in group]
    answer: list[float] = real._post_process_rewards(samples)[1]
    return answer


def _check_group_normalisation(estimator: Any, name: str, *, std: bool) -> None:
    groups = ragged_groups(1)
    ours = estimator(batch_of(groups))
    theirs = np.concatenate([slimes_normalisation(group, name, std=std) for group in groups])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * max(1.0, np.abs(theirs).max()))


def check_grpo() -> None:
    """With the group's standard deviation."""
    _check_group_normalisation(GRPO(), "grpo", std=True)


def check_gspo() -> None:
    """Slime normalises it like grpo."""
    _check_group_normalisation(GSPO(), "gspo", std=True)


def check_dr_grpo() -> None:
    """Slime's grpo with its switch off."""
    _check_group_normalisation(DrGRPO(), "grpo", std=False)


def check_reinforce_plus_plus_baseline_centring() -> None:
    """The part that Slime computes before training."""
    estimator = ReinforcePlusPlusBaseline(normalize=False)
    _check_group_normalisation(estimator, "reinforce_plus_plus_baseline", std=True)


def token_data(seed: int, groups: list[list[float]]) -> dict[str, list[torch.Tensor]]:
    """Masks, divergences and values for every trace; each has a trainable token."""
    generator = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    data: dict[str, list[torch.Tensor]] = {
        "loss_masks": [],
        "log_probs": [],
        "ref_log_probs": [],
        "values": [],
    }
    for _ in range(sum(len(group) for group in groups)):
        length = rng.randint(1, 40)
        mask = (torch.rand(length, generator=generator) < 0.7).int()
        mask[rng.randrange(length)] = 1
        data["loss_masks"].append(mask)
        data["log_probs"].append(torch.randn(length, generator=generator) * 0.1 - 1)
        data["ref_log_probs"].append(torch.randn(length, generator=generator) * 0.1 - 1)
        data["values"].append(torch.randn(length, generator=generator) * 0.3)
    return data


def slimes_advantages(
    name: str, rewards: list[float], data: dict[str, list[torch.Tensor]], **args: Any
) -> Any:
    """Slime's trainer code on the given rewards; returns advantages and divergences per trace."""
    from slime.backends.megatron_utils.loss import compute_advantages_and_returns

    settings = {
        "use_rollout_logprobs": False,
        "kl_coef": 0.0,
        "kl_loss_type": "k1",
        "custom_advantage_function_path": None,
        "advantage_estimator": name,
        "gamma": 1.0,
        "lambd": 1.0,
        "use_opd": False,
        "normalize_advantages": False,
        "qkv_format": "thd",
    }
    lengths = [len(mask) for mask in data["loss_masks"]]
    rollout_data = {
        **{key: [tensor.clone() for tensor in tensors] for key, tensors in data.items()},
        "rewards": rewards,
        "response_lengths": lengths,
        "total_lengths": [length + 3 for length in lengths],
    }
    if name != "ppo":
        del rollout_data["values"]
    compute_advantages_and_returns(SimpleNamespace(**{**settings, **args}), rollout_data)
    return rollout_data["advantages"]


def divergences(data: dict[str, list[torch.Tensor]]) -> list[list[float]]:
    pairs = zip(data["log_probs"], data["ref_log_probs"], strict=True)
    return [(log_probs - reference).tolist() for log_probs, reference in pairs]


def tokens_of(data: dict[str, list[torch.Tensor]]) -> TokenArrays:
    return TokenArrays.from_lists(
        [mask.tolist() for mask in data["loss_masks"]],
        kl=divergences(data),
        values=[values.tolist() for values in data["values"]],
    )


def full_batch(groups: list[list[float]], data: dict[str, list[torch.Tensor]]) -> RewardBatch:
    return batch_of(
        groups,
        tokens=tokens_of(data),
        trainable_tokens=[int(mask.sum()) for mask in data["loss_masks"]],
        response_tokens=[len(mask) for mask in data["loss_masks"]],
    )


def plain_kl() -> None:
    """Use the eager form of Slime's divergence: compiling it needs a C++ compiler."""
    import slime.backends.megatron_utils.loss as loss
    from slime.utils import ppo_utils

    loss.compute_approx_kl = getattr(
        ppo_utils.compute_approx_kl, "_torchdynamo_orig_callable", loss.compute_approx_kl
    )


def one_process_group() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def assert_close(ours: np.ndarray, theirs: list[torch.Tensor], tolerance: float = TOLERANCE) -> None:
    expected = torch.cat(theirs).double().numpy()
    np.testing.assert_allclose(
        ours, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max())
    )


def _check_tokens(estimator: Any, name: str, **args: Any) -> None:
    plain_kl()
    groups = ragged_groups(2)
    data = token_data(3, groups)
    rewards = [reward for group in groups for reward in group]
    if name == "reinforce_plus_plus_baseline":
        rewards = [r for group in groups for r in slimes_normalisation(group, name, std=False)]
    theirs = slimes_advantages(name, rewards, data, **args)
    ours = estimator(full_batch(groups, data))
    if estimator.level == "trace":
        ours = np.repeat(ours, [len(mask) for mask in data["loss_masks"]])
        mask = torch.cat(data["loss_masks"]).bool()
        ours, theirs = ours[mask.numpy()], [torch.cat(theirs)[mask]]
    assert_close(ours, theirs)


def check_reinforce_plus_plus_with_discount_and_penalty() -> None:
    """Token by token, without whitening."""
    _check_tokens(
        ReinforcePlusPlus(gamma=0.97, kl_coef=0.2, normalize=False),
        "reinforce_plus_plus",
        gamma=0.97,
        kl_coef=0.2,
    )


def check_reinforce_plus_plus_whitened() -> None:
    """The usual setting: one number per trace, whitened over the trainable tokens."""
    one_process_group()
    _check_tokens(ReinforcePlusPlus(), "reinforce_plus_plus", normalize_advantages=True)


def check_reinforce_plus_plus_baseline_with_penalty() -> None:
    """Centred in the group, less the divergence of each token."""
    _check_tokens(
        ReinforcePlusPlusBaseline(kl_coef=0.3, normalize=False), "reinforce_plus_plus_baseline", kl_coef=0.3
    )


def check_reinforce_plus_plus_baseline_whitened() -> None:
    """The usual setting."""
    one_process_group()
    _check_tokens(ReinforcePlusPlusBaseline(), "reinforce_plus_plus_baseline", normalize_advantages=True)


def check_gae() -> None:
    """Slime's ppo, with values and a penalty."""
    _check_tokens(GAE(gamma=0.98, lambd=0.9, kl_coef=0.1), "ppo", gamma=0.98, lambd=0.9, kl_coef=0.1)


def check_grpo_reaches_every_token() -> None:
    """The trainer broadcasts our number per sample over the sample's tokens."""
    groups = ragged_groups(4, 20)
    data = token_data(5, groups)
    ours = GRPO()(batch_of(groups))
    theirs = slimes_advantages("grpo", ours.tolist(), data)
    assert_close(np.repeat(ours, [len(mask) for mask in data["loss_masks"]]), theirs)
