"""Draws a run's four figures as PNG files and lets go of them again.

Figures are made without Matplotlib's global registry, so nothing stays open, and each file appears whole or
not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from analysis.lab.files import atomic_path
from analysis.lab.frames import advantage_frame, lag_frame, read_metrics, rejection_frame, reward_frame
from analysis.lab.run_folder import RunFolder
from analysis.plots import plot_advantages, plot_policy_lag, plot_rejections, plot_reward
from analysis.plots.style import house_style, new_figure

__all__ = ["draw", "draw_figures"]

Plot = Callable[..., Axes]


def draw(plot: Plot, frame: pd.DataFrame, path: Path) -> Path:
    """Draw one frame with one plot function, one text column wide, to a PNG file."""
    with house_style(), atomic_path(path) as partial:
        figure = new_figure()
        plot(frame, ax=figure.subplots())
        figure.savefig(partial, format="png")
    return path


def draw_figures(folder: RunFolder, *, reward_key: str, lag_limit: int | None = None) -> Iterator[Path]:
    """Draw reward, advantages, rejections and policy lag of a run, one after the other.

    Parameters
    ----------
    folder
        The run; figures go to its `figures` folder.
    reward_key
        Which entry of a reward mapping counts.
    lag_limit
        Largest lag that the run accepted, drawn as a line.

    Yields
    ------
    Path
        Each file once it is written.
    """
    records = read_metrics(folder.metrics)
    rollouts = [int(record["rollout_id"]) for record in records if record.get("kind") == "rollout"]
    yield draw(plot_reward, reward_frame(records), folder.figures / "reward.png")
    frame = advantage_frame(folder, rollouts, reward_key=reward_key)
    yield draw(plot_advantages, frame, folder.figures / "advantages.png")
    yield draw(plot_rejections, rejection_frame(folder.bridge), folder.figures / "rejections.png")
    yield draw(plot_policy_lag, lag_frame(records, limit=lag_limit), folder.figures / "policy_lag.png")
