"""Everything about a run in one place: from rollouts over groups to sessions, linked in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ipywidgets as W
import pandas as pd

from analysis.explorers.base import Explorer
from analysis.explorers.groups import GroupExplorer
from analysis.explorers.runs import RunExplorer

__all__ = ["RunView", "explore"]


class RunView(Explorer):
    """The explorers of one run on one selection.

    ``selection`` is the innermost thing that is selected, as rows of its table: tokens, a trace, a session, a
    group, or the brushed rollouts.
    """

    kind = "explore"

    def _build(self) -> W.DOMWidget:
        self.overview = RunExplorer(self.run, part_of=self)
        self.groups = GroupExplorer(self.run, part_of=self)
        return W.VBox([self.overview.widget, self.groups.widget])

    @property
    def selection(self) -> pd.DataFrame:
        """The innermost thing that is selected, as rows of its table."""
        return self.state.selection()

    def view(self) -> dict[str, Any]:
        """Return what is set in the parts beside the selection."""
        return {"groups": self.groups.view()}

    def restore_view(self, view: Mapping[str, Any]) -> None:
        """Set the parts as they were."""
        self.groups.restore_view(view.get("groups", {}))

    def refresh(self) -> None:
        """Show what the run has now, after `Run.refresh`."""
        self.overview.refresh()
        self.groups.refresh()


def explore(
    run: Any,
    *,
    name: str | None = None,
    estimators: Mapping[str, Any] | Iterable[Any] | None = None,
    **selected: Any,
) -> RunView:
    """Explore a run: show what is returned in a notebook cell, and ask it for its ``selection``.

    Parameters
    ----------
    run
        A loaded run, a part of one, or a mapping of frames.
    name
        Keeps explorers of one run apart; by default the notebook's cell does.
    estimators
        Estimators of your own, to choose beside the bridge's: a mapping by label, or a list.
    **selected
        What to begin with: ``rollouts``, ``group``, ``session_id``, ``trace_index``, ``window``,
        ``estimator``, ``query``.

    Raises
    ------
    ExplorerError
        If the run has nothing of what is to be selected.

    Examples
    --------
    >>> explorer = analysis.explore(run)  # doctest: +SKIP
    >>> explorer.selection  # doctest: +SKIP
    """
    view = RunView(run, name=name, estimators=estimators)
    try:
        view.state.select(**selected)
    except BaseException:
        view.close()
        raise
    return view
