"""With the recorded settings history repeats itself; with others, the bridge's own code says what changes."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.stats.configuration import polar_config
from analysis.stats.rejections import all_correct, all_wrong, constant_rewards, replay
from slime_bridge.acceptance import Accepted, judge, too_stale
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.filters import TrainerFilters
from tests.analysis.stats.builder import RunBuilder, same, untouched

FRACTION = 0.6


def _session(rng: random.Random, position: int) -> SessionOutcome:
    """A session of any kind that the conversion makes."""
    kind = rng.choice(
        [
            "good",
            "good",
            "good",
            "masked",
            "failed",
            "traceless",
            "stopped",
            "no_ids",
            "logprobs",
            "no_reward",
        ]
    )
    usable = kind in ("good", "no_reward")
    tokens = rng.randint(1, 50) if usable else 0
    return SessionOutcome(
        position=position,
        session_id=f"{rng.random()}",
        status={"failed": "ERROR", "traceless": "TIMEOUT", "stopped": "CANCELLED"}.get(kind, "COMPLETED"),
        completed=kind not in ("failed", "traceless", "stopped"),
        usable=usable,
        trainable_tokens=tokens,
        response_tokens=tokens * 2,
        n_traces=0 if kind in ("traceless", "stopped", "no_ids") else 1,
        dropped_traces=1 if kind == "no_ids" else 0,
        missing_rewards=1 if kind == "no_reward" else 0,
        reward=float(rng.random() < 0.5) if kind == "good" else float("nan"),
        reason={
            "masked": "zero_trainable",
            "failed": "failed",
            "traceless": "timeout",
            "stopped": "early_stopped",
            "no_ids": "no_token_ids",
            "logprobs": "logprob_error",
        }.get(kind),
        early_stopped=kind == "stopped",
    )


def _add(
    builder: RunBuilder,
    outcomes: list[SessionOutcome],
    settings: Any,
    *,
    staleness: int = 0,
    rollout: int = 0,
) -> str:
    """Judge a group as the bridge does and enter it as loading would; return its verdict."""
    verdict = judge(GroupConversion([], outcomes), settings=settings)
    if isinstance(verdict, Accepted) and staleness > settings.max_staleness:
        numbers = too_stale(staleness, settings.max_staleness).numbers
        fate: dict[str, Any] = {"accepted": False, "reject_reason": "too_stale", "verdict": "accepted"}
    elif isinstance(verdict, Accepted):
        numbers, fate = verdict.numbers, {"accepted": True, "verdict": "accepted", "staleness": staleness}
    else:
        numbers, fate = verdict.numbers, {"accepted": False, "reject_reason": str(verdict.reason)}
    rows = [
        {
            "session_id": o.session_id,
            "status": o.status,
            "completed": o.completed,
            "usable": o.usable,
            "early_stopped": o.early_stopped,
            "trainable_tokens": o.trainable_tokens,
            "response_tokens": o.response_tokens,
            "kept_traces": o.n_traces,
            "dropped_traces": o.dropped_traces,
            "missing_rewards": o.missing_rewards,
            "reason": o.reason,
        }
        for o in outcomes
    ]
    number = builder.group(
        [o.reward for o in outcomes],
        sessions=rows,
        rollout_id=rollout,
        verdict_numbers=json.dumps(numbers),
        **fate,
    )
    return str(builder.rows["group"][number].get("reject_reason") or "accepted")


def _run(seed: int, groups: int = 60) -> tuple[RunBuilder, list[str]]:
    rng = random.Random(seed)
    settings = polar_config({"min_complete_accept_fraction": FRACTION, "max_async_level": 2})
    builder = RunBuilder(min_complete_accept_fraction=FRACTION, max_async_level=2, update_weights_interval=1)
    verdicts = [
        _add(
            builder,
            [_session(rng, position) for position in range(rng.randint(1, 8))],
            settings,
            staleness=rng.randint(0, 4),
            rollout=number // 6,
        )
        for number in range(groups)
    ]
    return builder, verdicts


class TestHistory:
    """The recorded settings."""

    @pytest.mark.parametrize("seed", range(6))
    def test_every_verdict_is_reproduced(self, seed: int) -> None:
        """Reasons and deciding numbers of random groups of every kind, exactly."""
        builder, verdicts = _run(seed)
        again = replay(builder.tables())
        assert again.exact
        assert len(set(verdicts)) >= 4
        assert again.groups["replayed_reason"].fillna("accepted").tolist() == verdicts
        there = again.groups["reason"] != "too_stale"
        assert again.groups["numbers_match"][there.fillna(True)].all()
        assert (again.summary["difference"].astype(float) == 0).all()

    def test_a_changed_record_is_noticed(self) -> None:
        """A session that is not what the journal counted makes its group a mismatch."""
        builder = RunBuilder(min_complete_accept_fraction=1.0)
        _add(
            builder,
            [SessionOutcome(0, "a", completed=True, usable=True, trainable_tokens=3, n_traces=1)],
            polar_config({"min_complete_accept_fraction": 1.0}),
        )
        builder.rows["session"][0]["usable"] = False
        again = replay(builder.tables())
        assert not again.exact
        assert again.mismatches["replayed_reason"].tolist() == ["low_complete_fraction"]
        assert again.groups["numbers_match"].tolist() == [False]

    @pytest.mark.parametrize("seed", range(3))
    def test_complete_batches_are_pruned_again(self, seed: int) -> None:
        """All-wrong groups go, all-correct ones are thinned out by the rollout's seed, as the bridge did."""
        rng = random.Random(seed)
        settings = {"drop_all_wrong_groups": True, "balance_all_correct_groups": True}
        config = polar_config(settings)
        builder = RunBuilder(**settings)
        for rollout in range(6):
            batch = []
            for _ in range(6):
                chance = rng.choice([0.0, 0.5, 1.0])
                batch.append(
                    [
                        SessionOutcome(
                            p,
                            f"{rng.random()}",
                            "COMPLETED",
                            completed=True,
                            usable=True,
                            trainable_tokens=3,
                            n_traces=1,
                            reward=float(rng.random() < chance),
                        )
                        for p in range(3)
                    ]
                )
            dropped = TrainerFilters(config, None).surplus(batch, rollout)
            for place, outcomes in enumerate(batch):
                _add(builder, outcomes, config, rollout=rollout)
                if place in dropped:
                    row = builder.rows["group"][-1]
                    row.update(state="rejected", accepted=False, reject_reason=str(dropped[place].reason))
        again = replay(builder.tables())
        assert again.exact
        assert set(again.groups["reason"].dropna()) == {"all_wrong", "all_correct"}
        plain = replay(
            builder.tables(), {"drop_all_wrong_groups": False, "balance_all_correct_groups": False}
        )
        assert plain.groups["replayed_accepted"].all()

    def test_what_the_trainers_filter_dropped_stays_dropped(self) -> None:
        """Its code is not here; without it the group would have been accepted."""
        builder = RunBuilder(dynamic_sampling_filter_path="not.here.filter")
        good = SessionOutcome(0, "a", completed=True, usable=True, trainable_tokens=3, n_traces=1)
        _add(builder, [good], polar_config({}))
        builder.rows["group"][0].update(state="rejected", accepted=False, reject_reason="filtered")
        assert replay(builder.tables()).exact
        without = replay(builder.tables(), {"dynamic_sampling_filter_path": None})
        assert without.groups["replayed_accepted"].tolist() == [True]

    def test_each_worker_is_judged_by_its_own_settings(self) -> None:
        """After a restart with another fraction the old groups keep the old one."""
        strict, loose = ({"min_complete_accept_fraction": f} for f in (1.0, 0.0))
        half = [
            SessionOutcome(0, "a", completed=True, usable=True, trainable_tokens=3, n_traces=1),
            SessionOutcome(1, "b", completed=False, n_traces=1, reason="failed"),
        ]
        builder = RunBuilder(**strict)
        _add(builder, half, polar_config(strict))
        builder.worker = "journal.jsonl#1"
        builder.event("journal_opened", 5.0, config=loose, versions={}, pid=2)
        _add(builder, half, polar_config(loose))
        again = replay(builder.tables())
        assert again.exact
        assert again.groups["accepted"].tolist() == [False, True]


