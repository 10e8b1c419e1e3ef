"""The overview of a run: reward, lag, yield and rejections by rollout, and a brush that filters the rest."""

from __future__ import annotations

from typing import Any

import ipywidgets as W
import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.explorers.base import Explorer
from analysis.explorers.overview_chart import (
    OverviewChart,
    evaluations,
    overview,
    panels,
    rejections,
    trained,
)
from analysis.explorers.state import SelectionState
from analysis.stats.columns import flags, floats, sums

__all__ = ["RunExplorer", "summary"]


class RunExplorer(Explorer):
    """Rollouts to brush; ``selection`` is their rows of ``run.rollouts()``."""

    kind = "run"

    def _build(self, *, panel_height: int = 66) -> W.DOMWidget:
        self.chart = OverviewChart(panel_height=panel_height)
        self.text = W.HTML()
        self.refresh()
        self._show_brush(None)
        self.observe(self.chart, self._brushed, "brush")
        self.observe(self.state, self._show_brush, "rollouts")
        return W.VBox([self.chart, self.text])

    @property
    def selection(self) -> pd.DataFrame:
        """The brushed rollouts, training and evaluation; all where nothing is brushed."""
        return self.state.rows("rollout")

    def refresh(self) -> None:
        """Draw what the run has now, after `Run.refresh`."""
        tables = self.state.tables
        numbers, rejected = overview(tables.rollouts), rejections(tables.groups)
        ids, drawn, legend = panels(numbers, evaluations(tables.rollouts), rejected)
        with self.chart.hold_sync():
            self.chart.trained = trained(numbers, rejected)
            self.chart.ids, self.chart.panels, self.chart.legend = ids, drawn, legend

    def _brushed(self, change: Any) -> None:
        brush = change["new"]
        if brush is None:
            self.state.rollouts = None
        elif not self._brush_of(self.state.rollouts) == brush:
            first, last = brush
            self.state.rollouts = [number for number in self.chart.ids if first <= number <= last]

    def _show_brush(self, change: Any) -> None:
        self.chart.brush = self._brush_of(self.state.rollouts)
        self.text.value = str(summary(self.state))

    @staticmethod
    def _brush_of(rollouts: tuple[int, ...] | None) -> list[int] | None:
        return None if not rollouts else [rollouts[0], rollouts[-1]]


def summary(state: SelectionState) -> Markup:
    """Return what the brushed rollouts come to, in one line."""
    groups, sessions = state.tables.groups, state.tables.sessions
    mine = state.tables.rows_in_rollouts("group", state.rollouts)
    training = mine[~flags(groups, "evaluation")[mine]]
    states = groups["state"].iloc[training].value_counts(dropna=True)
    delivered, rejected = int(states.get("delivered", 0)), int(states.get("rejected", 0))
    own = state.tables.rows_in_rollouts("session", state.rollouts)
    own = own[~flags(sessions, "evaluation")[own]]
    owner = state.tables.group_of_session[own]
    rewarded = floats(sessions, "reward")[own]
    usable = flags(sessions, "usable")[own] & np.isfinite(rewarded)
    parts = [f"{len(training):,} groups", f"{delivered:,} delivered", f"{rejected:,} rejected"]
    parts.append(f"{len(own):,} sessions")
    if usable.any():
        parts.append(f"mean reward {rewarded[usable].mean():.3g} over {int(usable.sum()):,} usable sessions")
        flat = _without_spread(owner[usable], rewarded[usable], len(groups))
        parts.append(f"{flat:,} group{'' if flat == 1 else 's'} without a difference in reward")
    return Markup('<p class="wb-note">{}</p>').format(" · ".join(parts))


def _without_spread(owner: Any, rewards: Any, count: int) -> int:
    """Count the groups of two and more rewards that do not differ."""
    size = sums(owner, count)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    there = owner >= 0
    np.minimum.at(low, owner[there], rewards[there])
    np.maximum.at(high, owner[there], rewards[there])
    return int(np.count_nonzero((size > 1) & (low == high)))
