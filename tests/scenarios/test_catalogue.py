"""The fault catalogue: every scenario through the real hook, and the page that promises the outcomes."""

from __future__ import annotations

import pytest

from analysis.lab.polar_server.fault_kinds import KINDS
from analysis.lab.polar_server.testing import Fault
from tests.scenarios.__main__ import PAGE
from tests.scenarios.catalogue import SCENARIOS, markdown
from tests.scenarios.fleet import played
from tests.scenarios.playing import play
from tests.scenarios.scenario import Outcome, Scenario

QUICK = [scenario for scenario in SCENARIOS if not scenario.slow]
SLOW = [scenario for scenario in SCENARIOS if scenario.slow]


@pytest.fixture(scope="module")
def slow_results(request):
    """The selected slow scenarios, played side by side from the first test that asks."""
    chosen = {
        item.callspec.params["scenario"].name
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_slow_scenario"
    }
    with played([scenario for scenario in SLOW if scenario.name in chosen]) as results:
        yield results


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_scenario(scenario, tmp_path):
    """The outcome is the promised one, the books balance, the samples are the server's, nothing is left."""
    play(scenario, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("scenario", SLOW, ids=lambda scenario: scenario.name)
def test_slow_scenario(scenario, slow_results):
    """As above, for scenarios that wait for polls, deadlines and outages."""
    result = slow_results[scenario.name].result()
    assert not result.problem, result.problem


def test_page_is_in_step_with_the_catalogue():
    """docs/faults.md promises what is tested; `python -m tests.scenarios --docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == markdown()


def test_catalogue_is_large_and_its_names_are_unique():
    """At least forty fault scripts, and most kinds of faults that the server can play."""
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names) >= 40
    played_kinds = {fault.kind for scenario in SCENARIOS for fault in scenario.faults}
    assert {kind.name for kind in KINDS.values()} - played_kinds <= NOT_PLAYED


NOT_PLAYED = {
    "callback_forged_inside",  # somebody who knows the secret address can say anything
    "reward",  # a value of the caller's choice, for other tests
    "session_foreign_id",
    "session_slow",
    "task_huge",
    "task_slow",
    "outage",
}


def test_wrong_expectations_fail(tmp_path):
    """A scenario whose outcome is not the promised one is a failure, not a line in a table."""
    wrong = Scenario(name="wrong", what="Nothing.", outcome=Outcome(rejected={"zero_trainable": 1}))
    with pytest.raises(AssertionError):
        play(wrong, tmp_path)


def test_scenario_whose_fault_never_happens_fails(tmp_path):
    """A script that does nothing proves nothing."""
    idle = Scenario(name="idle", what="Nothing.", faults=[Fault("callback_lost", tasks=[99])])
    with pytest.raises(AssertionError, match="never happened"):
        play(idle, tmp_path)
