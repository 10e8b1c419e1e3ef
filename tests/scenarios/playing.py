"""Plays one scenario of the catalogue through the hook that trainers call, and compares what came of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, PolarHandle, serve_polar
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.scenarios.checks import Books, Leftovers, check_samples
from tests.scenarios.processes import end_of_process
from tests.scenarios.scenario import QUICK, Act, Count, Error, Outcome, Scenario, bounds
from tests.slime_bridge.rollouts import Source, make_args

logger = logging.getLogger(__name__)

_ACT_SECONDS = 30.0


class LogLines(logging.Handler):
    """Collects what the bridge logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        self.lines.append(record.getMessage())


class Shelf(Source):
    """A data source whose books stand a rollout id that comes twice."""

    def mark_delivered(self, indices: Sequence[int], rollout_id: int) -> None:
        """Note what was handed to the trainer."""
        self.delivered.setdefault(rollout_id, []).extend(indices)


@dataclass(kw_only=True)
class Stage:
    """One scenario being played."""

    scenario: Scenario
    folder: Path
    url: str
    polar: PolarHandle | None
    source: Shelf
    outputs: list[Any] = field(default_factory=list)
    log: LogLines = field(default_factory=LogLines)
    seconds: float = 0.0

    @property
    def server(self) -> PolarHandle:
        """The server of a scenario that has one."""
        if self.polar is None:
            raise RuntimeError(f"{self.scenario.name} has no server")
        return self.polar


def play(scenario: Scenario, folder: Path, *, timed: bool = False) -> float:
    """Play a scenario and compare; return the seconds that the trainer spent in it.

    Parameters
    ----------
    scenario
        What to play.
    folder
        An empty folder for the journal and the prompts.
    timed
        Compare the seconds too, which says something on a machine without other work only.

    Raises
    ------
    AssertionError
        Something else came of it than the scenario says.
    """
    left = Leftovers()
    with ExitStack() as stack:
        for name, value in scenario.environment.items():
            stack.enter_context(_environment(name, value))
        url, polar = stack.enter_context(_server(scenario))
        stage = Stage(
            scenario=scenario,
            folder=folder,
            url=url,
            polar=polar,
            source=Shelf(n=scenario.group_size, limit=scenario.prompts),
        )
        if scenario.ends_by == "stop":
            _run_here(stage)
            if scenario.evaluation:
                _compare_evaluation(stage)
            else:
                _compare(stage)
        else:
            stage.seconds = end_of_process(scenario, stage.server, folder)
            _compare_books(stage, Books(folder))
        assert not timed or stage.seconds < scenario.outcome.within, f"took {stage.seconds:.1f} s"
        _compare_server(stage)
    left.check()
    return stage.seconds


@contextmanager
def _server(scenario: Scenario) -> Iterator[tuple[str, PolarHandle | None]]:
    if scenario.server == "polar":
        script = FaultScript(sessions=scenario.profile, faults=scenario.faults, seed=scenario.seed)
        with serve_polar(script, newer=scenario.newer) as polar:
            yield polar.url, polar
        return
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if scenario.server == "silent":
            held.listen()
        yield f"http://127.0.0.1:{held.getsockname()[1]}", None


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _run_here(stage: Stage) -> None:
    """Make the scenario's calls in this thread, then stop the worker."""
    scenario = stage.scenario
    bridge = logging.getLogger("slime_bridge")
    level = bridge.level
    bridge.addHandler(stage.log)
    bridge.setLevel(logging.INFO)
    actor = threading.Thread(target=_act, args=(stage,), name="scenario-acts")
    began = time.monotonic()
    actor.start()
    try:
        for number in range(len(scenario.rollouts)):
            _call(stage, number)
    finally:
        stop_global_worker()
        stage.seconds = time.monotonic() - began
        actor.join()
        bridge.removeHandler(stage.log)
        bridge.setLevel(level)


def _call(stage: Stage, number: int) -> None:
    scenario = stage.scenario
    settings = dict(scenario.settings)
    for position, changed in scenario.changes.items():
        settings |= changed if position <= number else {}
    if scenario.evaluation:
        settings["eval_datasets"] = [_eval_dataset(stage)]
    args = make_args(stage.url, polar_run_dir=str(stage.folder), **settings)
    expected = next((error for error in scenario.outcome.errors if error.call == number), None)
    with _expected(expected):
        output = generate_rollout_polar_async(
            args, scenario.rollouts[number], stage.source, evaluation=bool(scenario.evaluation)
        )
        stage.outputs.append(output)


def _expected(error: Error | None) -> AbstractContextManager[Any]:
    return nullcontext() if error is None else pytest.raises(error.kind, match=error.text or None)


def _eval_dataset(stage: Stage) -> dict[str, Any]:
    path = stage.folder / "eval.jsonl"
    rows = [json.dumps({"input": f"prompt {number}"}) for number in range(stage.scenario.evaluation)]
    path.write_text("\n".join(rows))
    return {"name": "shelf", "path": str(path), "n_samples_per_eval_prompt": stage.scenario.group_size}


def _act(stage: Stage) -> None:
    """Do what the scenario wants done while calls wait."""
    for act in stage.scenario.acts:
        stage.server.wait_until(lambda act=act: stage.server.submits >= act.submits, timeout=_ACT_SECONDS)
        for deed in act.does:
            _do(stage, act, deed)


