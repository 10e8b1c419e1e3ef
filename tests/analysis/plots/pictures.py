"""Pictures of figures without their texts, and the texts themselves, stored to be compared with.

Fonts are rendered differently by other versions of Matplotlib and FreeType; marks are not. So the pictures
hold marks only, on axes whose place does not depend on texts, and are compared closely; texts are compared
as texts.

``python -m tests.analysis.plots.pictures`` writes all of it anew; look at the figures before committing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from analysis.plots import theme
from tests.analysis.plots.examples import EXAMPLES, Example

STORED = Path(__file__).resolve().parents[2] / "data" / "plots"
TEXTS = STORED / "texts.json"
DARK = ("reward", "autopsy", "zero_signal", "tokens", "ratio")
"""Figures of which a dark picture is stored too."""

_DPI = 80
_SQUARE = 6
_MOST_RMS = 0.5
_MOST_SQUARE = 8.0


def drawn(example: Example, ground: str = "paper", frame: Any = None) -> Axes:
    """Draw an example on axes whose place does not depend on the size of texts."""
    with theme(ground) as chosen:
        figure = Figure(figsize=(3.3, 2.5), dpi=_DPI, layout="none", facecolor=chosen.ground)
        FigureCanvasAgg(figure)
        return example.draw(frame, ax=figure.add_axes((0.3, 0.18, 0.56, 0.58)))


def marks(ax: Axes) -> NDArray[np.uint8]:
    """Render a figure after taking off its texts and its legend; shape (height, width, 3)."""
    if ax.get_legend() is not None:
        ax.get_legend().remove()
    for each in (ax, *ax.child_axes):
        each.tick_params(which="both", labelleft=False, labelbottom=False)
    for text in ax.figure.findobj(Text):
        text.set_visible(False)
    return rendered(ax)


def rendered(ax: Axes) -> NDArray[np.uint8]:
    """Render a figure as it is; shape (height, width, 3)."""
    canvas: Any = ax.figure.canvas
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def texts(ax: Axes) -> list[str]:
    """Return all texts that are drawn, in order of the alphabet."""
    ax.figure.canvas.draw()
    found = [text for text in ax.figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return sorted(text.get_text() for text in found)


def difference(expected: NDArray[Any], actual: NDArray[Any]) -> str | None:
    """Say how two pictures differ, None if they do not as far as a reader could tell."""
    if expected.shape != actual.shape:
        return f"shape {actual.shape}, expected {expected.shape}"
    off = _averaged(expected) - _averaged(actual)
    rms, worst = float(np.sqrt((off**2).mean())), float(np.abs(off).max())
    if rms > _MOST_RMS or worst > _MOST_SQUARE:
        return f"rms {rms:.2f} (at most {_MOST_RMS}), worst square {worst:.1f} (at most {_MOST_SQUARE})"
    return None


def _averaged(picture: NDArray[Any]) -> NDArray[np.float64]:
    height, width = (size // _SQUARE for size in picture.shape[:2])
    cut = picture[: height * _SQUARE, : width * _SQUARE].astype(np.float64)
    return cut.reshape(height, _SQUARE, width, _SQUARE, 3).mean(axis=(1, 3))


def stored_names() -> list[tuple[str, str]]:
    """Return figure and ground of every stored picture."""
    return [(name, "paper") for name in EXAMPLES] + [(name, "dark") for name in DARK]


def stored(name: str, ground: str = "paper") -> NDArray[np.uint8]:
    """Read a stored picture."""
    return (image.imread(STORED / f"{name}_{ground}.png")[..., :3] * 255).round().astype(np.uint8)


def write(path: Path, picture: NDArray[np.uint8]) -> None:
    """Write a picture as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.imsave(path, picture, pil_kwargs={"optimize": True})


def main() -> None:
    """Write all stored pictures and texts anew."""
    for name, ground in stored_names():
        write(STORED / f"{name}_{ground}.png", marks(drawn(EXAMPLES[name], ground)))
    words = {name: texts(drawn(example)) for name, example in EXAMPLES.items()}
    TEXTS.write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
