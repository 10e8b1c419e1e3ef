"""Live runs by name: the list of them, and taking one up without a connection at hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from analysis.errors import LiveError
from analysis.live.connecting import connect
from analysis.live.handle import LiveHandle
from analysis.live.launching import settled_submission
from analysis.live.registry import LiveFolder, runs_folder, runs_frame
from analysis.live.submission_handle import ENDED
from analysis.live.training import TrainingHandle

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["attach", "runs"]


def attach(
    name: str,
    *,
    runs_dir: str | os.PathLike[str] | None = None,
    polar_url: str | None = None,
    resubmit: bool = False,
    **connection: Any,
) -> LiveHandle[Any]:
    """Take up a live run by its name, as after a restart of the kernel; see `Lab.attach`.

    Parameters
    ----------
    name
        Of the run.
    runs_dir
        Folder of live runs; see `connect`.
    polar_url
        Of the rollout server; by default the variable ``POLAR_ROLLOUT_URL``, else the one that the run was
        submitted to.
    resubmit
        Also submit what the server has forgotten and what was never submitted.
    **connection
        Further arguments of `connect`.

    Returns
    -------
    LiveHandle
        Its connection is kept until the process ends; one that has ended needs none.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    RunBusyError
        If another process drives it.
    LiveError
        If it ran on an embedded stack, which is gone with its kernel, and is not finished.
    """
    folder = LiveFolder.find(runs_folder(runs_dir), name)
    record = folder.read()
    if record.kind == "training":
        handle = TrainingHandle(folder, None)
        handle.start()
        return handle
    if not resubmit and record.state in ENDED and (ended := settled_submission(folder)) is not None:
        return ended  # without a server, which may be gone
    url = polar_url or os.environ.get("POLAR_ROLLOUT_URL") or record.server
    if not url:
        raise LiveError(
            f"{name} ran on the embedded stack of a kernel that is gone, and its sessions with it. What is "
            f"done: analysis.load({str(folder.path)!r}). To run the rest on a new stack: "
            f"live.connect().attach({name!r}, resubmit=True)"
        )
    return connect(url, runs_dir=runs_dir, **connection).attach(name, resubmit=resubmit)


def runs(runs_dir: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Return all live runs, newest first; see `analysis.live.registry.runs_frame` for the columns."""
    return runs_frame(runs_folder(runs_dir))
