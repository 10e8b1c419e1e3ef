"""What all figures share: axes in house style, legends and keys that never cover data, bars as one artist."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, cast

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D, ScaledTranslation, blended_transform_factory

from analysis.plots._columns import Floats, plain, require
from analysis.plots.style import (
    COLUMN_WIDTH,
    HEIGHT,
    SMALL_SIZE,
    TEXT_SIZE,
    colour,
    current_theme,
    house_style,
    theme,
    theme_under,
)

__all__ = [
    "MANY",
    "ON_SHADE",
    "ShownAxes",
    "bars",
    "begin",
    "boxes",
    "colour_key",
    "dots",
    "empty",
    "legend",
    "line",
    "note",
    "say",
    "styled",
    "swatch",
    "whole_numbers",
]

P = ParamSpec("P")

MANY = 2000
"""Marks beyond which a vector file holds a picture of them instead of each one."""

ON_SHADE = "on-shade"
"""Group id of texts that stand on a field of a colour map, with a colour chosen for that field."""

_LINE_POINTS = 9.5
"""Height of one row of a legend."""

_FEW_ROWS = 2
"""Rows of a legend that fit over a figure of the usual height."""

_TITLE: dict[str, Any] = {"ink": "ink", "font": {"fontsize": TEXT_SIZE, "fontweight": "bold"}}
_NOTE: dict[str, Any] = {"ink": "muted", "font": {"fontsize": SMALL_SIZE, "fontweight": "normal"}}


class ShownAxes(Axes):
    """Axes on a figure of their own, which a notebook shows as a picture.

    Such a figure is in no registry of `pyplot`: nothing has to be closed, and it goes when the axes go.
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with house_style():
            cast(Figure, self.figure).savefig(buffer, format="png", dpi=200)
        return buffer.getvalue()


def styled(function: Callable[P, Axes]) -> Callable[P, Axes]:
    """Let a figure function draw in the theme that is readable on the ground of its axes.

    The function's first argument is its frame; anything else than a frame is refused before drawing.
    """

    @functools.wraps(function)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Axes:
        require(cast(pd.DataFrame, args[0] if args else kwargs.get("frame")))
        ax = cast("Axes | None", kwargs.get("ax"))
        chosen = current_theme() if ax is None else theme_under(ax)
        with theme(chosen.name):
            return function(*args, **kwargs)

    return drawn


def begin(
    ax: Axes | None, title: str, x_label: str, y_label: str, *, grid: str = "y", height: float = HEIGHT
) -> Axes:
    """Return `ax`, or axes on a new figure, in house style, with title and labels.

    Parameters
    ----------
    ax
        Where to draw; new axes if None.
    title, x_label, y_label
        Texts of our own.
    grid
        Which grid lines: ``"x"``, ``"y"``, ``"both"`` or ``"none"``.
    height
        Of a new figure, in inches.
    """
    if ax is None:
        figure = Figure(figsize=(COLUMN_WIDTH, height), layout="constrained")
        ax = figure.add_subplot(axes_class=ShownAxes)
    _dress(ax, grid)
    ax.set_title("", loc="right")
    ax.set_title(title, loc="left", color=colour(_TITLE["ink"]), pad=4.0, **_TITLE["font"])
    ax.set_xlabel(x_label, fontsize=TEXT_SIZE, color=colour("ink"))
    ax.set_ylabel(y_label, fontsize=TEXT_SIZE, color=colour("ink"))
    return ax


def _dress(ax: Axes, grid: str) -> None:
    """Set what Matplotlib reads from its settings when ticks are made, which may be long after drawing."""
    ink = colour("ink")
    for side, spine in ax.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=ink, linewidth=0.6)
    ax.tick_params(
        which="both",
        color=ink,
        labelcolor=ink,
        labelsize=SMALL_SIZE,
        width=0.6,
        length=2.5,
        top=False,
        right=False,
    )
    ax.set_axisbelow(True)
    ax.grid(False)
    if grid != "none":
        ax.grid(True, axis=cast(Any, grid), color=colour("grid"), linewidth=0.5)


