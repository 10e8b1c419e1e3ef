"""Timing: lanes that do not overlap, stacked means, spreads, waiting, nodes, concurrency."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots import (
    plot_idle,
    plot_nodes,
    plot_running,
    plot_stage_spread,
    plot_stage_times,
    plot_timeline,
)
from tests.analysis.plots.looking import boxes_of, legend_of, polygons, said, tick_names


def _timeline() -> pd.DataFrame:
    rows = [("a", "n1", "queue", 10.0, 11.0), ("a", "n1", "run", 11.0, 14.0), ("b", "n1", "run", 12.0, 13.0)]
    rows += [("c", "n1", "run", 14.0, 16.0), ("d", "n0", "run", 10.5, 12.0), ("e", "n0", "run", 13.0, None)]
    return pd.DataFrame(rows, columns=["session_id", "node_id", "stage", "start", "end"]).convert_dtypes()


def test_sessions_at_the_same_time_stand_on_different_lanes(ax: Axes) -> None:
    """The first free lane is used; nodes are in order of their names; unfinished stages are left out."""
    plot_timeline(_timeline(), ax=ax)
    queue, run = (boxes_of(stage).round(6) for stage in polygons(ax))
    assert queue[:, :2].tolist() == [[0.0, 1.0]]
    lanes = np.floor(run[:, 2]).tolist()
    assert run[:, :2].tolist() == [[1.0, 4.0], [2.0, 3.0], [4.0, 6.0], [0.5, 2.0]]
    assert lanes == [1.0, 2.0, 1.0, 0.0]
    assert tick_names(ax, "y") == ["n0", "n1"]
    assert ax.get_title(loc="right") == "4 sessions"
    assert legend_of(ax) == ["queue", "run"]


def test_no_two_sessions_overlap_on_a_lane(ax: Axes) -> None:
    """Whatever the times, rectangles of different sessions never share a place."""
    rng = np.random.default_rng(1)
    start = rng.uniform(0, 20, 200)
    frame = pd.DataFrame(
        {
            "session_id": [str(n) for n in range(200)],
            "node_id": rng.choice(["a", "b", "c"], 200),
            "stage": "run",
            "start": start,
            "end": start + rng.exponential(2.0, 200),
        }
    )
    plot_timeline(frame, ax=ax)
    spans = sorted((np.floor(box[2] + 0.5), box[0], box[1]) for box in boxes_of(polygons(ax)[0]))
    for (lane, _, end), (next_lane, begin, _) in itertools.pairwise(spans):
        assert lane != next_lane or end <= begin + 1e-9


def test_moments_are_seconds_from_the_first(ax: Axes) -> None:
    """Columns of moments are drawn like seconds."""
    frame = _timeline()
    for name in ("start", "end"):
        frame[name] = pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(
            frame[name].astype(float), unit="s"
        )
    plot_timeline(frame, ax=ax)
    assert boxes_of(polygons(ax)[0])[:, :2].round(6).tolist() == [[0.0, 1.0]]


def test_stages_of_a_rollout_stand_on_each_other(ax: Axes) -> None:
    """Bars are means in the frame's order; a stage that a rollout lacks takes no time."""
    frame = pd.DataFrame({"rollout_id": [0, 0, 1], "stage": ["init", "run", "run"], "mean": [0.5, 2.0, 3.0]})
    plot_stage_times(frame, ax=ax)
    init, run = (boxes_of(bars)[:, 2:].tolist() for bars in polygons(ax))
    assert init == [[0.0, 0.5]]
    assert run == [[0.5, 2.5], [0.0, 3.0]]


def test_several_queues_are_one_entry(ax: Axes) -> None:
    """Waiting has one colour, however many queues there are."""
    frame = pd.DataFrame({"rollout_id": 0, "stage": ["queue", "ready", "run"], "mean": [1.0, 1.0, 1.0]})
    plot_stage_times(frame, ax=ax)
    assert legend_of(ax) == ["run", "in queues"]


