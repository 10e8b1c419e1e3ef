"""The `slime-bridge` command: check, look at, and prepare a training over Polar.

Subcommands import what they need when they run, so that `--help` answers at once and `patch-slime` works
before anything is installed. Results go to standard output line by line, also into a pipe; what is wrong
with a call goes to standard error. Exit codes: 0 done and well, 1 done and something is not well, 2 the call
itself cannot be carried out, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from slime_bridge import __version__
from slime_bridge.errors import BridgeError
from slime_bridge.terminal import complain, reason, run_command

__all__ = ["build_parser", "main"]

WELL, NOT_WELL, CANNOT = 0, 1, 2


def build_parser() -> argparse.ArgumentParser:
    """Build the parser; each subcommand leaves its function as ``run`` in the namespace."""
    parser = argparse.ArgumentParser(prog="slime-bridge", description="The bridge between Slime and Polar.")
    parser.add_argument("--version", action="version", version=f"slime-bridge {__version__}")
    _lists_its_jobs(parser)
    jobs = parser.add_subparsers(title="jobs", metavar="JOB")
    _add_doctor(jobs)
    _add_render(jobs)
    _add_topology(jobs)
    _add_journal(jobs)
    _add_patch(jobs)
    for name, run, text in (
        ("keys", _keys, "print every configuration key, as Markdown"),
        ("metrics", _metrics, "print every metric, as Markdown"),
    ):
        job = jobs.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        job.set_defaults(run=run)
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
        The exit code: 0, 1 or 2, or 128 plus the signal's number after an interruption or where nobody reads
        the output any more.
    """
    return run_command("slime-bridge", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = build_parser().parse_args(argv)
    try:
        return int(options.run(options))
    except BrokenPipeError:
        raise
    except (BridgeError, OSError) as error:
        complain(f"slime-bridge: {reason(error)}")
        return CANNOT


def _say(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def _say_json(value: Any) -> None:
    _say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _job(
    jobs: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    job: argparse.ArgumentParser = jobs.add_parser(
        name, help=text, description=f"{text[:1].upper()}{text[1:]}."
    )
    job.set_defaults(run=run)
    return job


def _lists_its_jobs(parser: argparse.ArgumentParser) -> None:
    """Make a call without a job print the help: that is what whoever makes it wants to know."""

    def show(_options: argparse.Namespace) -> int:
        _say(parser.format_help())
        return WELL

    parser.set_defaults(run=show)


def _add_config(job: argparse.ArgumentParser, *, required: bool = True) -> None:
    job.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        required=required,
        help="the YAML file of --custom-config-path, with the polar_* keys",
    )
    job.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a key that Slime's command line would set, such as rollout_batch_size=32; may be repeated",
    )


def _args(options: argparse.Namespace) -> Any:
    from slime_bridge._launch import arguments, read_config_file

    keys = read_config_file(options.config) if options.config else {}
    return arguments(keys, options.settings)


def _add_doctor(jobs: Any) -> None:
    job = _job(jobs, "doctor", _doctor, "check everything that can be checked before a training")
    _add_config(job)
    job.add_argument("--prompt-data", metavar="FILE", help="JSONL whose rows the templates are rendered over")
    job.add_argument(
        "--max-rows", metavar="N", type=_positive_int, default=1000, help="rows to render (1000)"
    )
    job.add_argument(
        "--probe",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for one short generation, and run one task to its end (on)",
    )
    job.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_positive,
        default=120.0,
        help="seconds that the probe task may take (120)",
    )
    job.add_argument("--json", action="store_true", help="print the report as JSON")


def _doctor(options: argparse.Namespace) -> int:
    from slime_bridge.doctor import run_doctor

    args = _args(options)
    if not options.json:
        _say(f"slime-bridge {__version__}: checking {options.config}")
    report = run_doctor(
        args,
        prompt_data=options.prompt_data,
        probe=options.probe,
        timeout=options.timeout,
        max_rows=options.max_rows,
        on_finding=None if options.json else lambda finding: _say(finding.render()),
    )
    if options.json:
        _say_json(report.to_dict())
    else:
        _say(report.summary())
    return WELL if report.ok else NOT_WELL


def _add_render(jobs: Any) -> None:
    job = _job(jobs, "render", _render, "print the task request of one prompt, as it would be submitted")
    _add_config(job)
    job.add_argument("--prompt-data", metavar="FILE", help="JSONL with the prompt")
    job.add_argument("--row", metavar="N", type=int, default=0, help="which row of it, from 0 (0)")
    job.add_argument("--prompt", metavar="TEXT", help="a prompt, instead of --prompt-data")
    job.add_argument("--evaluation", action="store_true", help="with the evaluation's time limits")