def empty(ax: Axes, reason: str = "no data") -> Axes:
    """Say in the middle of `ax` that there is nothing to draw."""
    say(ax, reason)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def say(ax: Axes, text: str) -> None:
    """Write a few words of our own in the middle of `ax`."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": colour("muted"), "fontsize": TEXT_SIZE}
    ax.text(0.5, 0.5, text, transform=ax.transAxes, **style)


def note(ax: Axes, text: str) -> None:
    """Write a few words of our own at the right end of the title's line."""
    ax.set_title(text, loc="right", color=colour(_NOTE["ink"]), pad=4.0, **_NOTE["font"])


def whole_numbers(ax: Axes, *axes: str, most: int = 7) -> None:
    """Put ticks on integers only."""
    for name in axes:
        cast(Any, getattr(ax, f"{name}axis")).set_major_locator(
            MaxNLocator(integer=True, nbins=most, steps=[1, 2, 5, 10])
        )


def swatch(name: str, **options: Any) -> Patch:
    """Return a legend's mark for a filled area."""
    return Patch(facecolor=name, linewidth=0, **options)


def line(name: str, **options: Any) -> Line2D:
    """Return a legend's mark for a line or a dot."""
    return Line2D([], [], color=name, **options)


def legend(ax: Axes, entries: Mapping[str, Any], *, side: str = "left") -> None:
    """Put a legend between title and axes, where it covers no data, in as many rows as it needs.

    Parameters
    ----------
    ax
        Where the title stands already.
    entries
        Artist, or a mark by `swatch` or `line`, by label. Labels are drawn as they stand.
    side
        ``"left"`` begins where the axes begin; ``"right"`` ends where they end, for axes with long names at
        their left.
    """
    if not entries:
        return
    labels = [plain(label, 36) for label in entries]
    columns, rows = _columns(ax, labels)
    # Matplotlib fills a legend column by column, people read it row by row.
    order = [place for column in range(columns) for place in range(column, len(labels), columns)]
    marks = list(entries.values())
    made = ax.legend(
        [marks[place] for place in order],
        [labels[place] for place in order],
        loc=f"lower {side}",
        bbox_to_anchor=(-0.01 if side == "left" else 1.01, 1.0),
        borderaxespad=0.1,
        borderpad=0.1,
        ncols=columns,
        columnspacing=0.9,
        handletextpad=0.4,
        handlelength=1.2,
        labelspacing=0.25,
        fontsize=SMALL_SIZE,
        frameon=False,
        labelcolor=colour("ink"),
    )
    made.set_zorder(5)
    if isinstance(ax, ShownAxes) and rows > _FEW_ROWS:  # a long legend takes room of its own, not the data's
        figure = cast(Figure, ax.figure)
        figure.set_figheight(figure.get_figheight() + (rows - _FEW_ROWS) * _LINE_POINTS / 72)
    _raise_titles(ax, rows * _LINE_POINTS + 5.0)


