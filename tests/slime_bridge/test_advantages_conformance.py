"""One suite that every registered estimator must pass: what each says of itself is what it does."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from slime_bridge.advantages import (
    DVAO,
    ESTIMATORS,
    GAE,
    GDPO,
    GRPO,
    AdvantageEstimator,
    LeaveOneTrajectoryOut,
    MaxAtK,
    PassAtK,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    RewardBatch,
    TokenArrays,
)

CASES: list[AdvantageEstimator] = [
    *(cls() for cls in ESTIMATORS.values()),
    LeaveOneTrajectoryOut(std_normalization=True),
    GRPO(std_normalization=False),
    MaxAtK(1),
    MaxAtK(2),
    PassAtK(2, threshold=0.5),
    ReinforcePlusPlus(normalize=False),
    ReinforcePlusPlus(gamma=0.95),
    ReinforcePlusPlus(gamma=0.95, kl_coef=0.1, normalize=False),
    ReinforcePlusPlusBaseline(normalize=False),
    ReinforcePlusPlusBaseline(kl_coef=0.2),
    GAE(gamma=0.99, lambd=0.9, kl_coef=0.1),
]
NAMES = ("correctness", "format")

pytestmark = pytest.mark.parametrize("estimator", CASES, ids=repr)


@dataclasses.dataclass
class Rows:
    """A ragged batch as rows, so that it can be permuted, shifted and scaled."""

    rows: list[dict]

    @classmethod
    def draw(cls, seed: int, *, sizes=(1, 2, 3, 5, 8, 4), failures: bool = True) -> Rows:
        rng = random.Random(seed)
        rows = []
        for group, size in enumerate(sizes):
            for trajectory in range(size):
                failed = failures and rng.random() < 0.2
                for trace in range(rng.choice([1, 1, 2])):
                    masked = failures and rng.random() < 0.15
                    length = rng.randint(1, 6)
                    rows.append(
                        {
                            "reward": rng.gauss(0, 2),
                            "group": group,
                            "trajectory": 10 * group + trajectory,
                            "trace": trace,
                            "valid": not failed,
                            "mask": [0] * length if masked else [1] * length,
                            "kl": [rng.gauss(0, 0.1) for _ in range(length)],
                            "values": [rng.gauss(0, 1) for _ in range(length)],
                            **{name: rng.gauss(0, 1) for name in NAMES},
                        }
                    )
        rng.shuffle(rows)
        return cls(rows)

    def batch(self) -> RewardBatch:
        rows = self.rows
        return RewardBatch(
            reward=[row["reward"] for row in rows],
            group=[row["group"] for row in rows],
            trajectory=[row["trajectory"] for row in rows],
            trace=[row["trace"] for row in rows],
            valid=[row["valid"] for row in rows],
            trainable_tokens=[sum(row["mask"]) for row in rows],
            response_tokens=[len(row["mask"]) for row in rows],
            components={name: [row[name] for row in rows] for name in NAMES},
            tokens=TokenArrays.from_lists(
                [row["mask"] for row in rows],
                kl=[row["kl"] for row in rows],
                values=[row["values"] for row in rows],
            ),
        )

    def changed(self, **functions) -> Rows:
        return Rows([{**row, **{name: f(row) for name, f in functions.items()}} for row in self.rows])

    def rewards(self, function) -> Rows:
        return self.changed(**{name: lambda row, n=name: function(row[n]) for name in ("reward", *NAMES)})


def per_trace(estimator: AdvantageEstimator, data: RewardBatch) -> list[np.ndarray]:
    """One array per trace, whatever the level."""
    advantages = estimator(data)
    if estimator.level == "trace":
        return [advantages[i : i + 1] for i in range(len(data))]
    return np.split(advantages, data.tokens.offsets[1:-1])


def trained(data: RewardBatch) -> np.ndarray:
    """Traces whose advantage reaches the trainer."""
    return data.grouping.eligible & (data.trainable_tokens > 0)


def assert_same(left: list[np.ndarray], right: list[np.ndarray], **tolerance) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, **{"rtol": 1e-7, "atol": 1e-9, **tolerance})


@pytest.mark.parametrize("seed", range(4))
def test_shape_and_type(estimator, seed):
    """float64, one number per trace or token, all finite; calling twice gives the same."""
    data = Rows.draw(seed).batch()
    advantages = estimator(data)
    length = len(data) if estimator.level == "trace" else int(data.tokens.offsets[-1])
    assert advantages.shape == (length,)
    assert advantages.dtype == np.float64
    assert np.isfinite(advantages).all()
    assert (estimator(data) == advantages).all()


@pytest.mark.parametrize("seed", range(4))
def test_order_does_not_matter(estimator, seed):
    """Permuting the traces permutes the advantages."""
    rows = Rows.draw(seed)
    order = list(range(len(rows.rows)))
    random.Random(seed + 100).shuffle(order)
    shuffled = per_trace(estimator, Rows([rows.rows[i] for i in order]).batch())
    original = per_trace(estimator, rows.batch())
    assert_same(shuffled, [original[i] for i in order])


@pytest.mark.parametrize("seed", range(4))
def test_labels_do_not_matter(estimator, seed):
    """Groups and trajectories are only told apart, never compared."""
    rows = Rows.draw(seed)
    renamed = rows.changed(
        group=lambda row: f"g{(row['group'] * 7) % 11}", trajectory=lambda row: f"t{row['trajectory'] % 10}"
    )
    assert_same(per_trace(estimator, renamed.batch()), per_trace(estimator, rows.batch()))


@pytest.mark.parametrize("seed", range(4))
def test_failed_and_masked_members_get_nothing_and_change_nothing(estimator, seed):
    """Whatever rewards they carry, everyone else's advantages are those without them."""
    rows = Rows.draw(seed)
    data = rows.batch()
    usable = data.grouping.eligible
    advantages = per_trace(estimator, data)
    assert all(not advantages[i].any() for i in np.flatnonzero(~usable))
    wild = rows.changed(
        **{
            name: lambda row, n=name: row[n] if row["valid"] and any(row["mask"]) else 1e9
            for name in ("reward", *NAMES)
        }
    )
    again = per_trace(estimator, wild.batch())
    chosen = np.flatnonzero(trained(data))
    assert_same([again[i] for i in chosen], [advantages[i] for i in chosen])
    kept = per_trace(estimator, Rows([row for row, ok in zip(rows.rows, usable, strict=True) if ok]).batch())
    assert_same(kept, [advantages[i] for i in np.flatnonzero(usable)])


