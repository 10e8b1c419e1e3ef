"""A loaded run: its tables as frames, its tokens, and views of a part of it.

A `Run` reads nothing by itself: all views of a run share one `analysis.store.Store`, which `refresh` brings
up to date. A view is a list of choices that is applied to whatever the store holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from analysis._selection import Choice, Rows, all_rows, choose, last_rollouts, sampled, traces_of
from analysis._summary import coverage_frame, summary_html, summary_text
from analysis._tables import integers, set_columns, take_table
from analysis.merge import OWNER
from analysis.parallel import Engine
from analysis.parquet_dataset import INSIDE
from analysis.problems import problems_frame, skipped_frame
from analysis.records import widen
from analysis.schema import GRAINS, arrow_schema, columns_of, describe, to_frame
from analysis.store import Store
from analysis.token_text import Decoder, TokenText, find_tokenizer
from analysis.tokens import TRACE_COLUMNS, TokenArrays, Window

if TYPE_CHECKING:
    import pandas as pd

    from analysis.report.page import Written

__all__ = ["Run"]


class Run:
    """One run, several runs, or a part of them; made by `analysis.load`.

    Frames are copies: changing one changes nothing else. Ids of all outer levels are columns of every frame,
    so that frames join on them. See `describe` for the columns.
    """

    def __init__(
        self,
        store: Store,
        *,
        choices: tuple[Choice, ...] = (),
        tokenizer: str | os.PathLike[str] | Decoder | None = None,
    ) -> None:
        self._store = store
        self._choices = choices
        self._tokenizer = tokenizer
        self._text: TokenText | None = None
        self._applied: tuple[int, dict[str, pa.Table], Rows] | None = None
        self._frames: dict[str, pd.DataFrame] = {}

    # Frames

    def rollouts(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per training rollout and per evaluation.

        Parameters
        ----------
        columns
            Only these, in this order; all by default.
        """
        return self._frame("rollout", columns)

    def groups(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per prompt group that was drawn, whatever became of it; see `rollouts`."""
        return self._frame("group", columns)

    def sessions(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per session that was attempted or stood in for; see `rollouts`."""
        return self._frame("session", columns)

    def traces(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per training example, with summaries of its token arrays; see `rollouts`."""
        return self._frame("trace", columns)

    def events(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per record of the journal and per event of sample tracing; see `rollouts`."""
        return self._frame("event", columns)

    def completions(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per captured model call; see `rollouts`."""
        return self._frame("completion", columns)

    def metrics(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per recorded number: rollout or evaluation, metric, value; see `rollouts`."""
        return self._frame("metric", columns)

    def table(self, grain: str) -> pa.Table:
        """Return a table as Arrow, with its declared columns.

        Parameters
        ----------
        grain
            One of `analysis.schema.GRAINS`.
        """
        columns_of(grain)
        return widen(self._tables()[grain], arrow_schema(grain))

    def owned_table(self, grain: str) -> pa.Table:
        """Return a table like `table`, with the place of each row's owner in `analysis.merge.OWNER`.

        Places are those in this view's table of the next outer level (`analysis.parquet_dataset.INSIDE`).
        """
        table = self._tables()[grain]
        table = widen(table, arrow_schema(grain)).append_column(OWNER, table.column(OWNER))
        if grain not in INSIDE:
            return table
        stayed = self._current()[2][INSIDE[grain]]
        owner = integers(table, OWNER, -1)
        place = np.searchsorted(stayed, owner)
        there = (owner >= 0) & (place < len(stayed))
        there[there] = stayed[place[there]] == owner[there]
        return set_columns(table, **{OWNER: pa.array(place.astype(np.int64), mask=~there)})

    # Tokens

    def tokens(
        self,
        session_id: str | Iterable[str] | None = None,
        *,
        trace_index: int | None = None,
        window: Window = None,
        text: bool | None = None,
    ) -> pd.DataFrame:
        """Return one row per token; see `token_arrays` for the arguments and `TokenArrays` for the columns.

        Parameters
        ----------
        session_id, trace_index, window
            As in `token_arrays`.
        text
            Whether to add the text of each token; by default where a tokenizer is known.
        """
        return self.token_arrays(session_id, trace_index=trace_index, window=window).frame(text=text)

    def token_arrays(
        self,
        session_id: str | Iterable[str] | None = None,
        *,
        trace_index: int | None = None,
        window: Window = None,
    ) -> TokenArrays:
        """Read tokens as flat arrays with offsets, read-only; those of a whole view are kept in memory.

        Parameters
        ----------
        session_id
            Of one session or several; None for all traces of this view, which may be a lot.
        trace_index
            Only this trace of each session.
        window
            Which tokens of each trace: a slice, or (start, stop) as in one, prompt included; None for all.

        Raises
        ------
        KeyError
            A session is not in this view.
        """
        traces = self._tables()["trace"]
        rows = traces_of(traces, session_id, trace_index)
        table = traces.select(TRACE_COLUMNS).take(pa.array(rows))
        places, cache = self._current()[2]["trace"][rows], self._store.token_cache
        found = cache.read(table, places, self._refs(), window=window, keep=session_id is None)
        return replace(found, text=self._token_text())

    # Account

    @property
    def names(self) -> list[str]:
        """Names of the runs in this view, in order."""
        found = self._tables()
        return sorted(
            {name for grain in GRAINS for name in found[grain].column("run").unique().to_pylist()} - {None}
        )

    @property
    def problems(self) -> pd.DataFrame:
        """What went wrong: path, what, why, fix. Of the whole run, also in a view of a part."""
        return problems_frame(self._store.problems)

    @property
    def skipped(self) -> pd.DataFrame:
        """What was left out, and why: path, reason. Of the whole run, also in a view of a part."""
        return skipped_frame(self._store.skipped)

    @property
    def coverage(self) -> pd.DataFrame:
        """How far train dumps match rollout dumps, per rollout.

        Columns: run, rollout_id, ``dumped`` (samples in the rollout dump), ``trained`` (distinct samples in
        the train dumps), ``matched`` (in both), ``fraction`` (matched of dumped).
        """
        return coverage_frame(self.table("trace"))

    def describe(self, grain: str | None = None) -> pd.DataFrame:
        """Return the data dictionary, with the number of values that each column has here.

        Parameters
        ----------
        grain
            One table, or None for all.
        """
        frame = describe(grain)
        tables = self._tables()
        counts = []
        for name, column in zip(frame["table"], frame["column"], strict=True):
            values = tables[name].column(column)
            counts.append(len(values) - values.null_count)
        frame["values"] = counts
        return frame

    def refresh(self) -> Run:
        """Look for new, grown and completed files and read those; views of this run change with it.

        Returns
        -------
        Run
            This one.

        Raises
        ------
        StrictLoadError
            With `strict`, at the first problem.
        """
        self._store.refresh()
        return self

    # Parts

    def filter(
        self,
        *,
        rollout: Callable[[pd.DataFrame], Any] | Any = None,
        group: Callable[[pd.DataFrame], Any] | Any = None,
        session: Callable[[pd.DataFrame], Any] | Any = None,
        trace: Callable[[pd.DataFrame], Any] | Any = None,
        **columns: Any,
    ) -> Run:
        """Return a view of a part.

        What is chosen on one level decides on the levels inside it, and outer levels keep what still has a
        member: the sessions of accepted groups, and the rollouts that have such groups.

        Parameters
        ----------
        rollout, group, session, trace
            Functions from the level's frame to booleans, one per row; or values of ``rollout_id``, ``group``,
            ``session_id`` and ``trace_index``.
        **columns
            Values by column: one value, a collection, a `range`, or None for missing. Looked up in the
            outermost of the four tables that has the column.

        Examples
        --------
        >>> run.filter(rollout_id=range(10, 20), accepted=True)  # doctest: +SKIP
        >>> run.filter(session=lambda s: s.reward > 0.5)  # doctest: +SKIP

        Raises
        ------
        KeyError
            If no table has such a column.
        ValueError
            If a column can hold no such value.
        """
        wanted = choose({"rollout": rollout, "group": group, "session": session, "trace": trace}, columns)
        return self._view(wanted)

    def sample(self, n: int, seed: int = 0, *, by: str = "group") -> Run:
        """Return a view of `n` random groups (or sessions, or rollouts), the same for the same seed.

        Parameters
        ----------
        n
            How many; all if there are fewer.
        seed
            Of the draw.
        by
            ``group`` keeps groups whole, as comparisons within groups need them; or ``session``, ``rollout``.
        """
        return self._view(sampled(n, seed, by))

    def tail(self, n: int = 10) -> Run:
        """Return a view of each run's last `n` training rollouts, and the evaluations since the first."""
        return self._view(last_rollouts(n))

    # Export

    def to_parquet(
        self,
        out: str | os.PathLike[str],
        *,
        tokens: bool = True,
        overwrite: bool = False,
        engine: Engine | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> Path:
        """Write this view as a Parquet dataset that pandas, DuckDB, Polars and Spark read.

        See `analysis.export.write_dataset` for the layout and the arguments.
        """
        from analysis.export import write_dataset

        return write_dataset(
            self,
            Path(out),
            tokens=tokens,
            overwrite=overwrite,
            engine=engine,
            workers=workers,
            progress=progress,
        )

    def report(
        self, path: str | os.PathLike[str] = "report.html", *, compare: Run | None = None, **options: Any
    ) -> Written:
        """Write this run as one self-contained HTML page, alone or beside a second run.

        See `analysis.report.page.write_report` for the options: ``content``, ``emails``, ``figures`` and
        ``progress``.
        """
        from analysis.report.page import write_report

        return write_report(self, path, compare=compare, **options)

    # Display

    def __repr__(self) -> str:
        return summary_text(self)

    def _repr_html_(self) -> str:
        return summary_html(self)

    # Inner workings

    @property
    def store(self) -> Store:
        """What all views of this run share."""
        return self._store

    def _view(self, choice: Choice) -> Run:
        return Run(self._store, choices=(*self._choices, choice), tokenizer=self._tokenizer)

    def _tables(self) -> Mapping[str, pa.Table]:
        return self._current()[1]

    def _current(self) -> tuple[int, dict[str, pa.Table], Rows]:
        generation = self._store.generation
        if self._applied is None or self._applied[0] != generation:
            self._frames = {}
            rows = all_rows(self._store.tables)
            for choice in self._choices:
                rows = choice(self._store.tables, rows)
            tables = {grain: take_table(self._store.tables[grain], rows[grain]) for grain in GRAINS}
            self._applied = (generation, tables, rows)
        return self._applied

    def _frame(self, grain: str, columns: Sequence[str] | None) -> pd.DataFrame:
        table = self._tables()[grain]
        if columns is not None:
            unknown = set(columns) - {column.name for column in columns_of(grain)}
            if unknown:
                raise KeyError(
                    f"no columns {sorted(unknown)} in table {grain!r}; see run.describe({grain!r})"
                )
            schema = arrow_schema(grain)
            return to_frame(widen(table, pa.schema([schema.field(name) for name in columns])))
        if grain not in self._frames:
            self._frames[grain] = to_frame(widen(table, arrow_schema(grain)))
            pa.default_memory_pool().release_unused()
        return shared_copy(self._frames[grain])

    def _refs(self) -> pa.Table:
        return self._store.token_refs

    def _token_text(self) -> TokenText | None:
        if self._text is None:
            source = self._tokenizer
            if source is None:
                folders = [root.folder for root in self._store.roots if root.is_folder]
                source = find_tokenizer(folders)
            if source is not None:
                self._text = TokenText(source)
        return self._text


def shared_copy(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy that a caller may change; where pandas can, data is copied when that happens."""
    import pandas as pd

    on_write = int(pd.__version__.partition(".")[0]) >= 3
    return frame.copy(deep=not on_write)
