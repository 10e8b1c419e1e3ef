"""How fast a run loads, against reading the same bytes in the usual ways, measured in one run.

Writes a synthetic run of realistic shape (sessions of 1 to 24 traces, about 100 kB of JSON each; the same
once more as Slime dumps) and measures, each in a process of its own and with files in the page cache:

- session and trace frames, cold, against ``json.loads`` with ``pandas.json_normalize``, and against a bare
  msgspec decode of the same bytes, in CPU time; in two processes against one, in wall time;
- the second load, from the index, against the first, in CPU time;
- resident memory with frames made and tokens untouched;
- a window of 2,000 tokens out of a trace of 36,000.

``python benchmarks/load.py --sessions 10000`` is the full size (about a gigabyte); the default is smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.synthetic_run import write_long_session, write_polar_results, write_rollout_dumps

ROOT = Path(__file__).resolve().parents[1]
WINDOW = (20_000, 22_000)


def session_files(folder: Path) -> list[Path]:
    """Return the session files of a run, in order."""
    return sorted((folder / "polar_results").rglob("ses_*.json"))


def json_normalize(folder: Path) -> int:
    """Load the usual way: the standard parser, and pandas' own flattening of sessions and traces.

    A thousand sessions at a time: with all of a gigabyte of JSON at once it takes some eight of memory.
    """
    import pandas as pd

    files = session_files(folder)
    sessions, traces = [], []
    for start in range(0, len(files), 1000):
        loaded = [json.loads(path.read_bytes()) for path in files[start : start + 1000]]
        ids = ["session_id", "task_id", "status"]
        traces.append(
            pd.json_normalize(loaded, record_path=["trajectory", "traces"], meta=ids).drop(columns=_LISTS)
        )
        for session in loaded:
            del session["trajectory"]["traces"]
        sessions.append(pd.json_normalize(loaded))
    return len(pd.concat(sessions)) + len(pd.concat(traces))


_LISTS = [
    "prompt_ids",
    "response_ids",
    "loss_mask",
    "response_logprobs",
    "prompt_messages",
    "response_messages",
]


def bare_msgspec(folder: Path) -> int:
    """Decode the same bytes into plain objects and do nothing with them."""
    import msgspec

    return sum(len(msgspec.json.decode(path.read_bytes())) for path in session_files(folder))


def bare_torch(folder: Path) -> int:
    """Decode the dumps with PyTorch's weights-only loader and do nothing with them."""
    import torch

    dumps = sorted((folder / "rollout_data").glob("*.pt"))
    return sum(len(torch.load(path, weights_only=True)["samples"]) for path in dumps)


def frames(folder: Path, part: str, **options: Any) -> int:
    """Load a part of the run with this package, and make both frames."""
    import analysis

    run = analysis.load(folder / part, **options)
    return len(run.sessions()) + len(run.traces())


