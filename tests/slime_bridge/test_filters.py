"""The trainer's filters work through this hook as through Slime's own rollout."""

import json
import threading

import pytest

from analysis.lab.polar_server.testing import FaultScript, SessionProfile, serve_polar
from slime_bridge.acceptance import Accepted, Rejected, RejectReason
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.conversion.groups import SessionOutcome
from slime_bridge.errors import ConfigError, FilterError
from slime_bridge.filters import TrainerFilters
from slime_bridge.health import HealthMonitor
from slime_bridge.journal.audit import audit
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.slime_bridge import trainer_hooks
from tests.slime_bridge.rollouts import Source, group_indices, make_args, running
from tests.slime_bridge.test_group_flow import Bench, good

HOOKS = "tests.slime_bridge.trainer_hooks"
QUICK = FaultScript(sessions=SessionProfile(duration=0.02, reward=1.0))


@pytest.fixture(autouse=True)
def _clean():
    trainer_hooks.reset()
    yield
    stop_global_worker()


def filters(**settings):
    args = make_args("http://polar", **settings)
    return TrainerFilters(resolve_polar_slime_config(args), args)


def sessions(*rewards):
    return [SessionOutcome(i, completed=True, usable=True, reward=reward) for i, reward in enumerate(rewards)]


class TestDynamicFilter:
    def test_dropped_groups_are_replaced_and_counted_as_slime_does(self):
        """Under Slime's metric name, with the reason the filter gave."""
        source = Source()
        args = {"dynamic_sampling_filter_path": f"{HOOKS}.keep_even_rows"}
        with serve_polar(QUICK) as polar:
            output = generate_rollout_polar_async(make_args(polar.url, **args), 0, source)
        assert [group[0].metadata["row"] for group in output.samples] == [0, 2, 4, 6]
        dropped = output.metrics["rollout/dynamic_filter/drop_odd_row"]
        assert (
            dropped
            == output.metrics["polar/dropped_filtered_groups"]
            == output.metrics["polar/dropped_groups"]
        )
        assert dropped >= 3

    def test_plain_bool_is_understood(self):
        """The old form of a filter gives no reason, so only our own counter moves."""
        args = {"dynamic_sampling_filter_path": f"{HOOKS}.keep_none_silently"}
        with serve_polar(QUICK) as polar:
            output = generate_rollout_polar_async(make_args(polar.url, **args), 0, Source())
        assert output.metrics["polar/dropped_filtered_groups"] == 2
        assert not any(name.startswith("rollout/dynamic_filter") for name in output.metrics)

    def test_only_good_groups_are_asked_about(self):
        """A group that is rejected anyway keeps its reason."""
        verdict = Rejected(RejectReason.ZERO_TRAINABLE, {})
        assert filters(dynamic_sampling_filter_path=f"{HOOKS}.broken").judge([], verdict) is verdict
        accepted = Accepted({})
        assert filters().judge([], accepted) is accepted

    def test_hooks_run_in_the_thread_of_the_call(self):
        """They may share state with each other, and nothing of the user's runs between calls."""
        source = Source()
        settings = {
            "dynamic_sampling_filter_path": f"{HOOKS}.keep_third_onwards",
            "rollout_all_samples_process_path": f"{HOOKS}.process_all",
            "polar_fully_async": True,
        }
        with serve_polar(QUICK) as polar, running(polar, source, **settings) as worker:
            worker.collect(0)
            asked = len(trainer_hooks.calls)
            polar.wait_until(lambda: polar.running_sessions == 0)
            assert len(trainer_hooks.calls) == asked
            worker.collect(1)
            assert trainer_hooks.threads == {threading.get_ident()}

    def test_each_group_is_asked_about_once(self):
        """Also those that wait in the buffer while others are asked for."""
        source = Source()
        settings = {"dynamic_sampling_filter_path": f"{HOOKS}.keep_third_onwards", "polar_fully_async": True}
        with serve_polar(QUICK) as polar, running(polar, source, **settings) as worker:
            delivered = [row for n in range(3) for row in group_indices(worker.collect(n)[0])]
            asked = list(trainer_hooks.calls)
            report = worker.ledger()
        assert len(asked) == len(set(asked))
        assert set(delivered) <= set(asked)
        assert report.rejected == {"filtered": 2}

    def test_one_verdict_for_each_group(self, tmp_path):
        """The journal says it once, with the numbers and the filter's reason; a reader needs no rule."""
        settings = {
            "dynamic_sampling_filter_path": f"{HOOKS}.keep_even_rows",
            "polar_run_dir": str(tmp_path),
        }
        with serve_polar(QUICK) as polar:
            generate_rollout_polar_async(make_args(polar.url, **settings), 0, Source())
            stop_global_worker()
        records = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
        verdicts = [record for record in records if record["event"] == "verdict"]
        assert len({record["group"] for record in verdicts}) == len(verdicts)
        dropped = [record for record in verdicts if not record["accepted"]]
        assert dropped
        assert {record["reason"] for record in dropped} == {"filtered"}
        assert {record["numbers"]["filter_reason"] for record in dropped} == {"odd_row"}
        assert all(record["numbers"]["trainable_tokens"] > 0 for record in dropped)
        assert audit(records) == []

    def test_broken_filter_ends_the_call_under_its_name(self):
        """Not one rejected group after the other; what was there is there for the next call."""
        source = Source()
        settings = {"dynamic_sampling_filter_path": f"{HOOKS}.fail_at_second"}
        with serve_polar(QUICK) as polar, running(polar, source, **settings) as worker:
            with pytest.raises(
                FilterError, match="dynamic_sampling_filter_path raised ZeroDivisionError: a defect"
            ):
                worker.collect(0)
            assert worker.usable
            batch, report = worker.collect(0)
            assert len(batch.groups) == 4
            assert report.ledger.rejected == {}
            assert source.drawn == [0, 1, 2, 3]

    def test_groups_that_grow_old_while_they_wait_are_not_asked_about(self):
        """Nobody will train on them."""
        bench = Bench(dynamic_sampling_filter_path=f"{HOOKS}.keep_third_onwards")
        (group, *_) = bench.start()
        bench.flow.judged(group, good(group))
        assert [group_id for group_id, _ in bench.flow.step(away=False).undecided] == [group.group_id]
        assert bench.flow.moves(away=False)
        bench.flow.scheduler.end_request()
        bench.flow.begin(50, 2)
        step = bench.flow.step(away=False)
        assert step.undecided == []
        assert group.group_id in step.stale

    def test_a_filter_that_drops_everything_is_named(self, caplog):
        """The run goes on, as Slime's would; the log says what it waits for."""
        health = HealthMonitor(filters()._config)
        for _ in range(64):
            health.filtered(Rejected(RejectReason.FILTERED, {"filter_reason": "zero_std_1.0"}))
        health.filtered(Accepted({}))
        for _ in range(31):
            health.filtered(Rejected(RejectReason.FILTERED, {"filter_reason": None}))
        texts = [record.getMessage() for record in caplog.records]
        assert len(texts) == 2
        assert "dropped 32 groups in a row; the last one: zero_std_1.0" in texts[0]


