"""What is selected: one model that linked explorers share, without a widget in it.

Levels are nested, and a change on one is carried to the others in both directions. Outwards: choosing a
session chooses its group, and a group that lies outside the brushed rollouts lifts the brush. Inwards:
brushing other rollouts, or choosing another group, lets go of what lies outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import traitlets

from analysis.errors import ExplorerError
from analysis.explorers.lookup import GroupKey, tables_of
from analysis.stats.batches import AnyEstimator, labelled, resolve
from analysis.stats.columns import Ints
from slime_bridge.advantages import ESTIMATORS

__all__ = ["SelectionState"]

_LEVELS = ("rollouts", "group", "session_id", "trace_index", "window")
_OTHERS = ("estimator", "query")


class SelectionState(traitlets.HasTraits):
    """The shared selection.

    Set attributes to select, and ``observe`` them to follow. An observer sees a state in which the levels
    agree with each other, whatever was set.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    estimators
        Estimators of your own beside the bridge's: a mapping by label, or a list.
    **selected
        Values to begin with, as `select` takes them.

    Attributes
    ----------
    rollouts
        Brushed rollout ids, ascending; None for all.
    group
        `GroupKey` or None. A number or a row of ``run.groups()`` may be assigned.
    session_id
        Polar's id of a session, or None.
    trace_index
        Number of a trace in that session, or None.
    window
        Tokens (start, stop) of that trace, prompt included, or None.
    estimator
        Label of the estimator that advantages are shown for; None for the one the run was trained with.
    query
        Text that is searched for.
    estimator_labels
        Labels of the estimators that can be chosen, in order; changes when one is added.
    """

    rollouts = traitlets.Any(default_value=None, allow_none=True)
    group = traitlets.Any(default_value=None, allow_none=True)
    session_id = traitlets.Any(default_value=None, allow_none=True)
    trace_index = traitlets.Any(default_value=None, allow_none=True)
    window = traitlets.Any(default_value=None, allow_none=True)
    estimator = traitlets.Any(default_value=None, allow_none=True)
    query = traitlets.Unicode("")
    estimator_labels: Any = traitlets.Tuple()

    def __init__(
        self,
        run: Any,
        *,
        estimators: Mapping[str, AnyEstimator] | Iterable[AnyEstimator] | None = None,
        **selected: Any,
    ) -> None:
        super().__init__()
        self.tables = tables_of(run)
        self.estimators: dict[str, Callable[..., Any] | None] = dict.fromkeys(ESTIMATORS)
        if estimators:
            chosen = estimators if isinstance(estimators, Mapping) else list(estimators)
            self.estimators |= labelled(chosen)
        self.estimator_labels = tuple(self.estimators)
        self.select(**selected)

    @property
    def run(self) -> Any:
        """What is explored."""
        return self.tables.run

    def select(self, **selected: Any) -> None:
        """Set several attributes, from the outermost level to the innermost.

        Raises
        ------
        ExplorerError
            If the run has no such thing, or there is no such attribute.
        """
        unknown = sorted(set(selected) - {*_LEVELS, *_OTHERS})
        if unknown:
            raise ExplorerError(
                f"nothing to select is called {unknown[0]!r}: there are {', '.join((*_LEVELS, *_OTHERS))}"
            )
        for name in (*_LEVELS, *_OTHERS):
            if name in selected:
                setattr(self, name, selected[name])

    def clear(self) -> None:
        """Let go of everything but the estimator."""
        self.select(rollouts=None, group=None, session_id=None, query="")

    def values(self) -> dict[str, Any]:
        """Return what is selected, to be handed to `select` or `restore`."""
        return {name: getattr(self, name) for name in (*_LEVELS, *_OTHERS)}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Select what another state had selected, as far as this run still has it."""
        for name in (*_LEVELS, *_OTHERS):
            if name in values:
                try:
                    setattr(self, name, values[name])
                except ExplorerError:  # the run was read again, and no longer has it
                    continue

    # The selection as frames

    def selection(self) -> pd.DataFrame:
        """Return the innermost thing that is selected, as rows of its table.

        Returns
        -------
        DataFrame
            Tokens of the window, else the trace, the session, the group, or the brushed rollouts; all
            rollouts where nothing is selected.
        """
        if self.window is not None and hasattr(self.run, "tokens"):
            frame: pd.DataFrame = self.run.tokens(
                self.session_id, trace_index=self.trace_index, window=self.window
            )
            return frame
        for grain, value in (
            ("trace", self.trace_index),
            ("session", self.session_id),
            ("group", self.group),
        ):
            if value is not None:
                return self.rows(grain)
        return self.rows("rollout")

    def rows(self, grain: str) -> pd.DataFrame:
        """Return the rows of a table that belong to what is selected.

        Parameters
        ----------
        grain
            ``rollout``, ``group``, ``session`` or ``trace``.
        """
        frame = self.tables.frames.table(grain)
        return frame.iloc[self.places(grain)].reset_index(drop=True)

    def places(self, grain: str) -> Ints:
        """Return where the rows of `rows` stand in the run's table, shape (n,), ascending."""
        tables = self.tables
        session = self._session_row()
        if grain == "trace" and session is not None:
            found = np.flatnonzero(tables.session_of_trace == session)
            if self.trace_index is None:
                return found
            index = tables.traces["trace_index"].to_numpy(dtype=np.int64, na_value=-1)[found]
            return np.asarray(found[index == self.trace_index], dtype=np.int64)
        if grain == "session" and session is not None:
            return np.array([session], dtype=np.int64)
        if self.group is not None and grain != "rollout":
            row = tables.group_row(self.group)
            own = -2 if row is None else row
            if grain == "group":
                return np.array([own], dtype=np.int64)[[own >= 0]]
            owner = tables.group_of_session if grain == "session" else tables.group_of_trace
            return np.flatnonzero(owner == own)
        return tables.rows_in_rollouts(grain, self.rollouts)

    # Estimators

    def resolved_estimator(self, label: str | None = None) -> Callable[..., Any] | None:
        """Return the estimator behind a label (the selected one by default), None for the run's own.

        Raises
        ------
        AdvantageError
            If it cannot be made without hyper-parameters that nobody gave.
        """
        wanted = self.estimator if label is None else label
        if wanted is None:
            return None
        return self.estimators[wanted] or resolve(wanted)

    def add_estimator(self, label: str, estimator: AnyEstimator) -> None:
        """Offer an estimator of your own under a label, and select it; it replaces one of the same label."""
        self.estimators[label] = resolve(estimator)
        self.estimator_labels = tuple(self.estimators)
        if self.estimator == label:
            self.estimator = None
        self.estimator = label

    # Validation

    @traitlets.validate("rollouts")
    def _valid_rollouts(self, proposal: dict[str, Any]) -> tuple[int, ...] | None:
        value = proposal["value"]
        if value is None:
            return None
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise ExplorerError(f"rollouts are a collection of rollout ids, or None for all; got {value!r}")
        wanted = sorted({_integer(item, "a rollout id") for item in value})
        known = set(self.tables.rollouts["rollout_id"].dropna().tolist()) | set(
            self.tables.groups["rollout_id"].dropna().tolist()
        )
        kept = tuple(item for item in wanted if item in known)
        if wanted and not kept:
            raise ExplorerError(f"the run has none of the rollouts {wanted[0]} to {wanted[-1]}")
        return kept or None

    @traitlets.validate("group")
    def _valid_group(self, proposal: dict[str, Any]) -> GroupKey | None:
        value = proposal["value"]
        return None if value is None else self.tables.find_group(value)

    @traitlets.validate("session_id")
    def _valid_session(self, proposal: dict[str, Any]) -> str | None:
        value = proposal["value"]
        if value is None:
            return None
        if not isinstance(value, str) or self.tables.session_row(value) is None:
            raise ExplorerError(f"this run has no session {value!r}; run.sessions() lists all")
        return value

    @traitlets.validate("trace_index")
    def _valid_trace(self, proposal: dict[str, Any]) -> int | None:
        value = proposal["value"]
        if value is None:
            return None
        number, session = _integer(value, "a trace index"), self._session_row()
        if session is None:
            raise ExplorerError("a trace is one of a session's: select the session first")
        own = self.tables.traces["trace_index"].to_numpy(dtype=np.int64, na_value=-1)[
            self.tables.session_of_trace == session
        ]
        if number not in own:
            raise ExplorerError(
                f"session {self.session_id} has {len(own)} traces, and none is number {number}"
            )
        return number

    @traitlets.validate("window")
    def _valid_window(self, proposal: dict[str, Any]) -> tuple[int, int] | None:
        value = proposal["value"]
        if value is None:
            return None
        try:
            start, stop = (_integer(item, "a token position") for item in value)
        except (TypeError, ValueError) as exc:
            raise ExplorerError(f"a window is (start, stop), got {value!r}") from exc
        if not 0 <= start <= stop:
            raise ExplorerError(f"a window begins at 0 or later and does not end before that, got {value!r}")
        if self.trace_index is None:
            raise ExplorerError("a window lies in a trace: select the trace first")
        return start, stop

    @traitlets.validate("estimator")
    def _valid_estimator(self, proposal: dict[str, Any]) -> str | None:
        value = proposal["value"]
        if value is not None and value not in self.estimators:
            known = ", ".join(self.estimators)
            raise ExplorerError(
                f"no estimator is called {value!r}: there are {known}; add_estimator adds one"
            )
        return None if value is None else str(value)

    # Links. Handlers of the class run before those of observers, so that these see levels that agree.

    @traitlets.observe("rollouts")
    def _link_rollouts(self, change: dict[str, Any]) -> None:
        if self.group is not None and change["new"] is not None:
            if self.group.rollout_id not in change["new"]:
                self.group = None

    @traitlets.observe("group")
    def _link_group(self, change: dict[str, Any]) -> None:
        key = change["new"]
        if key is not None and self.rollouts is not None and key.rollout_id not in self.rollouts:
            self.rollouts = None
        session = self._session_row()
        if session is not None and (key is None or self._group_of(session) != key):
            self.session_id = None

    @traitlets.observe("session_id")
    def _link_session(self, change: dict[str, Any]) -> None:
        self.trace_index = None
        session = self._session_row()
        if session is not None and self._group_of(session) != self.group:
            self.group = self._group_of(session)

    @traitlets.observe("trace_index")
    def _link_trace(self, change: dict[str, Any]) -> None:
        self.window = None

    def _session_row(self) -> int | None:
        if self.session_id is None:
            return None
        return self.tables.session_row(self.session_id, self.group.run if self.group else None)

    def _group_of(self, session: int) -> GroupKey | None:
        row = int(self.tables.group_of_session[session])
        return self.tables.group_keys[row] if row >= 0 else None


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ExplorerError(f"{what} is an integer, got {value!r}")
    return int(value)
