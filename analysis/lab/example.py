"""A run to look at, for notebooks and first steps: your own newest one, or a short one made on the spot.

Looked for in this order: the folders that ``$WORKBENCH_RUN`` names; complete runs of `workbench lab` below
``runs/`` here or one folder up, newest first; else a run of twelve rollouts is made on the embedded stack,
once, and kept in the user's cache. It is made as `workbench lab` makes one, in a process of its own.

Imports nothing heavy. Knows how runs are found and made; knows nothing about what is in them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from analysis.errors import LabError
from analysis.lab.files import cache_folder
from analysis.lab.processes import ChildProcess
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import AgentTroubles, LabSettings, TrainerSettings

__all__ = ["EXAMPLES", "example_run", "example_runs", "make_example"]

_SHORT = LabSettings(
    rollouts=12, rollout_batch_size=8, eval_prompts=32, troubles=AgentTroubles(failure_rate=0.06)
)

EXAMPLES = (_SHORT, replace(_SHORT, train=TrainerSettings(learning_rate=5e-4)))
"""Settings of the runs that are made: a short lab run, and the same one with a third of its learning rate."""

_LOOK_INTERVAL = 0.3
_NEEDED = "sglang_router"


def example_run() -> Path:
    """Give the folder of a run to look at.

    Returns
    -------
    Path
        The first of `example_runs`.

    Raises
    ------
    LabError
        As `example_runs`.
    """
    return example_runs(1)[0]


def example_runs(count: int = 2) -> list[Path]:
    """Give the folders of runs to look at and to compare.

    Parameters
    ----------
    count
        How many, at most as many as there are `EXAMPLES`. Runs are not mixed: where there are fewer runs than
        this below ``runs/``, all are made, so that what is compared differs in one setting.

    Returns
    -------
    list of Path
        Newest first, or in the order of `EXAMPLES`.

    Raises
    ------
    LabError
        A folder that ``$WORKBENCH_RUN`` names is not there, or no run can be made.
    """
    if not 1 <= count <= len(EXAMPLES):
        raise ValueError(f"count must be between 1 and {len(EXAMPLES)}, got {count}")
    named = [
        Path(name).expanduser() for name in os.environ.get("WORKBENCH_RUN", "").split(os.pathsep) if name
    ]
    for folder in named:
        if not folder.is_dir():
            raise LabError(f"WORKBENCH_RUN names {folder}, which is no folder; name the folder of a run")
    for found in (named, _own_runs()):
        if len(found) >= count:
            return found[:count]
    return [_cached(number) for number in range(count)]


def make_example(
    folder: Path, settings: LabSettings = EXAMPLES[0], *, show: Callable[[str], None] | None = None
) -> Path:
    """Make a run to look at; the `EXAMPLES` take about a minute on two idle cores.

    Parameters
    ----------
    folder
        Where to: must not exist, and appears complete or not at all.
    settings
        Of the run.
    show
        Called with each line that the run has to say.

    Returns
    -------
    Path
        `folder`. A finished run that somebody else put there meanwhile is left alone.

    Raises
    ------
    LabError
        The embedded stack is not installed, or the run failed; the message holds the end of its output.
    """
    if importlib.util.find_spec(_NEEDED) is None:
        raise LabError(
            f"there is no run to look at, and making one needs {_NEEDED}: pip install '.[lab]' in a "
            "checkout, or name a run of yours in the environment variable WORKBENCH_RUN"
        )
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    log = partial.with_suffix(".log")
    child = ChildProcess(
        [sys.executable, "-m", "analysis.lab.example", str(partial), json.dumps(settings.to_dict())],
        name="example run",
        log_path=log,
        env={"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
        stop_timeout=30.0,
    )
    try:
        with child:
            for line in _lines(child):
                if show is not None:
                    show(line)
        if child.returncode != 0:
            raise LabError(f"the example run ended with status {child.returncode}\n{child.log_tail()}")
        try:
            partial.rename(folder)
        except OSError:
            if not _is_complete(folder):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        log.unlink(missing_ok=True)
    return folder


def _lines(child: ChildProcess) -> Iterator[str]:
    """Lines of the child's output as they come, until it has ended."""
    with child.log_path.open(encoding="utf-8", errors="replace") as stream:
        pending = ""
        while True:
            ended = child.wait(_LOOK_INTERVAL) is not None
            *whole, pending = (pending + stream.read()).split("\n")
            yield from whole
            if ended:
                return


def _own_runs() -> list[Path]:
    """Complete lab runs below ``runs/``, newest first."""
    found: dict[Path, float] = {}
    for base in (Path.cwd(), Path.cwd().parent):
        for config in base.glob("runs/*/config.json"):
            folder = config.parent.resolve()
            if _is_complete(folder):
                found[folder] = config.stat().st_mtime
    return sorted(found, key=lambda folder: found[folder], reverse=True)


def _is_complete(folder: Path) -> bool:
    # The lab gives the final checkpoint its name when training has ended and everything has stopped.
    run = RunFolder(folder)
    return (run.checkpoint / "final").is_dir() and run.metrics.is_file()


def _cached(number: int) -> Path:
    identity = json.dumps([EXAMPLES[number].to_dict(), metadata.version("slime-bridge")], sort_keys=True)
    name = f"example-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    folder = cache_folder() / "runs" / name
    if not _is_complete(folder):
        started = time.monotonic()
        with _Display() as display:
            display.show("There is no run to look at yet, so a short one is trained now; this happens once.")
            make_example(folder, EXAMPLES[number], show=display.show)
            display.show(f"trained a short run in {time.monotonic() - started:.0f} s: {folder}")
    return folder


class _Display:
    """Shows the latest line: in place in a notebook, one below the other elsewhere."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __enter__(self) -> _Display:
        if "IPython" in sys.modules and _in_notebook():
            from IPython.display import display

            self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle = None

    def show(self, line: str) -> None:
        """Show one more line."""
        if self._handle is None:
            sys.stderr.write(f"{line}\n")
        else:
            self._handle.update({"text/plain": line}, raw=True)


def _in_notebook() -> bool:
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _main(argv: list[str]) -> int:
    from analysis.lab.command import run_settings

    return run_settings(LabSettings.from_dict(json.loads(argv[1])), Path(argv[0]), figures=False)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
