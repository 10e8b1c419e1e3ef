"""What was removed is compared with the rest: planted differences are found, absent ones are not."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest

from analysis.stats.numbers import cliffs_delta, cluster_bootstrap, total_variation, wilson_interval
from analysis.stats.rejections import survivorship
from tests.analysis.stats.builder import RunBuilder, same, untouched


def _builder(*, longer: float, rejected_share: float = 0.3, groups: int = 60, tasks: int = 6) -> RunBuilder:
    """Rejected groups have responses that are longer by a factor; everything else is alike."""
    rng = random.Random(1)
    builder = RunBuilder()
    for number in range(groups):
        rejected = rng.random() < rejected_share
        factor = longer if rejected else 1.0
        builder.group(
            [float(rng.random() < 0.5) for _ in range(4)],
            accepted=not rejected,
            reject_reason="too_stale" if rejected else None,
            prompt=str(number % tasks),
            sessions=[
                {"response_tokens": int(factor * rng.randint(50, 150)), "e2e_ms": rng.uniform(100, 900)}
                for _ in range(4)
            ],
        )
    return builder


def test_a_planted_length_bias_is_found_with_its_size() -> None:
    """Rejection of long groups: large effect, negative bias, intervals away from 0; the rest unmoved."""
    builder = _builder(longer=2.0)
    found = survivorship(builder.tables(), replicates=300).effects.set_index(["mechanism", "quantity"])
    row = found.loc[("group: too_stale", "response_tokens")]
    rows = builder.rows["session"]
    removed = [r["response_tokens"] for r in rows if not r["accepted"]]
    others = [r["response_tokens"] for r in rows if r["accepted"]]
    by_hand = sum((a > b) - (a < b) for a in removed for b in others) / len(removed) / len(others)
    assert row["effect"] == pytest.approx(by_hand)
    assert row["effect_low"] > 0.4
    assert row["bias"] == pytest.approx(np.mean(others) - np.mean(removed + others))
    assert row["bias_low"] < row["bias"] < row["bias_high"] < 0
    for quantity in ("seconds", "reward"):
        plain = found.loc[("group: too_stale", quantity)]
        assert plain["effect_low"] < 0 < plain["effect_high"], quantity
    assert found.loc[("all", "response_tokens"), "removed"] == len(removed)


def test_tasks_that_are_rejected_more_often_show() -> None:
    """Two of six tasks are always rejected: far more than random removal would do."""
    builder = _builder(longer=1.0, rejected_share=0.0)
    for number in range(60):
        if number % 6 < 2:
            for table in ("group", "session"):
                for row in builder.rows[table]:
                    if row["group"] == number:
                        row.update(accepted=False, reject_reason="failed_task")
                        row["state" if table == "group" else "group_state"] = "rejected"
    found = survivorship(builder.tables(), replicates=200).effects.set_index(["mechanism", "quantity"])
    assert found.loc[("all", "task"), "effect_low"] > 0.3
    fair = survivorship(_builder(longer=1.0).tables(), replicates=200).effects
    task = fair[(fair["quantity"] == "task") & (fair["mechanism"] == "all")].iloc[0]
    assert task["effect"] < 0.2


def test_mechanisms_are_told_apart() -> None:
    """Sessions that gave nothing stand beside rejected groups; one group gives no interval."""
    builder = _builder(longer=1.0)
    bad = {"usable": False, "completed": False, "reason": "timeout"}
    builder.group([1.0, None], sessions=[{}, bad])
    found = survivorship(builder.tables(), replicates=50)
    names = set(found.effects["mechanism"])
    assert names == {"all", "group: too_stale", "session: timeout"}
    lone = found.effects[found.effects["mechanism"] == "session: timeout"]
    assert lone["effect_low"][lone["quantity"] != "task"].isna().all()
    assert (
        found.sessions["mechanism"].notna().sum()
        == lone["removed"].max()
        + found.effects.set_index(["mechanism", "quantity"]).loc[
            ("group: too_stale", "response_tokens"), "removed"
        ]
    )


def test_what_removed_a_session_is_no_difference_of_it() -> None:
    """Sessions that gave nothing to train on have 0 trainable tokens for that reason: not compared."""
    builder = _builder(longer=1.0)
    bad = {"usable": False, "completed": False, "reason": "failed", "trainable_tokens": 0}
    for _ in range(5):
        builder.group([1.0, None], sessions=[{}, bad])
    effects = survivorship(builder.tables(), replicates=50).effects.set_index(["mechanism", "quantity"])
    assert effects.loc[("session: failed", "trainable_tokens"), "removed"] == 0
    assert pd.isna(effects.loc[("session: failed", "trainable_tokens"), "effect"])
    assert effects.loc[("session: failed", "response_tokens"), "removed"] == 5


def test_nothing_removed_and_nothing_at_all() -> None:
    """A run without losses has no mechanism; an empty run has empty frames; nothing is changed."""
    tables = _builder(longer=1.0, rejected_share=0.0).tables()
    before = untouched(tables)
    clean = survivorship(tables)
    same(before, tables)
    assert clean.effects.empty
    assert len(clean.sessions) == 240
    assert survivorship({}).effects.empty
    assert str(survivorship({}).effects["effect"].dtype) == "Float64"


class TestNumbers:
    """The small statistics underneath, against plain Python."""

    @pytest.mark.parametrize("seed", range(4))
    def test_cliffs_delta_equals_all_pairs(self, seed: int) -> None:
        """Ties count for neither side."""
        rng = np.random.default_rng(seed)
        a, b = rng.integers(0, 5, 30).astype(float), rng.integers(1, 6, 20).astype(float)
        pairs = [(x, y) for x in a.tolist() for y in b.tolist()]
        expected = sum((x > y) - (x < y) for x, y in pairs) / len(pairs)
        assert cliffs_delta(a, b) == pytest.approx(expected)
        assert np.isnan(cliffs_delta(a, np.zeros(0)))

    def test_wilson_interval_known_values(self) -> None:
        """Ten of ten, none of ten, half of a hundred, against the published formula worked by hand."""
        assert wilson_interval(10, 10) == pytest.approx((0.722467, 1.0), abs=1e-6)
        assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
        assert wilson_interval(50, 100) == pytest.approx((0.403832, 0.596168), abs=1e-6)
        assert all(np.isnan(wilson_interval(0, 0)))

    def test_bootstrap_draws_whole_clusters(self) -> None:
        """Rows of a cluster come and go together, and each draw holds as many clusters as there are."""
        clusters = np.array([0, 0, 1, 2, 2, 2])
        times = cluster_bootstrap(clusters, 50, 0)
        assert (times[:, 0] == times[:, 1]).all()
        assert (times[:, 3] == times[:, 5]).all()
        assert (times[:, [0, 2, 3]].sum(axis=1) == 3).all()
        assert cluster_bootstrap(np.zeros(0, int), 3, 0).shape == (3, 0)

    def test_total_variation(self) -> None:
        """Half the sum of differences; missing where a side is empty."""
        assert total_variation(np.array([1.0, 1.0]), np.array([2.0, 0.0])) == 0.5
        assert np.isnan(total_variation(np.zeros(2), np.ones(2)))
