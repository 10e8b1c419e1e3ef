"""The page about figures, read: which snippet draws what, and where its picture lies.

``python -m tests.analysis.plots.page RUN`` draws the page's pictures anew from the folder of a run.
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

PAGE = Path(__file__).resolve().parents[3] / "docs" / "figures.md"
MADE_UP = ("nodes", "rejection_by_lag")
"""Figures that say little about a run on one machine; their pictures are those of the tests' examples."""

_SECTION = re.compile(r"^### plot_(\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """One figure's section: name without ``plot_``, question, code, description and path of its picture."""

    name: str
    text: str
    code: str
    description: str
    picture: Path


def sections() -> list[Section]:
    """Read the page."""
    found = []
    for name, body in _SECTION.findall(PAGE.read_text(encoding="utf-8")):
        (code,), ((description, link),) = _CODE.findall(body), _PICTURE.findall(body)
        found.append(Section(name, body.strip(), code, description, PAGE.parent / link))
    return found


def names() -> dict[str, Any]:
    """Run the page's imports, without loading the run that they end with."""
    preamble = _CODE.findall(PAGE.read_text(encoding="utf-8"))[0]
    scope: dict[str, Any] = {}
    exec(preamble.partition("run = ")[0], scope)
    return scope


def drawn(section: Section, scope: Mapping[str, Any]) -> Axes:
    """Run a section's snippet; return what its last statement gives."""
    head, _, last = section.code.rstrip().rpartition("\nplots.")
    local = dict(scope)
    exec(head, local)
    return eval(last if last.startswith("plots.") else f"plots.{last}", local)


def main() -> None:
    """Draw all pictures of the page."""
    from PIL import Image

    scope = {**names(), "run": analysis.load(sys.argv[1])}
    for section in sections():
        ax = EXAMPLES[section.name].draw() if section.name in MADE_UP else drawn(section, scope)
        section.picture.parent.mkdir(parents=True, exist_ok=True)
        ax.figure.savefig(section.picture, dpi=170)
        with Image.open(section.picture) as picture:
            small = picture.convert("RGB").quantize(96, dither=Image.Dither.NONE)
        small.save(section.picture, optimize=True)


if __name__ == "__main__":
    main()
