"""`workbench lab`: options of the embedded run, and how its end becomes an exit code.

The first line appears before anything heavy is imported, and from that moment Ctrl-C ends the run in order.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.errors import AnalysisError
from analysis.lab.interrupts import Interrupted, Interrupts
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import LabSettings
from slime_bridge.errors import AdvantageError, BridgeError
from slime_bridge.terminal import complain, reason

if TYPE_CHECKING:
    from analysis.lab.progress import Progress

__all__ = ["add_arguments", "run", "run_settings", "settings_from"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `workbench lab`."""
    defaults = LabSettings()
    parser.add_argument(
        "--seed",
        type=int,
        help=f"decides data, weights and faults; the timing of sessions is real (default: {defaults.seed})",
    )
    parser.add_argument("--rollouts", type=int, help=f"training rollouts (default: {defaults.rollouts})")
    parser.add_argument(
        "--estimator",
        metavar="NAME",
        help="advantage estimator: a name such as rloo, or module:attribute with its module on PYTHONPATH "
        "(default: the bridge's)",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="JSON object with settings of the run; the other options override it",
    )
    parser.add_argument(
        "--out", type=Path, help="run folder, new or empty (default: runs/lab-<time>-seed<N>)"
    )
    parser.add_argument("--no-figures", action="store_true", help="leave the figures out")
    parser.add_argument(
        "--fast", action="store_true", help="a smaller run that only shows that everything works"
    )


def settings_from(options: argparse.Namespace) -> LabSettings:
    """Build the settings from parsed options.

    Raises
    ------
    ValueError
        If a value is out of range, or the file of settings cannot be used; the message names it.
    """
    settings = LabSettings() if options.settings is None else _read_settings(options.settings)
    given = {"seed": options.seed, "advantage_estimator": options.estimator}
    settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
    if options.fast:
        settings = settings.faster()
    if options.rollouts is not None:
        settings = settings.with_rollouts(options.rollouts)
    _check_estimator(settings)
    return settings


def _check_estimator(settings: LabSettings) -> None:
    """Find out now, not after the servers have started and the policy was evaluated."""
    if settings.advantage_estimator is None:
        return
    from slime_bridge.advantages import get_estimator  # here, because most runs do not name one

    try:
        get_estimator(settings.advantage_estimator, settings.advantage_estimator_kwargs)
    except AdvantageError as error:
        hint = ""
        if isinstance(error.__cause__, ModuleNotFoundError):
            hint = "\na module in this folder is found with PYTHONPATH=. before the command"
        raise ValueError(f"--estimator: {error}{hint}") from error


def _read_settings(path: Path) -> LabSettings:
    try:
        return LabSettings.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"--settings {reason(error)}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"--settings {path} is not JSON: {error}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"--settings {path}: {error}") from error


def run(options: argparse.Namespace) -> int:
    """Run the lab as the options say; return the exit code of `run_settings`, or 2 for unusable options."""
    try:
        settings = settings_from(options)
    except ValueError as error:
        return _refuse(error)
    return run_settings(settings, options.out, figures=not options.no_figures)


def run_settings(settings: LabSettings, out: Path | None = None, *, figures: bool = True) -> int:
    """Run the lab, talking to standard output.

    Parameters
    ----------
    settings
        What to run.
    out
        Run folder, new or empty; one below ``runs/`` if None.
    figures
        Whether to draw the figures at the end.

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

            run_lab(settings, folder, progress=progress, interrupts=interrupts, figures=figures)
        except BaseException as error:  # whatever ends the run, Ctrl-C included, becomes a message and a code
            with interrupts.shielded():
                progress.close()
                return _report(interrupts.cause(error), folder, progress)
    return 0


def _refuse(error: Exception) -> int:
    complain(f"workbench lab: {reason(error)}")
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