def _columns(ax: Axes, labels: Sequence[str]) -> tuple[int, int]:
    """Return how many columns of a legend fit over the axes, and how many rows that makes."""
    room = ax.figure.bbox.width / ax.figure.dpi * 72 * ax.get_position().width
    font = FontProperties(family="DejaVu Sans", size=SMALL_SIZE)
    marks = 2.6 * SMALL_SIZE
    widths = [text_to_path.get_text_width_height_descent(label, font, False)[0] + marks for label in labels]
    for columns in range(len(labels), 1, -1):
        if sum(max(widths[first::columns]) for first in range(columns)) <= room * 1.04:
            return columns, -(-len(labels) // columns)
    return 1, len(labels)


def _raise_titles(ax: Axes, points: float) -> None:
    """Move the titles up; setting one again is Matplotlib's only public way to change its distance."""
    for loc, style in (("left", _TITLE), ("right", _NOTE)):
        text = ax.get_title(loc=cast(Any, loc))
        if text:
            ax.set_title(text, loc=cast(Any, loc), color=colour(style["ink"]), pad=points, **style["font"])


def colour_key(
    ax: Axes, colours: Colormap, scale: Normalize, label: str, low: str = "", high: str = ""
) -> None:
    """Put a key of colours between title and axes.

    Parameters
    ----------
    ax
        Where the title stands already.
    colours, scale
        As of the picture; the scale has limits.
    label
        What the colours mean.
    low, high
        Words for both ends; their numbers by default.
    """
    assert scale.vmin is not None
    assert scale.vmax is not None
    bottom, top = low or f"{scale.vmin:.3g}", high or f"{scale.vmax:.3g}"
    # Across in parts of the axes, upwards in points from their top.
    points = (
        Affine2D().scale(1.0, 1 / 72)
        + ax.figure.dpi_scale_trans
        + ScaledTranslation(0, 1, cast(Any, ax.transAxes))
    )
    over = blended_transform_factory(ax.transAxes, points)
    inset = ax.inset_axes((0.62, 3.2, 0.24, 5.0), transform=over)
    inset.imshow(colours(np.linspace(0.0, 1.0, 128)[None, :]), aspect="auto", interpolation="nearest")
    inset.set_axis_off()
    style: dict[str, Any] = {"fontsize": SMALL_SIZE, "color": colour("ink"), "va": "center"}
    for place, text, side in ((0.605, f"{label}  {bottom}", "right"), (0.875, top, "left")):
        ax.text(place, 5.7, text, transform=over, ha=side, **style)
    _raise_titles(ax, _LINE_POINTS + 6.0)


def boxes(ax: Axes, left: Floats, right: Floats, bottom: Floats, top: Floats, **options: Any) -> Artist:
    """Draw rectangles as one artist; each side has the shape (n,), in the units of the axes."""
    corners = np.stack(
        [np.stack(pair, axis=-1) for pair in ((left, bottom), (left, top), (right, top), (right, bottom))],
        axis=1,
    )
    if len(corners) > MANY and isinstance(options.get("facecolor"), str):
        made: Artist = _one_shape(ax, corners, **options)
    else:
        polygons = PolyCollection(
            cast(Any, corners), rasterized=len(corners) > MANY, **({"linewidths": 0.0} | options)
        )
        made = ax.add_collection(polygons)
    if len(corners):
        ax.update_datalim(corners.reshape(-1, 2))
    ax.autoscale_view()
    return made


def _one_shape(ax: Axes, corners: Floats, **options: Any) -> Artist:
    """Draw many rectangles of one colour as the outline of a single shape, in a third of the time."""
    closed = np.concatenate([corners, corners[:, :1]], axis=1).reshape(-1, 2)
    steps = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(corners))
    shape = PathPatch(Path(closed, steps), rasterized=True, **({"linewidth": 0.0} | options))
    shape.set_transform(ax.transData)
    return ax.add_artist(shape)


def bars(ax: Axes, at: Floats, low: Floats, high: Floats, width: float, **options: Any) -> Artist:
    """Draw upright bars from `low` to `high` as one artist; missing and empty ones are left out."""
    there = ~(np.isnan(at) | np.isnan(low) | np.isnan(high)) & (low != high)
    x, bottom, top = at[there], low[there], high[there]
    return boxes(ax, x - width / 2, x + width / 2, bottom, top, **options)


def dots(ax: Axes, x: Floats, y: Floats, **options: Any) -> Any:
    """Draw dots without outline as one artist; smaller and paler where there are many."""
    crowded = len(x) > MANY
    size = 3.0 if crowded else 8.0
    defaults = {"s": size, "alpha": 0.4 if crowded else 0.75, "linewidths": 0, "rasterized": crowded}
    return ax.scatter(x, y, **(defaults | options))
