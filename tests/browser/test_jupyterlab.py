"""What a researcher does by hand in a real JupyterLab, checked on the screen and in the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

import analysis
from analysis.lab.polar_server.testing import FaultScript, SessionProfile, serve_polar
from analysis.stats.advantages import recompute
from tests.analysis.embedded_run import make_embedded_run
from tests.browser.jupyter import write_notebook

pytestmark = pytest.mark.timeout(300)

LONG = FaultScript(seed=5, sessions=SessionProfile(turns=6, turn_tokens=(300, 500), tool_tokens=(50, 90)))
HANGING = FaultScript(seed=3, sessions=SessionProfile(duration=3600.0))
TASK = {"polar_task_template": {"agent": {"harness": "lab"}, "timeout_seconds": 3600.0}}


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rollouts whose traces have a few thousand tokens each."""
    return make_embedded_run(tmp_path_factory.mktemp("long") / "lab", LONG).root


def column_of(table, label: str) -> list[str]:
    """What stands in one column of a table's rows, from top to bottom."""
    heads = [text.strip() for text in table.locator(".wb-grid-th").all_inner_texts()]
    cells = table.locator(f".wb-grid-row .wb-grid-td:nth-child({heads.index(label) + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_exploring_a_run(long_run, jupyter, open_notebook, screenshot):
    cells = [
        f"import analysis\nrun = analysis.load({str(long_run)!r})",
        "explorer = analysis.explore(run)\nexplorer",
        "print(explorer.state.rows('group').query('not evaluation').group.tolist())",
        "print(explorer.state.group.group, explorer.state.estimator)",
    ]
    opened = open_notebook(write_notebook(jupyter.root / "explore.ipynb", cells).name, height=2200)
    opened.run_cell(0)
    opened.run_cell(1)
    run = analysis.load(long_run)

    # Brush the first of the three rollouts: the table below holds its groups only, and so does the selection.
    stage = opened.see(".wb-overview-stage")
    box = stage.bounding_box()
    table = opened.page.locator(".wb-grid", has_text="Groups").first
    rows = table.locator(".wb-grid-row")
    everywhere = rows.count()
    across = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + 30, across)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] * 0.15, across, steps=8)
    opened.page.mouse.up()
    first = run.groups().query("rollout_id == 0 and not evaluation")
    # The line below the overview is written by the kernel: it has the brush when this is seen.
    opened.see(".wb-explorer .wb-note", f"{len(first)} groups")
    expect(rows).to_have_count(len(first))
    assert len(first) < everywhere
    opened.run_cell(2)
    expect(opened.output(2)).to_contain_text(str(first.group.tolist()))

    # Pick a group: its autopsy opens.
    number = int(column_of(table, "group")[0])
    rows.first.click()
    opened.see(".wb-autopsy-head", f"Group {number}")

    # Another estimator: the advantages on the screen are those that it gives.
    opened.page.get_by_label("Estimator").first.select_option("dr_grpo")
    opened.see(".wb-explorer", "DrGRPO")
    opened.run_cell(3)
    expect(opened.output(3)).to_contain_text(f"{number} dr_grpo")
    given = recompute(run.traces(), "dr_grpo", sessions=run.sessions()).query("group == @number")
    trajectories = opened.page.locator(".wb-grid", has_text="Trajectories").first
    expect(trajectories.locator(".wb-grid-row")).to_have_count(len(given))
    shown = [float(text.replace("\N{MINUS SIGN}", "-")) for text in column_of(trajectories, "advantage")]
    assert shown == pytest.approx(given.advantage.tolist(), abs=5e-4)
    # What the room of the last column may not suffice for can be read by pointing at it.
    written = trajectories.locator(".wb-grid-row").first.locator(".wb-grid-td").last
    expect(written).to_have_attribute("title", written.inner_text())

    # A session's tokens: only those in sight are in the page, and scrolling reaches the last one.
    trajectories.locator(".wb-grid-row").first.click()
    opened.page.get_by_role("tab", name="Tokens").first.click()
    tokens = opened.see(".wb-tv-scroll")
    trace = run.traces().set_index("session_id").loc[given.session_id.iloc[0]]
    last = int(trace.prompt_tokens + trace.response_tokens) - 1
    expect(tokens.locator('[data-token="0"]')).to_be_visible()
    tokens.hover()
    screenshot(opened.page, "explore")
    while tokens.evaluate("node => node.scrollTop + node.clientHeight + 1 < node.scrollHeight"):
        before = tokens.evaluate("node => node.scrollTop")
        opened.page.mouse.wheel(0, 4000)
        opened.page.wait_for_function(
            "([node, before]) => node.scrollTop > before", arg=[tokens.element_handle(), before]
        )
    expect(tokens.locator(f'[data-token="{last}"]')).to_be_visible()
    assert tokens.locator(".wb-tok").count() < last / 2
    assert opened.failures() == []
    assert opened.errors == []


def test_interrupting_and_cancelling_a_live_run(tmp_path, jupyter, open_notebook, screenshot):
    with serve_polar(HANGING, newer=True) as polar:
        cells = [
            "from analysis import live\n"
            f"lab = live.connect({polar.url!r}, config={TASK}, runs_dir={str(tmp_path)!r})",
            "handle = lab.submit(['one', 'two'], n_samples=4)\nhandle",
            "handle.wait()",
            "print('before:', handle.state)\nhandle.cancel()\nhandle.wait()\nprint('after:', handle.state)",
            "lab.close()",
        ]
        opened = open_notebook(write_notebook(jupyter.root / "live.ipynb", cells).name)
        opened.run_cell(0)
        opened.run_cell(1)
        polar.wait_until(lambda: polar.running_sessions == 8)
        expect(opened.output(1)).to_contain_text("running")
        opened.run_cell(2, wait=False)
        expect(opened.cell(2).locator(".jp-InputPrompt")).to_contain_text("*")
        screenshot(opened.page, "live")
        opened.command("notebook:interrupt-kernel")
        expect(opened.output(2)).to_contain_text("KeyboardInterrupt")

        # The interrupt ended the waiting and not the run.
        assert polar.running_sessions == 8
        opened.run_cell(3)
        expect(opened.output(3)).to_contain_text("before: running")
        expect(opened.output(3)).to_contain_text("after: cancelled")
        expect(opened.output(1)).to_contain_text("cancelled")
        polar.wait_until(lambda: polar.running_sessions == 0)
        opened.run_cell(4)
        assert [failure.partition(":")[0] for failure in opened.failures()] == ["KeyboardInterrupt"]
        assert opened.errors == []
