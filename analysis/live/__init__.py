"""Live runs from a notebook: connect, submit, train, watch; nothing blocks the cell, nothing is left behind.

::

    from analysis import live

    lab = live.connect()                      # the embedded stack; or URLs of a running Polar and router
    handle = lab.submit(lab.prompts(4))       # at once; `handle` shows itself live
    handle.run.sessions()                     # so far

Importing this package starts nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.live.connecting import connect
    from analysis.live.connection import Lab
    from analysis.live.names import attach, runs
    from analysis.live.watching import Watch, watch

__all__ = ["Lab", "Watch", "attach", "connect", "runs", "watch"]

_HOMES = {
    "Lab": "analysis.live.connection",
    "Watch": "analysis.live.watching",
    "attach": "analysis.live.names",
    "connect": "analysis.live.connecting",
    "runs": "analysis.live.names",
    "watch": "analysis.live.watching",
}


def __getattr__(name: str) -> Any:
    # On first use: what needs pandas or an HTTP client is not loaded for a name that is not used.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
