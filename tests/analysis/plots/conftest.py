"""Axes to draw upon."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes

from analysis.plots import new_figure


@pytest.fixture
def ax() -> Axes:
    """Axes on a figure of the size of a column, in no registry."""
    return new_figure().subplots()
