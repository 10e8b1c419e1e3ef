"""What a model or a tool wrote stands on the screen as text, wherever the explorers show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import PATIENCE, write_notebook

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
"""On the path of the kernel, for the session that the tests of transcripts make."""

MADE = """
from pathlib import Path
from analysis.explorers.compare import CompareExplorer
from analysis.explorers.search import SearchExplorer
from analysis.explorers.sessions import SessionExplorer
from tests.analysis.transcripts.made_sessions import HOSTILE, Words, load_sessions, session, trace

bad = HOSTILE + '"><svg onload="window.hit=1"></svg>'
call = {"id": bad, "function": {"name": bad, "arguments": '{"<img src=x onerror=window.hit=1>": "x"}'}}
said = [
    {"role": bad, "content": bad},
    {"role": "assistant", "content": "<think>" + bad + "</think>" + bad, "tool_calls": [call]},
    {"role": "tool", "tool_call_id": bad, "content": [{"type": bad}, {"type": "text", "text": bad}]},
    {"role": "assistant", "content": bad},
]


class Bad(Words):
    TEXTS = dict.fromkeys(range(9), bad)


run = load_sessions(
    Path("hostile"),
    session("ses-1", trace(response=said, versions=(bad, bad), finish_reason=bad), status=bad, error=bad),
    session("ses-2", trace(response=said[1:], versions=(bad, bad))),
    tokenizer=Bad(),
)
shown = SessionExplorer(run)
shown.state.session_id = "ses-1"
shown
"""
COMPARED = "CompareExplorer(run, first='ses-1', second='ses-2')"
SEARCHED = "search = SearchExplorer(run)\nsearch.search('onerror')\nsearch"


def test_nothing_that_was_said_acts(jupyter, open_notebook, screenshot):
    cells = [f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{MADE}", COMPARED, SEARCHED]
    opened = open_notebook(write_notebook(jupyter.root / "hostile.ipynb", cells).name, height=3000)
    opened.run_all()
    assert opened.failures() == []
    page, cell = opened.page, opened.cell(0)
    expect(cell.locator(".wb-ts-scroll .wb-msg")).to_have_count(5, timeout=PATIENCE)
    expect(opened.cell(1).locator(".wb-beside .wb-msg-marked")).to_have_count(2, timeout=PATIENCE)
    hits = opened.cell(2).locator(".wb-grid-row").first
    expect(hits).to_contain_text("onerror", timeout=PATIENCE)
    cell.get_by_role("button", name="Open all").click()
    screenshot(cell, "hostile-text")

    # A turn of the transcript leads to its tokens, which tell of themselves under the cursor.
    cell.locator(".wb-ts-scroll .wb-turn").last.click()
    tokens = cell.locator(".wb-tv-scroll")
    expect(cell.locator(".wb-tv-status")).to_contain_text("2 tokens chosen", timeout=PATIENCE)
    tokens.focus()
    page.keyboard.press("Home")
    expect(cell.locator(".wb-tv-status")).to_contain_text("position 0 of 9", timeout=PATIENCE)
    page.keyboard.press("t")
    expect(cell.locator(".wb-tv-status")).to_contain_text("turn 0, token 0", timeout=PATIENCE)
    page.keyboard.press("2")
    expect(cell.locator(".wb-tv .wb-legend-name")).to_have_text("probability", timeout=PATIENCE)
    tokens.locator(".wb-tok").nth(4).hover()
    expect(cell.locator(".wb-tv-tip")).to_contain_text("weights", timeout=PATIENCE)

    for title in ("Evaluation", "Time", "Traces"):
        cell.get_by_role("tab", name=title).click()
    assert page.evaluate("window.hit") is None
    assert page.locator(".wb img, .wb script, .wb svg[onload]").count() == 0
    assert opened.errors == []
