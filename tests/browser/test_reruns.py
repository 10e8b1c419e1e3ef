"""A cell that is run again and again in JupyterLab gets its explorer back as it was, and nothing piles up."""

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
import threading
import analysis
import comm
import matplotlib.pyplot as plt
from ipywidgets.widgets.widget import _instances
from tests.analysis.explorers.made_runs import FramesAsRun, small_run

run = FramesAsRun(small_run())
"""
EXPLORED = "explorer = analysis.explore(run)\nexplorer"
COUNTED = """
threads = sorted(thread.name for thread in threading.enumerate())
print(len(_instances), len(comm.get_comm_manager().comms), plt.get_fignums(), len(threads), "counted")
"""
_LISTENERS = """() => document.querySelectorAll('.wb-explorer').length"""


def test_ten_times_is_once(jupyter, open_notebook):
    opened = open_notebook(
        write_notebook(jupyter.root / "reruns.ipynb", [MADE, EXPLORED, COUNTED]).name, height=2200
    )
    opened.run_cell(0)
    opened.run_cell(1)
    page, cell = opened.page, opened.cell(1)

    # By hand: brush the second rollout, sort, pick the rejected group, and look at the comparison.
    cell.locator(".wb-overview-stage").focus()
    for key in ("Home", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    groups = cell.locator(".wb-grid", has_text="Groups").first
    expect(groups.locator(".wb-grid-row")).to_have_count(2, timeout=PATIENCE)
    groups.get_by_role("button", name="mean", exact=True).click()
    groups.locator(".wb-grid-row", has_text="rejected").click()
    expect(cell.locator(".wb-autopsy-head")).to_contain_text("Group 3", timeout=PATIENCE)
    cell.get_by_role("tab", name="Compare").click()
    expect(cell.get_by_role("rowheader", name="trainable tokens")).to_be_visible(timeout=PATIENCE)
    cell.get_by_role("tab", name="Explore").click()
    opened.run_cell(2)
    expect(opened.output(2)).to_contain_text("counted", timeout=PATIENCE)
    once, shown = opened.output(2).inner_text(), page.evaluate(_LISTENERS)

    for _ in range(10):
        opened.run_cell(1)
    opened.run_cell(2)
    expect(opened.output(2)).to_contain_text("counted", timeout=PATIENCE)
    assert opened.output(2).inner_text() == once
    assert page.evaluate(_LISTENERS) == shown
    expect(cell.locator(".wb-overview-said")).to_have_text("Rollout 1: 1 of 3", timeout=PATIENCE)
    expect(groups.locator(".wb-grid-row")).to_have_count(2, timeout=PATIENCE)
    expect(groups.locator('[aria-sort="descending"]')).to_contain_text("mean", timeout=PATIENCE)
    expect(cell.locator(".wb-autopsy-head")).to_contain_text("Group 3", timeout=PATIENCE)
    assert opened.failures() == []
    assert opened.errors == []
