"""Estimators whose advantages may differ from token to token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slime_bridge.advantages.base import AdvantageEstimator, Level, Lone, Scaling
from slime_bridge.advantages.batch import Floats, RewardBatch, TokenArrays
from slime_bridge.advantages.group_relative import DrGRPO
from slime_bridge.advantages.statistics import whitened
from slime_bridge.errors import AdvantageError

__all__ = ["GAE", "ReinforcePlusPlus", "ReinforcePlusPlusBaseline", "discounted_tails"]

_UNUSABLE = "traces that failed or have no reward get 0 and take no part in the whitening"


def discounted_tails(values: Floats, offsets: np.ndarray, factor: float) -> Floats:
    """Return ``sum over u >= t of factor**(u - t) * values[u]`` within each trace, for every token t.

    Parameters
    ----------
    values
        Shape (N,): numbers per token.
    offsets
        Shape (n + 1,): where traces begin and end.
    factor
        Between 0 and 1.

    Notes
    -----
    Runs in log2(longest trace) passes over the tokens, each doubling the reach of the sums.
    """
    lengths = np.diff(offsets)
    left = np.repeat(offsets[1:], lengths) - np.arange(len(values))
    sums = values.astype(np.float64, copy=True)
    reach, weight = 1, float(factor)
    while reach < int(lengths.max(initial=0)) and weight != 0.0:
        inside = np.flatnonzero(left > reach)
        sums[inside] += weight * sums[inside + reach]
        reach, weight = reach * 2, weight * weight
    return sums


def _tokens(estimator: AdvantageEstimator, batch: RewardBatch) -> TokenArrays:
    if batch.tokens is None:
        raise AdvantageError(f"{type(estimator).__name__} needs per-token arrays, and this batch has none")
    return batch.tokens


def _divergence(estimator: AdvantageEstimator, tokens: TokenArrays, kl_coef: float) -> Floats:
    if kl_coef == 0:
        return np.zeros(len(tokens.mask))
    if tokens.kl is None:
        raise AdvantageError(f"{type(estimator).__name__} with kl_coef needs the divergence per token (`kl`)")
    return tokens.kl


def _spread_over_tokens(batch: RewardBatch, per_trace: Floats) -> Floats:
    """Whiten numbers per trace as if each of its trainable tokens carried the number."""
    assert batch.trainable_tokens is not None
    eligible = batch.grouping.eligible
    weights = np.where(eligible, batch.trainable_tokens, 0).astype(np.float64)
    return np.where(eligible, whitened(per_trace, weights), 0.0)


def _whitened_tokens(
    batch: RewardBatch, tokens: TokenArrays, per_token: Floats, *, normalize: bool
) -> Floats:
    eligible = batch.grouping.eligible[tokens.trace_of]
    if not normalize:
        return np.where(eligible, per_token, 0.0)
    return np.where(eligible, whitened(per_token, (tokens.mask & eligible).astype(np.float64)), 0.0)


@dataclass(frozen=True)
class ReinforcePlusPlus(AdvantageEstimator):
    """The discounted reward to come, whitened over all trainable tokens of the batch.

    Without discount and KL penalty the advantage is one number per trace, so that no per-token arrays are
    needed.

    Parameters
    ----------
    gamma
        Discount per token, above 0 and at most 1.
    kl_coef
        Weight of the divergence from the reference policy in the reward.
    normalize
        Whiten over the batch. Switch it off where the trainer does that (Slime's ``--normalize-advantages``).
    """

    gamma: float = 1.0
    kl_coef: float = 0.0
    normalize: bool = True
    formula: ClassVar[str] = (
        "A_t = sum over u >= t of gamma^(u - t) * (r [at the last trainable token] - kl_coef kl_u mask_u),"
        " then (A - mean) / sqrt(variance + 1e-8) over the trainable tokens of the batch"
    )
    source: ClassVar[str] = "Hu et al. 2025, arXiv:2501.03262; numbers as in Slime's reinforce_plus_plus"
    differences: ClassVar[tuple[str, ...]] = (
        _UNUSABLE,
        "the statistics are those of the whole batch, not of one context-parallel rank's chunks",
    )
    lone: ClassVar[Lone] = "other"

    def __post_init__(self) -> None:
        self._require_finite("gamma", above=0)
        self._require_finite("kl_coef", at_least=0)
        if self.gamma > 1:
            raise AdvantageError(f"{type(self).__name__}: gamma must be at most 1, got {self.gamma!r}")

    @property
    def level(self) -> Level:
        """Per trace without discount and penalty, else per token."""
        return "trace" if self.gamma == 1 and self.kl_coef == 0 else "token"

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Whitening takes the mean off, if every token carries the same reward."""
        return self.normalize and self.level == "trace"

    @property
    def scaling(self) -> Scaling:
        """Whitening takes the scale out; a penalty has a scale of its own."""
        if self.kl_coef:
            return "other"
        return "invariant" if self.normalize else "equivariant"

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace or per token, see `level`."""
        eligible = batch.grouping.eligible
        rewards = np.where(eligible, batch.reward, 0.0)
        if self.level == "trace":
            return _spread_over_tokens(batch, rewards) if self.normalize else rewards
        tokens = _tokens(self, batch)
        paid = -self.kl_coef * _divergence(self, tokens, self.kl_coef) * tokens.mask
        last = _last_trainable(tokens)
        has_last = last >= 0
        paid[last[has_last]] += rewards[has_last]
        tails = discounted_tails(paid, tokens.offsets, self.gamma)
        return _whitened_tokens(batch, tokens, tails, normalize=self.normalize)


def _last_trainable(tokens: TokenArrays) -> np.ndarray:
    """Return the position of each trace's last trainable token, -1 where it has none; shape (n,)."""
    last = np.full(len(tokens.offsets) - 1, -1, dtype=np.int64)
    positions = np.flatnonzero(tokens.mask)
    np.maximum.at(last, tokens.trace_of[positions], positions)
    return last


@dataclass(frozen=True)
class ReinforcePlusPlusBaseline(AdvantageEstimator):
    """The reward minus its group's mean, less a KL penalty per token, whitened over the batch.

    Parameters
    ----------
    kl_coef
        Weight of the divergence from the reference policy. Without it the advantage is one number per trace.
    normalize
        Whiten over the batch. Switch it off where the trainer does that (Slime's ``--normalize-advantages``).
    """

    kl_coef: float = 0.0
    normalize: bool = True
    formula: ClassVar[str] = (
        "A_t = r - mean of m_j - kl_coef kl_t, then (A - mean) / sqrt(variance + 1e-8) over trainable tokens"
    )
    source: ClassVar[str] = (
        "Hu et al. 2025, arXiv:2501.03262; numbers as in Slime's reinforce_plus_plus_baseline"
    )
    differences: ClassVar[tuple[str, ...]] = (
        "the unit is the trajectory, and groups are told apart by their number",
        _UNUSABLE,
        "the statistics are those of the whole batch, not of one context-parallel rank's chunks",
    )
    lone: ClassVar[Lone] = "other"

    def __post_init__(self) -> None:
        self._require_finite("kl_coef", at_least=0)

    @property
    def level(self) -> Level:
        """Per trace without a penalty, else per token."""
        return "token" if self.kl_coef else "trace"

    @property
    def scaling(self) -> Scaling:
        """Whitening takes the scale out; a penalty has a scale of its own."""
        if self.kl_coef:
            return "other"
        return "invariant" if self.normalize else "equivariant"

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace or per token, see `level`."""
        centred = DrGRPO()(batch)
        if self.level == "trace":
            return _spread_over_tokens(batch, centred) if self.normalize else centred
        tokens = _tokens(self, batch)
        per_token = centred[tokens.trace_of] - self.kl_coef * _divergence(self, tokens, self.kl_coef)
        return _whitened_tokens(batch, tokens, per_token, normalize=self.normalize)


@dataclass(frozen=True)
class GAE(AdvantageEstimator):
    """Generalised advantage estimation with a critic's values.

    Parameters
    ----------
    gamma
        Discount per token, above 0 and at most 1.
    lambd
        Trade-off between the critic (0) and the observed reward (1).
    kl_coef
        Weight of the divergence from the reference policy in the reward.
    """

    gamma: float = 1.0
    lambd: float = 1.0
    kl_coef: float = 0.0
    formula: ClassVar[str] = (
        "A_t = sum over u >= t of (gamma lambd)^(u - t) * (p_u + gamma V_(u+1) - V_u), V = 0 after the end,"
        " p_u = -kl_coef * kl_u, plus r at the last response token"
    )
    source: ClassVar[str] = "Schulman et al. 2016, arXiv:1506.02438; numbers as in Slime's ppo"
    differences: ClassVar[tuple[str, ...]] = (
        "tokens that the policy did not sample are steps like any other, as in Slime",
        "traces that failed or have no reward get 0",
    )
    shift_invariant: ClassVar[bool] = False
    lone: ClassVar[Lone] = "other"

    def __post_init__(self) -> None:
        self._require_finite("gamma", above=0)
        self._require_finite("lambd", at_least=0)
        self._require_finite("kl_coef", at_least=0)
        if self.gamma > 1 or self.lambd > 1:
            raise AdvantageError(
                f"GAE: gamma and lambd must be at most 1, got {self.gamma!r} and {self.lambd!r}"
            )

    @property
    def level(self) -> Level:
        """Always per token."""
        return "token"

    @property
    def scaling(self) -> Scaling:
        """The critic's values have a scale of their own."""
        return "other"

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per token, shape (N,)."""
        tokens = _tokens(self, batch)
        if tokens.values is None:
            raise AdvantageError("GAE needs a critic's value per token (`values`)")
        eligible = batch.grouping.eligible
        paid = -self.kl_coef * _divergence(self, tokens, self.kl_coef)
        rewarded = np.flatnonzero(eligible & (tokens.lengths > 0))
        last = tokens.offsets[1:] - 1
        paid[last[rewarded]] += batch.reward[rewarded]
        following = np.append(tokens.values[1:], 0.0)
        following[last[tokens.lengths > 0]] = 0.0
        errors = paid + self.gamma * following[: len(paid)] - tokens.values
        advantages = discounted_tails(errors, tokens.offsets, self.gamma * self.lambd)
        return np.where(eligible[tokens.trace_of], advantages, 0.0)
