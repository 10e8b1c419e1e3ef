"""`workbench report`: a run as one HTML page, alone or beside another one."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.cli_load import add_load_options, load_from, report_failure
from analysis.errors import AnalysisError, ReportError

if TYPE_CHECKING:
    from analysis.report.findings import Findings
    from analysis.run import Run

__all__ = ["add_arguments", "run"]

_SHOWN = 10
"""Findings that are listed per run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `workbench report`."""
    add_load_options(parser)
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("report.html"),
        help="the page (default: %(default)s)",
    )
    parser.add_argument("--compare", metavar="RUN2", help="set this run beside the first")
    parser.add_argument(
        "--no-content", action="store_true", help="leave out what users, tasks and models wrote"
    )
    parser.add_argument(
        "--no-figures", action="store_true", help="draw nothing, which takes most of the time"
    )
    parser.add_argument("--no-emails", action="store_true", help="mask e-mail addresses too")


def run(options: argparse.Namespace) -> int:
    """Load, write, and say what was found; return 0, or 1 if it cannot be done."""
    try:
        loaded = _loaded(options, options.paths)
        other = None if options.compare is None else _loaded(options, [options.compare])
        written = loaded.report(
            options.out,
            compare=other,
            content=not options.no_content,
            emails=not options.no_emails,
            figures=not options.no_figures,
        )
    except BrokenPipeError:
        raise
    except (AnalysisError, OSError, ValueError) as error:
        return report_failure("report", error)
    if other is None or written.compared is None:
        _say(written.findings)
    else:
        for run, found in ((loaded, written.findings), (other, written.compared)):
            sys.stdout.write(f"\n{run.names[0]!r}\n")
            _say(found)
    removed = sum(written.removed.values())
    masked = f", {removed:,} credentials masked" if removed else ""
    sys.stdout.write(f"{_size(written.size)} in {written.path}{masked}\n")
    return 0


def _loaded(options: argparse.Namespace, paths: list[str]) -> Run:
    """Load one run; raise where there is nothing of one, with the command that says why."""
    run = load_from(argparse.Namespace(**{**vars(options), "paths": paths}))
    if not run.names:
        where = shlex.join(paths)
        raise ReportError(
            f"there is nothing of a run in {where}; `workbench load {where} --show skipped --show problems`"
            " lists what was not read"
        )
    return run


def _say(findings: Findings) -> None:
    """List what was found, the worst first."""
    for finding in findings.found[:_SHOWN]:
        sys.stdout.write(f"{finding.severity:<8} {finding.title}\n")
    more = len(findings.found) - _SHOWN
    if more > 0:
        sys.stdout.write(f"{more} more of lower rank\n")
    if not findings.found:
        sys.stdout.write("no rule found anything that needs attention\n")


def _size(count: int) -> str:
    """Return a number of bytes in the unit in which it has a digit before the point."""
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{max(1, round(count / 2**10)):,} KiB"
