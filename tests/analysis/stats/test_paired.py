"""Paired comparisons: against loops, against known truth, and at their level over many simulated runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.stats.paired import Difference, holm, paired_difference


def pairs(differences: np.ndarray, sessions: int = 1, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Sessions of two runs whose means differ by prompt exactly as given."""
    rng = np.random.default_rng(seed)
    count = len(differences)
    clusters = np.repeat(np.arange(count), sessions)
    base = rng.normal(0, 3, count)
    spread = rng.normal(0, 1, (count, sessions)) if sessions > 1 else np.zeros((count, 1))
    spread -= spread.mean(axis=1, keepdims=True)
    first = (base[:, None] + spread).reshape(-1)
    return first, clusters, (base + differences)[clusters] + spread.reshape(-1)[::1], clusters


def test_the_estimate_is_the_mean_over_prompts_not_over_sessions() -> None:
    first, second = np.array([0.0, 0, 0, 0, 1, 0, 0, 0]), np.array([1.0, 1, 0, 0, 0, 0, 0])
    mine, theirs = np.array([0, 0, 0, 0, 1, 2, 3, 4]), np.array([0, 0, 1, 2, 3, 4, 7])
    found = paired_difference(first, mine, second, theirs)
    assert found.design == "paired"
    assert (found.clusters, found.only_first, found.only_second) == (5, 0, 1)
    assert found.first == pytest.approx((0 + 1 + 0 + 0 + 0) / 5)
    assert found.difference == pytest.approx((1 - 1 + 0 + 0 + 0) / 5)


def test_the_p_value_is_that_of_every_flip() -> None:
    """Against a loop over all 2^8 signs."""
    d = np.array([0.5, -0.1, 0.3, 0.8, 0.2, -0.4, 0.6, 0.1])
    found = paired_difference(*pairs(d))
    hits = sum(
        abs(sum(s * v for s, v in zip(signs, d, strict=True))) >= abs(d.sum()) - 1e-9
        for signs in itertools.product((-1, 1), repeat=8)
    )
    assert found.p_value == hits / 2**8
    assert found.standard_error == pytest.approx(d.std(ddof=1) / np.sqrt(8))


def test_random_flips_agree_with_all_of_them() -> None:
    d = np.random.default_rng(1).normal(0.4, 1, 13)
    exact = np.mean(
        [abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in itertools.product((-1, 1), repeat=13)]
    )
    found = paired_difference(*pairs(d), replicates=20_000)
    assert found.p_value == pytest.approx(exact, abs=0.015)


def test_for_many_normal_pairs_the_interval_is_that_of_student() -> None:
    d = np.random.default_rng(2).normal(0.3, 1, 400)
    found = paired_difference(*pairs(d), replicates=4000)
    half = 1.966 * d.std(ddof=1) / np.sqrt(400)
    assert (found.low, found.high) == pytest.approx((d.mean() - half, d.mean() + half), abs=0.015)
    assert found.detectable == pytest.approx((1.96 + 0.8416) * d.std(ddof=1) / np.sqrt(400), rel=0.05)


def _normal(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 1, 20)


def _skewed(rng: np.random.Generator) -> np.ndarray:
    return rng.exponential(1, 40) - 1


def _answers(rng: np.random.Generator) -> np.ndarray:
    return (rng.random(60) < 0.6).astype(float) - (rng.random(60) < 0.6)


@pytest.mark.parametrize(("draw", "symmetric"), [(_normal, True), (_skewed, False), (_answers, True)])
def test_intervals_cover_the_truth_and_tests_keep_their_level(draw, symmetric: bool) -> None:
    """95 % intervals over 400 simulated comparisons without a difference: 92 to 98 % are within chance."""
    rng = np.random.default_rng(7)
    covered, alarms = 0, 0
    for trial in range(400):
        found = paired_difference(*pairs(draw(rng), seed=trial), replicates=400, seed=trial)
        covered += found.low <= 0 <= found.high
        alarms += found.p_value <= 0.05
    assert 0.92 <= covered / 400 <= 0.98
    # Flipping signs presumes that a prompt's two means could be exchanged, which makes differences symmetric.
    assert not symmetric or 0.02 <= alarms / 400 <= 0.08


def test_the_detectable_difference_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(8)
    sizes = [paired_difference(*pairs(rng.normal(0, 1, 50)), replicates=400).detectable for _ in range(20)]
    effect = float(np.mean(sizes))
    hits = 0
    for trial in range(300):
        found = paired_difference(*pairs(rng.normal(effect, 1, 50)), replicates=400, seed=trial)
        hits += not found.low <= 0 <= found.high
    assert 0.72 <= hits / 300 <= 0.88


def test_without_shared_prompts_runs_are_independent_samples() -> None:
    rng = np.random.default_rng(9)
    one, other = rng.normal(0, 1, 200), rng.normal(1, 1, 300)
    found = paired_difference(one, np.arange(200), other, 1000 + np.arange(300), replicates=1000)
    assert (found.design, found.clusters, found.only_first, found.only_second) == ("unpaired", 500, 200, 300)
    error = np.sqrt(one.var(ddof=1) / 200 + other.var(ddof=1) / 300)
    assert found.standard_error == pytest.approx(error)
    assert (found.low, found.high) == pytest.approx(
        (found.difference - 1.97 * error, found.difference + 1.97 * error), abs=0.05
    )
    assert found.p_value < 0.01


def test_what_cannot_be_said_is_missing() -> None:
    nothing = np.zeros(0)
    none = np.zeros(0, dtype=np.int64)
    found = paired_difference(nothing, none, nothing, none)
    assert (found.design, found.clusters) == ("unpaired", 0)
    assert all(np.isnan([found.difference, found.low, found.high, found.p_value, found.detectable]))
    lone = paired_difference(np.array([1.0]), np.array([0]), np.array([3.0, np.nan]), np.array([1, 1]))
    assert lone.difference == 2.0
    assert np.isnan(lone.low)


def test_equal_runs_do_not_differ() -> None:
    values, clusters = np.arange(10.0), np.arange(10)
    found = paired_difference(values, clusters, values, clusters)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1.0)


def test_rows_of_nobody_are_left_out() -> None:
    values, clusters = np.arange(10.0), np.arange(10)
    found = paired_difference(np.r_[values, 100.0], np.r_[clusters, -1], values, clusters)
    assert found.difference == 0


def test_the_answer_is_the_same_for_the_same_seed() -> None:
    given = pairs(np.random.default_rng(3).normal(0, 1, 30))
    assert paired_difference(*given, seed=4) == paired_difference(*given, seed=4)
    assert isinstance(paired_difference(*given), Difference)


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"power": 0.0}])
def test_impossible_levels_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(StatsError, match="between 0 and 1"):
        paired_difference(*pairs(np.ones(6)), **wrong)


def test_holm_adjusts_step_by_step() -> None:
    adjusted = holm(np.array([0.01, 0.04, np.nan, 0.03, 0.5]))
    assert adjusted == pytest.approx([0.04, 0.09, np.nan, 0.09, 0.5], nan_ok=True)
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
