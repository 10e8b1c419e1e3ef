"""The catalogue of fault scenarios, by what goes wrong, and its table as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tests.scenarios import catalogue_content as content
from tests.scenarios import catalogue_delivery as delivery
from tests.scenarios import catalogue_server as server
from tests.scenarios.scenario import Scenario, outcome_text

CHAPTERS: dict[str, Sequence[Scenario]] = {
    "The server is away": server.AWAY,
    "Connections and requests": server.CONNECTIONS,
    "Submits": server.SUBMITS,
    "Callbacks": delivery.CALLBACKS,
    "Polling": delivery.POLLS,
    "Tasks and rollouts": delivery.TASKS,
    "Stopping": server.STOPS,
    "Sessions with nothing to train on": content.SESSIONS,
    "Sessions that are used": content.WHOLE_SESSIONS,
    "Rewards": content.REWARDS,
    "Groups": content.GROUPS,
    "Data source": content.SOURCES,
    "Evaluation": content.EVALUATIONS,
}
"""All scenarios, by chapter of the documentation."""

SCENARIOS: tuple[Scenario, ...] = tuple(s for chapter in CHAPTERS.values() for s in chapter)

_INTRODUCTION = """\
# Faults and what comes of them

Every row is a test: the hook that Slime calls (`slime_bridge.rollout.generate_rollout_polar_async`) against a
Polar-compatible server that plays the fault on real sockets. `make faults` plays them all and prints this
table with the seconds each took. This page is made from the catalogue in `tests/scenarios`; a test keeps it
in step.

Unless a row says otherwise a call wants 4 groups of 2 sessions. After every scenario:

- the journal proves conservation: each drawn group was delivered, rejected, given up, returned to the data
  source or counted as abandoned, exactly once;
- every delivered token, mask, logprob and reward is what the server's session holds;
- no task was run twice under one id; no thread and no descriptor is left.

"Within" bounds the time of all calls and the stop on a loaded machine with 2 cores; it is a promise not to
hang, not a measurement.
"""


def markdown() -> str:
    """Return the documentation page."""
    lines = [_INTRODUCTION]
    for chapter, scenarios in CHAPTERS.items():
        lines += [f"## {chapter}", "", "| scenario | what happens | outcome | within |", "|---|---|---|---|"]
        lines += [
            f"| `{s.name}` | {s.what} | {outcome_text(s)} | {s.outcome.within:g} s |" for s in scenarios
        ]
        lines.append("")
    return "\n".join(lines)
