"""Pictures for the documentation: ``python -m tests.browser.screenshots [docs/images]``.

They show the example run (`analysis.lab.example`) in a real JupyterLab, on light and on dark ground.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from analysis.lab.example import example_run
from tests.browser.jupyter import (
    CHROMIUM_FLAGS,
    JupyterServer,
    NotebookPage,
    find_chromium,
    opened,
    write_notebook,
)

CELLS = [
    "import analysis\n\nrun = analysis.load({folder!r})\nexplorer = analysis.explore(run)\nexplorer",
    "groups = run.groups().query('accepted and not evaluation').dropna(subset=['advantage_abs_max'])\n"
    "explorer.state.select(group=groups.loc[groups.advantage_abs_max.idxmax()])\n"
    "members = explorer.state.rows('session')\n"
    "explorer.state.session_id = members.loc[members.advantage.abs().idxmax()].session_id",
]
WIDTH, HEIGHT = 1240, 1560


def main(target: Path) -> None:
    """Take all pictures."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), headless=True, args=CHROMIUM_FLAGS)
        for theme in ("Light", "Dark"):
            home, root = Path(place, theme), Path(place, f"{theme}-served")
            root.mkdir()
            # A short path in the picture, and the same one on every machine.
            (root / "runs").symlink_to(example_run().parent)
            folder = f"runs/{example_run().name}"
            write_notebook(root / "explore.ipynb", [cell.format(folder=folder) for cell in CELLS])
            environment = {"PYTHONPATH": os.pathsep.join(["."] + sys.path[:1])}
            with (
                JupyterServer(home, root, theme=f"JupyterLab {theme}", env=environment) as server,
                opened(browser, server, "explore.ipynb", width=WIDTH, height=HEIGHT) as page,
            ):
                picture(page, target, "" if theme == "Light" else "-dark")
        browser.close()


def picture(page: NotebookPage, target: Path, ending: str) -> None:
    """Take the pictures of one theme."""
    page.command("application:toggle-left-area")
    page.run_cell(0)
    page.run_cell(1)
    page.see(".wb-autopsy-head")
    page.page.locator(".wb-overview").first.scroll_into_view_if_needed()
    page.page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    page.page.mouse.move(5, 5)
    page.page.wait_for_timeout(1000)
    save(page.page, target / f"explorer{ending}.png")
    page.page.get_by_role("tab", name="Tokens").first.click()
    page.see('.wb-tv-scroll [data-token="0"]')
    page.page.mouse.move(5, 5)
    page.page.wait_for_timeout(1000)
    session = page.page.locator(".wb-explorer .wb-explorer").last
    save(session, target / f"tokens{ending}.png")


def save(shown, path: Path) -> None:
    """Take a picture of a page or of one element, reduced to a palette of its own."""
    shown.screenshot(path=path)
    with Image.open(path) as taken:
        # Coverage first, else the few pixels of a mark take on the colour of the many around it.
        coverage, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        small = taken.convert("RGB").quantize(256, method=coverage, kmeans=2, dither=dither)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