def window(folder: Path) -> int:
    """Take windows of the long trace; its first look at the run's places is not counted.

    In CPU time, which on an idle machine is all of it: the file is in the page cache.
    """
    import analysis

    run = analysis.load(folder / "polar_results", index=str(folder / "index"))
    run.tokens("sk-polar-long", window=(0, 10))
    times = []
    for shift in range(20):
        start = time.process_time()
        run.tokens("sk-polar-long", window=(WINDOW[0] + shift, WINDOW[1] + shift))
        times.append(time.process_time() - start)
    return int(1e6 * sorted(times)[len(times) // 2])


JOBS: dict[str, Callable[[Path], int]] = {
    "json_normalize": json_normalize,
    "bare_msgspec": bare_msgspec,
    "bare_torch": bare_torch,
    "serial": lambda folder: frames(folder, "polar_results", index=False, engine="serial"),
    "two_processes": lambda folder: frames(
        folder, "polar_results", index=False, engine="processes", workers=2
    ),
    "cold": lambda folder: frames(folder, "polar_results", index=str(folder / "index"), engine="serial"),
    "warm": lambda folder: frames(folder, "polar_results", index=str(folder / "index"), engine="serial"),
    "dumps": lambda folder: frames(folder, "rollout_data", index=False, engine="serial"),
    "window": window,
}


def measure(name: str, folder: Path) -> dict[str, float]:
    """Run one job in this process; imports are not counted."""
    import msgspec  # noqa: F401
    import pandas as pd
    import pyarrow.compute  # noqa: F401

    import analysis

    pd.DataFrame({"a": [1]}).to_dict()
    assert callable(analysis.load)
    assert analysis.Run
    before, cpu = time.perf_counter(), time.process_time()
    result = JOBS[name](folder)
    return {
        "wall": time.perf_counter() - before,
        "cpu": time.process_time() - cpu,
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6,
        "peak": _peak(),
        "result": result,
    }


def _peak() -> float:
    """Return the largest resident size of this program in MB; `ru_maxrss` counts the forking parent too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1e3
    return float("nan")


def in_its_own_process(name: str, folder: Path) -> dict[str, float]:
    """Measure one job in a fresh process."""
    argv = [sys.executable, __file__, "--measure", name, "--folder", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise SystemExit(f"{name}:\n{done.stderr}")
    return json.loads(done.stdout)


def in_rounds(names: list[str], folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Measure all jobs one after another, several times over; of each number the smallest counts.

    A machine that others use slows neighbours in time alike: what is compared is measured side by side.
    """
    found: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name in names:
            if name == "cold":
                shutil.rmtree(folder / "index", ignore_errors=True)
            values = in_its_own_process(name, folder)
            best = found.setdefault(name, values)
            found[name] = {key: min(best[key], value) for key, value in values.items()}
    return found


NAMES = ("json_normalize", "bare_msgspec", "serial", "two_processes", "cold", "warm", "window")
OF_DUMPS = ("bare_torch", "dumps")


def report(folder: Path, megabytes: float, repeat: int, names: list[str]) -> None:
    """Measure everything and print it."""
    for path in session_files(folder):
        path.read_bytes()
    found = in_rounds(names, folder, repeat)
    for name, values in found.items():
        print(
            f"{name:<15} {values['wall']:7.2f} s wall {values['cpu']:7.2f} s CPU"
            f"  resident {values['resident']:5.0f} MB, peak {values['peak']:5.0f} MB",
            flush=True,
        )
    print(f"\n{megabytes:,.0f} MB of JSON")
    for over, under, key, scale, text, wanted in RATIOS:
        if over in found and (under is None or under in found):
            value = found[over][key] * scale / (1.0 if under is None else found[under][key])
            print(f"{value:8.2f}  {text}{f'  ({wanted})' if wanted else ''}")


RATIOS: tuple[tuple[str, str | None, str, float, str, str], ...] = (
    ("json_normalize", "serial", "cpu", 1, "times faster than json.loads + json_normalize", "at least 8"),
    ("bare_msgspec", "serial", "cpu", 1, "of the speed of a bare msgspec decode", "at least 0.6"),
    ("serial", "two_processes", "wall", 1, "times faster in two processes", "at least 1.7"),
    ("warm", "cold", "cpu", 1, "warm load as a fraction of the cold one", "under 0.1"),
    ("cold", None, "resident", 1, "MB resident with frames made, cold", "under 300"),
    ("warm", None, "resident", 1, "MB resident with frames made, warm", "under 300"),
    ("window", None, "result", 1e-3, "ms of CPU for 2,000 of 36,000 tokens (median)", "under 20"),
    ("bare_torch", "dumps", "cpu", 1, "of the speed of torch.load on the dumps", ""),
)
"""What is divided by what, in which unit, what it says, and what was asked for."""


def main() -> None:
    """Write the run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1500, help="size of the run (default: %(default)s)")
    parser.add_argument(
        "--repeat", type=int, default=2, help="rounds; the best of each counts (default: %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the run is, or is to be written (default: a temporary folder)"
    )
    parser.add_argument("--no-dumps", action="store_true", help="leave the Slime dumps out")
    parser.add_argument(
        "--only", nargs="+", choices=(*NAMES, *OF_DUMPS), help="measure these alone (default: everything)"
    )
    parser.add_argument("--measure", choices=sorted(JOBS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        results = folder / "polar_results"
        if not results.exists():
            print(f"writing {options.sessions:,} sessions", flush=True)
            write_polar_results(results, options.sessions)
            write_long_session(results)
        names = options.only or [*NAMES, *(() if options.no_dumps else OF_DUMPS)]
        if set(OF_DUMPS) & set(names) and not (folder / "rollout_data").exists():
            print("writing the same as Slime dumps", flush=True)
            write_rollout_dumps(results, folder / "rollout_data")
        size = sum(path.stat().st_size for path in session_files(folder))
        report(folder, size / 1e6, options.repeat, names)


if __name__ == "__main__":
    main()