@pytest.mark.parametrize("missing", [float("nan"), float("inf")])
def test_missing_rewards_get_nothing(estimator, missing):
    """A missing reward is not a number: no advantage, no influence, no NaN."""
    rows = Rows.draw(1, failures=False)
    gone = {id(row) for row in rows.rows[::5]}
    with_gaps = rows.changed(
        **{name: lambda row, n=name: missing if id(row) in gone else row[n] for name in ("reward", *NAMES)}
    )
    advantages = per_trace(estimator, with_gaps.batch())
    assert all(np.isfinite(a).all() for a in advantages)
    without = [row for row in rows.rows if id(row) not in gone]
    assert all(not a.any() for a, row in zip(advantages, rows.rows, strict=True) if id(row) in gone)
    kept = [a for a, row in zip(advantages, rows.rows, strict=True) if id(row) not in gone]
    assert_same(kept, per_trace(estimator, Rows(without).batch()))


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -3.7, 1e6])
def test_constant_groups(estimator, reward):
    """Equal rewards give finite advantages, and none at all where siblings are compared."""
    rows = Rows.draw(2, failures=False).rewards(lambda _: reward)
    rows = rows.changed(values=lambda row: [0.0] * len(row["mask"]), kl=lambda row: [0.0] * len(row["mask"]))
    data = rows.batch()
    advantages = estimator(data)
    assert np.isfinite(advantages).all()
    compares = not isinstance(estimator, GAE | ReinforcePlusPlus)
    if compares and estimator.level == "trace":
        several = data.grouping.sizes[data.grouping.group_of_trace] > 1
        assert not advantages[several].any()


@pytest.mark.parametrize("seed", range(4))
def test_shift(estimator, seed):
    """Adding one number to all rewards changes nothing, where an estimator says so."""
    if not estimator.shift_invariant:
        pytest.skip("makes no such promise")
    rows = Rows.draw(seed)
    data = rows.batch()
    moved = per_trace(estimator, rows.rewards(lambda r: r + 64.0).batch())
    chosen = np.ones(len(data), dtype=bool)
    if estimator.lone == "raw":
        chosen = data.grouping.sizes[data.grouping.group_of_trace] != 1
    original = per_trace(estimator, data)
    where = np.flatnonzero(chosen)
    assert_same([moved[i] for i in where], [original[i] for i in where], atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_scale(estimator, seed):
    """Multiplying all rewards scales the advantages alike, or not at all, as the estimator says."""
    if estimator.scaling == "other":
        pytest.skip("makes no such promise")
    rows = Rows.draw(seed)
    data = rows.batch()
    original = per_trace(estimator, data)
    factor = 16.0
    scaled = per_trace(estimator, rows.rewards(lambda r: r * factor).batch())
    wanted = factor if estimator.scaling == "equivariant" else 1.0
    # A lone trajectory's spread is replaced by 1, so that its raw reward keeps its scale. Epsilons are small
    # beside a spread, but not beside components that cancel.
    chosen = np.flatnonzero(data.grouping.sizes[data.grouping.group_of_trace] > 1)
    assert_same([scaled[i] for i in chosen], [original[i] * wanted for i in chosen], rtol=2e-3, atol=1e-3)


def test_lone_members(estimator):
    """The only valid trajectory of a group gets what the estimator says it gets."""
    rows = Rows.draw(5, sizes=(1, 4, 1), failures=False)
    data = rows.batch()
    lone = data.grouping.sizes[data.grouping.group_of_trace] == 1
    advantages = per_trace(estimator, data)
    for i in np.flatnonzero(lone):
        if estimator.lone == "raw":
            assert advantages[i].tolist() == [data.reward[i]]
        elif estimator.lone == "zero" and (data.trajectory == data.trajectory[i]).sum() == 1:
            np.testing.assert_allclose(advantages[i], 0.0, atol=1e-12)
        else:
            assert np.isfinite(advantages[i]).all()


def test_one_outlier_stays_bounded(estimator):
    """One success in a large group is a large advantage, never a million."""
    rows = [
        {
            "reward": float(i == 0),
            "group": 0,
            "trajectory": i,
            "trace": 0,
            "valid": True,
            "mask": [1, 1],
            "kl": [0.0, 0.0],
            "values": [0.0, 0.0],
            **{name: float(i == 0) for name in NAMES},
        }
        for i in range(27)
    ]
    advantages = estimator(Rows(rows).batch())
    assert np.abs(advantages).max() <= 6
    assert advantages[0] > 0


def test_says_what_it_is(estimator):
    """Formula, source and differences are there for the documentation; components are named."""
    assert estimator.formula
    assert estimator.source
    assert all(isinstance(line, str) for line in estimator.differences)
    assert type(estimator).__doc__
    assert dataclasses.is_dataclass(estimator)
    assert set(estimator.components) <= set(NAMES)
    assert (estimator.components == NAMES) == isinstance(estimator, GDPO | DVAO)
