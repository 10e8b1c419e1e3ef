"""Which notebook cell is running: what makes a cell's second run the successor of its first."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["cell_name"]

_counts: dict[str, Any] = {"message": None, "made": {}}


def cell_name(kind: str) -> str | None:
    """Return a name for the next explorer of a kind in the running cell; None outside of a notebook.

    The first explorer of a kind that a cell makes has the same name in each run of the cell, so has the
    second, and so on.
    """
    request = _request()
    if request is None:
        return None
    cell, message = request
    if _counts["message"] != message:
        _counts["message"], _counts["made"] = message, {}
    number = _counts["made"].get(kind, 0)
    _counts["made"][kind] = number + 1
    return f"cell {cell} #{number}"


def _request() -> tuple[str, str] | None:
    """Return the ids of the cell and of the request to run it, as the front end sent them."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    parent: Any = getattr(shell, "get_parent", dict)() if shell is not None else {}
    cell = parent.get("metadata", {}).get("cellId") if isinstance(parent, dict) else None
    message = parent.get("header", {}).get("msg_id", "") if cell else ""
    return (str(cell), str(message)) if cell else None
