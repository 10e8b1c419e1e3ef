"""A JupyterLab server of its own, and a notebook opened in a browser: what the browser tests stand on.

Nothing of the user's Jupyter is read or written: settings, data, runtime files and workspaces lie in one
temporary folder.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import expect

from analysis.lab.processes import ChildProcess, free_port

HOST = "127.0.0.1"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY_TIMEOUT = 120.0
# Milliseconds; waits end with the event that they wait for, this is only when a test gives up.
PATIENCE = 60_000

# JupyterLab's own indicator shows "idle" before the kernel's socket is up, and a run asked for then is lost.
# Bounded, because a page that waits for an answer to a question of JupyterLab's own waits for ever.
_KERNEL_READY = """patience => Promise.race([
  new Promise((_, refuse) => setTimeout(() => refuse(new Error('the kernel is not ready')), patience)),
  (async () => {
  const app = window.jupyterapp;
  await app.restored;
  const widget = app.shell.currentWidget;
  await widget.context.ready;
  await widget.sessionContext.ready;
  const kernel = widget.sessionContext.session.kernel;
  await kernel.info;
  while (kernel.connectionStatus !== 'connected' || kernel.status !== 'idle')
    await new Promise(resolve => setTimeout(resolve, 50));
  })()])"""


_FAILURES = """() => window.jupyterapp.shell.currentWidget.content.widgets
  .flatMap(cell => cell.model.outputs ? cell.model.outputs.toJSON() : [])
  .filter(output => output.output_type === 'error')
  .map(output => `${output.ename}: ${output.evalue}`)"""


def write_notebook(path: Path, cells: Sequence[str]) -> Path:
    """Write a notebook of code cells that opens with the kernel of this environment."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
    # Without a kernel's name JupyterLab asks for one.
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, if there is one."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome"))
    return next((path for path in found if path), None)


class JupyterServer:
    """JupyterLab on a free loopback port, serving one folder.

    Parameters
    ----------
    home
        Folder for everything that Jupyter itself keeps.
    root
        Folder whose notebooks are served.
    theme
        ``JupyterLab Light`` or ``JupyterLab Dark``.
    env
        Added to the environment of the server and its kernels.
    """

    def __init__(
        self, home: Path, root: Path, *, theme: str = "JupyterLab Light", env: dict[str, str] | None = None
    ) -> None:
        self.root = root
        self.token = secrets.token_hex(16)
        self.base = f"http://{HOST}:{(port := free_port(HOST))}"
        settings = home / "settings"
        _write_settings(settings, theme)
        places = {
            "JUPYTER_CONFIG_DIR": home / "config",
            "JUPYTER_DATA_DIR": home / "data",
            "JUPYTER_RUNTIME_DIR": home / "runtime",
            "IPYTHONDIR": home / "ipython",
            "JUPYTERLAB_SETTINGS_DIR": settings,
            "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        }
        self.process = ChildProcess(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"),
                *(f"--ServerApp.ip={HOST}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}"),
                *(f"--IdentityProvider.token={self.token}", "--LabApp.expose_app_in_browser=True"),
                "--LabApp.news_url=None",
                "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
                "--ServerApp.terminals_enabled=False",
            ],
            name="jupyterlab",
            log_path=home / "jupyterlab.log",
            env={**{name: str(path) for name, path in places.items()}, **(env or {})},
            ready_url=f"{self.base}/api/status?token={self.token}",
            stop_timeout=20.0,
        )

    def __enter__(self) -> JupyterServer:
        self.process.start()
        try:
            self.process.wait_ready(READY_TIMEOUT)
        except BaseException:
            self.process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def url(self, notebook: str) -> str:
        """Address of a notebook, by its path below the root."""
        return f"{self.base}/lab/tree/{notebook}?token={self.token}&reset"


def _write_settings(settings: Path, theme: str) -> None:
    # An empty news address alone does not keep the question about news away.
    content = {
        "notification": {"fetchNews": "false", "checkForUpdates": False},
        "themes": {"theme": theme},
    }
    folder = settings / "@jupyterlab" / "apputils-extension"
    folder.mkdir(parents=True)
    for name, value in content.items():
        (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(value))


class NotebookPage:
    """A notebook opened in JupyterLab, its kernel ready.

    Attributes
    ----------
    page
        Playwright's page.
    errors
        Uncaught errors of the page's scripts; a test that passes has none.
    """

    def __init__(self, page, url: str) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.set_default_timeout(PATIENCE)
        page.goto(url, wait_until="domcontentloaded")
        page.wait_for_selector(".jp-Notebook")
        page.evaluate(_KERNEL_READY, PATIENCE)

    def run_all(self) -> None:
        """Run every cell; returns when all have run."""
        self.command("notebook:run-all-cells")

    def command(self, name: str) -> None:
        """Run one of JupyterLab's commands on this notebook and wait for its end."""
        self.page.evaluate("name => window.jupyterapp.commands.execute(name).then(() => null)", name)

    def start(self, name: str) -> None:
        """Run one of JupyterLab's commands without waiting for its end."""
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)

    def run_cell(self, number: int, *, wait: bool = True) -> None:
        """Run the `number`-th cell, counted from 0; return when it has run, or at once."""
        self.page.evaluate(
            "number => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = number; }", number
        )
        (self.command if wait else self.start)("notebook:run-cell")

    def cell(self, number: int):
        """Give the `number`-th code cell, counted from 0."""
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)

    def output(self, number: int):
        """Give the output area of the `number`-th code cell."""
        return self.cell(number).locator(".jp-OutputArea-output").first

    def failures(self) -> list[str]:
        """Errors that cells ended with, from the notebook itself: on the page they look like warnings."""
        found: list[str] = self.page.evaluate(_FAILURES)
        return found

    def see(self, selector: str, text: str | None = None, *, timeout: float = PATIENCE):
        """Wait until an element is visible (and holds a text), and give it."""
        found = self.page.locator(selector).first
        expect(found).to_be_visible(timeout=timeout)
        if text is not None:
            expect(found).to_contain_text(text, timeout=timeout)
        return found


@contextmanager
def opened(browser, server: JupyterServer, notebook: str, *, width: int = 1280, height: int = 1100):
    """Open a notebook in a window of its own; a tall one, since cells out of sight are not in the page."""
    context = browser.new_context(viewport={"width": width, "height": height})
    try:
        yield NotebookPage(context.new_page(), server.url(notebook))
    finally:
        context.close()
