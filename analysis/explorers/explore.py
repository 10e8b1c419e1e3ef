"""Everything about a run in one place: from rollouts over groups to sessions, linked in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ipywidgets as W
import pandas as pd

from analysis.explorers.base import Explorer
from analysis.explorers.compare import CompareExplorer
from analysis.explorers.groups import GroupExplorer
from analysis.explorers.runs import RunExplorer
from analysis.explorers.search import SearchExplorer
from analysis.explorers.sessions import SessionExplorer

__all__ = ["RunView", "explore"]

_TABS = ("Explore", "Compare", "Search")


class RunView(Explorer):
    """The explorers of one run on one selection.

    Below the overview are three tabs: groups with the autopsy of the picked one and the session that is
    picked in it; two things side by side; and the search. The latter two are made when they are first shown.
    A hit of the search that is chosen leads to the first tab, where its session is open at the message.

    ``selection`` is the innermost thing that is selected, as rows of its table: tokens, a trace, a session, a
    group, or the brushed rollouts.

    Attributes
    ----------
    overview, groups, session, compare, search
        The parts; `compare` and `search` are None until their tabs are shown.
    tabs
        The tabs.
    """

    kind = "explore"

    def _build(self) -> W.DOMWidget:
        self.compare: CompareExplorer | None = None
        self.search: SearchExplorer | None = None
        self.overview = RunExplorer(self.run, part_of=self)
        self.groups = GroupExplorer(self.run, part_of=self)
        self.session = SessionExplorer(self.run, part_of=self, sessions=False)
        explored = W.VBox([self.groups.widget, self.session.widget])
        self.tabs = W.Tab([explored, W.VBox(), W.VBox()], titles=_TABS)
        self.tabs.add_class("wb-tabs")
        self.observe(self.tabs, self._tab_shown, "selected_index")
        return W.VBox([self.overview.widget, self.tabs])

    @property
    def selection(self) -> pd.DataFrame:
        """The innermost thing that is selected, as rows of its table."""
        return self.state.selection()

    def view(self) -> dict[str, Any]:
        """Return what is set in the parts beside the selection."""
        return {"tab": self.tabs.selected_index} | {name: part.view() for name, part in self._parts().items()}

    def restore_view(self, view: Mapping[str, Any]) -> None:
        """Set the parts as they were."""
        self.tabs.selected_index = view.get("tab", 0)
        for name, make in (("compare", self._make_compare), ("search", self._make_search)):
            if name in view:
                make()
        for name, part in self._parts().items():
            part.restore_view(view.get(name, {}))

    def refresh(self) -> None:
        """Show what the run has now, after `Run.refresh`."""
        for part in self._parts().values():
            part.refresh()

    def _parts(self) -> dict[str, Any]:
        names = ("overview", "groups", "session", "compare", "search")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def _tab_shown(self, change: Any) -> None:
        made: Callable[[], Any] = {1: self._make_compare, 2: self._make_search}.get(change["new"], bool)
        made()
        if change["new"] == _TABS.index("Search") and self.search is not None:
            self.search.hits.selected = []  # so that the hit that led away from here can be chosen again

    def _hit_chosen(self, hit: Any) -> None:
        """Show where a hit of the search is: its session, open at the message."""
        self.tabs.selected_index = _TABS.index("Explore")
        if hit["where"] == "evaluation_report":
            self.session.open_tab("Evaluation")
        elif not pd.isna(hit["message"]):
            self.session.open_tab("Transcript")
        if not pd.isna(hit["turn"]):
            self.session.transcript.focus = int(hit["turn"])
        self.session.transcript.reveal()

    def _make_compare(self) -> None:
        if self.compare is None:
            self.compare = CompareExplorer(self.run, part_of=self)
            self.tabs.children[1].children = [self.compare.widget]

    def _make_search(self) -> None:
        if self.search is None:
            self.search = SearchExplorer(self.run, part_of=self, on_hit=self._hit_chosen)
            self.tabs.children[2].children = [self.search.widget]


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
