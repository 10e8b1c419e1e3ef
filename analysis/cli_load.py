"""`workbench load`: what a run left on disk, what is wrong with it, and any of its tables, on the terminal.

The first line appears before anything heavy is imported.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from analysis.errors import AnalysisError

if TYPE_CHECKING:
    from analysis.run import Run

__all__ = ["add_arguments", "add_load_options", "load_from", "report_failure", "run"]

_TABLES = ("rollouts", "groups", "sessions", "traces", "events", "completions", "metrics")
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
        "--columns", help="columns of a shown table, separated by commas (default: those with values)"
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
    """Print the summary and whatever else was asked for; return 0, or 1 if the run cannot be loaded."""
    try:
        loaded = load_from(options)
        sys.stdout.write(f"{loaded!r}\n")
        for name in options.show:
            sys.stdout.write(f"\n{name}\n{_shown(loaded, name, options)}\n")
    except BrokenPipeError:
        raise
    except (AnalysisError, OSError, ValueError, KeyError) as error:
        return report_failure("load", error)
    return 0


def report_failure(name: str, error: Exception) -> int:
    """Say on standard error why a subcommand failed; return its exit code."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    sys.stderr.write(f"workbench {name}: {text}\n")
    return 1


def _shown(loaded: Run, name: str, options: argparse.Namespace) -> str:
    frame: Any
    if name in _TABLES:
        wanted = [part.strip() for part in options.columns.split(",")] if options.columns else None
        frame = getattr(loaded, name)(wanted)
        if wanted is None:
            frame = frame.dropna(axis="columns", how="all")
    else:
        found = getattr(loaded, name)
        frame = found() if callable(found) else found
    if not len(frame):
        return "nothing"
    rest = len(frame) - options.rows
    text = str(frame.head(options.rows).to_string(index=False, max_colwidth=60))
    return text + (f"\n... and {rest:,} more rows (--rows)" if rest > 0 else "")
