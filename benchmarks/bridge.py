"""How fast the bridge is, each figure beside a baseline measured in the same run.

The baseline, `support/plain_bridge.py`, is a bridge as one is usually written first: the standard JSON parser
and pydantic on the event loop, records built field by field, results moved on in ticks of half a second. Both
sides get the same bytes from `support/quick_server.py`, a server that only answers, in a process of its own;
each measurement of a trainer is a fresh process.

    python benchmarks/bridge.py            everything, some four minutes on two cores
    python benchmarks/bridge.py --quick    smaller sizes

CPU seconds are those of the trainer's process. On a machine that does other work as well the ratios hold
better than the absolute numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.task_bodies import HEAVY, SMALL, TaskShape

FOLDER = Path(__file__).resolve().parent
TRAIN_SECONDS = 1.5
SEEDS = 3
"""Draws of the long tail that its times are averaged over."""


def start(script: str, argument: str) -> subprocess.Popen[str]:
    """Start one of the support scripts in a process of its own."""
    paths = os.pathsep.join([str(FOLDER), str(FOLDER.parent)])
    return subprocess.Popen(
        [sys.executable, str(FOLDER / "support" / script), argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def run(script: str, argument: str) -> Any:
    """Run a support script to its end and return the JSON that it prints."""
    process = start(script, argument)
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{script} failed with exit code {process.returncode}")
    return json.loads(out)


@contextmanager
def server(shape: TaskShape, **settings: Any) -> Iterator[str]:
    """Run the quick server and give its URL."""
    process = start("quick_server.py", json.dumps({"shape": dataclasses.asdict(shape), **settings}))
    try:
        url = process.stdout.readline().strip() if process.stdout is not None else ""
        if not url.startswith("http://"):
            raise RuntimeError("the quick server did not start")
        yield url
    finally:
        process.communicate(timeout=30)


def measure(
    bridge: str,
    shape: TaskShape,
    *,
    serving: dict[str, Any] | None = None,
    **values: Any,
) -> Any:
    """Run one trainer against one server; return its numbers and those of the callbacks."""
    with server(shape, **(serving or {})) as url:
        trainer = {"bridge": bridge, "url": url, "sessions": shape.sessions, **values}
        result = run("bridge_trainer.py", json.dumps(trainer))
        with urllib.request.urlopen(f"{url}/sent") as answer:
            result["sent"] = json.load(answer)
    return result


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class Table:
    """Prints one line per figure: ours, the baseline, their ratio, the target."""

    def __init__(self) -> None:
        self.missed: list[str] = []
        print(f"{'':<58} {'ours':>10} {'baseline':>10} {'ratio':>7}  target")

    def row(self, name: str, ours: float, baseline: float, unit: str, target: str, met: bool | None) -> None:
        """Print one figure; `met` None makes it one without a target."""
        ratio = ours / baseline if baseline else math.nan
        verdict = "" if met is None else "  met" if met else "  MISSED"
        label = f"{name} ({unit})"
        print(f"{label:<58} {ours:>10.4g} {baseline:>10.4g} {ratio:>7.3g}  {target}{verdict}", flush=True)
        if met is False:
            self.missed.append(name)


def decoding(table: Table, quick: bool) -> None:
    """Measure the way from the bytes of one task result to samples."""
    took = run("decoding.py", "5" if quick else "15")
    size = took["bytes"] / 1e6
    speed = size / took["ours"]
    table.row(
        f"one {size:.1f} MB result to samples", speed, size / took["plain"], "MB/s", ">= 180", speed >= 180
    )
    times = took["ours"] / took["bare"]
    table.row(
        "  CPU time, against typed decode and bare records",
        1e3 * took["ours"],
        1e3 * took["bare"],
        "ms",
        "ratio <= 1.5",
        times <= 1.5,
    )


def small_groups(table: Table, quick: bool) -> None:
    """Measure groups of eight small sessions from a server without latency."""
    calls, batch = (2, 128) if quick else (4, 256)
    many = {b: measure(b, SMALL, batch=batch, calls=calls, level=1) for b in ("ours", "plain")}
    cost = {b: 1e3 * r["cpu"] / r["groups"] for b, r in many.items()}
    table.row("CPU per small group", cost["ours"], cost["plain"], "ms", "<= 3", cost["ours"] <= 3)
    rate = {b: r["groups"] / r["wall"] for b, r in many.items()}
    table.row(
        f"rate in batches of {batch}", rate["ours"], rate["plain"], "groups/s", ">= 250", rate["ours"] >= 250
    )
    few = {
        "ours": measure("ours", SMALL, batch=8, calls=20 if quick else 60, warm_up=3),
        "plain": measure("plain", SMALL, batch=8, calls=4 if quick else 8),
    }
    rate = {b: r["groups"] / r["wall"] for b, r in few.items()}
    table.row("rate in batches of 8", rate["ours"], rate["plain"], "groups/s", ">= 150", rate["ours"] >= 150)
    cost = {b: 1e3 * r["cpu"] / r["groups"] for b, r in few.items()}
    table.row("CPU per small group in batches of 8", cost["ours"], cost["plain"], "ms", "", None)
    # Tasks that end at moments of their own: what is measured is the way of the last one.
    serving = {"median": 0.1, "sigma": 0.5, "maximum": 1.0}
    few = {
        "ours": measure("ours", SMALL, batch=8, calls=15 if quick else 30, warm_up=3, serving=serving),
        "plain": measure("plain", SMALL, batch=8, calls=4 if quick else 8, serving=serving),
    }
    waits = {b: 1e3 * statistics.median(_after_last_callback(r)) for b, r in few.items()}
    table.row(
        "from the last callback to the batch, median",
        waits["ours"],
        waits["plain"],
        "ms",
        "< 5",
        waits["ours"] < 5,
    )
    late = {b: 1e3 * quantile(_after_last_callback(r), 0.95) for b, r in few.items()}
    table.row("from the last callback to the batch, p95", late["ours"], late["plain"], "ms", "", None)


def _after_last_callback(result: Any) -> list[float]:
    """Return for each call the seconds from the last callback's last byte to its return."""
    sent = sorted(entry["sent"] for entry in result["sent"])
    waits = []
    for returned in result["returned"]:
        waits.append(returned - max(moment for moment in sent if moment <= returned))
    return waits


