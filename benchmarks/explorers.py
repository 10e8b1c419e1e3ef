"""How fast the explorers answer, each interaction beside the plain way of showing the same thing.

The plain way is a filtered or sorted DataFrame rendered again as a whole with ``to_html``, which is what a
cell with a pandas expression does; for another estimator it is the advantages of the whole run computed from
its tables, and that frame rendered. Both sides get the same frames: 6,250 groups of 8 sessions with a trace
each, 50,000 traces. Times are CPU time of this process, the median of several; what travels to the browser
is written as JSON in both.

    python benchmarks/explorers.py            some two minutes on two cores
    python benchmarks/explorers.py --quick    a tenth of the traces
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pandas as pd

import analysis
from analysis.explorers.explore import RunView
from analysis.explorers.table import Table
from analysis.stats.autopsy import autopsy
from analysis.stats.recomputation import recompute
from tests.analysis.explorers.made_runs import many_traces

REPEATS = 5


def cpu(act: Callable[[int], Any], repeats: int = REPEATS) -> float:
    """Return the median CPU seconds of doing something several times, each time a little differently."""
    times = []
    for number in range(repeats):
        began = time.process_time()
        act(number)
        times.append(time.process_time() - began)
    return statistics.median(times)


def sent(table: Table) -> str:
    """Write what a table sends to the browser after a change."""
    return json.dumps({"page": table.page, "head": table.head, "total": table.total})


class Explored:
    """One run in the explorers, and the same frames for the plain way."""

    def __init__(self, groups: int) -> None:
        self.run = many_traces(groups, 8)
        began = time.process_time()
        self.view: RunView = analysis.explore(self.run)
        self.opening = time.process_time() - began
        self.traces: pd.DataFrame = self.run["traces"]
        self.groups: pd.DataFrame = self.run["groups"]
        columns = [
            "session_id",
            "rollout_id",
            "group",
            "position",
            "reward",
            "trainable_tokens",
            "sample_status",
        ]
        self.shown = self.traces[columns]
        began = time.process_time()
        self.table = Table(self.shown, caption="Traces", many=True)
        self.listing = time.process_time() - began

    # The explorers

    def sort(self, number: int) -> None:
        """Sort the table of all traces by another column."""
        self.table.sort = [["reward" if number % 2 else "session_id", bool(number % 3)]]
        sent(self.table)

    def search(self, number: int) -> None:
        """Search all traces for a text."""
        self.table.query = f"s-{number}"
        sent(self.table)

    def scroll(self, number: int) -> None:
        """Send the rows that come in sight."""
        json.dumps(self.table._page(1000 * number, 1000 * number + 100))

    def brush(self, number: int) -> None:
        """Brush some rollouts."""
        self.view.overview.chart.brush = [number, number + 3]
        sent(self.view.groups.table)

    def pick(self, number: int) -> None:
        """Pick a group, which is taken apart."""
        self.view.groups.table.selected = [10 + 7 * number]
        sent(self.view.groups.autopsy.sessions)

    def switch(self, number: int) -> None:
        """Switch to an estimator that was not shown yet, with a group taken apart."""
        self.view.groups.estimator.value = ("grpo", "rloo", "loo", "dr_grpo", "max_at_k")[number]
        sent(self.view.groups.table)

    # The plain way

    def plain_sort(self, number: int) -> None:
        """Sort the frame and render it."""
        self.shown.sort_values("reward" if number % 2 else "session_id", ascending=bool(number % 3)).to_html()

    def plain_search(self, number: int) -> None:
        """Filter the frame and render what is left."""
        found = self.shown["session_id"].str.contains(f"s-{number}", regex=False)
        self.shown[found].to_html()

    def plain_scroll(self, number: int) -> None:
        """Render the frame."""
        self.shown.to_html()

    def plain_brush(self, number: int) -> None:
        """Filter groups and traces, and render both."""
        wanted = range(number, number + 4)
        self.groups[self.groups["rollout_id"].isin(wanted)].to_html()
        self.shown[self.shown["rollout_id"].isin(wanted)].to_html()

    def plain_pick(self, number: int) -> None:
        """Take a group of the whole run apart."""
        autopsy(self.run, 10 + 7 * number, "loo")._repr_html_()

    def plain_switch(self, number: int) -> None:
        """Compute the advantages of the whole run and render them."""
        name = ("grpo", "rloo", "loo", "dr_grpo", "max_at_k")[number]
        recompute(self.traces, name, sessions=self.run["sessions"])[["session_id", "advantage"]].to_html()


INTERACTIONS = ("sort", "search", "scroll", "brush", "pick", "switch")
"""What is measured, in this order: the first switch finds a group taken apart."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the traces")
    quick = parser.parse_args(arguments).quick
    explored = Explored(625 if quick else 6250)
    count = len(explored.traces)
    print(f"{count:,} traces; analysis.explore opens in {explored.opening:.2f} s of CPU,")
    print(f"a table of all traces in {explored.listing:.2f} s\n")
    print(f"{'interaction':<12} {'explorer':>12} {'plain way':>12} {'ratio':>8}")
    for name in INTERACTIONS:
        ours = cpu(getattr(explored, name))
        plain = cpu(getattr(explored, f"plain_{name}"), 3)
        print(f"{name:<12} {1000 * ours:>9.1f} ms {1000 * plain:>9.0f} ms {plain / ours:>7.0f}x")
    failed = [part.error_text() for part in (explored.view, explored.view.groups) if part.error_text()]
    explored.view.close()
    if failed:
        print("\n".join(failed))
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
