"""Rules find the fault that was planted, say where it begins, and keep quiet about runs without one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.report.findings import SEVERITIES, Finding, course, find, known, share_text
from analysis.report.measures import Measures
from analysis.report.rules import RULES
from tests.analysis.report.synthetic import START, frame, synthetic_run
from tests.analysis.stats.builder import RunBuilder

RULE = dict(RULES)


@cache
def measures(fault: str = "", seed: int = 0) -> Measures:
    return Measures(synthetic_run(fault, seed=seed))


def test_traces_of_nobody_have_no_lag() -> None:
    """Dumps alone, without a journal and without results, hold traces and no session."""
    tables = synthetic_run("mismatch")
    tables["session"] = tables["session"].head(0)
    with pytest.raises(StatsError, match="no trace without lag"):
        RULE["logprob mismatch"](Measures(tables))


PLANTED = [
    ("too easy", "collapse of variance", "serious", f"with rollout {START}", "signal"),
    ("too easy", "zero-signal streak", "serious", f"({START} to 41, the last)", "signal"),
    ("reward drop", "reward drop", "serious", "standard deviations", "reward"),
    ("held-out drop", "held-out drop", "serious", "at rollout 42", "evaluations"),
    ("stuck prompts", "stuck prompts", "warning", "8 of 24 prompts", "zero_signal"),
    ("lag", "lag creep", "warning", f"with rollout {START}, most of it in the queue", "policy_lag"),
    ("mismatch", "logprob mismatch", "warning", "0.15", "logprobs"),
    ("weights", "effective sample size", "serious", f"In rollouts {START} to 41", "ess"),
    ("mask drift", "mask drift", "serious", f"with rollout {START}", ""),
    ("truncation", "truncation surge", "serious", f"rollouts {START} to 41", "truncation"),
    ("infrastructure zeros", "infrastructure zeros", "serious", "timeout", "contamination"),
    ("rejections", "rejection surge", "serious", f"rollouts {START} to {START + 5}", "rejections"),
    ("failures", "failure surge", "serious", f"rollouts {START} to 41", "truncation"),
    ("waste", "waste", "warning", "rejected (low complete fraction)", "waste"),
    ("waiting", "waiting trainer", "warning", "90%", "idle"),
]


@pytest.mark.parametrize(
    ("fault", "rule", "severity", "said", "figure"), PLANTED, ids=[p[1] for p in PLANTED]
)
def test_a_planted_fault_is_found_and_located(
    fault: str, rule: str, severity: str, said: str, figure: str
) -> None:
    finding = RULE[rule](measures(fault))
    assert finding is not None
    assert finding.severity == severity
    assert said in finding.title
    assert finding.rule == rule
    assert finding.figure == figure
    assert 0 < finding.impact <= 1
    assert len(finding.rows) or fault == "held-out drop"
    assert finding.advice


@pytest.mark.parametrize(("fault", "rule"), sorted({(p[0], p[1]) for p in PLANTED}), ids=lambda name: name)
def test_no_rule_sees_that_fault_in_a_clean_run(fault: str, rule: str) -> None:
    assert RULE[rule](measures()) is None


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_a_clean_run_raises_no_alarm(seed: int) -> None:
    found = find(measures("", seed), RULES)
    assert [finding.title for finding in found.found] == []
    assert {name for name, _ in found.unchecked} == {"incomplete data"}
    assert len(found.passed) == len(RULES) - 1


def test_numbers_of_a_finding_are_those_of_the_frames() -> None:
    planted = measures("truncation")
    traces = planted.frames.traces
    late = traces["rollout_id"] >= START
    shares = (traces["finish_reason"] == "length")[late].groupby(traces["rollout_id"][late]).mean()
    finding = RULE["truncation surge"](planted)
    assert finding is not None
    assert finding.title.startswith(share_text(float(shares.mean())))


def test_rules_say_what_they_lack() -> None:
    found = find(Measures({}), RULES)
    assert found.found == ()
    reasons = dict(found.unchecked)
    assert "known for 0 of 0 rollouts" in reasons["reward drop"]
    assert set(reasons) | set(found.passed) == set(RULE)
    assert len(reasons) > 12


def test_findings_are_ranked_by_severity_then_impact() -> None:
    def rule(severity: str, impact: float):
        return lambda _: Finding(f"{severity}{impact}", severity, "t", "a", impact)

    rules = [("a", rule("info", 1.0)), ("b", rule("serious", 0.1)), ("c", rule("warning", 0.5))]
    rules += [("d", rule("serious", 0.4)), ("e", lambda _: None)]
    found = find(Measures({}), rules)
    assert [f.rule for f in found.found] == ["serious0.4", "serious0.1", "warning0.5", "info1.0"]
    assert found.passed == ("e",)


def test_an_unknown_severity_is_refused() -> None:
    with pytest.raises(ValueError, match="no severity 'fatal'"):
        Finding("r", "fatal", "t", "a", 0.5)
    assert SEVERITIES == ("serious", "warning", "info")


def test_a_rule_needs_enough_rollouts() -> None:
    series = pd.DataFrame({"rollout_id": range(9), "reward": np.full(9, 0.5)})
    with pytest.raises(StatsError, match="known for 9 of 9 rollouts; at least 10"):
        known(series, "reward", "reward")
    assert len(known(series, "reward", "reward", 9)) == 9


def test_the_course_keeps_both_ends() -> None:
    series = pd.DataFrame({"rollout_id": range(100), "reward": np.arange(100.0)})
    assert course(series, ["reward"])["rollout_id"].tolist()[::7] == [0, 99]
    assert len(course(series, ["reward"])) == 8
    assert course(series, ["reward"], 10, 13)["rollout_id"].tolist() == [10, 11, 12]
    assert course(series.iloc[:0], ["reward"]).empty


def test_a_change_in_the_number_of_turns_is_no_mask_drift() -> None:
    """The share of sampled tokens falls with the turns; at equal turns nothing has changed."""
    count = 3000
    rng = np.random.default_rng(0)
    rollout = np.repeat(np.arange(30), 100)
    turns = np.where(rollout < 20, rng.integers(1, 3, count), rng.integers(2, 5, count))
    tokens = turns * 100
    traces = frame(
        "trace",
        count,
        run="run",
        rollout_id=rollout,
        evaluation=False,
        group_index=np.arange(count),
        session_id=[f"s{i}" for i in range(count)],
        accepted=True,
        placeholder=False,
        turns=turns,
        response_tokens=tokens,
        trainable_tokens=np.rint(tokens * (0.2 + 0.4 / turns + rng.normal(0, 0.01, count))),
    )
    groups = frame(
        "group", 30, run="run", rollout_id=np.arange(30), evaluation=False, group_index=10_000 + np.arange(30)
    )
    given = Measures({"trace": traces, "group": groups})
    plain = (
        traces["trainable_tokens"].groupby(rollout).sum() / traces["response_tokens"].groupby(rollout).sum()
    )
    assert plain[25:].mean() < 0.85 * plain[:15].mean()
    assert RULE["mask drift"](given) is None


def test_files_of_sessions_alone_say_nothing_about_waste() -> None:
    """Where neither journal nor dump says what became of any group, nothing was found to be wasted."""
    builder = RunBuilder()
    builder.group([1.0, 0.0], rollout_id=None, accepted=None)
    for row in builder.rows["session"]:
        row["e2e_ms"] = 1000.0
    with pytest.raises(StatsError, match="what became of any session"):
        RULE["waste"](Measures(builder.tables()))
