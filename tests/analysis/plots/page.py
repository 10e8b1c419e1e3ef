"""The pages that show figures, read: which snippet draws what, and where its picture lies.

``python -m tests.analysis.plots.page RUN`` draws the pages' pictures anew from the folder of a run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

import analysis
from tests.analysis.plots.examples import EXAMPLES

DOCS = Path(__file__).resolve().parents[3] / "docs"
FIGURES = DOCS / "figures.md"
PAGES = (FIGURES, DOCS / "analysis.md", DOCS / "estimators.md")
MADE_UP = ("nodes", "rejection_by_lag")
"""Figures that say little about a run on one machine; their pictures are those of the tests' examples."""

_SHOWN = re.compile(r"^```python\n([^`]*?)^```\n\n!\[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)
_HEADING = re.compile(r"^### plot_(\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """Code that ends with a figure, and the picture below it with its description."""

    code: str
    description: str
    picture: Path


def snippets(page: Path) -> list[Snippet]:
    """Read a page's code that has a picture."""
    found = _SHOWN.findall(page.read_text(encoding="utf-8"))
    return [Snippet(code, description, page.parent / link) for code, description, link in found]


def headings() -> list[str]:
    """Return the names of the figures that the page about them has a section for."""
    return _HEADING.findall(FIGURES.read_text(encoding="utf-8"))


def drawn(snippet: Snippet, scope: Mapping[str, Any]) -> Axes:
    """Run a snippet; return what its last statement gives."""
    head, _, last = f"\n{snippet.code.rstrip()}".rpartition("\nplots.")
    local = dict(scope)
    exec(head, local)
    return eval(f"plots.{last}", local)


def main() -> None:
    """Draw all pictures, each once."""
    from PIL import Image

    from analysis import plots, stats

    scope = {"run": analysis.load(sys.argv[1]), "plots": plots, "stats": stats}
    wanted = {snippet.picture: snippet for page in reversed(PAGES) for snippet in snippets(page)}
    for picture, snippet in wanted.items():
        made_up = picture.stem in MADE_UP
        ax = EXAMPLES[picture.stem].draw() if made_up else drawn(snippet, scope)
        picture.parent.mkdir(parents=True, exist_ok=True)
        ax.figure.savefig(picture, dpi=170)
        with Image.open(picture) as image:
            small = image.convert("RGB").quantize(96, dither=Image.Dither.NONE)
        small.save(picture, optimize=True)


if __name__ == "__main__":
    main()
