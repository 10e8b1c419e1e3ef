"""Estimators by name, so that a training process finds the same one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from analysis.errors import SubmissionError
from analysis.live.estimators import EstimatorChoice, choose_estimator
from analysis.live.training_start import _labels
from slime_bridge.advantages import GRPO, RLOO, get_estimator


def test_names_objects_and_classes_are_the_same_choice() -> None:
    """Only what differs from the defaults is passed on."""
    assert choose_estimator(None) == EstimatorChoice()
    assert choose_estimator("rloo") == choose_estimator(RLOO) == choose_estimator(RLOO())
    assert choose_estimator("slime_bridge.advantages:RLOO").name == "slime_bridge.advantages:RLOO"


def test_hyper_parameters_arrive() -> None:
    """The process makes an equal object of the choice."""
    estimator = GRPO(epsilon=0.5)
    choice = choose_estimator(estimator)
    assert choice == EstimatorChoice("grpo", {"epsilon": 0.5})
    assert get_estimator(choice.name, dict(choice.kwargs)) == estimator
    assert choice.label == "grpo(epsilon=0.5)"


@pytest.mark.parametrize("name", ["no_such", "no_such_module:Thing", "slime_bridge.advantages:nothing"])
def test_unknown_names_are_refused_before_anything_starts(name: str) -> None:
    """A training of a minute must not fail of a typo."""
    with pytest.raises(SubmissionError, match=name.split(":")[0]):
        choose_estimator(name)


@pytest.mark.parametrize("thing", [3, 0.5, len, ["grpo"], dict])
def test_what_is_no_estimator_is_refused(thing: Any) -> None:
    """Whatever it is."""
    with pytest.raises(SubmissionError, match="no advantage estimator"):
        choose_estimator(thing)


def test_classes_of_a_notebook_are_told_the_way_to_a_file() -> None:
    """Another process cannot import them."""

    @dataclass(frozen=True)
    class Mine(GRPO):
        """Defined in a function, as good as in a notebook."""

    with pytest.raises(SubmissionError, match=r"%%writefile my_estimator\.py.*my_estimator:Mine"):
        choose_estimator(Mine())


def test_equal_labels_are_numbered() -> None:
    """A run is looked up by its label."""
    choices = [EstimatorChoice("grpo"), EstimatorChoice("rloo"), EstimatorChoice("grpo")]
    assert _labels(choices) == ["grpo #1", "rloo", "grpo #2"]
