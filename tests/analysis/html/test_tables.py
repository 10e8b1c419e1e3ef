"""Tables of frames, as a reader and as a screen reader meet them."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

from analysis.html import facts, table
from analysis.html.tables import cells


class Seen(HTMLParser):
    """Rows of cells with their tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, dict[str, str | None], str]]] = []
        self.tags: list[str] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append((tag, dict(attrs), ""))
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            tag, attrs, text = self.rows[-1][-1]
            self.rows[-1][-1] = (tag, attrs, text + data)


def seen(html: str) -> Seen:
    parser = Seen()
    parser.feed(html)
    parser.close()
    return parser


FRAME = pd.DataFrame(
    {
        "session_id": pd.array(["a", None, "c"], dtype="string"),
        "rollout_id": pd.array([1234, 2, None], dtype="Int64"),
        "tokens": pd.array([12345, None, 7], dtype="Int64"),
        "reward": pd.array([0.125, -2.5, None], dtype="Float64"),
        "accepted": pd.array([True, None, False], dtype="boolean"),
        "at": pd.to_datetime(["2026-01-02 03:04:05", None, "2026-01-02 00:00:00"], utc=True),
    }
)


def test_values_are_written_for_readers() -> None:
    rows = [[text for _, _, text in row] for row in seen(table(FRAME)).rows]
    assert rows == [
        ["session id", "rollout id", "tokens", "reward", "accepted", "at"],
        ["a", "1234", "12,345", "0.12", "yes", "2026-01-02 03:04:05"],
        ["—", "2", "—", "−2.50", "—", "—"],
        ["c", "—", "7", "—", "no", "2026-01-02 00:00:00"],
    ]


def test_structure_tells_heads_from_cells() -> None:
    html = table(FRAME, caption="Some <rows>", labels={"reward": "R"}, titles={"reward": 'mean "r"'})
    found = seen(html)
    assert {attrs.get("scope") for _, attrs, _ in found.rows[0]} == {"col"}
    assert [row[0][:2] for row in found.rows[1:]] == [
        ("th", {"scope": "row", "class": "wb-id", "dir": "auto"})
    ] * 3
    assert found.rows[0][3][1:] == ({"scope": "col", "class": "wb-num", "title": 'mean "r"'}, "R")
    assert "<caption>Some &lt;rows&gt;</caption>" in html
    assert 'role="region" aria-label="Some &lt;rows&gt;" tabindex="0"' in html


def test_a_long_table_is_cut_and_says_so() -> None:
    frame = pd.DataFrame({"value": np.arange(1234)})
    assert "The first 50 of 1,234 rows." in table(frame)
    assert len(seen(table(frame, limit=None)).rows) == 1235
    assert "first" not in table(frame, limit=None)


def test_an_empty_table_says_so() -> None:
    assert "No rows." in table(FRAME.iloc[:0])


def test_hostile_text_stands_there() -> None:
    frame = pd.DataFrame({"text": ["<script>alert(1)</script>", "\x1b[2J\u202e", "x" * 1_000_000]})
    html = table(frame, formats={"text": str})
    assert "script" not in seen(html).tags
    assert "␛[2J‹U+202E›" in html
    assert "999,600 characters left out" in html
    assert len(html) < 3000


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1.0, 2.0], ["1", "2"]),
        ([0.001234, 0.5e-7, 0.0], ["0.001234", "5.00e−08", "0.000000"]),
        ([1234.5, np.inf, -np.inf], ["1,234", "∞", "−∞"]),
        ([1e12, 1.5], ["1.00e+12", "2"]),
        ([np.nan, np.nan], ["—", "—"]),
    ],
)
def test_floats_share_decimals(values: list[float], written: list[str]) -> None:
    texts = [text for ((_, _, text),) in seen(table(pd.DataFrame({"x": values}), row_header=False)).rows[1:]]
    assert texts == written


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(KeyError, match="nothing"):
        table(FRAME, columns=["reward", "nothing"])


def test_nested_values_are_text() -> None:
    assert cells(pd.Series([[1, 2], {"a": "<"}])) == ["[1, 2]", "{&#39;a&#39;: &#39;&lt;&#39;}"]


def test_facts_are_definitions() -> None:
    assert facts([("a<", "b&")]) == '<dl class="wb-facts"><dt>a&lt;</dt><dd>b&amp;</dd></dl>'


def test_markup_around_a_word_makes_no_wide_column() -> None:
    """What counts is what is read: a badge is a word."""
    badge = Markup('<span class="wb-badge wb-good" title="a long explanation of what is meant">{}</span>')
    frame = pd.DataFrame({"severity": ["ok", "error"], "summary": ["short", "word " * 40]})
    shown = seen(table(frame, formats={"severity": badge.format}))
    [severity, summary] = [attrs.get("class") or "" for _, attrs, _ in shown.rows[1]]
    assert "wb-long" not in severity
    assert "wb-long" in summary
