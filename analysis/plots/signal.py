"""Where the signal is: prompts over time by what their groups' rewards are like, and shares per rollout."""

from __future__ import annotations

import os
import re

import numpy as np
import pandas as pd
from matplotlib import colors
from matplotlib.axes import Axes

from analysis.plots._canvas import begin, empty, legend, styled, swatch, whole_numbers
from analysis.plots._columns import Ints, known_rows, numbered, numbers, one_run, plain, require, words
from analysis.plots._over_rollouts import columns_of, stack
from analysis.plots.style import HEIGHT, colour, colours_for

__all__ = ["plot_signal", "plot_zero_signal"]

_KINDS = ("mixed", "all_correct", "all_wrong", "constant", "lone", "empty")
_MOST_NAMES = 24
_MOST_COLUMNS = 600
_NAME = 20
_CONTENT = re.compile(r'^\[\{.*?"content":\s*"((?:[^"\\]|\\.)*)')


@styled
def plot_zero_signal(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw a map of prompts over time: in which rollouts which prompt taught something.

    Prompts are sorted by the share of their groups that carry a signal, the most useful ones on top. Where a
    prompt has several groups in a rollout (or in one column of the map), one that carries a signal counts;
    where it has none the map is empty.

    Parameters
    ----------
    frame
        One row per group, such as `zero_signal(run).groups`: `rollout_id` (int), `prompt_sha256` (what tells
        prompts apart), `kind` (``mixed`` carries a signal; ``all_correct``, ``all_wrong``, ``constant``,
        ``lone``, ``empty``), and optionally `prompt_preview` (names the rows).
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    require(frame, "rollout_id", "prompt_sha256", "kind")
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id",) if len(frame) else ()))
    rows = rows if rows.empty else rows[rows["prompt_sha256"].notna().to_numpy()]
    owner, digests = numbered(words(rows, "prompt_sha256") if len(rows) else ())
    height = HEIGHT if len(digests) > _MOST_NAMES else max(HEIGHT, 0.9 + 0.13 * len(digests))
    ax = begin(ax, "Signal of prompts", "rollout", "prompt", grid="none", height=height)
    if rows.empty:
        return empty(ax)
    kind = words(rows, "kind")
    kinds = [name for name in (*_KINDS, "unknown") if name in set(kind)]
    kinds += sorted(set(kind) - set(kinds))
    order = _by_usefulness(owner, kind)
    place = np.argsort(order)[owner]
    at = numbers(rows, "rollout_id")
    step = int(np.ceil((at.max() - at.min() + 1) / _MOST_COLUMNS))
    column = ((at - at.min()) // step).astype(np.int64)
    grid = np.full((len(order), int(column.max()) + 1), len(kinds), dtype=np.int64)
    # The kinds stand in the order of what they teach: the least place is the best one.
    np.minimum.at(grid, (place, column), np.array([kinds.index(k) for k in kind]))
    fills = colours_for(kinds)
    table = np.array([*(colors.to_rgba(fills[name]) for name in kinds), (0.0, 0.0, 0.0, 0.0)])
    extent = (at.min() - 0.5, at.min() - 0.5 + step * grid.shape[1], len(order) - 0.5, -0.5)
    ax.imshow(
        table[grid], extent=extent, aspect="auto", interpolation="nearest" if len(order) < 300 else "auto"
    )
    if len(order) <= _MOST_NAMES:
        ax.set_yticks(np.arange(len(order)), _names(rows, [digests[number] for number in order]))
        ax.tick_params(axis="y", length=0, labelsize=5.5)
        ax.set_ylabel("")
    else:
        ax.set_ylabel(f"{len(order):,} prompts")
        ax.set_yticks([])
    whole_numbers(ax, "x")
    legend(ax, {name.replace("_", " "): swatch(fills[name]) for name in kinds})
    return ax


@styled
def plot_signal(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw which share of each rollout's groups carries a signal, and what the others are like.

    Parameters
    ----------
    frame
        One row per rollout, such as `zero_signal(run).rollouts`: `rollout_id` (int), `groups` (count), and
        the counts by kind, of which at least one must be there: `mixed`, `all_correct`, `all_wrong`,
        `constant`, `lone`, `empty`.
    ax
        Where to draw; axes on a figure of their own if None.

    Raises
    ------
    PlotError
        If a column is missing, or rows are of several runs.
    """
    ax = begin(ax, "Groups with a signal", "rollout", "share of groups")
    kinds = [name for name in _KINDS if name in frame]
    require(frame, "rollout_id", "groups", *(() if kinds else _KINDS[:3]))
    one_run(frame)
    rows = known_rows(frame, *(("rollout_id", "groups") if len(frame) else ()))
    rows = rows if rows.empty else rows[numbers(rows, "groups") > 0]
    if rows.empty:
        return empty(ax)
    at, groups = numbers(rows, "rollout_id"), numbers(rows, "groups")
    columns = columns_of(at)
    whole = np.maximum(columns.sums(at, groups), 1e-9)
    counts = {name: columns.sums(at, numbers(rows, name)) for name in kinds}
    shares = {name: count / whole for name, count in counts.items() if count.any()}
    fills = colours_for(shares)
    stack(ax, columns, shares, fills)
    entries = {name.replace("_", " "): swatch(fills[name]) for name in shares}
    ax.set_ylim(0.0, 1.0)
    legend(ax, entries)
    ax.set_axisbelow(False)
    ax.grid(True, axis="y", color=colour("ground"), linewidth=0.4)
    return ax


def _by_usefulness(owner: Ints, kind: np.ndarray) -> Ints:
    """Return the numbers of the prompts, those with the largest share of groups with a signal first."""
    total = np.bincount(owner)
    order = np.argsort(-np.bincount(owner, weights=kind == "mixed") / total, kind="stable")
    return np.asarray(order, dtype=np.int64)


def _names(rows: pd.DataFrame, digests: list[str]) -> list[str]:
    """Return a short name of each prompt: its text as far as it differs from the others, else its digest."""
    shown = {digest: digest[:12] for digest in digests}
    if "prompt_preview" in rows:
        there = rows[rows["prompt_preview"].notna().to_numpy()]
        previews = zip(words(there, "prompt_sha256"), words(there, "prompt_preview"), strict=True)
        shown |= {digest: _said(preview) for digest, preview in previews}
    shared = os.path.commonprefix(list(shown.values())) if len(shown) > 1 else ""
    # From a whole word on, so that what differs keeps a little of what it belongs to.
    cut = shared.rfind(" ", 0, max(len(shared) - 6, 0)) + 1
    rest = [("…" if cut else "") + shown[digest][cut:] for digest in digests]
    if len({text[:_NAME] for text in rest}) < len(rest):  # what tells them apart stands at their ends
        rest = [text if len(text) <= _NAME else "…" + text[1 - _NAME :] for text in rest]
    return [plain(text, _NAME) for text in rest]


def _said(preview: str) -> str:
    """Return what the first message says, if a preview is the beginning of a list of messages."""
    found = _CONTENT.search(preview)
    return found[1].replace('\\"', '"') if found else preview
