"""The pages that show figures: all of them, each with a picture, and code that can be run."""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

import analysis
from analysis import plots, stats
from analysis.lab.run_folder import RunFolder
from tests.analysis.plots.examples import EXAMPLES
from tests.analysis.plots.page import DOCS, FIGURES, PAGES, drawn, headings, snippets

OF_MANY_ROLLOUTS = ("autopsy", "group_advantages", "tokens")
"""Snippets that look for something which a run of three rollouts need not have."""


def test_every_figure_has_its_section() -> None:
    """In the page's order, none twice."""
    assert sorted(headings()) == sorted(EXAMPLES)
    assert [snippet.picture.stem for snippet in snippets(FIGURES)] == headings()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_are_there_and_described(page: Path) -> None:
    """Each link leads to a PNG file, and says in words what is to be seen."""
    found = snippets(page)
    assert len(found) >= 4
    for snippet in found:
        assert snippet.picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", snippet.picture
        assert len(snippet.description) > 10


def test_no_picture_is_left_over() -> None:
    """What no page shows is not kept."""
    shown = {snippet.picture.name for page in PAGES for snippet in snippets(page)}
    assert {path.name for path in (DOCS / "images" / "plots").iterdir()} == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_in_the_code_exist(page: Path) -> None:
    """Whatever is taken from ``plots`` and ``stats`` is public there."""
    public = {"plots": set(plots.__all__), "stats": set(stats.__all__)}
    used = [
        (node.value.id, node.attr)
        for snippet in snippets(page)
        for node in ast.walk(ast.parse(snippet.code))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in public
    ]
    assert used
    assert [name for name in used if name[1] not in public[name[0]]] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_code_of_the_figures_runs_on_a_run_of_the_bridge(embedded: RunFolder) -> None:
    """Every snippet that does not look for something special draws upon a small run, without a change."""
    scope = {"run": analysis.load(embedded.root), "plots": plots, "stats": stats}
    for snippet in snippets(FIGURES):
        if snippet.picture.stem in OF_MANY_ROLLOUTS:
            continue
        with mpl.rc_context({"figure.dpi": 40}):
            ax = drawn(snippet, scope)
            FigureCanvasAgg(ax.figure)
            ax.figure.canvas.draw()
        assert isinstance(ax, Axes), snippet.picture.stem
