"""What all figures promise: they say what is missing, leave nothing behind, and can be read."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis import plots
from analysis.errors import PlotError
from analysis.plots import theme
from analysis.plots._canvas import MANY, ON_SHADE
from analysis.plots.style import THEMES
from tests.analysis.plots.examples import EXAMPLES, Example
from tests.analysis.plots.pictures import texts

every_figure = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
OF_ONE_RUN = [
    *("reward", "evaluations", "advantages", "group_advantages", "advantage_distribution", "noise"),
    *("rejections", "zero_signal", "signal", "policy_lag", "truncation", "timeline", "stage_times", "idle"),
]


def _ax(ground: str = "paper") -> Axes:
    with theme(ground) as chosen:
        # Without a layout that measures all texts, drawing takes half the time.
        figure = Figure(figsize=(3.3, 2.3), dpi=60, layout="none", facecolor=chosen.ground)
        FigureCanvasAgg(figure)
        return figure.subplots()


def _said(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def _legend(ax: Axes) -> list[Text]:
    return ax.get_legend().get_texts() if ax.get_legend() else []


def test_every_exported_figure_has_an_example() -> None:
    """No figure escapes these tests, and there are more than enough of them."""
    exported = {name for name in plots.__all__ if name.startswith("plot_")}
    assert exported == {example.function.__name__ for example in EXAMPLES.values()}
    assert len(exported) >= 18


@every_figure
def test_no_data_is_said_and_axes_keep_their_title(example: Example) -> None:
    """Frames without rows, with or without columns, say that there is no data."""
    typical = example.make()
    for frame in (typical.iloc[:0], pd.DataFrame()):
        ax = _ax()
        assert example.draw(frame, ax=ax) is ax
        assert _said(ax) == ["no data"]
        assert ax.get_title(loc="left")
        assert not ax.get_legend()
        ax.figure.canvas.draw()


@every_figure
def test_frames_of_missing_values_are_drawn_without_inventing_any(example: Example) -> None:
    """Rows in which everything is missing are no data, or at least not a crash and not a zero."""
    typical = example.make()
    frame = typical.copy()
    for name in frame.columns:
        frame[name] = pd.Series([pd.NA] * len(frame), dtype=object, index=frame.index)
    ax = _ax()
    example.draw(frame, ax=ax)
    ax.figure.canvas.draw()
    numbers_needed = [name for name in example.required if typical[name].dtype.kind in "if"]
    # Members of a group are listed, and texts of tokens are written, whatever else is known of them.
    if numbers_needed and example.function not in (plots.plot_autopsy, plots.plot_tokens):
        assert any("no data" in text or "nothing" in text for text in _said(ax)) or not ax.has_data(), _said(
            ax
        )


@every_figure
def test_missing_columns_are_named(example: Example) -> None:
    """A frame that lacks a column raises an error with its name, which is also a ValueError."""
    for name in example.required:
        # Some columns are the second choice only; without both there is nothing to choose.
        frame = example.make().drop(columns=[name, "group_index"], errors="ignore")
        if example.function in (plots.plot_truncation, plots.plot_group_advantages) and name != "rollout_id":
            frame = frame[[]].assign(unrelated=1)
        with pytest.raises(PlotError, match=r"lacks the columns") as caught:
            example.draw(frame)
        assert caught.value.missing
        assert isinstance(caught.value, ValueError)


@every_figure
def test_what_is_no_frame_is_refused(example: Example) -> None:
    """A list, or a result that holds several frames, is refused with a hint."""
    with pytest.raises(PlotError, match="DataFrame"):
        example.draw([1, 2])
    with pytest.raises(PlotError, match=r"\.function"):
        example.draw(example)


@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_rows_of_several_runs_are_refused(name: str) -> None:
    """Lines over rollouts would jump between runs."""
    example = EXAMPLES[name]
    frame = example.make()
    frame["run"] = pd.array([f"run-{place % 2}" for place in range(len(frame))], dtype="string")
    with pytest.raises(PlotError, match="2 runs"):
        example.draw(frame)
    frame["run"] = "run-0"
    example.draw(frame)


@every_figure
def test_thirty_figures_leave_none_open(example: Example) -> None:
    """Figures of their own are in no registry, and go when their axes go."""
    import matplotlib.pyplot as plt

    kept, frame = [], example.make().head(3)
    for _ in range(30):
        ax = example.draw(frame)
        kept.append(weakref.ref(ax.figure))
    assert plt.get_fignums() == []
    del ax
    gc.collect()
    assert not any(figure() is not None for figure in kept)


@every_figure
def test_given_axes_are_the_only_ones_drawn_upon(example: Example) -> None:
    """Neighbours stay untouched, no axes are added to the figure, and drawing again starts afresh."""
    import matplotlib.pyplot as plt

    figure = Figure(figsize=(7, 3), dpi=60)
    left, right = figure.subplots(1, 2)
    assert example.draw(ax=left) is left
    assert figure.axes == [left, right]
    assert not right.has_data()
    assert right.get_title() == right.get_xlabel() == ""
    once = len(left.get_children()), len(left.child_axes), _said(left)
    left.clear()
    example.draw(ax=left)
    assert (len(left.get_children()), len(left.child_axes), _said(left)) == once
    assert plt.get_fignums() == []


@every_figure
def test_settings_and_frame_stay_as_they_were(example: Example) -> None:
    """Drawing changes neither Matplotlib's settings nor the frame."""
    before, frame = dict(mpl.rcParams), example.make()
    copy = frame.copy(deep=True)
    example.draw(frame)
    assert dict(mpl.rcParams) == before
    pd.testing.assert_frame_equal(frame, copy)


