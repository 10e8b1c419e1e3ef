"""The table at the end of a run: right numbers, dashes where there are none, and the shipped captures."""

from __future__ import annotations

import math
from typing import Any

import pytest

from analysis.lab.captures import CAPTURES, convert_captures
from analysis.lab.summary import format_summary, summarise


def _rollout(rollout_id: int, reward: float | None, **changes: Any) -> dict[str, Any]:
    base = {
        "kind": "rollout",
        "rollout_id": rollout_id,
        "lab/reward_mean": reward,
        "lab/groups": 4.0,
        "lab/usable_sessions": 30.0,
        "lab/trainable_tokens": 400.0,
        "lab/lag_mean": 1.0,
        "lab/lag_max": 2.0,
        "lab/token_lag_mean": 0.5,
        "lab/endings": {"completed": 30, "timeout": 2},
        "perf/step_time": 2.0,
    }
    return base | changes


def test_summary_adds_up_what_the_run_wrote() -> None:
    """Counts are sums, the last reward is the mean of five rollouts, lag weighs sessions."""
    records = [{"kind": "evaluation", "rollout_id": 0, "lab/reward_mean": 0.3}]
    records += [_rollout(i, 0.1 * i) for i in range(7)]
    records[1] |= {"lab/usable_sessions": 90.0, "lab/lag_mean": 3.0, "lab/lag_max": 4.0}
    records.append({"kind": "evaluation", "rollout_id": 7, "lab/reward_mean": 0.9})
    summary = summarise(records, {"too_stale": 1, "low_complete_fraction": 3}, wall_seconds=83.0)
    assert summary.rollouts == 7
    assert summary.reward_first == 0.0
    assert summary.reward_last == pytest.approx(0.4)
    assert (summary.eval_before, summary.eval_after) == (0.3, 0.9)
    assert summary.accepted == 28
    assert list(summary.rejected.items()) == [("low_complete_fraction", 3), ("too_stale", 1)]
    assert summary.endings == {"completed": 210, "timeout": 14}
    assert summary.lag_mean == pytest.approx((90 * 3 + 6 * 30) / (90 + 180))
    assert summary.lag_max == 4.0
    assert summary.tokens == 2800
    assert summary.tokens_per_second == pytest.approx(200.0)


def test_table_names_every_number() -> None:
    """Each row of the table is there, with thousands separated and reasons spelt out."""
    text = format_summary(summarise([_rollout(0, 0.25)], {"too_stale": 2}, wall_seconds=83.0))
    rows = {line[2:40].split("  ")[0]: line for line in text.splitlines()}
    assert rows["reward, first rollout"].endswith("0.250")
    assert rows["groups rejected"].endswith("2 (too stale 2)")
    assert rows["sessions in accepted groups"].endswith("32 (completed 30, timeout 2)")
    assert rows["policy lag, mean / max"].endswith("1.00 / 2")
    assert rows["wall time"].endswith("1:23")
    assert rows["trained tokens"].endswith("400 (200 per second of training)")


def test_unknown_numbers_are_dashes() -> None:
    """A run that was cut short has a table too; nothing unknown is shown as zero."""
    empty = summarise([], {})
    assert empty.rollouts == 0
    assert math.isnan(empty.reward_first)
    text = format_summary(empty)
    assert "nan" not in text
    assert "reward, first rollout" in text
    partial = summarise(
        [{"kind": "evaluation", "rollout_id": 0, "lab/reward_mean": 0.3}, _rollout(0, None)], {}
    )
    assert partial.eval_before == 0.3
    assert math.isnan(partial.eval_after)
    assert math.isnan(partial.reward_last)


def test_captures_give_the_known_numbers() -> None:
    """Real Polar output through the bridge: counts, kept zeros, and why no token ids means no training."""
    small, long, bare = convert_captures()
    assert [report.name for report in (small, long, bare)] == list(CAPTURES)
    assert (small.samples, small.tokens, small.response_tokens, small.trainable_tokens) == (1, 2883, 149, 119)
    assert (long.samples, long.tokens, long.response_tokens, long.trainable_tokens) == (1, 18768, 15803, 8506)
    assert long.zero_logprobs == 2119
    assert (small.rejected, long.rejected) == (None, None)
    assert bare.placeholder
    assert (bare.samples, bare.tokens, bare.trainable_tokens) == (1, 0, 0)
    assert bare.rejected == "no_token_ids"
    text = format_summary(summarise([], {}), [small, long, bare])
    assert "1 sample, 2,883 tokens, 149 response, 119 trainable" in text
    assert "8,506 trainable, 2,119 zero logprobs kept" in text
    assert "1 placeholder, group rejected: no token ids" in text
    # They are no part of the run that they are printed under.
    assert "not of this run" in text
