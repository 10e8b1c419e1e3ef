"""Colours that can be read and a style sheet that stays in its place."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup
from matplotlib.colors import to_rgb

from analysis.html import css, scoped
from analysis.html.style import SEVERITIES, TOKENS
from analysis.plots.style import THEMES


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


TEXT_ON = [(text, ground) for text in ("ink", "muted", "link") for ground in ("ground", "raised")]
TEXT_ON += [pair for name in SEVERITIES for pair in ((name, f"{name}-ground"), (name, "ground"))]


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT_ON)
def test_text_has_the_contrast_that_wcag_asks_for(text: str, ground: str, place: int) -> None:
    assert contrast(TOKENS[text][place], TOKENS[ground][place]) >= 4.5


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_focus_stands_out(place: int) -> None:
    assert contrast(TOKENS["focus"][place], TOKENS["ground"][place]) >= 3


def test_data_has_the_colours_of_the_figures() -> None:
    for place, name in enumerate(("paper", "dark")):
        figures = THEMES[name]
        assert TOKENS["ground"][place] == figures.ground.lower()
        for colour, value in figures.palette.items():
            assert TOKENS[colour][place] == value.lower()


def test_every_rule_is_scoped_and_every_token_is_known() -> None:
    rules = re.sub(r"/\*.*?\*/", "", css(), flags=re.DOTALL)
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{", rules) for part in rule.split(",")]
    assert len(selectors) > 40
    assert [name for name in selectors if ".wb" not in name and not name.startswith("@media")] == []
    used = set(re.findall(r"var\(--wb-([a-z0-9-]+)", rules))
    defined = set(re.findall(r"--wb-([a-z0-9-]+):", rules))
    assert used - defined == {"size"}, "the size is the page's to set"
    assert not re.search(r"url\(|@import|https?:", rules)


def test_a_cell_brings_its_style() -> None:
    html = scoped(Markup("<p>x</p>"))
    assert html.startswith('<div class="wb"><style>')
    assert html.endswith("</style><p>x</p></div>")
    assert html.count("</style>") == 1
