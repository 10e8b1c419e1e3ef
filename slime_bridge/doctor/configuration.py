"""The doctor's checks of what is written down: the configuration, and task templates over real prompt rows.

They touch no network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slime_bridge._launch import PromptRow
from slime_bridge._messages import prompt_to_instruction_text
from slime_bridge.config import (
    PolarSlimeConfig,
    check_polar_slime_config,
    describe_keys,
    render_instruction,
    render_task_payload,
    unknown_keys,
)
from slime_bridge.config.checks import derived_limits
from slime_bridge.doctor.report import Finding, Severity, counted, finding
from slime_bridge.errors import AdvantageError, BridgeError, ConfigError
from slime_bridge.filters import TrainerFilters
from slime_bridge.protocol import TaskRequest, encode_task_request
from slime_bridge.reward_post_process import require_estimator

__all__ = ["BARRIER_PATH", "build_request", "check_configuration", "check_templates", "known_warnings"]

BARRIER_PATH = "slime_bridge.megatron_hooks.install_weight_update_barrier"
"""What ``--custom-megatron-init-path`` names for the weight-update barrier."""

_CONFIG = "configuration"
_TEMPLATES = "templates"
_ROW_NAME = re.compile(r"^sample \S+ of group \S+?:? ")
_SHOWN_LINES = 5
_FROM_COMMAND_LINE = ("rollout_batch_size", "n_samples_per_prompt", "max_tokens_per_gpu")


def check_configuration(args: Any) -> tuple[list[Finding], PolarSlimeConfig | None]:
    """Resolve the configuration; report every wrong key at once, and what works against each other."""
    try:
        config, warnings = check_polar_slime_config(args)
    except ConfigError as error:
        problems = error.problems or (error,)
        found = [finding(_CONFIG, Severity.ERROR, str(each), fix=_key_fix(each.key)) for each in problems]
        # A misspelt key is often why another one is missing.
        found += [finding(_CONFIG, Severity.WARNING, text) for text in unknown_keys(args)]
        return [*found, *_estimator(args)], None
    found = [
        finding(_CONFIG, Severity.OK, "every key has a value it can have", evidence=derived_limits(config))
    ]
    found += [finding(_CONFIG, Severity.WARNING, text) for text in known_warnings(args, warnings)]
    found += [*_command_line(args), *_run_dir(config), *_barrier(args, config)]
    found += [*_filters(args, config), *_estimator(args)]
    return found, config


def known_warnings(args: Any, warnings: Iterable[str]) -> list[str]:
    """Return the warnings that do not follow from the default of a key which Slime's command line sets."""
    unknown = tuple(f"{name} is " for name in _missing(args))
    return [text for text in warnings if not text.startswith(unknown)]


def _key_fix(key: str) -> str:
    """Say where to correct a key, and what it is without it."""
    if key == "polar_task_template":
        return (
            "give the task template, at least: polar_task_template: {agent: {harness: mini_swe_agent, "
            "model_name: policy}, evaluator: {strategy: test_on_output}}"
        )
    row = next((row for row in describe_keys() if row["key"] == key), None)
    if row is not None and row["source"] == "environment":
        return f"correct or unset the environment variable {key}"
    where = f"correct {key or 'it'} in the configuration file, or with --set {key or 'KEY'}=…"
    if row is None or key in ("polar_rollout_url", "polar_topology_path"):
        return where
    return f"{where}; left out, it is {row['default'].strip('`')}"


def _estimator(args: Any) -> Iterable[Finding]:
    """Find an advantage estimator that could not be made, which would end the run after its first rollout."""
    try:
        require_estimator(args)
    except ConfigError:
        return  # said with the other keys
    except AdvantageError as error:
        fix = (
            "correct polar_advantage_estimator or polar_advantage_estimator_kwargs; a module of your own has "
            "to be on the PYTHONPATH of the Ray job"
        )
        yield finding(_CONFIG, Severity.ERROR, f"polar_advantage_estimator: {error}", fix=fix)


def _missing(args: Any) -> list[str]:
    return [name for name in _FROM_COMMAND_LINE if getattr(args, name, None) is None]


def _command_line(args: Any) -> Iterable[Finding]:
    missing = _missing(args)
    if missing:
        yield finding(
            _CONFIG,
            Severity.INFO,
            f"not known here, because they stand on Slime's command line: {', '.join(missing)}",
            fix=f"for the limits of the real run add --set {missing[0]}=… and so on",
        )


def _filters(args: Any, config: PolarSlimeConfig) -> Iterable[Finding]:
    try:
        TrainerFilters(config, args)
    except ConfigError as error:
        fix = "correct the path, or put its module on the PYTHONPATH of the Ray job"
        yield finding(_CONFIG, Severity.ERROR, str(error), fix=fix)


