"""Every figure looks as it did when somebody last looked at it, and the comparison can notice when not."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from tests.analysis.plots.examples import EXAMPLES
from tests.analysis.plots.pictures import (
    STORED,
    TEXTS,
    difference,
    drawn,
    marks,
    rendered,
    stored,
    stored_names,
    texts,
    write,
)

WORDS = json.loads(TEXTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "ground"), stored_names())
def test_marks_are_as_stored(name: str, ground: str, tmp_path: Path) -> None:
    """The picture equals the stored one; if not, the new one is left in the test's folder."""
    actual = marks(drawn(EXAMPLES[name], ground))
    found = difference(stored(name, ground), actual)
    if found is not None:
        write(tmp_path / f"{name}_{ground}.png", actual)
    assert found is None, f"{name} on {ground}: {found}; see {tmp_path}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_texts_are_as_stored(name: str) -> None:
    """Titles, labels, ticks, legends and notes say what they said."""
    assert texts(drawn(EXAMPLES[name])) == WORDS[name]


def test_nothing_is_stored_for_figures_that_are_gone() -> None:
    """Each stored picture and list of texts belongs to a figure."""
    assert {path.stem for path in STORED.glob("*.png")} == {f"{n}_{ground}" for n, ground in stored_names()}
    assert set(WORDS) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_comparison_notices_every_missing_mark(name: str) -> None:
    """Whatever is not drawn, it is a difference."""
    ax = drawn(EXAMPLES[name])
    assert difference(stored(name), marks(ax)) is None
    for artist in (*ax.lines, *ax.collections, *ax.images, *ax.patches):
        artist.set_visible(False)
        assert difference(stored(name), rendered(ax)) is not None, f"{artist} is missing"
        artist.set_visible(True)


def test_comparison_notices_another_colour() -> None:
    """Bars in another colour are a difference."""
    ax = drawn(EXAMPLES["rejections"])
    ax.collections[0].set_facecolor("#0072B2")
    assert difference(stored("rejections"), marks(ax)) is not None


def test_comparison_notices_a_moved_mark() -> None:
    """A dot that moved by a hundredth of the axes is a difference."""
    frame = EXAMPLES["rejection_by_lag"].make()
    frame.loc[3, "rejected_share"] += 0.007
    ax = drawn(EXAMPLES["rejection_by_lag"], frame=frame)
    assert difference(stored("rejection_by_lag"), marks(ax)) is not None


@pytest.mark.parametrize("hinting", ["none", "force_autohint"])
def test_comparison_does_not_depend_on_how_letters_are_rendered(hinting: str) -> None:
    """Another way to render letters is no difference."""
    with mpl.rc_context({"text.hinting": hinting}):
        for name in ("timeline", "tokens", "autopsy", "estimator_lengths"):
            assert difference(stored(name), marks(drawn(EXAMPLES[name]))) is None


def test_pictures_of_different_sizes_are_different() -> None:
    """Pictures of other sizes are not compared square by square."""
    assert difference(np.zeros((4, 4, 3)), np.zeros((5, 4, 3))) is not None
