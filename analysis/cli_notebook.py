"""`workbench notebook`: JupyterLab on the notebooks, or the notebooks executed to pages."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["add_arguments", "launch", "place_notebooks", "run"]

COPY = "slime-bridge-notebooks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `workbench notebook`."""
    parser.add_argument(
        "--folder",
        type=Path,
        help="copy the notebooks there, leaving files that exist alone, and open them (default: the ones of "
        f"the checkout this runs from, else copies in {COPY})",
    )
    parser.add_argument(
        "--execute", type=Path, metavar="OUT", help="run all notebooks instead and write pages into OUT"
    )
    parser.add_argument(
        "jupyter", nargs="*", metavar="-- ...", help="after --: options for JupyterLab, such as --no-browser"
    )


def run(options: argparse.Namespace) -> int:
    """Open JupyterLab in place of this process, or execute the notebooks; return the exit code."""
    for needed in ("jupyterlab", "nbclient", "anywidget"):
        if importlib.util.find_spec(needed) is None:
            raise ModuleNotFoundError(f"No module named {needed!r}", name=needed)
    from analysis.errors import AnalysisError
    from analysis.notebook_runner import notebook_files

    try:
        notebooks = notebook_files()
        if options.execute is not None:
            return _execute(notebooks, options.execute)
        opened = place_notebooks(notebooks, options.folder)
    except (AnalysisError, OSError) as error:
        sys.stderr.write(f"workbench notebook: {error}\n")
        return 1
    argv, environment = launch(opened[0], options.jupyter, os.environ)
    # In place of this process: JupyterLab asks for Ctrl-C twice and ends its kernels itself.
    os.execve(argv[0], argv, environment)


def place_notebooks(notebooks: Sequence[Path], folder: Path | None) -> list[Path]:
    """Say which notebooks to open, copying them where they are not one's own.

    Parameters
    ----------
    notebooks
        As `notebook_files` gives them.
    folder
        Where to copy them to. None opens those of a checkout where they are, and copies installed ones.
    """
    if folder is None:
        if (notebooks[0].parents[1] / "pyproject.toml").is_file():
            return list(notebooks)
        folder = Path(COPY)
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for notebook in notebooks:
        copy = folder.resolve() / notebook.name
        if copy.exists():
            sys.stdout.write(f"{copy.name} is there already and stays as it is\n")
        else:
            shutil.copyfile(notebook, copy)
        copies.append(copy)
    return copies


def launch(
    notebook: Path, options: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that open a notebook with the kernel of this Python."""
    argv = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={notebook.parent}"]
    argv.append(f"--LabApp.default_url=/lab/tree/{notebook.name}")
    # Containers run as root, where JupyterLab refuses to start without; it listens here only, with a token.
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        argv.append("--allow-root")
    argv += options
    # Else a kernel of the same name in the user's folder, of some other Python, would come first.
    return argv, {**environment, "JUPYTER_PREFER_ENV_PATH": "1"}


def _execute(notebooks: Sequence[Path], out: Path) -> int:
    """Execute all, each to its end or its first error; return 1 if one failed."""
    from analysis.errors import NotebookError
    from analysis.notebook_runner import execute, write_page

    out.mkdir(parents=True, exist_ok=True)  # before minutes of work that would have no place
    failed = 0
    for path in notebooks:
        line = _Line(path.stem)
        try:
            page = write_page(execute(path, on_cell=line.cell), out / f"{path.stem}.html")
        except NotebookError as error:
            failed += 1
            line.end(f"FAILED\n{error}")
        else:
            line.end(f"{page}")
    return 1 if failed else 0


class _Line:
    """One line per notebook; on a terminal it counts cells while they run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = time.monotonic()
        self._live = sys.stdout.isatty()

    def cell(self, number: int, total: int) -> None:
        """Show which cell runs."""
        if self._live:
            sys.stdout.write(f"\r\x1b[K{self._name}  cell {number}/{total}")
            sys.stdout.flush()

    def end(self, text: str) -> None:
        """Show how it ended, and how long it took."""
        start = "\r\x1b[K" if self._live else ""
        sys.stdout.write(f"{start}{self._name}  {time.monotonic() - self._started:.0f} s  {text}\n")
        sys.stdout.flush()