def _do(stage: Stage, act: Act, deed: str) -> None:
    polar = stage.server
    if deed == "forget":
        polar.forget_all()
    elif deed == "refuse":
        polar.refuse(act.seconds)
    elif deed == "stop server":
        polar.stop()
    elif deed == "hang server":
        polar.set_script(FaultScript(faults=[Fault("response_hang"), Fault("connection_half_open")]))
    elif deed == "good server":
        polar.set_script(FaultScript(sessions=QUICK))
    elif deed == "stop worker":
        stop_global_worker()
    elif deed == "interrupt":
        time.sleep(0.2)  # the answer to the submit is on its way; the trainer then waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _compare(stage: Stage) -> None:
    """Compare a training run with the scenario's outcome."""
    scenario, outcome = stage.scenario, stage.scenario.outcome
    found = [_delivered(o, wanted) for o, wanted in zip(stage.outputs, outcome.delivered, strict=True)]
    promised = [wanted if isinstance(wanted, int) else list(wanted) for wanted in outcome.delivered]
    assert found == promised, f"delivered {found}, expected {promised}"
    groups = [group for output in stage.outputs for group in output.samples]
    if stage.polar is not None:
        size = scenario.group_size
        check_samples(
            groups,
            stage.polar.history,
            prompts=lambda group: range(group[0].group_index * size, (group[0].group_index + 1) * size),
            clipped=scenario.settings.get("polar_overlong_traces") == "clip",
            masked=outcome.masked,
        )
    lags = [s.metadata["polar"]["policy_staleness"] for group in groups for s in group]
    assert all(0 <= lag <= 3 for lag in lags), f"lags {sorted(set(lags))}, the bound is level 2 + interval 1"
    if outcome.statuses is not None:
        statuses = Counter(sample.status.name for group in groups for sample in group)
        _same("statuses", statuses, outcome.statuses)
    if outcome.masked:
        reports = [s.metadata["polar"].get("aborted_turns", {}) for group in groups for s in group]
        assert sum(report.get("masked_tokens", 0) for report in reports) > 0
    _compare_metrics(outcome, stage.outputs[-1].metrics if stage.outputs else {})
    books = Books(stage.folder)
    _compare_books(stage, books)
    _compare_source(stage, books)
    text = "\n".join(stage.log.lines)
    for wanted in outcome.log:
        assert text.count(wanted) == 1, f"the log says {wanted!r} {text.count(wanted)} times:\n{text}"


def _delivered(output: Any, wanted: int | Sequence[int]) -> int | list[int]:
    indices = [group[0].group_index for group in output.samples]
    return len(indices) if isinstance(wanted, int) else indices


def _compare_metrics(outcome: Outcome, metrics: Mapping[str, float]) -> None:
    for name, wanted in outcome.metrics.items():
        low, high = bounds(wanted)
        assert low <= metrics[name] <= high, f"{name} is {metrics[name]}, not {wanted}"


def _compare_books(stage: Stage, books: Books) -> None:
    outcome = stage.scenario.outcome
    books.check_closed()
    _same("rejected", books.rejected, outcome.rejected)
    if stage.outputs:
        _same("given up", books.given_up, outcome.given_up)
    given_up = {"in all": books.counts["given_up"]}
    _same("given up", given_up, {"in all": _total(outcome.given_up.values())})
    if outcome.requeued is not None:
        _same("requeued", books.requeued, outcome.requeued)
    if outcome.sessions is not None:
        _same("sessions left out", books.lost_sessions, outcome.sessions)
    if outcome.returned is not None:
        _same("returned", {"in all": books.counts["returned"]}, {"in all": outcome.returned})
    _same("abandoned", {"in all": books.counts["abandoned"]}, {"in all": outcome.abandoned})


def _same(what: str, found: Mapping[str, int], wanted: Mapping[str, Count]) -> None:
    for name in {*found, *wanted}:
        low, high = bounds(wanted.get(name, 0))
        assert low <= found.get(name, 0) <= high, f"{what}: {dict(found)}, expected {dict(wanted)}"


def _total(counts: Iterable[Count]) -> tuple[float, float]:
    ranges = [bounds(count) for count in counts]
    return sum(low for low, _ in ranges), sum(high for _, high in ranges)


def _compare_source(stage: Stage, books: Books) -> None:
    """Every prompt drawn is delivered once, ended, or back in the source."""
    source = stage.source
    assert source.unaccounted() == set()
    delivered = [index for indices in source.delivered.values() for index in indices]
    assert Counter(delivered) == Counter(index for indices in books.delivered.values() for index in indices)
    assert len(set(delivered)) == len(delivered)
    assert len(source.buffer) == len({group[0].group_index for group in source.buffer})
    for group in source.buffer:
        fresh = source.make(group[0].group_index)
        assert [sample.to_dict() for sample in group] == [sample.to_dict() for sample in fresh]


def _compare_evaluation(stage: Stage) -> None:
    """An evaluation has one reward per session whatever fails, and touches nothing of the training."""
    scenario, outcome = stage.scenario, stage.scenario.outcome
    for output, prompts in zip(stage.outputs, outcome.delivered, strict=True):
        block = output.data["shelf"]
        assert prompts == scenario.evaluation
        assert len(block["rewards"]) == len(block["truncated"]) == prompts * scenario.group_size
        assert all(isinstance(reward, float) for reward in block["rewards"])
    _compare_metrics(outcome, stage.outputs[-1].metrics)
    assert stage.source.drawn == []
    assert not list(stage.folder.glob("journal*"))


def _compare_server(stage: Stage) -> None:
    """The faults have happened, every task was asked for once, and the caps held."""
    if stage.polar is None:
        return
    scenario, polar = stage.scenario, stage.polar
    for fault in scenario.faults:
        assert polar.fired.get(fault.kind) or any("hang server" in act.does for act in scenario.acts), (
            f"{fault.kind} never happened: {polar.fired}"
        )
    if scenario.outcome.submits is not None:
        low, high = scenario.outcome.submits
        assert low <= polar.submits <= high, f"{polar.submits} tasks"
    ids = [record.task_id for record in polar.history]
    assert len(set(ids)) == len(ids), "a task was accepted twice"