@every_figure
def test_the_index_and_plain_dtypes_make_no_difference(example: Example) -> None:
    """NumPy dtypes, objects and any index are drawn like nullable ones."""
    typical = example.make()
    plain = typical.astype(object).where(typical.notna(), None)
    plain.index = pd.Index(range(100, 100 + len(plain)))[::-1]
    one, two = _ax(), _ax()
    example.draw(typical, ax=one)
    example.draw(plain, ax=two)
    assert _said(one) == _said(two)
    assert [text.get_text() for text in _legend(one)] == [text.get_text() for text in _legend(two)]
    assert [*one.get_xlim(), *one.get_ylim()] == [*two.get_xlim(), *two.get_ylim()]
    for first, second in zip(one.lines, two.lines, strict=True):
        np.testing.assert_array_equal(first.get_xydata(), second.get_xydata())


@every_figure
def test_a_single_row_is_enough(example: Example) -> None:
    """One row is drawn, or said to be no data; ranges of width zero are no problem."""
    ax = _ax()
    example.draw(example.make().head(1), ax=ax)
    ax.figure.canvas.draw()
    assert np.isfinite([*ax.get_xlim(), *ax.get_ylim()]).all()


@every_figure
def test_figure_can_be_read_at_the_width_of_a_column(example: Example) -> None:
    """On a figure of its own no text is cut off, too small, or written over another one."""
    ax = example.draw()
    figure = ax.figure
    FigureCanvasAgg(figure).draw()
    assert figure.get_figwidth() <= 3.4
    placed = [(f"{text.get_text()!r} at {box}", box, text) for text, box in _texts_and_places(ax)]
    room = figure.bbox.padded(1.5)
    for label, box, text in placed:
        assert room.containsx(box.x0), label
        assert room.containsx(box.x1), label
        assert room.containsy(box.y0), label
        assert room.containsy(box.y1), label
        assert text.get_fontsize() >= 5.0, label
    for (one, first, _), (two, second, _) in itertools.combinations(placed, 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert min(width, height) < 0.25 * min(first.height, second.height), f"{one} over {two}"


@every_figure
@pytest.mark.parametrize("ground", THEMES)
def test_texts_stand_out_from_the_ground(example: Example, ground: str) -> None:
    """Texts have a contrast of 4.5 and more on paper and on a dark notebook."""
    ax = _ax(ground)
    with theme(ground) as chosen:
        example.draw(ax=ax)
    for text in ax.figure.findobj(Text):
        if text.get_text().strip() and text.get_gid() != ON_SHADE:
            contrast = _contrast(colors.to_rgb(text.get_color()), colors.to_rgb(chosen.ground))
            assert contrast >= 4.5, text.get_text()


def _texts_and_places(ax: Axes) -> list[tuple[Text, Any]]:
    beyond = _ticks_beyond_limits(ax)
    found = [text for text in ax.figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text, text.get_window_extent()) for text in found if text not in beyond]


def _ticks_beyond_limits(ax: Axes) -> list[Text]:
    """Labels of ticks outside their axis, which are not drawn; those of pictures in a key are not either."""
    found = []
    for axis in (ax.xaxis, ax.yaxis, *(a for inset in ax.child_axes for a in (inset.xaxis, inset.yaxis))):
        low, high = sorted(axis.get_view_interval())
        off = axis.axes is not ax and not axis.axes.axison
        room = 1e-6 * (high - low)
        for tick in axis.get_major_ticks():
            if off or not low - room <= tick.get_loc() <= high + room:
                found.append(tick.label1)
    return found


