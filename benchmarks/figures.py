"""How long figures of 100,000 rows take, against plain Matplotlib with as many points, measured in one run.

Every figure that takes one row per trajectory, token, group, session or rollout gets 100,000 of them and is
drawn to a PNG of one text column at 200 dots per inch, from the frame to the bytes. The baselines are what
anybody would type: ``ax.scatter(x, y, s=3)`` and ``ax.plot(x, y)`` of 100,000 random points on a figure of
the same size. Times are CPU time of this process, the median of several drawings, after one that is not
counted.

``python benchmarks/figures.py [--rows 100000] [--repeat 5] [NAME ...]``
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import plots
from analysis.plots.style import COLUMN_WIDTH, HEIGHT

DPI = 200
Frame = pd.DataFrame


def _scatter(frame: Frame) -> Axes:
    ax = Figure(figsize=(COLUMN_WIDTH, HEIGHT)).subplots()
    ax.scatter(frame["x"], frame["y"], s=3)
    return ax


def _line(frame: Frame) -> Axes:
    ax = Figure(figsize=(COLUMN_WIDTH, HEIGHT)).subplots()
    ax.plot(frame["x"], frame["y"])
    return ax


def _trajectories(rng: np.random.Generator, rows: int) -> Frame:
    group = np.arange(rows) // 8
    return _frame(
        rollout_id=group // 32,
        group=group,
        advantage=rng.normal(size=rows) * (rng.random(rows) < 0.7),
        outcome=rng.choice(["success", "failure", "partial"], rows),
    )


def _groups_of_a_rollout(rng: np.random.Generator, rows: int) -> Frame:
    return _trajectories(rng, rows).assign(rollout_id=3)


def _estimators(rng: np.random.Generator, rows: int) -> Frame:
    return _frame(estimator=np.arange(rows) % 4, advantage=rng.normal(size=rows)).astype({"estimator": str})


def _ledger(rng: np.random.Generator, rows: int) -> Frame:
    stage = rng.choice(["delivered", "content", "lag", "infrastructure"], rows, p=[0.8, 0.1, 0.05, 0.05])
    reason = np.where(
        stage == "delivered", None, rng.choice(["too_stale", "zero_trainable", "timeout"], rows)
    )
    accepted, other = stage == "delivered", rng.random(rows) < 0.7
    return _frame(
        rollout_id=np.arange(rows) // 32,
        stage=stage,
        reason=reason,
        accepted=accepted,
        replayed_accepted=other,
        replayed_reason=np.where(other, None, "constant"),
        in_flight=rng.integers(0, 4, rows),
        in_queue=rng.integers(0, 3, rows),
        bound=np.full(rows, 4),
        prompt_sha256=rng.integers(0, 400, rows).astype(str),
        kind=rng.choice(["mixed", "all_correct", "all_wrong"], rows),
    )


def _tokens(rng: np.random.Generator, rows: int) -> Frame:
    logprob = -rng.exponential(size=rows)
    return _frame(
        position=np.arange(rows),
        mask=(np.arange(rows) // 200 % 2).astype(np.int64),
        logprob=logprob,
        train_logprob=logprob + 0.1 * rng.normal(size=rows),
        advantage=np.full(rows, 0.4),
    )


def _written_tokens(rng: np.random.Generator, rows: int) -> Frame:
    return _tokens(rng, rows).assign(text=rng.choice([" the", "Ä", " function", "<x>"], rows))


def _metrics(rng: np.random.Generator, rows: int) -> Frame:
    emitted = rng.lognormal(0, 3, rows)
    differs = rng.random(rows) < 0.01
    return _frame(
        name=np.char.add("polar/", (np.arange(rows) % 100).astype(str)),
        emitted=emitted,
        recomputed=np.where(differs, 2 * emitted, emitted),
        status=np.where(differs, "differs", "equal"),
    )


def _tasks(rng: np.random.Generator, rows: int) -> Frame:
    return _frame(estimator=np.arange(rows) % 3, value=rng.random(rows), share=rng.normal(size=rows)).astype(
        {"estimator": str}
    )


def _sessions(rng: np.random.Generator, rows: int) -> Frame:
    return _frame(
        status=rng.choice(["COMPLETED", "ERROR", "TIMEOUT"], rows),
        response_tokens=rng.lognormal(7, 1, rows).astype(np.int64),
    )


def _timeline(rng: np.random.Generator, rows: int) -> Frame:
    session = np.arange(rows) // 4
    start = session / 20 + np.arange(rows) % 4
    return _frame(
        session_id=session.astype(str),
        node_id=np.char.add("node-", (session % 8).astype(str)),
        stage=np.array(["queue", "init", "run", "postrun"])[np.arange(rows) % 4],
        start=start,
        end=start + rng.random(rows),
    )


def _running(rng: np.random.Generator, rows: int) -> Frame:
    sessions = np.abs(np.cumsum(rng.choice([-1, 1], rows)))
    return _frame(at=np.cumsum(rng.random(rows)), sessions=sessions)


def _rollouts(rng: np.random.Generator, rows: int) -> Frame:
    mean = rng.random(rows)
    return _frame(
        rollout_id=np.arange(rows),
        reward_mean=mean,
        reward_std=rng.random(rows) / 5,
        noise_share=mean,
        truncated_share=mean,
        lag_mean=mean,
        lag_min=mean / 2,
        lag_max=mean * 2,
        bound=np.full(rows, 3.0),
        wait_seconds=mean,
        busy_seconds=1 + mean,
    )


def _points(rng: np.random.Generator, rows: int) -> Frame:
    return pd.DataFrame({"x": np.sort(rng.random(rows)), "y": rng.normal(size=rows)})


def _frame(**columns: Any) -> Frame:
    return pd.DataFrame(columns).convert_dtypes()


BASELINES: dict[str, tuple[Callable[[Frame], Axes], Callable[..., Frame]]] = {
    "plain scatter": (_scatter, _points),
    "plain line": (_line, _points),
}
FIGURES: dict[str, tuple[Callable[[Frame], Axes], Callable[..., Frame]]] = {
    "plot_advantages": (plots.plot_advantages, _trajectories),
    "plot_group_advantages": (plots.plot_group_advantages, _groups_of_a_rollout),
    "plot_advantage_distribution": (plots.plot_advantage_distribution, _trajectories),
    "plot_estimators": (plots.plot_estimators, _estimators),
    "plot_waterfall": (plots.plot_waterfall, _ledger),
    "plot_rejections": (plots.plot_rejections, _ledger),
    "plot_verdicts": (plots.plot_verdicts, _ledger),
    "plot_lag_parts": (plots.plot_lag_parts, _ledger),
    "plot_zero_signal": (plots.plot_zero_signal, _ledger),
    "plot_logprobs": (plots.plot_logprobs, _tokens),
    "plot_tokens": (plots.plot_tokens, _tokens),
    "plot_tokens, with texts": (plots.plot_tokens, _written_tokens),
    "plot_reconciliation": (plots.plot_reconciliation, _metrics),
    "plot_simulation": (plots.plot_simulation, _tasks),
    "plot_lengths": (plots.plot_lengths, _sessions),
    "plot_timeline": (plots.plot_timeline, _timeline),
    "plot_stage_spread": (plots.plot_stage_spread, _timeline),
    "plot_running": (plots.plot_running, _running),
    "plot_reward": (plots.plot_reward, _rollouts),
    "plot_noise": (plots.plot_noise, _rollouts),
    "plot_truncation": (plots.plot_truncation, _rollouts),
    "plot_policy_lag": (plots.plot_policy_lag, _rollouts),
    "plot_idle": (plots.plot_idle, _rollouts),
}


def seconds(draw: Callable[[Frame], Axes], frame: Frame, repeat: int) -> float:
    """Return the median CPU time from a frame to the bytes of a picture."""
    taken = []
    for _ in range(repeat + 1):
        before = time.process_time()
        figure = draw(frame).figure
        FigureCanvasAgg(figure)
        figure.savefig(io.BytesIO(), format="png", dpi=DPI)
        taken.append(time.process_time() - before)
    return statistics.median(taken[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures to draw; all by default")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    times: dict[str, float] = {}
    for name, (draw, make) in {**BASELINES, **FIGURES}.items():
        if name in BASELINES or not chosen.names or name in chosen.names:
            times[name] = seconds(draw, make(np.random.default_rng(0), chosen.rows), chosen.repeat)
            ratio = times[name] / times["plain scatter"]
            print(f"{name:<28} {times[name]:6.3f} s  {ratio:5.2f} of a plain scatter", flush=True)
    slowest = max((name for name in times if name not in BASELINES), key=lambda name: times[name])
    print(
        f"\nslowest: {slowest}, {times[slowest]:.2f} s (under 1 is asked for), "
        f"{times[slowest] / times['plain scatter']:.2f} times a plain scatter of {chosen.rows:,} points"
    )


if __name__ == "__main__":
    main()
