"""The documentation of the tables says what the tables are."""

from __future__ import annotations

from pathlib import Path

import analysis
from analysis.data_dictionary import TOKEN_COLUMNS, render
from analysis.lab.run_folder import RunFolder
from analysis.schema import SOURCES, TABLES
from tests.analysis.test_loading import load

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_generated_from_the_schema() -> None:
    """Whoever changes a column makes the page again with python -m analysis.data_dictionary."""
    assert (DOCS / "data-dictionary.md").read_text(encoding="utf-8") == render()


def test_every_column_is_on_the_page_with_its_meaning() -> None:
    """One row each; no cell breaks the table."""
    lines = render().splitlines()
    for columns in TABLES.values():
        for column in columns:
            (*_,) = [
                line for line in lines if line.startswith(f"| `{column.name}` |") and column.meaning in line
            ]
            assert _, column.name
    assert all(line.count(" | ") in (2, 5) for line in lines if line.startswith("| `"))


def test_token_columns_are_those_of_the_frame(embedded: RunFolder) -> None:
    """Names, order and dtypes."""

    class Letters:
        def decode(self, ids: list[int], **options: object) -> str:
            return "x" * len(ids)

    run: analysis.Run = load(embedded.root, tokenizer=Letters())
    frame = run.tokens(run.sessions()["session_id"].iloc[0])
    assert [(name, str(dtype)) for name, dtype in frame.dtypes.items()] == [
        (name, dtype) for name, dtype, _ in TOKEN_COLUMNS
    ]


def test_the_page_on_sources_describes_each_of_them() -> None:
    """Files, what it tells, what it cannot tell: as declared."""
    text = (DOCS / "sources.md").read_text(encoding="utf-8")
    for name, source in SOURCES.items():
        assert f"| `{name}` | `{source.files}` | {source.tells} | {source.cannot_tell} |" in text
