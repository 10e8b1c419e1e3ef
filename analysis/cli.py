"""The `workbench` command: one subcommand per job.

A subcommand names its module; that module is imported only when the subcommand runs, so that the command
answers at once and `--help` needs none of the heavy libraries. Knows nothing about what the jobs do.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from slime_bridge import __version__
from slime_bridge.terminal import complain, run_command

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
    parser.add_argument("--version", action="version", version=f"workbench of slime-bridge {__version__}")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(title="jobs", metavar="JOB")
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
    """Run one subcommand; without one, list them.

    Parameters
    ----------
    argv
        Arguments without the program's name; the process's own if None.

    Returns
    -------
    int
        Exit code: 0 for success, 128 plus the signal's number after an interruption or where nobody reads
        the output any more, 2 where an optional dependency is missing or standard output is closed, else what
        the job says.
    """
    return run_command("workbench", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    command = options.command
    if command is None:
        parser.print_help()
        return 0
    try:
        return int(importlib.import_module(command.module).run(options))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("analysis", "slime_bridge"):
            raise
        complain(
            f"workbench {command.name} needs {error.name}, which is not installed: "
            f"pip install '.[{command.extra}]' in a checkout of slime-bridge"
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
