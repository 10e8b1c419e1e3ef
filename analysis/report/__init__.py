"""A run as one page: what matters most, the figures and tables behind it, and sessions to read.

`write_report` makes one self-contained HTML file that works offline, asks the network for nothing and runs no
script. Its findings are rules over the frames (`analysis.report.rules`), each a small pure function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.report.page import Written, write_report

__all__ = ["Written", "write_report"]


def __getattr__(name: str) -> Any:
    # On first use: the command line imports this package for its `command` module, which needs none of it.
    if name in __all__:
        from analysis.report import page

        return getattr(page, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
