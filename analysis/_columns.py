"""What a column is: its name, type, unit, meaning, and which source knows it best.

The columns themselves stand in `analysis._group_columns`, `analysis._session_columns`,
`analysis._trace_columns` and `analysis._record_columns`; `analysis.schema` is the public view of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BOOLEAN",
    "COMBINE",
    "FLOAT",
    "INTEGER",
    "TEXT",
    "TIME",
    "Column",
    "booleans",
    "floats",
    "ids",
    "integers",
    "texts",
    "times",
]

INTEGER = "Int64"
FLOAT = "Float64"
BOOLEAN = "boolean"
TEXT = "string"
TIME = "datetime64[us, UTC]"

COMBINE = ("last", "first", "min", "max", "sum", "any")
"""How two rows of one source about the same thing become one; missing values never count."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of one table.

    Parameters
    ----------
    name
        As in the frame.
    dtype
        The pandas dtype: ``Int64``, ``Float64``, ``boolean``, ``string`` or ``datetime64[us, UTC]``. Each can
        hold missing values, so the dtype is the same for an empty frame.
    unit
        What the number counts or the text holds.
    meaning
        What it is.
    sources
        Names from `analysis.schema.SOURCES`, best authority first: where sources contradict, the first that
        has a value wins. ``derived`` stands for what is computed when sources are joined, ``load`` for what
        the loader adds.
    missing
        When it is missing.
    combine
        How two rows of one source about the same thing become one (`COMBINE`).
    unless
        Name of a yes-or-no column: where it says yes, sources differ by nature, and no conflict is noted.
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    sources: tuple[str, ...]
    missing: str
    combine: str = "last"
    unless: str | None = None


def _make(
    dtype: str, sources: str, unit: str, missing: str, rows: tuple[tuple[str, ...], ...]
) -> tuple[Column, ...]:
    columns = []
    for name, meaning, *rest in rows:
        options = dict(item.split("=", 1) for item in rest)
        columns.append(
            Column(
                name=name,
                dtype=dtype,
                unit=options.get("unit", unit),
                meaning=meaning,
                sources=tuple(options.get("sources", sources).split()),
                missing=options.get("missing", missing),
                combine=options.get("combine", "last"),
                unless=options.get("unless"),
            )
        )
    return tuple(columns)


def integers(sources: str, unit: str, missing: str, *rows: tuple[str, ...]) -> tuple[Column, ...]:
    """Declare integer columns that share sources, unit and reason to be missing.

    Parameters
    ----------
    sources, unit, missing
        As in `Column`; sources in one string, separated by blanks.
    *rows
        Name and meaning, then ``key=value`` strings for what differs: sources, unit, missing, combine,
        unless.
    """
    return _make(INTEGER, sources, unit, missing, rows)


def floats(sources: str, unit: str, missing: str, *rows: tuple[str, ...]) -> tuple[Column, ...]:
    """Declare float columns; see `integers`."""
    return _make(FLOAT, sources, unit, missing, rows)


def booleans(sources: str, missing: str, *rows: tuple[str, ...]) -> tuple[Column, ...]:
    """Declare yes-or-no columns; see `integers`."""
    return _make(BOOLEAN, sources, "yes/no", missing, rows)


def texts(sources: str, unit: str, missing: str, *rows: tuple[str, ...]) -> tuple[Column, ...]:
    """Declare text columns; see `integers`."""
    return _make(TEXT, sources, unit, missing, rows)


def times(sources: str, missing: str, *rows: tuple[str, ...]) -> tuple[Column, ...]:
    """Declare columns of moments; see `integers`."""
    return _make(TIME, sources, "UTC", missing, rows)


_ANY = "journal rejected rollout_dump train_dump polar completion metrics wandb"
_ID_COLUMNS = {
    column.name: column
    for column in (
        *texts("load", "id", "never", ("run", "name of the run: its folder")),
        *integers(
            _ANY,
            "id",
            "no source says: a result that no bridge submitted, or one that was still under way",
            (
                "rollout_id",
                "rollout that the row counts towards: the one that took the group, else the one that was "
                "being collected when its fate was decided, else the one it was submitted for",
            ),
        ),
        *booleans(
            _ANY,
            "no source says",
            ("evaluation", "belongs to an evaluation; training and evaluation count rollouts independently"),
        ),
        *texts(
            "polar journal rollout_dump",
            "name",
            "training, or only a dump is left of an evaluation: dumps do not name the data set",
            ("dataset", "evaluation data set"),
        ),
        *texts(
            "journal",
            "id",
            "no journal knows the row",
            (
                "worker",
                "one life of the bridge's worker, ``<journal file>#<opening>``: group numbers start again in "
                "each",
            ),
        ),
        *integers(
            "journal rejected rollout_dump",
            "id",
            "evaluation, or a group that no bridge scheduled",
            ("group", "scheduler's number of the group, unique within `worker`"),
        ),
        *integers(
            "journal rejected rollout_dump polar",
            "id",
            "the submitter stamped no number on its tasks",
            ("group_index", "Slime's number of the prompt group, unique in training and in each evaluation"),
        ),
        *texts(
            "polar journal rollout_dump rejected completion",
            "id",
            "nothing was submitted, or a placeholder stands for a session without a result",
            ("task_id", "Polar's task; a new attempt is a new task"),
        ),
        *integers(
            "journal",
            "number",
            "no journal knows the row",
            ("attempt", "submissions of the group since it last went into flight, counted from 1"),
        ),
        *integers(
            "rollout_dump rejected train_dump journal",
            "id",
            "only Polar's file is left",
            (
                "trajectory",
                "Slime's trajectory key (`group_id` from v0.3.0, `rollout_id` in v0.3.1 dumps, else "
                "`index`): all traces of a session share it",
            ),
        ),
        *integers(
            "journal polar",
            "number",
            "only a dump is left",
            (
                "position",
                "place of the session in its group, from 0; in a task record its place among the results",
            ),
        ),
        *texts(
            "polar journal rollout_dump rejected completion",
            "id",
            "never started, lost, or sampled without Polar",
            ("session_id", "Polar's session"),
        ),
        *integers(
            "polar rollout_dump rejected",
            "number",
            "only the train dump is left, or sampled without Polar",
            ("trace_index", "place of the trace in its session, from 0; -1 for a placeholder"),
        ),
        *integers(
            "rollout_dump rejected train_dump",
            "id",
            "not in any dump",
            ("sample_index", "Slime's `Sample.index`; all traces of a session share it"),
        ),
    )
}


def ids(*names: str) -> tuple[Column, ...]:
    """Return id columns by name."""
    return tuple(_ID_COLUMNS[name] for name in names)