def _render(options: argparse.Namespace) -> int:
    from slime_bridge._launch import read_prompt_rows, synthetic_row
    from slime_bridge.config import check_polar_slime_config
    from slime_bridge.doctor.configuration import build_request, known_warnings
    from slime_bridge.errors import ConfigError
    from slime_bridge.protocol import encode_task_request

    args = _args(options)
    config, warnings = check_polar_slime_config(args)
    for warning in known_warnings(args, warnings):
        complain(f"warning: {warning}")
    source = options.prompt_data or (None if options.prompt else getattr(args, "prompt_data", None))
    row = synthetic_row(options.prompt) if options.prompt else synthetic_row()
    if source is not None:
        rows = (row for row in read_prompt_rows(source, args) if not row.skipped)
        row = next((row for number, row in enumerate(rows) if number == options.row), None)  # type: ignore[assignment]
        if row is None:
            raise ConfigError(f"{source} has no row {options.row}")
        if row.problem is not None:
            raise ConfigError(
                f"{source}, line {row.line} {row.problem}" + (f"\n{row.fix}" if row.fix else "")
            )
    try:
        request = build_request(args, config, row.sample, evaluation=options.evaluation)
    except BridgeError as error:
        if source is not None or "sample.metadata" not in str(error):
            raise
        hint = "this prompt has no metadata; a row of your own comes with --prompt-data FILE"
        raise ConfigError(f"{error}\n{hint}") from error
    _say_json(json.loads(encode_task_request(request)))
    return WELL


def _add_topology(jobs: Any) -> None:
    job = _job(jobs, "topology", _topology, "print Polar's topology with gateways pointed at the router")
    _add_config(job, required=False)
    job.add_argument("topology", nargs="?", metavar="FILE", help="the file (default: polar_topology_path)")
    job.add_argument("--router", metavar="HOST:PORT", help="address of Slime's SGLang router")


def _topology(options: argparse.Namespace) -> int:
    import yaml

    from slime_bridge.config import render_topology_template
    from slime_bridge.errors import ConfigError

    args = _args(options)
    if options.router:
        address = options.router.removeprefix("http://").rstrip("/")
        args.sglang_router_ip, _, args.sglang_router_port = address.rpartition(":")
    path = options.topology or getattr(args, "polar_topology_path", None)
    if path is None:
        raise ConfigError("no topology: name the file, or give a configuration with polar_topology_path")
    _say(yaml.safe_dump(render_topology_template(path, args), sort_keys=False, allow_unicode=True))
    return WELL


def _add_journal(jobs: Any) -> None:
    job = jobs.add_parser("journal", help="look at a journal", description="Look at a journal.")
    _lists_its_jobs(job)
    actions = job.add_subparsers(title="actions", metavar="ACTION")
    text = "prove from a journal that no group was lost, doubled or trained on without right"
    action = actions.add_parser("audit", help=text, description=f"{text[:1].upper()}{text[1:]}.")
    action.add_argument(
        "path", metavar="PATH", help="a run folder, its folder of journals (polar), or one journal.jsonl"
    )
    action.set_defaults(run=_journal_audit)
    action.add_argument("--json", action="store_true", help="print the result as JSON")


def _journal_audit(options: argparse.Namespace) -> int:
    from slime_bridge.journal.audit import JournalAuditor
    from slime_bridge.journal.reader import JournalProblem, read_journal

    problems: list[JournalProblem] = []
    auditor = JournalAuditor()
    for record in read_journal(options.path, problems=problems):
        auditor.feed(record)
    violations = auditor.finish()
    proved = bool(auditor.counts["openings"]) and not violations
    if options.json:
        _say_json(
            {
                "proved": proved,
                "counts": dict(auditor.counts),
                "violations": [{name: getattr(v, name) for name in v.__slots__} for v in violations],
                "unread_lines": [
                    {"path": str(p.path), "line": p.line, "message": p.message} for p in problems
                ],
            }
        )
        return WELL if proved else NOT_WELL
    for name, count in sorted(auditor.counts.items()):
        _say(f"{count:>10}  {name}")
    for problem in problems:
        _say(f"not read: {problem.path}:{problem.line}: {problem.message}")
    for violation in violations:
        where = f"opening {violation.opening}, record {violation.seq}"
        group = "" if violation.group is None else f", group {violation.group}"
        _say(f"VIOLATION {violation.rule}: {violation.message} ({where}{group})")
    _say("conservation is proved" if proved else f"conservation is not proved: {len(violations)} violations")
    return WELL if proved else NOT_WELL


def _add_patch(jobs: Any) -> None:
    text = "make a checkout of Slime v0.3.0 return token ids from its OpenAI-compatible adapter"
    job = _job(jobs, "patch-slime", _patch, text)
    job.add_argument("directory", metavar="DIR", help="the checkout")
    what = job.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="change nothing; exit code 0 if it is patched, else 1"
    )
    what.add_argument("--revert", action="store_true", help="take the patch back, byte for byte")
    job.add_argument("--json", action="store_true", help="print the result as JSON")


def _patch(options: argparse.Namespace) -> int:
    from slime_bridge.patch_slime import PatchResult, PatchState, apply_patch, check_patch, revert_patch

    if options.check:
        state = check_patch(options.directory)
        result = PatchResult(options.directory, state, state)
    else:
        result = (revert_patch if options.revert else apply_patch)(options.directory)
    if options.json:
        changed = list(result.changed)
        _say_json({"before": result.before.value, "after": result.after.value, "changed": changed})
    else:
        for path in result.changed:
            _say(f"wrote {path}")
        _say(f"{result.directory} is {result.after}" + ("" if result.changed else ", nothing to write"))
    return NOT_WELL if options.check and result.after is not PatchState.PATCHED else WELL


def _keys(options: argparse.Namespace) -> int:
    from slime_bridge._reference import render_keys

    _say(render_keys())
    return WELL


def _metrics(options: argparse.Namespace) -> int:
    from slime_bridge.metrics import render_catalogue

    _say(render_catalogue())
    return WELL


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


if __name__ == "__main__":
    sys.exit(main())
