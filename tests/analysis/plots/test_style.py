"""Style: themes for a block only, colours that stay apart and stand out, words with colours of their own."""

from __future__ import annotations

import itertools
import threading

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import colors
from matplotlib.figure import Figure

from analysis.errors import PlotError
from analysis.plots import house_style, new_figure, plot_reward, theme
from analysis.plots.style import (
    COLUMN_WIDTH,
    PALETTE,
    THEMES,
    colour,
    colours_for,
    current_theme,
    shades,
    theme_under,
)
from tests.analysis.plots.examples import EXAMPLES

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
_SEEN_BY = {
    "everybody": np.eye(3),
    "protanopes": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopes": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopes": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def _linear(name: str) -> np.ndarray:
    parts = np.array(colors.to_rgb(name))
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(linear, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("name", THEMES)
@pytest.mark.parametrize("people", _SEEN_BY)
def test_colours_stay_apart_for_colour_blind_readers(name: str, people: str) -> None:
    """Any two colours of a palette differ in CIELAB by more than ten, whoever looks at them."""
    seen = {
        key: _lab(np.array(_SEEN_BY[people]) @ _linear(value)) for key, value in THEMES[name].palette.items()
    }
    for one, two in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[two]) > 10, (one, two)


@pytest.mark.parametrize("name", THEMES)
def test_colours_stand_out_from_the_ground(name: str) -> None:
    """Data has a contrast of 2 and more on paper and of 3 on a dark ground; text has more than 4.5."""
    chosen = THEMES[name]

    def contrast(other: str) -> float:
        dark, light = sorted(float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (chosen.ground, other))
        return (light + 0.05) / (dark + 0.05)

    assert min(map(contrast, chosen.palette.values())) >= (2.0 if name == "paper" else 3.0)
    assert min(contrast(chosen.ink), contrast(chosen.muted)) > 4.5


def test_themes_hold_for_a_block() -> None:
    """Matplotlib's settings and the current theme are back after the block, also after an error."""
    before = dict(mpl.rcParams)

    @theme("dark")
    def fail() -> None:
        assert current_theme() is THEMES["dark"]
        assert colour("ink") == THEMES["dark"].ink
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert current_theme() is THEMES["paper"]
    assert dict(mpl.rcParams) == before


def test_house_style_is_the_current_theme() -> None:
    """The style is the paper's by default, and the block's within a theme."""
    outside = mpl.rcParams["font.size"]
    with house_style():
        assert mpl.rcParams["font.size"] == 8
        assert mpl.rcParams["figure.facecolor"] == THEMES["paper"].ground
    with theme("dark"), house_style():
        assert mpl.rcParams["figure.facecolor"] == THEMES["dark"].ground
    assert mpl.rcParams["font.size"] == outside


def test_unknown_themes_are_named() -> None:
    """The error says which themes there are."""
    with pytest.raises(PlotError, match="paper, dark"), theme("solarized"):
        pass


def test_a_dark_session_gets_dark_figures() -> None:
    """Whoever chose a dark style for Matplotlib has chosen it for these figures."""
    with mpl.rc_context({"figure.facecolor": "black"}):
        assert current_theme() is THEMES["dark"]
        figure = EXAMPLES["reward"].draw().figure
    assert colors.same_color(figure.get_facecolor(), THEMES["dark"].ground)
    assert current_theme() is THEMES["paper"]


def test_ground_below_decides() -> None:
    """Axes without a ground of their own show the figure's, and a transparent one that of the theme."""
    figure = Figure(facecolor="black")
    ax = figure.add_subplot(facecolor="none")
    assert theme_under(ax) is THEMES["dark"]
    panel = Figure(facecolor="white").subfigures(1, 2)[0]
    panel.set_facecolor("black")
    assert theme_under(panel.add_subplot(facecolor="none")) is THEMES["dark"]
    figure.set_facecolor("none")
    assert theme_under(ax) is THEMES["paper"]
    with theme("dark"):
        assert theme_under(ax) is THEMES["dark"]


def test_themes_of_threads_do_not_mix() -> None:
    """A theme that one thread chose is not another one's."""
    seen = []
    with theme("dark"):
        thread = threading.Thread(target=lambda: seen.append(colour("ground")))
        mpl.rcParams["figure.facecolor"] = "white"
        thread.start()
        thread.join(timeout=30)
    assert seen == [THEMES["paper"].ground]


def test_words_have_one_colour_everywhere() -> None:
    """A reason keeps its colour whatever stands beside it; others get one that is free."""
    assert colours_for(["x", "too_stale"])["too_stale"] == colours_for(["too_stale", "x", "y"])["too_stale"]
    chosen = colours_for(["a", "b", "c", "COMPLETED", "d", "e"])
    assert len(set(chosen.values())) == 6
    assert chosen["COMPLETED"] == PALETTE["blue"]
    assert colours_for(["other", "unknown"]) == dict.fromkeys(["other", "unknown"], PALETTE["grey"])


def test_two_words_of_one_colour_do_not_share_it() -> None:
    """Words that are never meant to meet get different colours if they do."""
    chosen = colours_for(["COMPLETED", "training"])
    assert len(set(chosen.values())) == 2


def test_colours_come_again_after_six_closer_to_the_ink() -> None:
    """More words than colours are drawn all the same, and told apart."""
    chosen = colours_for([str(n) for n in range(14)])
    assert len(set(chosen.values())) == 14
    assert len({chosen[str(n)] for n in range(6)} & set(PALETTE.values())) == 6
    ink = np.array(colors.to_rgb(colour("ink")))
    away = [float(np.linalg.norm(np.array(colors.to_rgb(chosen[str(n)])) - ink)) for n in (0, 6, 12)]
    assert away == sorted(away, reverse=True)


@pytest.mark.parametrize("name", THEMES)
def test_shades_stand_out_from_the_ground_from_the_first(name: str) -> None:
    """A single token of many has a contrast of more than 1.7, and more of something is never paler."""
    with theme(name) as chosen:
        seen = shades()(np.linspace(0, 1, 64))
        assert isinstance(shades(), colors.Colormap)
    lights = [float(_linear(colors.to_hex(shade)) @ [0.2126, 0.7152, 0.0722]) for shade in seen]
    ground = float(_linear(chosen.ground) @ [0.2126, 0.7152, 0.0722])
    contrasts = [(max(light, ground) + 0.05) / (min(light, ground) + 0.05) for light in lights]
    assert contrasts[0] > 1.7
    assert contrasts == sorted(contrasts)


def test_new_figures_are_one_column_wide() -> None:
    """The width is that of a column, and the ground that of the theme."""
    assert new_figure().get_figwidth() == COLUMN_WIDTH
    with theme("dark"):
        assert colors.same_color(new_figure().get_facecolor(), THEMES["dark"].ground)


def test_ticks_that_are_made_later_keep_their_style() -> None:
    """Ticks are made when a figure is drawn, long after the block: their size and colour are kept."""
    ax = plot_reward(EXAMPLES["reward"].make())
    ax.figure.canvas.draw()
    ticks = ax.xaxis.get_major_ticks()
    assert {tick.label1.get_fontsize() for tick in ticks} == {7.0}
    assert all(colors.same_color(tick.label1.get_color(), THEMES["paper"].ink) for tick in ticks)
