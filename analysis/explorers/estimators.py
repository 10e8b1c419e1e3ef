"""The switch of estimators: one for all advantages that are shown."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from analysis.explorers.advantages import trained_with
from analysis.explorers.base import Explorer

__all__ = ["estimator_name", "estimator_switch"]

_OWN = ""


def estimator_switch(explorer: Explorer) -> W.Dropdown:
    """Return a choice of estimators that is tied to an explorer's state in both directions.

    The first choice is what the run was trained with; then come the bridge's, and those of the user.
    """
    state = explorer.state

    # A choice of None would be no choice: the run's own estimator has a name here.
    def options() -> list[tuple[str, str]]:
        return [("as trained", _OWN), *((label, label) for label in state.estimator_labels)]

    switch = W.Dropdown(
        options=options(),
        value=state.estimator or _OWN,
        description="Estimator",
        layout=W.Layout(width="auto", min_width="22em"),
        style={"description_width": "initial"},
    )

    renewing: list[bool] = []

    def chosen(change: Any) -> None:
        if renewing:
            return
        state.estimator = None if change["new"] == _OWN else change["new"]

    def follow(change: Any) -> None:
        switch.value = state.estimator or _OWN

    def renew(change: Any) -> None:
        renewing.append(True)  # new options move the choice to the first of them, and back
        switch.options = options()
        switch.value = state.estimator or _OWN
        renewing.clear()

    explorer.observe(switch, chosen, "value")
    explorer.observe(state, follow, "estimator")
    explorer.observe(state, renew, "estimator_labels")
    return switch


def estimator_name(explorer: Explorer) -> str:
    """Return how the selected estimator writes itself, with its hyper-parameters."""
    function = explorer.state.resolved_estimator()
    return repr(function or trained_with(explorer.state.tables))
