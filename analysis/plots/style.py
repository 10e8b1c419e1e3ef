"""One look for all figures: sizes for a single text column, and colours for paper and for dark notebooks.

The palette is that of Okabe and Ito (2008); on a dark ground each hue is lightened until it stands out, and
the hues stay apart for colour-blind readers on either. Nothing here touches Matplotlib's global settings: a
theme holds for a block. Where no theme is named, it follows the ground: axes on a dark figure, or a session
in which Matplotlib's own ``figure.facecolor`` is dark, are drawn upon in light colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from analysis.errors import PlotError

__all__ = [
    "COLUMN_WIDTH",
    "HEIGHT",
    "PALETTE",
    "THEMES",
    "Theme",
    "colour",
    "colours_for",
    "current_theme",
    "house_style",
    "new_figure",
    "shades",
    "theme",
    "theme_under",
]

COLUMN_WIDTH = 3.3
"""Inches: one column of a two-column page."""

HEIGHT = 2.3
"""Inches, of a figure one column wide."""

TEXT_SIZE = 8.0
"""Points: titles and axis labels."""

SMALL_SIZE = 7.0
"""Points: tick labels and legends."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours for one kind of ground.

    Parameters
    ----------
    name
        ``"paper"`` or ``"dark"``.
    ground
        Of figures and axes.
    ink
        Text, axes and marks that are no data.
    muted
        Text of second rank: notes and ``no data``.
    grid
        Grid lines and fields that hold nothing.
    palette
        Colours of data by name.
    sequential, diverging
        Names of Matplotlib's colour maps for amounts, and for numbers around 0.
    faintest
        Where in the map for amounts the colours begin that stand out from the ground, 0 to 1.
    """

    name: str
    ground: str
    ink: str
    muted: str
    grid: str
    palette: Mapping[str, str]
    sequential: str
    diverging: str
    faintest: float


_PAPER = Theme(
    name="paper",
    ground="#FFFFFF",
    ink="#222222",
    muted="#666666",
    grid="#DDDDDD",
    palette=MappingProxyType(
        {
            "blue": "#0072B2",
            "orange": "#E69F00",
            "green": "#009E73",
            "vermillion": "#D55E00",
            "purple": "#CC79A7",
            "sky": "#56B4E9",
            "grey": "#B5B5B5",
        }
    ),
    sequential="cividis_r",
    diverging="PuOr",
    faintest=0.15,
)
_DARK = Theme(
    name="dark",
    ground="#1B1D21",
    ink="#E6E6E6",
    muted="#A8A8A8",
    grid="#3A3D43",
    palette=MappingProxyType(
        {
            "blue": "#3B9CE2",
            "orange": "#F0B429",
            "green": "#1FC796",
            "vermillion": "#FF7A45",
            "purple": "#E79CC6",
            "sky": "#A3DAFF",
            "grey": "#757575",
        }
    ),
    sequential="cividis",
    diverging="PuOr",
    faintest=0.2,
)
THEMES: Mapping[str, Theme] = MappingProxyType({"paper": _PAPER, "dark": _DARK})
"""Every theme by name."""

PALETTE = _PAPER.palette
"""Colours on paper by name."""

_ORDER = ("blue", "vermillion", "green", "orange", "purple", "sky")

# The same thing has the same colour in every figure.
_KNOWN_WORDS = {
    "COMPLETED": "blue",
    "ERROR": "vermillion",
    "TIMEOUT": "orange",
    "success": "blue",
    "failure": "orange",
    "partial": "green",
    "unusable": "grey",
    "training": "blue",
    "delivered": "blue",
    "low_complete_fraction": "vermillion",
    "too_stale": "purple",
    "failed_task": "orange",
    "mixed": "blue",
    "all_correct": "green",
    "all_wrong": "vermillion",
    "constant": "orange",
    "lone": "purple",
    "empty": "grey",
    "queue": "grey",
    "ready": "grey",
    "postrun_wait": "grey",
    "dispatch": "purple",
    "init": "sky",
    "run": "blue",
    "postrun": "green",
    "unknown": "grey",
    "other": "grey",
}

_current: ContextVar[Theme | None] = ContextVar("analysis_plots_theme", default=None)


@contextmanager
def theme(name: str) -> Iterator[Theme]:
    """Draw for paper or for a dark notebook while the block runs (also usable as a decorator).

    New figures get the theme's ground, figures that are drawn upon keep theirs.

    Parameters
    ----------
    name
        ``"paper"`` or ``"dark"``.

    Raises
    ------
    PlotError
        If there is no such theme.
    """
    if name not in THEMES:
        raise PlotError(f"no theme {name!r}: there are {', '.join(THEMES)}")
    chosen = THEMES[name]
    token = _current.set(chosen)
    try:
        with mpl.rc_context(_settings(chosen)):
            yield chosen
    finally:
        _current.reset(token)


@contextmanager
def house_style() -> Iterator[Theme]:
    """Apply the current theme's settings while the block runs (also usable as a decorator)."""
    with theme(current_theme().name) as chosen:
        yield chosen