def heavy_batch(table: Table, quick: bool) -> None:
    """Measure one batch of large results, all at once."""
    batch = 8 if quick else 32
    common = {"batch": batch, "calls": 1, "warm_up": 0, "level": 1, "serving": {"bodies": 2}}
    results = {b: measure(b, HEAVY, **common) for b in ("ours", "plain")}
    size = results["ours"]["tokens"] / 1e6
    print(f"heavy batch: {batch} results, {size:.1f} million tokens")
    cost = {b: 1e6 * r["cpu"] / r["tokens"] for b, r in results.items()}
    table.row("CPU per million tokens", cost["ours"], cost["plain"], "s", "<= 0.25", cost["ours"] <= 0.25)
    memory = {b: r["memory_peak"] - r["memory_before"] for b, r in results.items()}
    table.row(
        "memory of the heavy batch, peak",
        memory["ours"],
        memory["plain"],
        "MB",
        "ratio <= 0.6",
        memory["ours"] <= 0.6 * memory["plain"],
    )
    answers = {b: [e["answered"] - e["sent"] for e in r["sent"]] for b, r in results.items()}
    late = {b: quantile(times, 0.95) for b, times in answers.items()}
    table.row(
        "callback acknowledged after its last byte, p95",
        late["ours"],
        late["plain"],
        "s",
        "< 0.5",
        late["ours"] < 0.5,
    )
    whole = {b: quantile([e["answered"] - e["began"] for e in r["sent"]], 0.95) for b, r in results.items()}
    table.row("callback from connect to acknowledgement, p95", whole["ours"], whole["plain"], "s", "", None)


def long_tail(table: Table, quick: bool) -> None:
    """Measure tasks of very different length, and a trainer that trains between rollouts."""
    calls = 4 if quick else 10
    shape = dataclasses.replace(SMALL, sessions=4)
    common = {"batch": 8, "calls": calls, "warm_up": 0, "train_seconds": TRAIN_SECONDS, "level": 2}
    kinds = {"async": ("ours", True), "sync": ("ours", False), "plain": ("plain", False)}
    workloads = [(1, seed) for seed in range(1 if quick else SEEDS)] + [(shape.sessions, 0)]

    def play(draws: int, seed: int, kind: str) -> Any:
        bridge, ahead = kinds[kind]
        serving = {"median": 0.5, "sigma": 1.0, "maximum": 8.0, "draws": draws, "seed": seed}
        return measure(bridge, shape, serving=serving, fully_async=ahead, **common)

    results = {(*workload, "async"): play(*workload, "async") for workload in workloads}
    # The slow ones wait nearly all the time, and side by side they hardly disturb each other.
    keys = [(*workload, kind) for workload in workloads for kind in ("sync", "plain")]
    with ThreadPoolExecutor(len(keys)) as pool:
        results |= zip(keys, pool.map(lambda key: play(*key), keys), strict=True)
    best = calls * TRAIN_SECONDS
    print(f"long tail: 8 x 4 sessions, {calls} rollouts; bound by training alone they take {best:g} s")
    limit = best + 2.0
    for draws, title in ((1, "one time per task"), (shape.sessions, "a time for each session")):
        runs = {
            kind: [r for key, r in results.items() if key[0] == draws and key[2] == kind] for kind in kinds
        }
        wall = {kind: statistics.mean(r["wall"] for r in runs[kind]) for kind in kinds}
        target = (f"<= {limit:g}", wall["async"] <= limit) if draws == 1 else ("", None)
        table.row(f"  fully async, level 2, {title}", wall["async"], wall["plain"], "s", *target)
        table.row(f"  one rollout at a time, {title}", wall["sync"], wall["plain"], "s", "", None)
        lag = statistics.mean(r["lag"] for r in runs["async"])
        largest = max(r["largest_lag"] for r in runs["async"])
        print(f"  lag of the fully async run: mean {lag:.2f}, largest {largest} rollouts")


def main() -> int:
    """Measure everything; the exit code is 0 whatever the numbers are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part alone")
    options = parser.parse_args()
    began = time.monotonic()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    table = Table()
    for name, part in PARTS.items():
        if options.only in (None, name):
            part(table, options.quick)
    print(f"{time.monotonic() - began:.0f} s in all, load average {os.getloadavg()[0]:.1f} at the end")
    print(f"targets missed: {', '.join(table.missed) or 'none'}")
    return 0


PARTS = {"decoding": decoding, "small": small_groups, "heavy": heavy_batch, "long-tail": long_tail}

if __name__ == "__main__":
    sys.exit(main())
