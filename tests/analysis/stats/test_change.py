"""Changes in series: found where they are, and not found in noise."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stats.change import change_point, fall_from_best, longest_streak, noise, surge


def test_a_step_is_found_where_it_is() -> None:
    values = np.r_[np.full(20, 1.0), np.full(10, 3.0)] + np.random.default_rng(0).normal(0, 0.2, 30)
    found = change_point(values)
    assert found is not None
    assert found.at == 20
    assert (found.before, found.after) == (
        pytest.approx(values[:20].mean()),
        pytest.approx(values[20:].mean()),
    )
    assert found.difference == pytest.approx(2.0, abs=0.2)
    assert found.z > 10


def test_the_split_is_the_best_of_all_splits() -> None:
    """Against a plain loop over every split."""
    values = np.random.default_rng(1).normal(0, 1, 25).cumsum()
    scores = {
        k: abs(values[k:].mean() - values[:k].mean()) / np.sqrt(1 / k + 1 / (25 - k)) for k in range(5, 21)
    }
    found = change_point(values)
    assert found is not None
    assert found.at == max(scores, key=lambda k: scores[k])


def test_missing_values_are_left_out() -> None:
    values = np.r_[np.full(8, 1.0), np.full(8, 2.0)]
    holes = np.insert(values, [0, 8, 16], np.nan)
    found = change_point(holes)
    assert found is not None
    assert (found.at, found.before, found.after) == (10, 1.0, 2.0)


def test_a_drift_counts_as_a_change() -> None:
    values = np.linspace(0, 1, 60) + np.random.default_rng(2).normal(0, 0.05, 60)
    found = change_point(values)
    assert found is not None
    assert found.z > 20


def test_noise_alone_stays_below_six_standard_errors() -> None:
    rng = np.random.default_rng(3)
    scores = [abs(change_point(rng.normal(0, 1, n)).z) for n in (12, 40, 200) for _ in range(300)]  # type: ignore[union-attr]
    assert np.mean(np.array(scores) > 6) < 0.002
    assert np.median(scores) < 3


def test_short_or_constant_series_have_no_change() -> None:
    assert change_point(np.arange(9.0)) is None
    assert change_point(np.full(30, np.nan)) is None
    assert change_point(np.ones(30)) is None
    exact = change_point(np.r_[np.zeros(5), np.ones(5)])
    assert exact is not None
    assert exact.z > 0


def test_noise_is_that_of_the_generator() -> None:
    values = np.random.default_rng(4).normal(0, 0.5, 5000)
    assert noise(values) == pytest.approx(0.5, rel=0.05)
    assert noise(values + np.linspace(0, 50, 5000)) == pytest.approx(0.5, rel=0.05)
    assert np.isnan(noise(values[:4]))


def test_a_fall_is_measured_from_the_best_stretch() -> None:
    values = np.r_[np.linspace(0, 1, 20), np.full(5, 1.0), np.full(5, 0.2)]
    found = fall_from_best(values)
    assert found is not None
    assert (found.at, found.before, found.after) == (24, 1.0, pytest.approx(0.2))
    assert found.z < -3
    rising = fall_from_best(np.linspace(0, 1, 30))
    assert rising is not None
    assert rising.difference > 0
    assert fall_from_best(np.ones(9)) is None
    flat = fall_from_best(np.ones(10))
    assert flat is not None
    assert flat.z == 0


@pytest.mark.parametrize(
    ("marks", "streak"),
    [
        ([], (0, 0)),
        ([False, False], (0, 0)),
        ([True], (0, 1)),
        ([True, True, False, True], (0, 2)),
        ([True, True, False, True, True], (3, 5)),
        ([False, True, True, True, False], (1, 4)),
    ],
)
def test_streaks(marks: list[bool], streak: tuple[int, int]) -> None:
    assert longest_streak(np.array(marks, dtype=bool)) == streak


def test_a_surge_is_found_with_its_level() -> None:
    shares = np.full(40, 0.05)
    shares[12:18] = 0.5
    found = surge(shares, np.full(40, 50.0), rise=0.1)
    assert found is not None
    assert (found.start, found.stop, found.inside, found.usual) == (12, 18, pytest.approx(0.5), 0.05)


def test_a_surge_that_lasts_for_most_of_the_run_is_one() -> None:
    shares = np.r_[np.full(12, 0.0), np.full(28, 0.4)]
    found = surge(shares, np.full(40, 50.0), rise=0.1)
    assert found is not None
    assert (found.start, found.stop) == (12, 40)


def test_unknown_rollouts_neither_end_nor_make_a_surge() -> None:
    shares = np.full(30, 0.05)
    shares[10:16] = [0.5, np.nan, 0.5, np.nan, 0.5, 0.5]
    found = surge(shares, np.full(30, 50.0), rise=0.1)
    assert found is not None
    assert (found.start, found.stop) == (10, 16)
    assert surge(np.full(30, np.nan), np.full(30, 50.0), rise=0.1) is None
    assert surge(shares[10:15], np.full(5, 50.0), rise=0.1) is None


def test_binomial_noise_is_no_surge() -> None:
    rng = np.random.default_rng(5)
    found = [
        surge(rng.binomial(n, p, 60) / n, np.full(60, float(n)), rise=0.08)
        for n, p in ((8, 0.05), (16, 0.1), (16, 0.3), (128, 0.03))
        for _ in range(100)
    ]
    assert sum(part is not None for part in found) <= 2
