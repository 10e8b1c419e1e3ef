"""What a report says in words agrees with its numbers."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from analysis.report import write_report
from analysis.report.rules.data import incomplete_data
from analysis.report.samples import _sample
from tests.analysis.report.test_page import given


@pytest.mark.parametrize(
    ("turns", "facts"),
    [
        (2, "s · rollout 3 · reward 0 · 2 turns · 28 response tokens · COMPLETED"),
        (1, "s · rollout 3 · reward 0 · 1 turn · 28 response tokens · COMPLETED"),
        (0, "s · rollout 3 · reward 0 · 28 response tokens · COMPLETED"),
    ],
)
def test_turns_are_counted_where_there_are_any(turns: int, facts: str) -> None:
    """A failed session, all of whose tokens the server masked, has tokens and no counted turn."""
    row = pd.Series(
        {
            "session_id": "s",
            "rollout_id": 3,
            "reward": 0.0,
            "advantage": None,
            "turns": turns,
            "response_tokens": 28,
            "status": "COMPLETED",
        },
        dtype=object,
    )
    assert _sample("A session", row).facts == facts


@pytest.mark.parametrize(("count", "words"), [(1, "1 problem was met"), (2, "2 problems were met")])
def test_one_problem_is_one(count: int, words: str) -> None:
    """The statement of the finding agrees with its number."""
    coverage = pd.DataFrame({"dumped": [4], "matched": [4], "trained": [4], "fraction": [1.0]})
    run = SimpleNamespace(problems=pd.DataFrame({"path": ["a"] * count}), coverage=coverage)
    measures = SimpleNamespace(run=run, frames=SimpleNamespace(sessions=pd.DataFrame({"x": [0]})))
    found = incomplete_data(measures)
    assert found is not None
    assert found.title.startswith(words)


def test_a_small_p_is_no_zero(tmp_path: Path) -> None:
    """A comparison gives p values to three digits, not to two places."""
    out = tmp_path / "page.html"
    write_report(given(), out, compare=given("reward drop"), figures=False)
    page = out.read_text("utf-8")
    row = page[page.index("training reward, rollouts") :]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[: row.index("</tr>")])
    assert 0 < float(cells[5]) < 0.01
