"""Formulas of the estimators: every symbol that one does not define itself is explained beside it."""

from __future__ import annotations

import re

import pytest

from slime_bridge.advantages import ESTIMATORS, explained_formula


@pytest.mark.parametrize("name", ["loo", "grpo", "gspo"])
def test_the_divisor_is_explained(name: str) -> None:
    said = explained_formula(ESTIMATORS[name].formula)
    assert "W: sample deviation of the group's m_j, 1 where it is below 1e-6" in said
    assert "r: the trace's reward" in said
    assert "m_j: mean reward of trajectory j" in said


def test_what_a_formula_defines_itself_is_not_explained_twice() -> None:
    said = explained_formula(ESTIMATORS["dvao"].formula)
    assert said.count("W the sum of their population deviations") == 1
    assert "W: " not in said
    assert explained_formula("given by the function itself") == "given by the function itself"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_formula_keeps_its_text(name: str) -> None:
    formula = ESTIMATORS[name].formula
    said = explained_formula(formula)
    assert said.startswith(formula)
    if re.search(r"\br\b", formula):
        assert "the trace's reward" in said
