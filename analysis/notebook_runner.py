"""The notebooks of the documentation: where they lie, and how one is executed and written as a page.

Knows nothing about what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from typing import Any

from analysis.errors import NotebookError

__all__ = ["execute", "notebook_files", "without_widgets", "write_page"]

DISTRIBUTION = "slime-bridge"
_WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_NEEDS_KERNEL = "<p><em>An explorer stands here: run this notebook in JupyterLab to use it.</em></p>"

CELL_TIMEOUT = 600.0
"""Seconds after which a cell is given up."""


def notebook_files() -> list[Path]:
    """List the notebooks in reading order: of the checkout that this code lies in, else those installed.

    Raises
    ------
    NotebookError
        There are none: the package was installed without its data.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        found = (checkout / "notebooks").glob("*.ipynb")
    else:
        files = metadata.files(DISTRIBUTION) or []
        found = (Path(str(file.locate())) for file in files if file.suffix == ".ipynb")
    notebooks = sorted((path.resolve() for path in found if path.is_file()), key=lambda path: path.name)
    if not notebooks:
        raise NotebookError(f"no notebooks came with this installation of {DISTRIBUTION}; install it again")
    return notebooks


def execute(
    path: Path, *, folder: Path | None = None, on_cell: Callable[[int, int], None] | None = None
) -> Any:
    """Run a notebook from top to bottom in a fresh kernel of this environment.

    Parameters
    ----------
    path
        The notebook; it is not written to.
    folder
        Where its kernel runs; its own folder if None.
    on_cell
        Called before each cell with its number, from 1, and the number of cells.

    Returns
    -------
    nbformat.NotebookNode
        The notebook with its outputs.

    Raises
    ------
    NotebookError
        A cell failed, or the kernel did; the message names the notebook, the cell and the error.
    KeyboardInterrupt
        A signal came; the kernel has ended.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    read: Any = nbformat.read  # their types are not given
    notebook = read(path, as_version=4)
    at = 0

    def start(*, cell: Any, cell_index: int, **_: Any) -> None:
        nonlocal at
        at = cell_index
        if on_cell is not None:
            on_cell(cell_index + 1, len(notebook.cells))

    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_TIMEOUT,
        resources={"metadata": {"path": str(folder or path.parent)}},
        # A kernel says at its start that it is not encrypted, and complains when it is ended under a cell.
        extra_arguments=["--log-level=CRITICAL"],
        on_cell_start=start,
    )
    # Else a kernel of the same name in the user's folder, of some other Python, would come first.
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    try:
        _execute(client)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        cell = notebook.cells[at]
        where = f"cell {at + 1} of {len(notebook.cells)}, {cell.get('id', 'which has no id')}"
        raise NotebookError(f"{path.name} failed in {where}:\n{cell.source}\n\n{error}") from error
    return notebook


def _execute(client: Any) -> None:
    """Execute; where a signal came meanwhile, that is why it ended, whatever is raised."""

    def check(cause: BaseException | None = None) -> None:
        # nbclient answers a signal by ending the kernel under the cell, and remembers that in this attribute.
        if getattr(client, "_async_cleanup_kernel_future", None) is not None:
            raise KeyboardInterrupt from cause

    try:
        client.execute()
    except BaseException as error:
        check(error)
        raise
    check()


def write_page(notebook: Any, target: Path) -> Path:
    """Write an executed notebook as one HTML page with its figures in it; return `target`.

    Widgets that hold HTML stand there as they stood at the end; others say that they need a kernel.
    """
    from nbconvert import HTMLExporter

    exporter: Any = HTMLExporter  # its types are not given
    page, _ = exporter().from_notebook_node(without_widgets(notebook))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def without_widgets(notebook: Any) -> Any:
    """Return a copy of an executed notebook with HTML in the place of widgets, without bars of progress."""
    copied = deepcopy(notebook)
    saved = copied.metadata.get("widgets", {}).get(_WIDGET_STATE, {}).get("state", {})
    for cell in copied.cells:
        kept = []
        for output in cell.get("outputs", ()):
            view = output.get("data", {}).pop(_WIDGET_VIEW, None)
            if view is not None:
                if _is_progress(saved, view["model_id"]):
                    continue
                output.data["text/html"] = _still(saved, view["model_id"]) or _NEEDS_KERNEL
            kept.append(output)
        if "outputs" in cell:
            cell.outputs = kept
    return copied


def _is_progress(saved: Mapping[str, Any], model: str) -> bool:
    """Whether a widget is tqdm's: a box with a bar, which is gone from the screen at its end."""
    children = saved.get(model, {}).get("state", {}).get("children", ())
    names = {saved.get(child.removeprefix("IPY_MODEL_"), {}).get("model_name") for child in children}
    return "FloatProgressModel" in names


def _still(saved: Mapping[str, Any], model: str) -> str:
    """Return what a widget and those inside it hold as HTML; empty where a script draws one of them."""
    widget = saved.get(model, {})
    state = widget.get("state", {})
    if widget.get("model_name") == "HTMLModel":
        return f"<div>{state.get('value', '')}</div>"
    parts = [_still(saved, child.removeprefix("IPY_MODEL_")) for child in state.get("children", ())]
    return "".join(parts) if all(parts) else ""
