"""What stands in a figure: legend, rectangles, texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection


def legend_of(ax: Axes) -> list[str]:
    """Texts of the legend, in the order in which they are read; none without a legend."""
    legend = ax.get_legend()
    if legend is None:
        return []
    found = [text.get_text() for text in legend.get_texts()]
    columns = legend._ncols
    parts = [list(part) for part in np.array_split(found, columns)]
    rows = max((len(part) for part in parts), default=0)
    return [str(part[row]) for row in range(rows) for part in parts if row < len(part)]


def boxes_of(collection: Any) -> np.ndarray:
    """Left, right, bottom and top of each rectangle of one artist; shape (n, 4)."""
    ends = [(*path.vertices.min(axis=0), *path.vertices.max(axis=0)) for path in collection.get_paths()]
    return np.array([(x0, x1, y0, y1) for x0, y0, x1, y1 in ends]).reshape(-1, 4)


def polygons(ax: Axes) -> list[PolyCollection]:
    """Artists made of rectangles, in the order in which they were drawn."""
    return [each for each in ax.collections if type(each) is PolyCollection]


def said(ax: Axes) -> list[str]:
    """Texts inside the axes."""
    return [text.get_text() for text in ax.texts]


def tick_names(ax: Axes, axis: str) -> list[str]:
    """Names of the ticks of an axis."""
    return [text.get_text() for text in getattr(ax, f"get_{axis}ticklabels")()]
