"""Other settings on recorded arrivals: predictions against runs that other code simulated with new noise."""

from __future__ import annotations

import random

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.stats._engine import Engine, fitted_contention, works_of
from analysis.stats.staleness import whatif
from tests.analysis.stats.builder import same, untouched
from tests.analysis.stats.recorded import recorded_run


@pytest.fixture(scope="module")
def record() -> dict:
    """A run at level 2."""
    return recorded_run(2, seed=1)[0]


class TestPrediction:
    """Within ten percent of a held-out run's step time."""

    def test_the_recorded_settings_give_the_recorded_run(self, record: dict) -> None:
        """The same arrivals in the same order: lag for lag, and the step time too."""
        found = whatif(record)
        assert abs(float(found.calibration["relative_error"].iloc[0])) < 0.001
        assert found.lags["replayed"].tolist() == pytest.approx(found.lags["recorded"].tolist(), abs=0.02)
        summary = found.summary.set_index("quantity")
        for name in ("step_seconds", "wait_seconds", "lag_mean", "delivered_groups"):
            assert summary.loc[name, "replayed"] == pytest.approx(summary.loc[name, "recorded"], rel=0.02), (
                name
            )
        assert summary.loc["step_seconds", "change"] == 0

    @pytest.mark.parametrize("level", [1, 3, 4])
    def test_another_async_level(self, record: dict, level: int) -> None:
        """A held-out run at that level, with noise of its own."""
        predicted = whatif(record, async_level=level)
        _, actual = recorded_run(level, seed=100 + level)
        assert predicted.step_seconds == pytest.approx(actual, rel=0.10)

    def test_early_stop(self, record: dict) -> None:
        """Stragglers stopped once four sessions are usable, in a run that did not stop any."""
        predicted = whatif(record, early_stop=True)
        _, actual = recorded_run(2, seed=200, early_stop=4)
        assert predicted.step_seconds == pytest.approx(actual, rel=0.10)
        assert predicted.step_seconds < 0.9 * whatif(record).step_seconds
        assert predicted.summary.set_index("quantity").loc["stopped_sessions", "simulated"] > 0

    def test_a_tighter_bound_wastes_more(self, record: dict) -> None:
        """Lag above the bound is never delivered; what was too old shows up as waste."""
        found = whatif(record, async_level=4, max_staleness=1)
        assert found.lags["lag"][found.lags["simulated"] > 0].max() <= 1
        rows = found.waste.set_index("fate")
        assert rows.loc["too_stale", "groups"] > 0
        loose = whatif(record, async_level=4, max_staleness=99)
        assert "too_stale" not in set(loose.waste["fate"])
        assert found.step_seconds > loose.step_seconds

    def test_accounts_add_up(self, record: dict) -> None:
        """Every rollout is served once, in order, with the batch it asked for."""
        found = whatif(record, async_level=3)
        assert found.rollouts["rollout_id"].tolist() == list(range(120))
        assert (found.rollouts["delivered"] >= found.rollouts["requested"]).all()
        rows = found.waste.set_index("fate")
        assert rows.loc["delivered", "groups"] == 120 * 4
        assert found.lags["simulated"].sum() == pytest.approx(1.0)
        assert found.rollouts["step_seconds"].mean() == pytest.approx(found.step_seconds)


class TestTrainer:
    """How the trainer is modelled."""

    def test_one_ahead_overlaps_training_and_collection(self, record: dict) -> None:
        """A trainer that collects while it trains is never slower, and is bounded by the slower of both."""
        sequential = whatif(record, train_seconds=4.0).step_seconds
        ahead = whatif(record, trainer="one_ahead", train_seconds=4.0).step_seconds
        assert 4.0 * 0.97 <= ahead < sequential

    def test_longer_training_hides_collection(self, record: dict) -> None:
        """With training that takes for ever the wait vanishes."""
        found = whatif(record, train_seconds=200.0).summary.set_index("quantity")
        assert found.loc["wait_share", "simulated"] < 0.05