def test_thousands_of_rollouts_are_means_of_several(ax: Axes) -> None:
    """Bars of several rollouts keep the height of one."""
    frame = pd.DataFrame({"rollout_id": np.arange(9_000), "stage": "run", "mean": 2.0})
    plot_stage_times(frame, ax=ax)
    tops = boxes_of(polygons(ax)[0])[:, 3]
    assert len(tops) <= 1500
    assert np.allclose(tops, 2.0)


def test_spread_is_quantiles_of_the_durations(ax: Axes) -> None:
    """The box is the middle half, the line the median; durations come from start and end."""
    frame = pd.DataFrame({"stage": "run", "start": np.zeros(101), "end": np.arange(101.0)})
    plot_stage_spread(frame, ax=ax)
    (box,) = boxes_of(polygons(ax)[0])
    assert list(box[:2]) == [25.0, 75.0]
    segments = [c.get_segments()[0] for c in ax.collections if hasattr(c, "get_segments")]
    assert [point[0] for point in segments[0]] == [5.0, 95.0]
    assert segments[1][0][0] == 50.0


def test_stages_of_different_magnitude_get_a_logarithmic_axis(ax: Axes) -> None:
    """Microseconds and minutes are both readable, and a time of zero is no crash."""
    frame = pd.DataFrame({"stage": ["init", "init", "run", "run"], "seconds": [1e-5, 0.0, 60.0, 90.0]})
    plot_stage_spread(frame, ax=ax)
    ax.figure.canvas.draw()
    assert ax.get_xscale() == "log"
    assert {name.split(" ")[1] for name in tick_names(ax, "x") if name} >= {"µs", "ms", "s"}


def test_waiting_stands_on_the_time_that_the_trainer_was_busy(ax: Axes) -> None:
    """The last rollout, after which nobody called again, has its waiting only."""
    frame = pd.DataFrame({"rollout_id": [0, 1], "wait_seconds": [2.0, 3.0], "busy_seconds": [1.0, None]})
    plot_idle(frame.convert_dtypes(), ax=ax)
    busy, waiting = (boxes_of(bars)[:, 2:].tolist() for bars in polygons(ax))
    assert busy == [[0.0, 1.0]]
    assert waiting == [[1.0, 3.0], [0.0, 3.0]]
    assert legend_of(ax) == ["busy", "waiting"]


def test_nodes_show_busy_and_idle_time(ax: Axes) -> None:
    """Idle time follows busy time; how many sessions ran at once stands at the right."""
    frame = pd.DataFrame(
        {
            "node_id": ["a", "b"],
            "busy_seconds": [3.0, 1.0],
            "idle_seconds": [0.0, 2.0],
            "mean_running": [4.26, None],
        }
    )
    plot_nodes(frame, ax=ax)
    busy, idle = (boxes_of(bars)[:, :2].tolist() for bars in polygons(ax))
    assert busy == [[0.0, 3.0], [0.0, 1.0]]
    assert idle == [[3.0, 3.0], [1.0, 3.0]]
    assert said(ax) == ["4.3", "?"]


def test_only_the_idlest_of_many_nodes_are_drawn(ax: Axes) -> None:
    """Of a thousand nodes those are shown that explain the idle time."""
    idle = np.arange(1000.0)
    frame = pd.DataFrame(
        {"node_id": [f"n{n}" for n in range(1000)], "busy_seconds": 1.0, "idle_seconds": idle}
    )
    plot_nodes(frame, ax=ax)
    names = tick_names(ax, "y")
    assert names[0] == "n999"
    assert len(names) == 24


def test_concurrency_is_a_step_line_in_order(ax: Axes) -> None:
    """Changes are sorted by time and hold until the next one."""
    plot_running(pd.DataFrame({"at": [5.0, 3.0, 4.0], "sessions": [0, 1, 2]}), ax=ax)
    assert list(ax.lines[0].get_xdata()) == [0.0, 1.0, 2.0]
    assert list(ax.lines[0].get_ydata()) == [1.0, 2.0, 0.0]
    assert ax.lines[0].get_drawstyle() == "steps-post"
