"""Fixtures of the browser tests: one JupyterLab per session, one browser per module.

Playwright's synchronous interface keeps an event loop running in the thread of its caller, in which other
tests could not start theirs; therefore it ends with each module.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.jupyter import CHROMIUM_FLAGS, JupyterServer, NotebookPage, find_chromium, opened


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, help="keep the browser tests' screenshots in this folder")


@pytest.fixture(scope="module")
def browser():
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("browser tests need Chromium (Debian: apt-get install chromium)")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, headless=True, args=CHROMIUM_FLAGS)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory):
    """JupyterLab, serving `jupyter.root`, into which tests put their notebooks."""
    pytest.importorskip("jupyterlab")
    if find_chromium() is None:
        pytest.skip("browser tests need Chromium (Debian: apt-get install chromium)")
    root = tmp_path_factory.mktemp("served")
    with JupyterServer(tmp_path_factory.mktemp("jupyter"), root) as server:
        yield server


@pytest.fixture
def open_notebook(browser, jupyter: JupyterServer):
    """Open a notebook below `jupyter.root` by its path; windows close with the test."""
    with ExitStack() as windows:

        def open_one(path: str, **size: int) -> NotebookPage:
            return windows.enter_context(opened(browser, jupyter, path, **size))

        yield open_one


@pytest.fixture
def screenshot(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Save a picture of a page or of one element under a name; kept with ``--screenshots FOLDER``."""
    folder = request.config.getoption("--screenshots", default=None) or tmp_path

    def shoot(target, name: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.png"
        target.screenshot(path=path)
        return path

    return shoot