def current_theme() -> Theme:
    """Return the theme of the block, else the one that suits Matplotlib's own setting of the ground."""
    named = _current.get()
    return named if named is not None else _suiting(mpl.rcParams["figure.facecolor"], _PAPER)


def theme_under(ax: Axes) -> Theme:
    """Return the theme that is readable on the ground of `ax`, whatever the current one is."""
    for patch in (ax.patch, ax.figure.patch, ax.figure.figure.patch):
        if patch is not None and patch.get_visible() and colors.to_rgba(patch.get_facecolor())[3] > 0.5:
            return _suiting(patch.get_facecolor(), current_theme())
    return current_theme()


def _suiting(ground: Any, otherwise: Theme) -> Theme:
    """Return the theme for a ground; one that shows what is below it tells nothing."""
    red, green, blue, opacity = colors.to_rgba(ground)
    if opacity <= 0.5:
        return otherwise
    return _DARK if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45 else _PAPER


def colour(name: str) -> str:
    """Return a colour of the theme: one of its palette, or ``ink``, ``muted``, ``grid``, ``ground``."""
    chosen = current_theme()
    return chosen.palette[name] if name in chosen.palette else str(getattr(chosen, name))


def shades() -> Colormap:
    """Return the current theme's colours of amounts, from those that just stand out from the ground."""
    chosen = current_theme()
    ends = np.linspace(chosen.faintest, 1.0, 256)
    return colors.ListedColormap(mpl.colormaps[chosen.sequential](ends), name=chosen.sequential)


def colours_for(names: Iterable[str]) -> dict[str, str]:
    """Give each name a colour of the current theme.

    Words that occur in several figures (states, reasons, kinds) have one colour everywhere; others get the
    next that is free, in order; beyond six they come again, closer to the ink.
    """
    wanted = list(dict.fromkeys(names))
    chosen = {name: _KNOWN_WORDS[name] for name in wanted if name in _KNOWN_WORDS}
    taken: set[str] = set()
    for name in list(chosen):  # two known words of one colour: the later one looks for another
        if chosen[name] in taken and chosen[name] != "grey":
            del chosen[name]
        else:
            taken.add(chosen[name])
    free = [name for name in _ORDER if name not in taken]
    rest = [name for name in wanted if name not in chosen]
    cycle = free or list(_ORDER)
    chosen.update({name: cycle[place % len(cycle)] for place, name in enumerate(rest)})
    again = {name: place // len(cycle) for place, name in enumerate(rest)}
    return {name: _nearer_ink(colour(chosen[name]), again.get(name, 0)) for name in wanted}


def _nearer_ink(name: str, steps: int) -> str:
    own, ink = np.array(colors.to_rgb(name)), np.array(colors.to_rgb(colour("ink")))
    return colors.to_hex(ink + (own - ink) * 0.55**steps).upper() if steps else name


def new_figure(width: float = COLUMN_WIDTH, height: float = HEIGHT) -> Figure:
    """Return a figure in house style that no global registry holds on to.

    Parameters
    ----------
    width, height
        Inches.
    """
    with house_style():
        return Figure(figsize=(width, height), layout="constrained")


def _settings(chosen: Theme) -> dict[str, Any]:
    return {
        "figure.dpi": 150,
        "figure.facecolor": chosen.ground,
        "figure.edgecolor": chosen.ground,
        "savefig.dpi": 300,
        "savefig.facecolor": "auto",
        "figure.constrained_layout.use": True,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": TEXT_SIZE,
        "text.color": chosen.ink,
        "text.usetex": False,
        "axes.facecolor": chosen.ground,
        "axes.titlesize": TEXT_SIZE,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": chosen.ink,
        "axes.labelsize": TEXT_SIZE,
        "axes.labelcolor": chosen.ink,
        "axes.edgecolor": chosen.ink,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "axes.formatter.limits": (-4, 6),
        # Without mathematics around plain numbers: to parse it takes a quarter of the time of a figure.
        "axes.formatter.use_mathtext": False,
        "grid.color": chosen.grid,
        "grid.linewidth": 0.5,
        "xtick.labelsize": SMALL_SIZE,
        "ytick.labelsize": SMALL_SIZE,
        "xtick.color": chosen.ink,
        "ytick.color": chosen.ink,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "hatch.linewidth": 0.4,
        "legend.fontsize": SMALL_SIZE,
        "legend.frameon": False,
        "legend.handlelength": 1.4,
        "legend.borderaxespad": 0.2,
        "legend.labelcolor": chosen.ink,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
    }
