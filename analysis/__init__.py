"""Load, explain and drive rollout runs: frames, statistics, figures, and a small stack to run them on.

::

    import analysis

    run = analysis.load("runs/lab")
    run.sessions()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis import live
    from analysis.explorers.explore import explore
    from analysis.loading import load
    from analysis.run import Run

__all__ = ["Run", "explore", "live", "load"]


def __getattr__(name: str) -> Any:
    # On first use: importing the package must not cost what pandas and PyArrow cost.
    if name == "load":
        from analysis.loading import load

        return load
    if name == "explore":
        return _explore()
    if name == "Run":
        from analysis.run import Run

        return Run
    if name == "live":
        return importlib.import_module("analysis.live")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _explore() -> Any:
    try:
        from analysis.explorers.explore import explore
    except ModuleNotFoundError as exc:
        if exc.name not in ("anywidget", "ipywidgets", "traitlets"):
            raise
        raise ModuleNotFoundError(
            f"analysis.explore needs {exc.name}: pip install '.[notebooks]' in a checkout of slime-bridge",
            name=exc.name,
        ) from exc
    return explore
