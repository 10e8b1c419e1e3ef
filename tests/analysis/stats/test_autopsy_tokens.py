"""Groups under estimators that give numbers per token: means that say so, and what each token gets."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stats.advantages import autopsy, recompute
from slime_bridge.advantages import ReinforcePlusPlus
from slime_bridge.errors import AdvantageError
from tests.analysis.stats.builder import RunBuilder

ESTIMATOR = ReinforcePlusPlus(gamma=0.5, normalize=False)


def _builder(rollout_id: int = 3) -> RunBuilder:
    """A group of another rollout, then one of two sessions: three tokens, and two traces of two and one."""
    builder = RunBuilder()
    builder.group([0.0, 1.0], tokens=2, sessions=[{"traces": [{"lists": _lists(2)}]}] * 2)
    three = {"trainable_tokens": 3, "response_tokens": 3, "lists": _lists(3)}
    two = {"trainable_tokens": 1, "response_tokens": 2, "lists": {"response": [7, 8], "mask": [1, 0]}}
    one = {"trainable_tokens": 1, "response_tokens": 1, "lists": _lists(1)}
    builder.group([1.0, 4.0], rollout_id=rollout_id, sessions=[{"traces": [three]}, {"traces": [two, one]}])
    return builder


def _lists(count: int) -> dict[str, list[int]]:
    return {"response": list(range(10, 10 + count)), "mask": [1] * count}


def test_tables_hold_means_and_tokens_their_own_share() -> None:
    """A reward of 1 discounted by half per token; each token over the trainable tokens of its trajectory."""
    tables = _builder().tables()
    found = autopsy(tables, 1, ESTIMATOR)
    assert found.formula.endswith("advantages are means over each trace's trainable tokens")
    expected = recompute(tables, ESTIMATOR)["advantage"].tolist()[2:]
    assert found.traces["advantage"].tolist() == pytest.approx(expected)
    assert expected == pytest.approx([(0.25 + 0.5 + 1.0) / 3, 4.0, 4.0])
    assert found.tokens["weight"].tolist() == pytest.approx([0.25 / 3, 0.5 / 3, 1 / 3, 4 / 2, 0.0, 4 / 2])
    assert found.traces.columns.isin(["place", "owner", "row"]).sum() == 0
    by_trace = found.tokens.groupby(["session_id", "trace_index"], sort=False)["weight"].sum()
    assert by_trace.tolist() == pytest.approx(found.traces["pull"].tolist())


def test_it_sees_the_whole_rollout() -> None:
    """Whitened over the batch: with the other group in the same rollout the numbers are others."""
    whitened = ReinforcePlusPlus()
    alone = autopsy(_builder().tables(), 1, whitened).traces["advantage"].to_numpy(dtype=float)
    together = autopsy(_builder(rollout_id=0).tables(), 1, whitened).traces["advantage"].to_numpy(dtype=float)
    assert np.abs(alone - together).min() > 0.01
    tables = _builder(rollout_id=0).tables()
    assert together == pytest.approx(recompute(tables, whitened)["advantage"].to_numpy(dtype=float)[2:])


def test_what_is_lacking_is_named() -> None:
    """Values that no dump holds, or no token arrays at all."""
    with pytest.raises(AdvantageError, match="GAE"):
        autopsy(_builder().tables(), 1, "gae")
    builder = RunBuilder()
    builder.group([1.0, 0.0])
    with pytest.raises(AdvantageError, match="per-token"):
        autopsy(builder.tables(), 0, ESTIMATOR)
