"""The data dictionary as a page: ``python -m analysis.data_dictionary > docs/data-dictionary.md``.

Everything on it comes from `analysis.schema`; only the columns of token frames are written down here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from analysis.schema import SCHEMA_VERSION, TABLES, Column

__all__ = ["TOKEN_COLUMNS", "render"]

_HEAD = f"""\
# Data dictionary

The frames of a loaded run, column by column. `run.describe()` gives the same with the number of values in
your run. This page is generated from `analysis/schema.py` (schema version {SCHEMA_VERSION}): change it there.

A missing value is NA in every dtype, never 0. **Sources** are in order of authority: where they contradict,
the first that has a value wins, and the row's `conflicts` says so. `derived` is computed when sources are
joined, `load` is added by the loader. [What each source can and cannot tell](sources.md) describes them.
"""

_TITLES = {
    "rollout": ("run.rollouts()", "One row per training rollout and per evaluation."),
    "group": ("run.groups()", "One row per prompt group that was drawn, whatever became of it."),
    "session": ("run.sessions()", "One row per session that was attempted or stood in for."),
    "trace": ("run.traces()", "One row per training example, placeholders included."),
    "event": (
        "run.events()",
        "One row per record of the bridge's journal, event of Slime's sample tracing, and push of weights.",
    ),
    "completion": ("run.completions()", "One row per captured model call."),
    "metric": ("run.metrics()", "One row per recorded number."),
}

TOKEN_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("run", "string", "name of the run"),
    ("rollout_id", "Int64", "as in the trace table"),
    ("evaluation", "boolean", "as in the trace table"),
    ("group_index", "Int64", "as in the trace table"),
    ("session_id", "string", "as in the trace table"),
    ("trace_index", "Int64", "as in the trace table"),
    ("sample_index", "Int64", "as in the trace table"),
    ("position", "Int32", "place of the token in its trace, prompt included, from 0"),
    ("token", "Int32", "token id"),
    ("text", "string", "text of the token; only where a tokenizer is known"),
    ("mask", "Int8", "1 where the policy sampled the token, 0 elsewhere and in prompts"),
    ("trainable", "Int8", "1 where the trainer learns from it; missing where no dump says"),
    ("turn", "Int32", "number of the sampled stretch, from 0; what came back after it counts to it"),
    ("logprob", "Float32", "under the policy that sampled; missing in prompts"),
    ("train_logprob", "Float32", "recomputed by the trainer; missing where it was not, or not dumped"),
    ("advantage", "Float32", "as trained, from the train dumps"),
)
"""Columns of `run.tokens()`: name, dtype, meaning."""


def render() -> str:
    """Return the page, in Markdown."""
    parts = [_HEAD]
    for grain, columns in TABLES.items():
        call, what = _TITLES[grain]
        parts.append(f"## `{call}`\n\n{what}\n\n{_table(columns)}")
    parts.append(_tokens())
    return "\n".join(parts)


def _table(columns: Iterable[Column]) -> str:
    rows = [(f"`{c.name}`", c.dtype, c.unit, c.meaning, " > ".join(c.sources), c.missing) for c in columns]
    return _markdown(("column", "dtype", "unit", "meaning", "sources", "missing when"), rows)


def _tokens() -> str:
    rows = [(f"`{name}`", dtype, meaning) for name, dtype, meaning in TOKEN_COLUMNS]
    text = (
        "## `run.tokens(...)`\n\nOne row per token, read when asked for. `run.token_arrays(...)` gives the"
        " same as flat arrays with offsets: int32 ids, int8 flags (-1 where unknown), float32 numbers (NaN"
        " where unknown).\n\n"
    )
    return text + _markdown(("column", "dtype", "meaning"), rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())