class TestOtherSettings:
    """What would have been."""

    def test_a_lower_fraction_accepts_what_was_rejected_for_it(self) -> None:
        """Only groups that lacked complete sessions flip, and all that have enough do."""
        builder, _ = _run(1)
        again = replay(builder.tables(), {"polar_min_complete_accept_fraction": 0.0})
        flipped = again.mismatches
        assert set(flipped["reason"]) <= {
            "low_complete_fraction",
            "logprob_error",
            "no_token_ids",
            "too_stale",
        }
        assert (
            flipped["replayed_accepted"] | (flipped["replayed_reason"].fillna("") == "too_stale").astype(bool)
        ).all()
        summary = again.summary.set_index("quantity")
        assert summary.loc["groups", "after"] > summary.loc["groups", "before"]
        assert summary.loc["judged_groups", "difference"] == 0

    def test_staleness_bounds_cut_both_ways(self) -> None:
        """A tighter bound rejects what was delivered late, a wider one takes back what was too old."""
        builder, verdicts = _run(2)
        wider = replay(builder.tables(), {"max_async_level": 10})
        assert set(wider.mismatches["reason"]) == {"too_stale"}
        assert len(wider.mismatches) == verdicts.count("too_stale")
        tighter = replay(builder.tables(), {"max_async_level": 1, "update_weights_interval": 1})
        lag = tighter.groups["staleness"]
        newly = tighter.groups["accepted"] & (lag > 2)
        assert newly.sum() > 0
        assert set(tighter.groups["replayed_reason"][newly]) == {"too_stale"}

    def test_missing_rewards_may_be_rejected(self) -> None:
        """Under `reject` a session without a reward is not usable, as the conversion would have made it."""
        builder = RunBuilder(min_complete_accept_fraction=1.0)
        lost = SessionOutcome(
            0, "a", completed=True, usable=True, trainable_tokens=3, n_traces=1, missing_rewards=1
        )
        _add(builder, [lost], polar_config({"min_complete_accept_fraction": 1.0}))
        again = replay(builder.tables(), {"missing_reward": "reject"})
        assert again.groups["replayed_reason"].tolist() == ["missing_reward"]

    def test_filters_are_asked_last_and_by_name(self) -> None:
        """Groups without variance, all right, all wrong."""
        builder = RunBuilder()
        for rewards in ([1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.5, 0.5]):
            builder.group(rewards)
        tables = builder.tables()
        constant = replay(tables, filters={"constant": constant_rewards})
        assert constant.groups["replayed_accepted"].tolist() == [False, False, True, False]
        both = replay(tables, filters={"wrong": all_wrong, "right": all_correct})
        assert both.groups["replayed_reason"].fillna("").tolist() == ["right", "wrong", "", "wrong"]

    def test_shift_of_difficulty_has_an_interval(self) -> None:
        """Throwing away failures raises the mean reward; the interval holds the difference and not 0."""
        builder = RunBuilder()
        rng = random.Random(5)
        for _ in range(80):
            builder.group([float(rng.random() < 0.3) for _ in range(4)])
        shift = replay(builder.tables(), filters={"wrong": all_wrong}).shift.set_index("quantity")
        row = shift.loc["reward_mean"]
        assert 0 < row["low"] <= row["difference"] <= row["high"]
        assert shift.loc["staleness", "difference"] == 0

    def test_what_cannot_be_judged_keeps_its_fate(self) -> None:
        """A group that was stopped before its result has no sessions: unknown, and rejected as it was."""
        builder = RunBuilder()
        builder.group(
            [], accepted=False, reject_reason="too_stale", verdict=None, verdict_numbers='{"staleness": 9}'
        )
        again = replay(builder.tables(), {"max_async_level": 50})
        assert again.groups["unknown"].tolist() == [True]
        assert again.groups["replayed_accepted"].isna().tolist() == [True]
        assert again.exact

    def test_too_old_in_flight_comes_before_content(self) -> None:
        """Nobody judged the content of a group that grew too old in flight, though its sessions are known."""
        builder = RunBuilder(min_complete_accept_fraction=0.9, max_async_level=2, update_weights_interval=1)
        builder.group(
            [1.0, 0.0, 0.0, 0.0],
            sessions=[{"usable": False, "completed": False}, {}, {}, {}],
            accepted=False,
            reject_reason="too_stale",
            verdict=None,
            verdict_numbers='{"staleness": 4, "max_staleness": 3}',
        )
        again = replay(builder.tables())
        assert again.exact
        assert again.groups["replayed_reason"].tolist() == ["too_stale"]
        wider = replay(builder.tables(), {"max_async_level": 50})
        assert wider.groups["replayed_reason"].tolist() == ["low_complete_fraction"]

    def test_unknown_settings_and_empty_runs(self) -> None:
        """A misspelt setting is an error; no groups give empty frames and missing shifts."""
        with pytest.raises(StatsError, match="fracton"):
            replay({}, {"polar_min_complete_fracton": 0.5})
        empty = replay({})
        assert empty.exact
        assert len(empty.groups) == 0
        assert empty.shift["difference"].isna().all()

    def test_a_ready_configuration_and_the_run_left_alone(self) -> None:
        """The bridge's own configuration object is taken as it is."""
        builder, _ = _run(3, groups=10)
        tables = builder.tables()
        before = untouched(tables)
        wanted = polar_config({}, {"min_complete_accept_fraction": 1.0})
        again = replay(tables, wanted)
        same(before, tables)
        kept = again.groups[again.groups["replayed_accepted"].fillna(False).to_numpy(dtype=bool)]
        assert np.all(kept["usable_sessions"] == kept["sessions"])
