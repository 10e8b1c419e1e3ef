"""`workbench lab`: options of the embedded run, and how its end becomes an exit code.

The first line appears before anything heavy is imported, and from that moment Ctrl-C ends the run in order.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.errors import AnalysisError
from analysis.lab.interrupts import Interrupted, Interrupts
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import LabSettings
from slime_bridge.errors import BridgeError

if TYPE_CHECKING:
    from analysis.lab.progress import Progress

__all__ = ["add_arguments", "run", "run_settings", "settings_from"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `workbench lab`."""
    defaults = LabSettings()
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="decides everything random (default: %(default)s)"
    )
    parser.add_argument("--rollouts", type=int, help=f"training rollouts (default: {defaults.rollouts})")
    parser.add_argument(
        "--out", type=Path, help="run folder, new or empty (default: runs/lab-<time>-seed<N>)"
    )
    parser.add_argument(
        "--fast", action="store_true", help="a smaller run that only shows that everything works"
    )


def settings_from(options: argparse.Namespace) -> LabSettings:
    """Build the settings from parsed options.

    Raises
    ------
    ValueError
        If a value is out of range; the message names it.
    """
    settings = LabSettings(seed=options.seed)
    if options.fast:
        settings = settings.faster()
    if options.rollouts is not None:
        settings = settings.with_rollouts(options.rollouts)
    return settings


def run(options: argparse.Namespace) -> int:
    """Run the lab as the options say; return the exit code of `run_settings`, or 2 for unusable options."""
    try:
        settings = settings_from(options)
    except ValueError as error:
        return _refuse(error)
    return run_settings(settings, options.out)


def run_settings(settings: LabSettings, out: Path | None = None) -> int:
    """Run the lab, talking to standard output.

    Parameters
    ----------
    settings
        What to run.
    out
        Run folder, new or empty; one below ``runs/`` if None.

    Returns
    -------
    int
        0, 128 plus a signal's number after an interruption, 2 for an unusable folder, 1 after a failure.
    """
    from analysis.lab.progress import Progress  # here, because listing the options needs no optional library

    progress = Progress(sys.stdout)
    with Interrupts(on_wait=lambda: progress.note("still stopping; this takes a few seconds")) as interrupts:
        try:
            folder = RunFolder(_new_folder(out, settings.seed))
        except (ValueError, OSError) as error:
            return _refuse(error)
        try:
            progress.stage(f"run folder {folder.root}")
            from analysis.lab.run import run_lab  # here, so that the line above comes before PyTorch

            run_lab(settings, folder, progress=progress, interrupts=interrupts)
        except BaseException as error:  # whatever ends the run, Ctrl-C included, becomes a message and a code
            with interrupts.shielded():
                progress.close()
                return _report(interrupts.cause(error), folder, progress)
    return 0


def _refuse(error: Exception) -> int:
    sys.stderr.write(f"workbench lab: {error}\n")
    return 2


def _report(error: BaseException, folder: RunFolder, progress: Progress) -> int:
    if isinstance(error, Interrupted):
        progress.note(f"stopped by {error}; what was finished is in {folder.root}")
        return error.exit_code
    if not isinstance(error, BridgeError | AnalysisError):
        raise error
    progress.note(f"failed: {error}\nlogs are in {folder.logs}; what was finished is in {folder.root}")
    return 1


def _new_folder(wanted: Path | None, seed: int) -> Path:
    folder = wanted or Path("runs") / f"lab-{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; name another one with --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()