def _run_dir(config: PolarSlimeConfig) -> Iterable[Finding]:
    if config.run_dir is None:
        yield finding(
            _CONFIG,
            Severity.WARNING,
            "no journal is kept: neither polar_run_dir nor Slime's save is set here",
            fix="set polar_run_dir, or pass --set save=… as in the launch script",
        )
        return
    folder = Path(config.run_dir)
    existing = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        yield finding(
            _CONFIG,
            Severity.ERROR,
            f"polar_run_dir {config.run_dir} cannot be written: {existing} is no folder that this user may "
            "write",
            fix="name a folder on a disk that the rollout manager's machine can write",
        )


def _barrier(args: Any, config: PolarSlimeConfig) -> Iterable[Finding]:
    installed = getattr(args, "custom_megatron_init_path", None) == BARRIER_PATH
    if config.fully_async and not installed:
        yield finding(
            _CONFIG,
            Severity.INFO,
            "polar_fully_async keeps sessions in flight while weights are pushed, and a push cuts their "
            "turns",
            evidence=f"polar_aborted_turns is {config.aborted_turns}",
            fix=f"pass --custom-megatron-init-path {BARRIER_PATH}, which holds generation back meanwhile",
        )


def build_request(
    args: Any, config: PolarSlimeConfig, sample: Any, *, task_id_suffix: str = "", evaluation: bool = False
) -> TaskRequest:
    """Return the task request that a sample's prompt group would be submitted with, for rollout 0.

    Raises
    ------
    TemplateError, ConfigError
        As the worker would, for this sample.
    """
    common = {
        "args": args,
        "config": config,
        "sample": sample,
        "rollout_id": 0,
        "task_position": 0,
        "num_rollouts": 1 if config.scoring_mode == "individual" else config.n_samples_per_prompt,
    }
    instruction = render_instruction(**common, prompt_text=prompt_to_instruction_text(sample.prompt))
    payload = render_task_payload(
        **common, instruction=instruction, task_id_suffix=task_id_suffix, evaluation=evaluation
    )
    return TaskRequest.from_payload(payload)


def check_templates(
    args: Any, config: PolarSlimeConfig, rows: Sequence[PromptRow], *, source: str | None
) -> tuple[list[Finding], Any]:
    """Render each row's request as the worker would.

    Parameters
    ----------
    args, config
        The trainer's arguments and the configuration.
    rows
        Prompt rows, those that are wrong included.
    source
        Where they come from; None for a made-up row.

    Returns
    -------
    findings : list of Finding
        Equal problems are one finding with the first lines that have it.
    sample
        The first sample that renders; None if none does.
    """
    problems: dict[tuple[str, bool, str], list[int]] = {}
    good, sizes = None, []
    for row in rows:
        problem = row.problem
        if problem is None:
            try:
                sizes.append(len(encode_task_request(build_request(args, config, row.sample))))
            except BridgeError as exc:
                problem = _ROW_NAME.sub("", str(exc))
            else:
                good = row.sample if good is None else good
        if problem is not None:
            problems.setdefault((problem, row.skipped, row.fix), []).append(row.line)
    found = [_row_problem(*problem, lines, len(rows)) for problem, lines in problems.items()]
    if sizes:
        name = (
            f"{counted(len(sizes), 'row')} of {source}" if source else "a made-up prompt (no --prompt-data)"
        )
        low, high = min(sizes), max(sizes)
        evidence = f"requests of {low} to {high} bytes" if low < high else f"requests of {low} bytes"
        summary = f"requests render for {name}"
        found.insert(0, finding(_TEMPLATES, Severity.OK, summary, evidence=evidence))
    if source is not None and getattr(args, "apply_chat_template", None):
        found.append(
            finding(
                _TEMPLATES,
                Severity.WARNING,
                "apply_chat_template is on: agents would get the rendered chat template, special tokens "
                "included, as their instruction",
                fix="leave --apply-chat-template out of the launch script; the agent's model calls apply it",
            )
        )
    return found, good


def _row_problem(text: str, skipped: bool, fix: str, lines: list[int], total: int) -> Finding:
    first = ", ".join(str(line) for line in lines[:_SHOWN_LINES] if line)
    more = f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
    where = f"line {first}{more}: " if first else ""
    lost = f"{len(lines)} of {total} lines are passed over" if skipped else ""
    return finding(
        _TEMPLATES,
        Severity.WARNING if skipped else Severity.ERROR,
        lost or f"{len(lines)} of {total} rows cannot be submitted",
        evidence=f"{where}{text}",
        fix=fix or "correct the template or the rows that it is rendered over",
    )