class TestBatchHooks:
    def test_hooks_see_the_batch_and_all_that_finished(self):
        """Sample filter first, then every finished group in order, dropped ones included, once."""
        source = Source()
        settings = {
            "dynamic_sampling_filter_path": f"{HOOKS}.keep_even_rows",
            "rollout_sample_filter_path": f"{HOOKS}.remove_first",
            "rollout_all_samples_process_path": f"{HOOKS}.process_all",
        }
        with serve_polar(QUICK) as polar:
            args = make_args(polar.url, **settings)
            output = generate_rollout_polar_async(args, 0, source)
            assert all(group[0].remove_sample for group in output.samples)
            (name, rows), (everything, all_rows, given) = trainer_hooks.calls
            assert (name, rows) == ("sample_filter", [0, 2, 4, 6])
            assert everything == "all_samples"
            assert given is source
            assert all_rows == sorted(all_rows)
            assert {0, 1, 2, 3, 4, 5, 6} <= set(all_rows)
            generate_rollout_polar_async(args, 1, source)
            assert not set(trainer_hooks.calls[3][1]) & set(all_rows)

    def test_broken_hook_costs_no_group(self):
        """The batch goes back; a later call gets it."""
        source = Source()
        settings = {"rollout_sample_filter_path": f"{HOOKS}.broken"}
        with serve_polar(QUICK) as polar, running(polar, source, **settings) as worker:
            with pytest.raises(FilterError, match="rollout_sample_filter_path raised"):
                worker.collect(0)
            assert worker.counts().buffered == 4
            assert worker.usable

    @pytest.mark.parametrize("name", ["missing", "not_a_function"])
    def test_hook_that_cannot_be_loaded_is_a_start_up_error(self, name):
        """Named with its key, before anything runs."""
        with pytest.raises(ConfigError, match="rollout_sample_filter_path is .*trainer_hooks"):
            filters(rollout_sample_filter_path=f"{HOOKS}.{name}")
        with pytest.raises(ConfigError, match="nowhere"):
            filters(dynamic_sampling_filter_path="nowhere.at.all")