def _luminance(colour: Any) -> float:
    parts = np.asarray(colour[:3])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _contrast(one: Any, two: Any) -> float:
    """Contrast ratio of WCAG 2: 4.5 is enough for text."""
    dark, light = sorted((_luminance(one), _luminance(two)))
    return (light + 0.05) / (dark + 0.05)


@every_figure
def test_colours_follow_the_ground_that_is_there(example: Example) -> None:
    """On a dark figure texts are light whatever the theme, and the other way round."""
    for facecolor, ground in (("#101010", "dark"), ("white", "paper")):
        for named in THEMES:
            figure = Figure(facecolor=facecolor)
            ax = figure.add_subplot(facecolor=facecolor)
            with theme(named):
                example.draw(ax=ax)
            assert colors.same_color(ax.title.get_color() if ax.get_title() else ax._left_title.get_color(),
                                     THEMES[ground].ink)  # fmt: skip


_HOSTILE = [
    *("$\\frac{1}{0}", "$x$", "_hidden", "\x00\x1b[31m", "\ud800", "日本語のプロンプト", "‮rtl‬", "a" * 500),
    *("{}%s\\n", "<script>", "line\nbreak\ttab", ""),
]


@every_figure
def test_hostile_texts_are_drawn_as_they_stand(example: Example) -> None:
    """Mathematics, control characters, missing glyphs and endless words are neither run nor a crash."""
    typical = example.make()
    columns = [name for name in typical.columns if typical[name].dtype in ("string", object)]
    frame = typical.astype(dict.fromkeys(columns, object))
    for name in columns:
        cells = [_HOSTILE[place % len(_HOSTILE)] for place in range(len(frame))]
        frame[name] = pd.Series(cells, dtype=object, index=frame.index)
    if "session_id" in columns and example.function is plots.plot_tokens:
        frame["session_id"] = "s"
    ax = _ax()
    example.draw(frame, ax=ax)
    ax.figure.canvas.draw()
    assert all(len(text) < 80 for text in texts(ax))


_SPOILERS: list[Any] = [pd.NA, np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, -1.0]


@every_figure
@pytest.mark.parametrize("seed", range(3))
def test_spoilt_frames_are_drawn(example: Example, seed: int) -> None:
    """Missing, infinite and huge numbers anywhere, rows shuffled and doubled: a figure all the same."""
    rng = np.random.default_rng(seed)
    frame = example.make()
    frame = frame.iloc[rng.permutation(np.repeat(np.arange(len(frame)), rng.integers(0, 3, len(frame))))]
    for name in frame.columns:
        if pd.api.types.is_numeric_dtype(frame[name]) and not pd.api.types.is_bool_dtype(frame[name]):
            cells = frame[name].astype("Float64").to_numpy(dtype=object, na_value=pd.NA)
            for place in np.flatnonzero(rng.random(len(cells)) < 0.15):
                cells[place] = _SPOILERS[int(rng.integers(len(_SPOILERS)))]
            frame[name] = cells
    ax = _ax()
    example.draw(frame, ax=ax)
    ax.figure.canvas.draw()
    assert np.isfinite([*ax.get_xlim(), *ax.get_ylim()]).all()


def _many(example: Example, rows: int) -> pd.DataFrame:
    frame = example.make()
    again = pd.concat([frame] * (rows // len(frame) + 1), ignore_index=True).head(rows)
    for name in ("rollout_id", "group", "session_id", "lag", "at", "position"):
        if name in again and name != "session_id":
            again[name] = np.arange(rows)
        elif name in again and example.function is plots.plot_timeline:
            again[name] = [f"ses-{place // 4}" for place in range(rows)]
    return again


@every_figure
def test_many_rows_are_few_artists(example: Example) -> None:
    """30,000 rows are a handful of artists, and a picture within vector files where that matters."""
    ax = _ax()
    example.draw(_many(example, 30_000), ax=ax)
    assert len(ax.get_children()) < 800
    for collection in ax.collections:
        if isinstance(collection, PathCollection) and len(collection.get_offsets()) > MANY:
            assert collection.get_rasterized()
    assert len(ax.get_xticklabels()) < 70
    assert len(ax.get_yticklabels()) < 70


def test_axes_of_their_own_show_themselves_in_a_notebook() -> None:
    """What a cell returns is shown as a picture."""
    ax = EXAMPLES["reward"].draw()
    assert ax._repr_png_().startswith(b"\x89PNG\r\n\x1a\n")
