"""``python -m tests.scenarios``: plays the catalogue and prints it as a table; ``--docs`` writes the page."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from tests.scenarios.catalogue import SCENARIOS, markdown
from tests.scenarios.fleet import played
from tests.scenarios.scenario import Scenario, outcome_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"


def main() -> int:
    """Run the command; the exit code is 1 if a scenario failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="play only scenarios whose name matches this")
    parser.add_argument("--docs", action="store_true", help=f"write docs/{PAGE.name} and play nothing")
    options = parser.parse_args()
    if options.docs:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(markdown(), encoding="utf-8")
        return 0
    chosen = [scenario for scenario in SCENARIOS if re.search(options.pattern, scenario.name)]
    return show(chosen)


def show(chosen: list[Scenario]) -> int:
    """Play scenarios, print a line for each as it ends, and return the exit code."""
    rows = [(s.name, s.what, outcome_text(s)) for s in chosen]
    name, what, outcome = (max(map(len, column)) for column in zip(*rows, strict=True))
    print(f"{'scenario':<{name}}  {'what happens':<{what}}  {'outcome':<{outcome}}  seconds")  # noqa: T201
    began = time.monotonic()
    problems = {}
    with played(chosen, timed=True) as results:
        for first, second, third in rows:
            result = results[first].result()
            shown = "FAILED" if result.problem else f"{result.seconds:.2f}"
            print(f"{first:<{name}}  {second:<{what}}  {third:<{outcome}}  {shown:>7}", flush=True)  # noqa: T201
            if result.problem:
                problems[first] = result.problem
    for first, problem in problems.items():
        print(f"\n{first} failed:\n{problem}", file=sys.stderr)  # noqa: T201
    total = time.monotonic() - began
    print(f"{len(chosen)} scenarios, {len(problems)} failed, {total:.0f} s in all")  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