WRONG, RIGHT, MIXED = (0.0, 0.0), (1.0, 1.0), (1.0, 0.0)


class TestPruning:
    @pytest.mark.parametrize(
        ("batch", "dropped"),
        [
            ([WRONG, MIXED, RIGHT], {0: "all_wrong"}),
            ([WRONG, RIGHT], {0: "all_wrong"}),
            ([WRONG, WRONG], {}),
            ([MIXED], {}),
            ([(), MIXED], {0: "all_wrong"}),
        ],
    )
    def test_groups_without_success_are_dropped_but_never_all(self, batch, dropped):
        """A batch of failures is kept: nothing is worse than an empty one."""
        surplus = filters(polar_drop_all_wrong_groups=True).surplus([sessions(*group) for group in batch], 0)
        assert {number: str(verdict.reason) for number, verdict in surplus.items()} == dropped

    def test_all_correct_groups_are_thinned_to_the_mixed_ones(self):
        """As many as mixed ones, chosen by the rollout id alone."""
        batch = [sessions(*group) for group in [RIGHT] * 6 + [MIXED] * 2 + [WRONG]]
        balance = filters(polar_balance_all_correct_groups=True)
        chosen = [set(balance.surplus(batch, rollout_id)) for rollout_id in range(20)]
        assert all(len(dropped) == 4 and dropped <= set(range(6)) for dropped in chosen)
        assert chosen[3] == set(balance.surplus(batch, 3))
        assert len({frozenset(dropped) for dropped in chosen}) > 1

    def test_thinning_never_empties_a_batch(self):
        """All correct and nothing else: one stays; with failures beside them they may all go."""
        balance = filters(polar_balance_all_correct_groups=True)
        assert len(balance.surplus([sessions(*RIGHT)] * 4, 0)) == 3
        assert len(balance.surplus([sessions(*RIGHT), sessions(*WRONG)], 0)) == 1
        both = filters(polar_balance_all_correct_groups=True, polar_drop_all_wrong_groups=True)
        assert len(both.surplus([sessions(*RIGHT), sessions(*WRONG)], 0)) == 1

    def test_pruned_groups_are_rejected_and_their_numbers_kept(self):
        """Conservation holds: delivered + pruned = drawn."""
        source = Source()
        settings = {"polar_balance_all_correct_groups": True}
        with serve_polar(QUICK) as polar, running(polar, source, **settings) as worker:
            batch, report = worker.collect(0)
        assert len(batch.groups) == 1
        assert report.ledger.rejected == {"all_correct": 3}
        assert report.ledger.delivered == 1
        assert sorted(source.given_up + group_indices(batch)) == [0, 1, 2, 3]
        assert [facts.reason for facts in report.window.rejected] == ["all_correct"] * 3

    def test_off_by_default(self):
        """Nothing is pruned that nobody asked to prune."""
        assert filters().surplus([sessions(*WRONG), sessions(*RIGHT)], 0) == {}


def test_over_sampling_serves_the_next_call():
    """Surplus groups are kept; Slime's own rollout would abort them."""
    source = Source()
    with serve_polar(QUICK) as polar, running(polar, source, over_sampling_batch_size=6) as worker:
        first, _ = worker.collect(0)
        assert source.requests == [6]
        second, report = worker.collect(1)
    assert len(set(group_indices(first) + group_indices(second))) == 8
    assert report.ledger.drawn == 12
