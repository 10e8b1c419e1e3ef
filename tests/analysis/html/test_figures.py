"""Figures inside pages: small, described, on the right ground, and closed."""

from __future__ import annotations

import base64
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from PIL import Image

from analysis.html.figures import PIXELS_PER_INCH, figure, png, themed_figure
from analysis.plots import new_figure, plot_reward
from analysis.plots.style import THEMES


def draw() -> Axes:
    count = 40
    frame = pd.DataFrame(
        {
            "rollout_id": pd.array(range(count), dtype="Int64"),
            "evaluation": pd.array([False] * count, dtype="boolean"),
            "reward_mean": pd.array(np.linspace(0, 1, count), dtype="Float64"),
            "reward_std": pd.array([0.2] * count, dtype="Float64"),
            "dataset": pd.array([None] * count, dtype="string"),
        }
    )
    return plot_reward(frame)


def pictures(html: str) -> list[Image.Image]:
    data = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(part))).convert("RGB") for part in data]


def test_a_figure_comes_on_both_grounds() -> None:
    html = themed_figure(draw, alt='Reward "rises"', caption="Over <rollouts>")
    light, dark = pictures(html)
    corner = (1, 1)
    grounds = [tuple(bytes.fromhex(THEMES[name].ground[1:])) for name in ("paper", "dark")]
    assert np.abs(np.subtract([light.getpixel(corner), dark.getpixel(corner)], grounds)).max() <= 3
    assert 'class="wb-on-light"' in html
    assert 'class="wb-on-dark"' in html
    assert html.count('alt="Reward &#34;rises&#34;"') == 2
    assert "<figcaption>Over &lt;rollouts&gt;</figcaption>" in html
    assert len(html) < 80_000


def test_ticks_are_readable_on_the_dark_ground() -> None:
    _, dark = pictures(themed_figure(draw, alt="x"))
    shades = np.asarray(dark.convert("L"))
    left = shades[:, : shades.shape[1] // 12]  # tick labels and the axis label
    assert left.max() > 180


def test_the_size_is_that_of_the_figure() -> None:
    html = figure(new_figure(2.0, 1.5), alt="empty")
    assert f'width="{2 * PIXELS_PER_INCH}" height="{round(1.5 * PIXELS_PER_INCH)}"' in html
    assert pictures(html)[0].size == (4 * PIXELS_PER_INCH, 3 * PIXELS_PER_INCH)
    assert "figcaption" not in html


def test_figures_are_closed() -> None:
    made = plt.figure()
    ax = made.add_subplot()
    png(ax)
    assert not plt.fignum_exists(made.number)
    assert made.axes == []


def test_a_figure_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="words"):
        figure(new_figure(), alt=" ")


def test_axes_without_a_figure_are_refused() -> None:
    ax = new_figure().subplots()
    ax.remove()
    with pytest.raises(ValueError, match="on no figure"):
        png(ax)


def test_a_layout_is_found_once_for_both_grounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half of the time of a figure, and colours change nothing about it."""
    from matplotlib import layout_engine

    found: list[object] = []
    plain = layout_engine.do_constrained_layout

    def counted(figure: object, **options: object) -> object:
        found.append(figure)
        return plain(figure, **options)

    monkeypatch.setattr(layout_engine, "do_constrained_layout", counted)
    light, dark = pictures(themed_figure(draw, alt="x"))
    assert len(found) == 1
    inks = [np.asarray(each.convert("L"), dtype=float) for each in (light, dark)]
    axes = [np.flatnonzero(np.abs(ink - ink[1, 1]).max(axis=0) > 60)[[0, -1]] for ink in inks]
    assert np.abs(axes[0] - axes[1]).max() <= 2
    found.clear()
    other = new_figure(2.0, 1.5)
    other.add_subplot()
    figure(draw(), alt="x", dark=other)
    assert len(found) == 2
