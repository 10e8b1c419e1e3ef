"""Slime's own filter and its helpers, driven by the bridge's rollout function against a rollout server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge.filters import TrainerFilters
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.slime_bridge.rollouts import Source, make_args

NONZERO_STD = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def _rolled_out(faults: list[Fault], **settings: Any) -> Any:
    script = FaultScript(sessions=SessionProfile(duration=0.02, reward=1.0), faults=faults)
    with _workers_stopped(), serve_polar(script) as polar:
        args = make_args(polar.url, dynamic_sampling_filter_path=NONZERO_STD, **settings)
        return generate_rollout_polar_async(args, 0, Source(n=settings.get("n_samples_per_prompt", 2)))


@contextmanager
def _workers_stopped() -> Iterator[None]:
    try:
        yield
    finally:
        stop_global_worker()


def check_groups_of_one_reward_are_replaced_under_slimes_names() -> None:
    """Constant groups go, mixed ones stay, and the drop is counted by reward as Slime counts it."""
    mixed = Fault("reward", instruction="prompt [1357]$", sessions=[1], value=0.0)
    failed = Fault("reward", instruction="prompt 2$", value=0.0)
    output = _rolled_out([mixed, failed])
    assert [group[0].metadata["row"] for group in output.samples] == [1, 3, 5, 7]
    drops = {name: n for name, n in output.metrics.items() if name.startswith("rollout/dynamic_filter/")}
    assert drops["rollout/dynamic_filter/drop_zero_std_0.0"] == 1
    assert drops["rollout/dynamic_filter/drop_zero_std_1.0"] >= 3
    assert sum(drops.values()) == output.metrics["polar/dropped_filtered_groups"]


def check_the_filter_sees_the_whole_group() -> None:
    """A session that failed stands in it with reward 0 and its status, as it would in Slime's rollout."""
    output = _rolled_out([Fault("session_error", sessions=[0])])
    assert len(output.samples) == 4
    statuses = [[sample.status.value for sample in group] for group in output.samples]
    assert statuses == [["aborted", "completed"]] * 4


def check_the_bridges_filter_is_understood_by_slime() -> None:
    """Its answer is Slime's own type, so that Slime's default rollout can use it too."""
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput, call_dynamic_filter

    from slime_bridge import _slime
    from slime_bridge.sampling_filters import check_trained_reward_nonzero_std

    sample = _slime.sample_class()
    group = [
        sample(index=i, group_index=0, reward=1.0, response_length=2, status=sample.Status.COMPLETED)
        for i in range(2)
    ]
    output = call_dynamic_filter(check_trained_reward_nonzero_std, make_args("http://polar"), group)
    assert isinstance(output, DynamicFilterOutput)
    assert (output.keep, output.reason) == (False, "zero_std_1.0")


def check_names_are_those_of_slimes_gatherer() -> None:
    """The same calls on Slime's own counter give the same metrics."""
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput, MetricGatherer, call_dynamic_filter

    from slime_bridge.acceptance import Accepted, Rejected
    from slime_bridge.config import resolve_polar_slime_config
    from slime_bridge.metrics import rollout_metrics
    from slime_bridge.window import RolloutWindow

    outputs = [
        DynamicFilterOutput(keep=True, reason="not counted"),
        DynamicFilterOutput(keep=False, reason="zero_std_1.0"),
        DynamicFilterOutput(keep=False, reason=None),
        DynamicFilterOutput(keep=False, reason="zero_std_1.0"),
        False,
        True,
        None,
    ]
    args = make_args("http://polar", dynamic_sampling_filter_path="builtins.next")
    filters = TrainerFilters(resolve_polar_slime_config(args), args)
    gatherer, window, kept = MetricGatherer(), RolloutWindow(), []
    for output in outputs:
        slimes = call_dynamic_filter(lambda *given, output=output: output)
        if not slimes.keep:
            gatherer.on_dynamic_filter_drop(slimes.reason)
        filters._dynamic = lambda *given, output=output: output
        verdict = filters.judge([], Accepted({}))
        if isinstance(verdict, Rejected):
            window.reject(None, verdict.reason, verdict.numbers["filter_reason"])
        kept.append((bool(slimes.keep), isinstance(verdict, Accepted)))
    assert all(slimes == ours for slimes, ours in kept)
    metrics = rollout_metrics(delivered=[], filter_drops=window.close(0.0, {}).filter_drops)
    own = {name: n for name, n in metrics.items() if name.startswith("rollout/dynamic_filter/")}
    assert own == gatherer.collect()
