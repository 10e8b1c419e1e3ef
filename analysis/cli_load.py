"""`workbench load`: what a run left on disk, what is wrong with it, and any of its tables, on the terminal.

The first line appears before anything heavy is imported.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.cli_tables import choose, fit
from analysis.cli_words import in_options
from analysis.errors import AnalysisError
from slime_bridge.terminal import complain, reason

if TYPE_CHECKING:
    import pandas as pd

    from analysis.run import Run

__all__ = ["add_arguments", "add_load_options", "load_from", "refuse_nothing", "report_failure", "run"]

_TABLES = ("rollouts", "groups", "sessions", "traces", "events", "completions", "metrics")
_NO_TERMINAL = (120, 24)
_ENDLESS = sys.maxsize
_ACCOUNTS = ("problems", "skipped", "coverage", "describe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `workbench load`."""
    add_load_options(parser)
    parser.add_argument(
        "--show",
        action="append",
        default=[],
        choices=(*_TABLES, *_ACCOUNTS),
        help="print this too; may be given several times",
    )
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        help="columns of a shown table, separated by commas, or `all` (default: the most telling ones that "
        "fit the terminal)",
    )
    parser.add_argument(
        "--csv", metavar="FILE", type=Path, help="write the shown table, all its rows, to this file instead"
    )
    parser.add_argument(
        "--rows", type=int, default=20, help="most rows of a shown table (default: %(default)s)"
    )


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to load and how."""
    parser.add_argument(
        "paths", nargs="+", metavar="RUN", help="folder or file of a run; several are allowed"
    )
    parser.add_argument("--strict", action="store_true", help="fail at the first problem")
    parser.add_argument(
        "--trusted",
        action="store_true",
        help="unpickle dumps that hold more than plain data; this runs whatever they say",
    )
    parser.add_argument(
        "--reward-key", help="entry of rewards that are mappings (default: score, else reward)"
    )
    parser.add_argument(
        "--engine",
        default="auto",
        choices=("auto", "serial", "processes", "ray"),
        help="(default: %(default)s)",
    )
    parser.add_argument("--workers", type=int, help="processes or tasks at once (default: one per CPU)")
    parser.add_argument(
        "--address", help="Ray cluster, with --engine ray (default: RAY_ADDRESS, else a local one)"
    )
    parser.add_argument(
        "--index", metavar="DIR", help="where to remember what was read (default: in the run's folder)"
    )
    parser.add_argument("--no-index", action="store_true", help="remember nothing")


def load_from(options: argparse.Namespace) -> Run:
    """Load what the options name, and say so first.

    Raises
    ------
    AnalysisError, OSError, ValueError
        As `analysis.load`.
    """
    if options.address is not None and options.engine != "ray":
        raise ValueError(f"--address {options.address} names a Ray cluster, which needs --engine ray")
    sys.stdout.write(f"loading {' '.join(options.paths)}\n")
    sys.stdout.flush()
    from analysis.loading import load  # here, so that the line above comes before pandas and PyArrow

    return load(
        options.paths[0] if len(options.paths) == 1 else options.paths,
        strict=options.strict,
        trusted=options.trusted,
        reward_key=options.reward_key,
        engine=options.engine,
        workers=options.workers,
        address=options.address,
        index=False if options.no_index else (options.index or True),
    )


def run(options: argparse.Namespace) -> int:
    """Print the summary and whatever else was asked for; return 0, or 1 if the run cannot be loaded.

    Paths in which there is nothing of a run count as a run that cannot be loaded.
    """
    try:
        _check(options)
        loaded = load_from(options)
        sys.stdout.write(f"{in_options(repr(loaded))}\n")
        refuse_nothing(loaded, options)
        for name in options.show:
            sys.stdout.write(f"\n{name}\n{_shown(loaded, name, options)}\n")
    except BrokenPipeError:
        raise
    except (AnalysisError, OSError, ValueError, KeyError) as error:
        return report_failure("load", error)
    return 0


def refuse_nothing(loaded: Run, options: argparse.Namespace) -> None:
    """Make an empty run an error: the path is wrong, or what is there is of no known kind.

    Raises
    ------
    AnalysisError
        If no table has a row. What was left out or could not be read is printed first where it was asked for.
    """
    from analysis.schema import GRAINS  # here, because it needs PyArrow

    if any(loaded.table(grain).num_rows for grain in GRAINS):
        return
    for name in ("problems", "skipped"):
        if name in getattr(options, "show", ()):
            sys.stdout.write(f"\n{name}\n{_shown(loaded, name, options)}\n")
    left_out = len(loaded.skipped) + len(loaded.problems)
    why = "no files at all"
    if left_out:
        what = "file or folder is" if left_out == 1 else "files or folders are"
        why = f"{left_out:,} {what} of no use (--show skipped --show problems)"
    raise AnalysisError(
        f"nothing of a run in {' '.join(options.paths)}: {why}. A run is a folder with a journal.jsonl, "
        "Polar's ses_*.json, Slime's rollout_data/*.pt or train_data/*.pt, or what `workbench convert` wrote"
    )


def report_failure(name: str, error: Exception) -> int:
    """Say on standard error why a subcommand failed; return its exit code."""
    complain(f"workbench {name}: {in_options(reason(error))}")
    return 1


def _check(options: argparse.Namespace) -> None:
    if options.csv is not None and len(options.show) != 1:
        raise ValueError("--csv writes one table: name it with one --show")
    if options.rows < 1:
        raise ValueError(f"--rows {options.rows}: expected at least 1")


def _shown(loaded: Run, name: str, options: argparse.Namespace) -> str:
    wanted = None if options.columns in (None, "all") else [c.strip() for c in options.columns.split(",")]
    found: Any = getattr(loaded, name)
    frame = found(wanted) if name in _TABLES else found() if callable(found) else found
    if options.csv is not None:
        frame.to_csv(options.csv, index=False)
        return f"{len(frame):,} rows of {len(frame.columns)} columns in {options.csv}"
    if not len(frame):
        return "nothing"
    frame = _account(frame, options.paths) if name in _ACCOUNTS else frame
    known = frame.dropna(axis="columns", how="all") if wanted is None and name in _TABLES else frame
    chosen = choose(known, name) if options.columns is None and name in _TABLES else known
    # Columns that were asked for are all shown, and so are the few of an account.
    fitting = options.columns is None and name in _TABLES
    width = shutil.get_terminal_size(_NO_TERMINAL).columns if fitting else None
    shown = fit(chosen.head(options.rows), width)
    notes = []
    if len(frame) > options.rows:
        notes.append(f"... and {len(frame) - options.rows:,} more rows (--rows)")
    if len(known.columns) > shown.columns:
        more = len(known.columns) - shown.columns
        notes.append(f"... and {more} more columns (--columns all, or by name; --show describe lists them)")
    if notes:
        notes.append("everything: --csv FILE, or `workbench convert RUN OUT` for Parquet")
    return "\n".join([shown.text, *notes])


def _account(frame: pd.DataFrame, roots: Sequence[str]) -> pd.DataFrame:
    """Return an account as a terminal shows it: options instead of Python, paths from the one folder on."""
    shown = frame.map(_in_words)
    if "path" in shown and len(roots) == 1:
        shown["path"] = shown["path"].str.removeprefix(f"{os.path.abspath(roots[0])}{os.sep}")
    return shown


def _in_words(value: Any) -> Any:
    return in_options(value) if isinstance(value, str) else value
