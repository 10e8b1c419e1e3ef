"""Off-policy diagnostics against a drifted policy whose divergences are known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.stats.staleness import off_policy, ratio_statistics
from tests.analysis.stats.builder import RunBuilder, same, untouched


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


class TestClosedForm:
    """A categorical policy, drifted by known logits."""

    @pytest.mark.parametrize("drift", [0.0, 0.1, 0.5])
    def test_estimates_meet_the_truth(self, drift: float) -> None:
        """KL by three estimators, chi-square, effective size and truncation within sampling error."""
        rng = np.random.default_rng(0)
        logits = rng.normal(size=12)
        mu, pi = _softmax(logits), _softmax(logits + drift * rng.normal(size=12))
        n = 200_000
        tokens = rng.choice(12, size=n, p=mu)
        d = np.log(pi[tokens]) - np.log(mu[tokens])
        row = ratio_statistics(d, np.arange(n) // 50, np.zeros(n, np.int64), 1, (0.8, 1.2)).iloc[0]
        ratio = pi / mu
        kl = float((mu * np.log(mu / pi)).sum())
        chi = float((mu * (ratio - 1) ** 2).sum())
        errors = {
            name: 4 * float(np.std(values)) / math.sqrt(n) + 1e-12
            for name, values in (
                ("kl_k1", -d),
                ("kl_k3", np.exp(d) - 1 - d),
                ("chi_square", (np.exp(d) - 1) ** 2),
                ("ratio_mean", np.exp(d)),
            )
        }
        for name, truth in (("kl_k1", kl), ("kl_k3", kl), ("chi_square", chi), ("ratio_mean", 1.0)):
            assert row[name] == pytest.approx(truth, abs=errors[name]), name
        assert row["kl_k2"] == pytest.approx(float((mu * np.log(ratio) ** 2).sum()) / 2, rel=0.05, abs=1e-12)
        assert row["ess"] == pytest.approx(1 / (1 + chi), rel=0.01)
        assert row["tis_high_share"] == pytest.approx(float(mu[ratio > 1.2].sum()), abs=0.01)
        assert row["tis_low_share"] == pytest.approx(float(mu[ratio < 0.8].sum()), abs=0.01)
        kept = float((mu * np.clip(ratio, 0.8, 1.2)).sum())
        assert row["tis_mean_weight"] == pytest.approx(kept, abs=0.01)
        assert row["tis_lost_share"] == pytest.approx(1 - kept, abs=0.01)

    def test_sequence_weights_multiply(self) -> None:
        """For independent tokens the effective share is that of one token to the power of the length."""
        rng = np.random.default_rng(1)
        mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.45, 0.35, 0.2])
        length, traces = 20, 20_000
        tokens = rng.choice(3, size=traces * length, p=mu)
        d = np.log(pi[tokens] / mu[tokens])
        owner = np.repeat(np.arange(traces), length)
        row = ratio_statistics(d, owner, np.zeros(len(d), np.int64), 1).iloc[0]
        expected = float((pi**2 / mu).sum()) ** -length
        assert row["sequence_ess"] == pytest.approx(expected, rel=0.05)
        assert row["traces"] == traces

    def test_long_sequences_stay_finite(self) -> None:
        """Products of ten thousand ratios leave the range of floats; their effective share does not."""
        d = np.concatenate([np.full(10_000, 0.5), np.full(10_000, 0.4)])
        owner = np.repeat([0, 1], 10_000)
        row = ratio_statistics(d, owner, np.zeros(20_000, np.int64), 1).iloc[0]
        assert row["sequence_ess"] == pytest.approx(0.5)


def _tables(groups: int = 3) -> dict:
    """Groups of lag 0, 1, 2; the trainer's logprobs drift by 0.1 per rollout; a tool reply in the middle."""
    builder = RunBuilder()
    mask = [1] * 20 + [0] * 10 + [1] * 10
    for age in range(groups):
        logprob = [-1.0 if m else 0.0 for m in mask]
        lists = {
            "response": list(range(40)),
            "mask": mask,
            "logprob": logprob,
            "train_logprob": [
                value + 0.1 * age if m else -9.0 for value, m in zip(logprob, mask, strict=True)
            ],
        }
        builder.group([1.0], rollout_id=5, staleness=age, sessions=[{"traces": [{"lists": lists}]}])
    return builder.tables()


class TestRun:
    """From the frames of a run."""

    def test_by_lag_turn_and_position(self) -> None:
        """Masked tokens are not counted; each trace is at its lag; turns and positions as planted."""
        found = off_policy(_tables())
        assert found.overall["tokens"].tolist() == [90]
        assert found.by_lag["lag"].tolist() == [0, 1, 2]
        assert found.by_lag["log_ratio_mean"].tolist() == pytest.approx([0.0, 0.1, 0.2])
        assert found.by_lag["kl_k3"].tolist() == pytest.approx([math.exp(a) - 1 - a for a in (0, 0.1, 0.2)])
        assert found.by_turn["turn"].tolist() == [0, 1]
        assert found.by_turn["tokens"].tolist() == [60, 30]
        assert found.by_position["position"].tolist() == [0, 16]
        assert found.by_position["position_end"].tolist() == [16, 64]
        assert found.by_position["tokens"].tolist() == [48, 42]

    def test_sequences_and_truncation(self) -> None:
        """One row per trace with the product of its ratios; bounds from loose to tight."""
        found = off_policy(_tables(), tis_bounds=(1.0, 1.15, 4.0))
        assert found.sequences["log_ratio_sum"].tolist() == pytest.approx([0.0, 3.0, 6.0])
        assert found.sequences["ratio"].tolist() == pytest.approx([1.0, math.exp(3), math.exp(6)])
        assert found.tis["tis_high_share"].tolist() == pytest.approx([2 / 3, 1 / 3, 0.0])
        ratios = [1.0, math.exp(0.1), math.exp(0.2)]
        assert found.tis["tis_mean_weight"].tolist()[1] == pytest.approx((1 + ratios[1] + 1.15) / 3)
        assert found.tis["tis_lost_share"].tolist()[2] == pytest.approx(0.0)

    def test_tokens_without_a_second_logprob_are_left_out(self) -> None:
        """Null and infinite logprobs are no data, and neither is a trace that was not trained on."""
        tables = _tables(1)
        arrays = tables["tokens"].arrays
        arrays["train_logprob"].values[0] = np.nan
        arrays["logprob"].values[1] = -np.inf
        assert off_policy(tables).overall["tokens"].tolist() == [28]

    def test_empty_nonsense_and_unchanged(self) -> None:
        """No tokens give empty frames; bounds out of order are an error; nothing is changed."""
        empty = off_policy({})
        for name in ("overall", "by_lag", "by_turn", "by_position", "sequences", "tis"):
            assert len(getattr(empty, name)) == 0, name
        with pytest.raises(StatsError, match="low"):
            off_policy({}, tis_low=1.5)
        tables = _tables()
        before = untouched(tables)
        off_policy(tables)
        same(before, tables)