class TestEngine:
    """Sessions that share a pace."""

    @pytest.mark.parametrize("contention", [0.0, 0.4, 1.0])
    def test_ends_equal_a_fine_grained_loop(self, contention: float) -> None:
        """Against stepping through time in small steps."""
        rng = random.Random(3)
        jobs = [(rng.uniform(0, 5), rng.uniform(0.5, 3)) for _ in range(8)]
        engine = Engine(contention)
        ends: dict[int, float] = {}
        pending = sorted((start, n) for n, (start, _) in enumerate(jobs))
        while len(ends) < len(jobs):
            due = pending[0][0] if pending else float("inf")
            if engine.next_end() <= due:
                engine.advance(engine.next_end())
                ends[engine.pop()[1]] = engine.now
            else:
                engine.advance(due)
                number = pending.pop(0)[1]
                engine.submit((0, number), jobs[number][1])
        left, now, step, expected = {n: w for n, (_, w) in enumerate(jobs)}, 0.0, 0.0005, {}
        while left:
            running = [n for n in left if jobs[n][0] <= now]
            for n in running:
                left[n] -= step * len(running) ** -contention
                if left[n] <= 0:
                    del left[n]
                    expected[n] = now
            now += step
        for number, end in expected.items():
            assert ends[number] == pytest.approx(end, abs=0.02)

    def test_slots_queue_and_cancel(self) -> None:
        """One slot: first come, first served; a stopped session makes room at once."""
        engine = Engine(slots=1)
        for number in range(3):
            engine.submit((0, number), 1.0)
        engine.advance(0.5)
        engine.cancel((0, 0))
        assert engine.next_end() == pytest.approx(1.5)
        engine.advance(1.5)
        assert engine.pop() == (0, 1)
        engine.cancel((0, 2))
        engine.cancel((9, 9))
        assert engine.next_end() == float("inf")

    def test_work_and_contention_are_recovered(self) -> None:
        """Durations made with a known exponent give it back, and their work."""
        rng = random.Random(5)
        engine = Engine(0.6)
        starts, ends, works = [], {}, []
        now = 0.0
        for number in range(400):
            now += rng.expovariate(1.2 if number % 100 < 50 else 6.0)
            while engine.next_end() <= now:
                engine.advance(engine.next_end())
                ends[engine.pop()[1]] = engine.now
            engine.advance(now)
            starts.append(now)
            works.append(rng.uniform(0.5, 2.0))
            engine.submit((0, number), works[-1])
        while engine.next_end() < float("inf"):
            engine.advance(engine.next_end())
            ends[engine.pop()[1]] = engine.now
        begin = np.array(starts)
        end = np.array([ends[number] for number in range(400)])
        assert works_of(begin, end, 0.6) == pytest.approx(np.array(works), rel=1e-6)
        assert fitted_contention(begin, end) == pytest.approx(0.6, abs=0.08)
        assert fitted_contention(begin, begin + np.array(works)) < 0.1
        assert fitted_contention(begin[:5], end[:5]) == 0.0

    def test_bursts_do_not_tell_contention(self) -> None:
        """All begin together: the load at the start tells who came first, and these may be shorter."""
        rng = random.Random(6)
        begin = np.array([10.0 * (n // 64) + 0.001 * (n % 64) for n in range(640)])
        ends = begin + np.array([rng.lognormvariate(min(n % 64, 8) / 8, 0.8) for n in range(640)])
        assert fitted_contention(begin, ends) == 0.0

    def test_nothing_recorded(self) -> None:
        """Unknown times give unknown work."""
        assert np.isnan(works_of(np.array([np.nan]), np.array([1.0]), 0.5)).all()


class TestInput:
    """Edges."""

    def test_runs_without_arrivals_say_what_is_needed(self) -> None:
        """No journal, no replay."""
        with pytest.raises(StatsError, match="journal"):
            whatif({})

    def test_nonsense_is_refused(self, record: dict) -> None:
        """Levels, bounds, exponents and trainers that cannot be."""
        for wrong, text in (
            ({"async_level": 0}, "async_level"),
            ({"max_staleness": -1}, "max_staleness"),
            ({"contention": 2.0}, "contention"),
            ({"slots": 0}, "slots"),
            ({"trainer": "one_ahead"}, "train_seconds"),
            ({"trainer": "later"}, "sequential"),
            ({"settings": {"asinc": 1}}, "asinc"),
        ):
            with pytest.raises(StatsError, match=text):
                whatif(record, **wrong)

    def test_the_run_is_left_alone(self, record: dict) -> None:
        """And two replays are the same."""
        before = untouched(record)
        first, second = whatif(record, contention="fit"), whatif(record, contention="fit")
        same(before, record)
        assert first.summary.equals(second.summary)
