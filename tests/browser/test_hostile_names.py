"""Names, ids, reasons, labels, files and errors stand on the screen as text, wherever explorers show them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import PATIENCE, write_notebook

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
"""On the path of the kernel, for the run that it makes."""

MADE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
import analysis
from analysis import live
from analysis.live.registry import LiveFolder
from analysis.live.training import TrainingHandle
from analysis.errors import ExplorerError
from slime_bridge.acceptance import Rejected, RejectReason
from tests.browser.hostile_run import BAD, hostile_journal, hostile_tables

def fails(rewards):
    raise ValueError(BAD)

explorer = analysis.explore(hostile_tables(), estimators={{BAD: fails}}, name="hostile")
explorer
"""
LOADED = """
folder = hostile_journal(Path(BAD.replace("/", "")[:80]))
run = analysis.load(folder, index=False, progress=False)
assert len(run.problems) or len(run.skipped)
run
"""
EXPLORED = "analysis.explore(run)"
WATCHED = "watched = live.watch(folder)\nwatched.look()\nwatched.stop()\nwatched"
FAILED = """
place = LiveFolder.new(Path("runs"), "training", "mine", server=BAD)
place.end("failed", BAD)
(place.path / "training.log").write_text(BAD)
failed = TrainingHandle(place, None, label=BAD)
failed.start()
failed
"""
VERDICT = "Rejected(RejectReason.FILTERED, {BAD: BAD})"
SHOWN_ERROR = "explorer.show_error(BAD, ExplorerError(BAD))"


def test_no_name_acts(jupyter, open_notebook, screenshot):
    cells = [MADE, LOADED, EXPLORED, WATCHED, FAILED, VERDICT, SHOWN_ERROR]
    opened = open_notebook(write_notebook(jupyter.root / "names.ipynb", cells).name, height=5000)
    opened.run_all()
    assert opened.failures() == []
    page, cell = opened.page, opened.cell(0)
    for number in (1, 2, 3, 4, 5):
        expect(opened.cell(number).locator(".jp-OutputArea")).to_contain_text("onerror", timeout=PATIENCE)
    expect(cell.locator(".wb-error pre").first).to_contain_text("onerror", timeout=PATIENCE)

    groups = cell.locator(".wb-grid", has_text="Groups").first
    rows = groups.locator(".wb-grid-row")
    # Each text of the corpus is a prompt: each group is taken apart once.
    groups.locator(".wb-grid-view").focus()
    for number in range(rows.count()):
        rows.nth(number).click()
        expect(cell.locator(".wb-autopsy-head").first).to_be_visible(timeout=PATIENCE)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(cell.locator(".wb-autopsy-head").first).to_contain_text("onerror", timeout=PATIENCE)
    trajectories = cell.locator(".wb-grid", has_text="Trajectories").first
    trajectories.locator(".wb-grid-row").first.click()
    expect(cell.locator(".wb-columns").first).to_contain_text("reward", timeout=PATIENCE)
    for title in ("Transcript", "Tokens", "Evaluation", "Time", "Traces"):
        cell.get_by_role("tab", name=title).first.click()

    label = cell.get_by_label("Estimator").first
    label.select_option(index=label.locator("option").count() - 1)
    expect(cell.locator(".wb-error", has_text="fails failed").first).to_be_visible(timeout=PATIENCE)
    screenshot(cell, "hostile-names")

    cell.get_by_role("tab", name="Compare").click()
    for kind in ("group", "rollout", "run", "session"):
        cell.get_by_role("button", name=kind, exact=True).click()
    cell.get_by_role("tab", name="Search").click()
    field = cell.get_by_placeholder("text, or /expression/")
    field.fill("onerror")
    field.press("Enter")
    hit = cell.locator(".wb-grid", has_text="Hits").first.locator(".wb-grid-row").first
    expect(hit).to_contain_text("onerror", timeout=PATIENCE)
    hit.click()
    expect(cell.get_by_role("tab", name="Explore")).to_have_attribute(
        "aria-selected", "true", timeout=PATIENCE
    )

    assert page.evaluate("window.hit") is None
    assert page.locator(".wb img, .wb script, .wb svg[onload], .wb iframe, .wb form, .wb link").count() == 0
    assert opened.errors == []
    assert opened.failures() == []
