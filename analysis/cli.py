"""The `workbench` command: one subcommand per job.

A subcommand names its module; that module is imported only when the subcommand runs, so that the command
answers at once and `--help` needs none of the heavy libraries. Knows nothing about what the jobs do.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["COMMANDS", "Command", "build_parser", "main"]


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes
    ----------
    name
        As typed.
    summary
        One line for `--help`.
    module
        Holds ``add_arguments(parser) -> None`` and ``run(options: argparse.Namespace) -> int`` (the exit
        code); the module itself needs the standard library only, other imports belong inside `run`.
    extra
        The package's optional dependencies that it needs.
    """

    name: str
    summary: str
    module: str
    extra: str


COMMANDS = (
    Command("lab", "train a tiny policy end to end on this machine", "analysis.lab.command", "lab"),
    Command(
        "load", "show what a run left on disk, and what is wrong with it", "analysis.cli_load", "analysis"
    ),
    Command("convert", "write a run as a Parquet dataset", "analysis.cli_convert", "analysis"),
    Command(
        "report", "write a run, or two side by side, as one HTML page", "analysis.report.command", "analysis"
    ),
    Command("notebook", "open the notebooks in JupyterLab", "analysis.cli_notebook", "notebooks,lab"),
)
"""Every subcommand, in the order of `--help`."""


def build_parser(commands: Sequence[Command] | None = None) -> argparse.ArgumentParser:
    """Build the parser of all subcommands; each leaves its `Command` in the namespace as `command`."""
    parser = argparse.ArgumentParser(prog="workbench", description="Drive and explore rollout runs.")
    subparsers = parser.add_subparsers(title="jobs", required=True, metavar="JOB")
    for command in COMMANDS if commands is None else commands:
        sub = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[:1].upper()}{command.summary[1:]}.",
        )
        importlib.import_module(command.module).add_arguments(sub)
        sub.set_defaults(command=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Parameters
    ----------
    argv
        Arguments without the program's name; the process's own if None.

    Returns
    -------
    int
        Exit code: 0 for success, 128 plus the signal's number after an interruption or where nobody reads
        the output any more, 2 where an optional
        dependency is missing, else what the job says.
    """
    try:
        options = build_parser().parse_args(argv)
        try:
            code = int(importlib.import_module(options.command.module).run(options))
            sys.stdout.flush()
            return code
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in ("analysis", "slime_bridge"):
                raise
            command = options.command
            print(
                f"workbench {command.name} needs {error.name}, which is not installed: "
                f"pip install 'slime-bridge[{command.extra}]'",
                file=sys.stderr,
            )
            return 2
    except BrokenPipeError:
        # What reads the output has closed it, as `head` does; the interpreter flushes it once more on its way
        # out, and must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as interruption:
        # A job that holds resources handles its own interruption; this one came before it could, or after it
        # was done.
        print("interrupted", file=sys.stderr)
        return int(getattr(interruption, "exit_code", 128 + signal.SIGINT))


if __name__ == "__main__":
    sys.exit(main())
