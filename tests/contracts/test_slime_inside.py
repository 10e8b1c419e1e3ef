"""The bridge inside real Slime: its types, its RolloutManager, its metrics, its estimators."""

from __future__ import annotations

import importlib.util

import pytest

from tests.contracts.inside_slime import (
    advantage_checks,
    filter_checks,
    manager_checks,
    signature_checks,
    types_checks,
)
from tests.contracts.inside_slime.host import checks_of
from tests.contracts.slime_runs import assert_check_passes, needs_slime

pytestmark = [pytest.mark.slime, needs_slime, pytest.mark.timeout(200)]

MODULES = (types_checks, manager_checks, advantage_checks, filter_checks)


def cases(*modules):
    return [
        pytest.param(
            module.__name__.rpartition(".")[2], name, id=f"{module.__name__.rpartition('.')[2]}:{name[6:]}"
        )
        for module in modules
        for name in checks_of(module)
    ]


@pytest.mark.parametrize(("module", "check"), cases(*MODULES))
def test_inside_slime(module, check):
    """Each check's own docstring says what it promises."""
    assert_check_passes(module, check)


@pytest.mark.skipif(
    importlib.util.find_spec("slime_bridge.rollout") is None, reason="slime_bridge.rollout is not there yet"
)
@pytest.mark.parametrize(("module", "check"), cases(signature_checks))
def test_rollout_function(module, check):
    """The entry point meets the part of Slime's contract that needs no server."""
    assert_check_passes(module, check)
