"""One look for all figures: sizes for a single text column, colours that colour-blind readers can tell apart.

The palette is that of Okabe and Ito (2008). Nothing here touches Matplotlib's global settings: `house_style`
holds for the block or the decorated function only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["COLUMN_WIDTH", "PALETTE", "axes_or_new", "colour_for", "empty", "house_style", "new_figure"]

COLUMN_WIDTH = 3.4
"""Inches: one column of a two-column page."""

HEIGHT = 2.3
"""Inches, of a figure one column wide."""

PALETTE: dict[str, str] = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "grey": "#8C8C8C",
    "ink": "#222222",
}
"""Okabe and Ito's colours by name, with a grey and an ink for what is not data."""

_ORDER = ("vermillion", "blue", "orange", "green", "purple", "sky", "grey")

_RC: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": PALETTE["ink"],
    "axes.edgecolor": PALETTE["ink"],
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": PALETTE["ink"],
    "ytick.color": PALETTE["ink"],
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.borderaxespad": 0.2,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the house style while the block runs (also usable as a decorator)."""
    with mpl.rc_context(_RC):
        yield


def new_figure(width: float = COLUMN_WIDTH, height: float = HEIGHT) -> Figure:
    """Return a figure in house style that no global registry holds on to.

    Parameters
    ----------
    width, height
        Inches.
    """
    with house_style():
        return Figure(figsize=(width, height), layout="constrained")


def axes_or_new(ax: Axes | None) -> Axes:
    """Return `ax`, or axes on a new figure that `pyplot` shows in a notebook."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # here, so that headless callers with their own axes choose no backend

    _, made = plt.subplots(figsize=(COLUMN_WIDTH, HEIGHT))
    return cast(Axes, made)


def empty(ax: Axes, reason: str = "no data") -> Axes:
    """Say in the middle of `ax` that there is nothing to draw."""
    ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", color=PALETTE["grey"])
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def colour_for(name: str, names: Sequence[str]) -> str:
    """Return the colour of `name` among `names`: stable for a given order, repeated only after seven."""
    return PALETTE[_ORDER[list(names).index(name) % len(_ORDER)]]
