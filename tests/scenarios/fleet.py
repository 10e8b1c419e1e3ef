"""Plays many scenarios at once, each in a process of its own: most of their time is waiting."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.scenarios.catalogue import SCENARIOS
from tests.scenarios.playing import play
from tests.scenarios.scenario import Scenario

PROCESSES = 4


@dataclass(frozen=True)
class Played:
    """What came of one scenario: the seconds it took, or what was wrong."""

    seconds: float
    problem: str = ""


def play_by_name(name: str, *, timed: bool) -> Played:
    """Play a scenario of the catalogue in this process; see `play`."""
    logging.getLogger("analysis").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    logging.getLogger("slime_bridge").addHandler(logging.NullHandler())
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Played(play(scenario, Path(folder), timed=timed))
        except Exception:  # handed to whoever asked for this scenario; the others are played all the same
            return Played(0.0, traceback.format_exc())


@contextmanager
def played(scenarios: Iterable[Scenario], *, timed: bool = False) -> Iterator[dict[str, Future[Played]]]:
    """Start playing scenarios and give the pending result of each by name; ends the processes."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(PROCESSES, mp_context=context)
    try:
        yield {s.name: pool.submit(play_by_name, s.name, timed=timed) for s in scenarios}
    finally:
        pool.shutdown(cancel_futures=True)
