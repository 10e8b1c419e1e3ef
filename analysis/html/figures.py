"""Figures as parts of a page: a picture inside the page, with words for who cannot see it.

A figure is drawn once for each ground and shown on the one that fits. Pictures are PNG files with a palette,
which for line art is several times smaller than full colour and looks the same.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.transforms import Bbox
from PIL import Image

from analysis.html.text import escaped
from analysis.plots.style import current_theme, theme, theme_under

__all__ = ["PIXELS_PER_INCH", "figure", "png", "themed_figure"]

PIXELS_PER_INCH = 132
"""CSS pixels for one inch of a figure: its 8 point text is read at 14.7 pixels."""

_SHARPNESS = 2.0  # device pixels per CSS pixel


def figure(
    light: Figure | Axes, *, alt: str, caption: str | Markup = "", dark: Figure | Axes | None = None
) -> Markup:
    """Return a figure as HTML, and close it.

    Parameters
    ----------
    light
        A figure or axes on it.
    alt
        What is to be seen, for who does not see it; never empty.
    caption
        Stands below; none by default.
    dark
        The same for a dark ground; by default `light` is shown on both.

    Raises
    ------
    ValueError
        If `alt` is empty.
    """
    if not alt.strip():
        raise ValueError("a figure needs words that say what it shows")
    image, places = _image(light, alt, "wb-on-light" if dark is not None else "")
    pictures = [image]
    if dark is not None:
        pictures.append(_image(dark, alt, "wb-on-dark", places)[0])
    below = Markup("<figcaption>{}</figcaption>").format(escaped(caption)) if caption else Markup("")
    return Markup('<figure class="wb-figure">{}{}</figure>').format(Markup("").join(pictures), below)


def themed_figure(draw: Callable[[], Axes | Figure], *, alt: str, caption: str | Markup = "") -> Markup:
    """Return a figure as HTML, drawn for either ground.

    Parameters
    ----------
    draw
        Draws the figure anew each time, as the functions of `analysis.plots` do without `ax`.
    alt, caption
        As in `figure`.
    """
    with theme("paper"):
        light = draw()
    with theme("dark"):
        dark = draw()
    return figure(light, dark=dark, alt=alt, caption=caption)


def png(drawn: Figure | Axes, *, sharpness: float = _SHARPNESS) -> bytes:
    """Return a figure as a small PNG file, and close it.

    Parameters
    ----------
    drawn
        A figure or axes on it.
    sharpness
        Pixels per CSS pixel.
    """
    return _png(_whole(drawn), sharpness)[0]


@dataclass(frozen=True)
class _Places:
    """Where a layout has put the axes of a figure, in the order in which they were added."""

    size: tuple[float, float]
    axes: tuple[Bbox, ...]


def _image(
    drawn: Figure | Axes, alt: str, shown: str, places: _Places | None = None
) -> tuple[Markup, _Places]:
    whole = _whole(drawn)
    width, height = (round(inches * PIXELS_PER_INCH) for inches in whole.get_size_inches())
    data, found = _png(whole, _SHARPNESS, places)
    html = Markup('<img class="{}" width="{}" height="{}" alt="{}" src="data:image/png;base64,{}">').format(
        shown, width, height, escaped(alt), base64.b64encode(data).decode("ascii")
    )
    return html, found


def _png(whole: Figure, sharpness: float, places: _Places | None = None) -> tuple[bytes, _Places]:
    """Render and close a figure; return the file and where its axes stood.

    To find a layout takes half of the time of drawing, and that of the same figure in other colours is the
    same: it is taken over.
    """
    # Ticks are made when they are drawn, in the settings of that moment.
    chosen = theme_under(whole.axes[0]) if whole.axes else current_theme()
    try:
        with theme(chosen.name):
            whole.set_dpi(PIXELS_PER_INCH * sharpness)
            if places is not None and places.size == _size(whole) and len(places.axes) == len(whole.axes):
                whole.set_layout_engine("none")
                for ax, box in zip(whole.axes, places.axes, strict=True):
                    ax.set_position(box)
            # Not savefig, which draws twice where there is a layout to find.
            canvas = FigureCanvasAgg(whole)
            canvas.draw()
            image = Image.fromarray(np.asarray(canvas.buffer_rgba()))
            found = _Places(_size(whole), tuple(ax.get_position(original=True) for ax in whole.axes))
    finally:
        _close(whole)
    small = io.BytesIO()
    # An octree keeps the greys of antialiased text and takes a seventh of the time of a median cut, whose
    # files are twice as large; dithering would only add noise to flat areas.
    palette = image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette.save(small, format="png", compress_level=6)
    return small.getvalue(), found


def _size(whole: Figure) -> tuple[float, float]:
    width, height = whole.get_size_inches()
    return float(width), float(height)


def _whole(drawn: Figure | Axes) -> Figure:
    owner: Figure | SubFigure | None = drawn.figure if isinstance(drawn, Axes) else drawn
    while isinstance(owner, SubFigure):
        owner = owner.figure
    if owner is None:
        raise ValueError("these axes are on no figure: they were removed from it")
    return owner


def _close(whole: Figure) -> None:
    whole.clear()
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(whole)  # does nothing to a figure that pyplot never knew
