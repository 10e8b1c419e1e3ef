"""Estimators of the user's in the explorers: one that fails is an error in its place, and the rest lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

import analysis
from analysis.explorers.explore import RunView
from analysis.lab.run_folder import RunFolder
from analysis.stats.advantages import recompute
from analysis.stats.autopsy import TOKEN_MEANS
from slime_bridge.advantages import RewardBatch
from tests.analysis.explorers.made_runs import HOSTILE, small_run


def raises(batch: RewardBatch) -> Any:
    raise ValueError(HOSTILE)


def ends_the_process(batch: RewardBatch) -> Any:
    raise SystemExit(3)


def not_numbers(batch: RewardBatch) -> Any:
    return np.full(len(batch), np.nan)


def too_few(batch: RewardBatch) -> Any:
    return np.zeros(1)


def nothing(batch: RewardBatch) -> Any:
    return None


class PerToken:
    """As many numbers as tokens: 1, 2, 3 and so on, from the first of each batch."""

    level = "token"

    def __call__(self, batch: RewardBatch) -> Any:
        assert batch.tokens is not None
        return np.arange(1.0, batch.tokens.offsets[-1] + 1)


def shown(explorer: RunView) -> str:
    """All that is said anywhere in it."""
    groups = explorer.groups
    return groups.note.value + groups.autopsy.heading.value + explorer.session.head.value


@pytest.mark.parametrize(
    ("estimator", "told"),
    [
        (raises, "raises failed: ValueError"),
        (ends_the_process, "SystemExit"),
        (not_numbers, "returned nan"),
        (too_few, "returned shape (1,)"),
        (nothing, "returned shape ()"),
        (PerToken(), "needs per-token arrays"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_one_that_fails_is_an_error_in_its_place(estimator: Callable[..., Any], told: str) -> None:
    explorer = analysis.explore(small_run(), estimators={"mine": estimator}, session_id="s-0-1")
    for choice in ("mine", "grpo", "mine"):
        explorer.groups.estimator.value = choice
        failed = choice == "mine"
        for place in (explorer.groups.note, explorer.groups.autopsy.heading):
            assert (told in place.value) == ('class="wb-error" role="alert"' in place.value) == failed
        assert explorer.groups.autopsy.selection.empty == failed
        assert explorer.groups.table.frame["advantage"].isna().all() == failed
        assert len(explorer.groups.table.frame) == 6
    assert "<img" not in shown(explorer)
    # What does not ask for advantages goes on.
    explorer.overview.chart.brush = [2, 2]
    explorer.groups.table.selected = [1]
    assert explorer.state.group.group == 5
    assert explorer.error_text() == explorer.groups.error_text() == explorer.session.error_text() == ""
    explorer.close()


def test_one_that_gives_numbers_per_token_is_shown_by_their_means(embedded: RunFolder) -> None:
    run = analysis.load(embedded.root)
    explorer = analysis.explore(run, estimators={"per token": PerToken()}, group=0)
    explorer.groups.estimator.value = "per token"
    assert f"per token gives numbers per token: {escape(TOKEN_MEANS)}" in explorer.groups.note.value
    expected = recompute(run, PerToken())
    largest = expected.assign(size=expected["advantage"].abs()).groupby("group", sort=False)["size"].max()
    frame = explorer.groups.table.frame.set_index("number")["advantage"]
    assert np.isfinite(frame[0])
    np.testing.assert_allclose(frame[0], largest[0])
    assert escape(TOKEN_MEANS) in explorer.groups.autopsy.heading.value
    own = explorer.groups.autopsy.selection.set_index("session_id")["advantage"].dropna()
    means = expected.query("group == 0").groupby("session_id")["advantage"].mean()
    np.testing.assert_allclose(own, means[own.index])
    assert len(own) > 1
    explorer.groups.estimator.value = "grpo"
    assert explorer.groups.note.value == ""
    explorer.close()
