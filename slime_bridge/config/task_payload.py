"""One prompt group as a task payload: the rendered template and what the bridge puts on top of it.

The module knows which names templates can use, and the per-sample keys in ``sample.metadata`` that shape a
task. It neither sends nor encodes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

from slime_bridge._parsing import Parser, integer, number, text
from slime_bridge._router_url import RouterAddress
from slime_bridge.errors import ConfigError, TemplateError
from slime_bridge.protocol import safe_task_id
from slime_bridge.templates import render, to_text

__all__ = ["TaskSettings", "render_instruction", "render_task_payload"]

_SAMPLE_FIELDS = ("prompt", "response", "label", "metadata", "index", "group_index", "status")
_DEFAULT_TIMEOUT_SECONDS = 600.0
_STEP_LIMIT_SETTINGS = {"claude_code": "max_turns", "hermes": "max_turns", "openhands_sdk": "max_iterations"}


class TaskSettings(Protocol):
    """What rendering needs of a configuration."""

    @property
    def task_template(self) -> dict[str, Any]:
        """`polar_task_template`, before rendering."""

    @property
    def task_id_template(self) -> str:
        """`polar_task_id_template`."""

    @property
    def instruction_template(self) -> str | None:
        """`polar_instruction_template`; None: the prompt's text."""

    @property
    def task_timeout_floor(self) -> float | None:
        """`polar_task_timeout_floor`, s."""

    @property
    def train_agent_timeout(self) -> float | None:
        """`polar_train_agent_timeout`, s."""

    @property
    def eval_agent_timeout(self) -> float | None:
        """`polar_eval_agent_timeout`, s."""

    def early_stop_min_usable_sessions(self, sessions: int) -> int | None:
        """How many usable of `sessions` end a task early; None: it waits for all."""


def render_instruction(
    *,
    args: Any,
    config: TaskSettings,
    sample: Any,
    prompt_text: str,
    rollout_id: int,
    task_position: int,
    num_rollouts: int,
) -> str:
    """Return the instruction for the agent.

    Parameters
    ----------
    args
        Trainer arguments, ``{args.…}`` in templates.
    config
        Its `instruction_template` is rendered; without one, the instruction is `prompt_text`.
    sample
        The group's first sample, ``{sample.…}``.
    prompt_text
        The prompt as text, ``{instruction}``.
    rollout_id, task_position, num_rollouts
        Rollout, position of the task within it, and sessions per task.

    Raises
    ------
    TemplateError
        If a placeholder is unknown, or the instruction is blank.
    """
    instruction = prompt_text
    if config.instruction_template is not None:
        context = _context(args, sample, prompt_text, rollout_id, task_position, num_rollouts)
        instruction = to_text(
            render(config.instruction_template, context, where="polar_instruction_template")
        )
    if not instruction.strip():
        raise TemplateError(
            f"{_name(sample)} has a blank instruction: its prompt is {getattr(sample, 'prompt', None)!r:.80}"
        )
    return instruction


def render_task_payload(
    *,
    args: Any,
    config: TaskSettings,
    sample: Any,
    instruction: str,
    rollout_id: int,
    task_position: int,
    num_rollouts: int,
    group_id: int | str | None = None,
    policy_version: int | str | None = None,
    evaluation: bool = False,
    task_id_suffix: str = "",
) -> dict[str, Any]:
    """Render one task request's payload.

    ``task_id``, ``instruction`` and ``num_samples`` are set, and ``metadata`` gains ``group_id``,
    ``policy_version`` and ``rollout_step`` beside what the template put there. Then come the keys that shape
    the run of the agent: time limits from the configuration, and ``agent_timeout``, ``agent_step_limit``,
    ``runtime_env`` and ``runtime_init_command`` from the sample's metadata, which are stronger.

    Parameters
    ----------
    args, config, sample, rollout_id, task_position, num_rollouts
        As in `render_instruction`.
    instruction
        The instruction, as rendered.
    group_id
        By default the sample's ``group_index``.
    policy_version
        By default `rollout_id`.
    evaluation
        Take the evaluation's time limit for the agent, and never stop stragglers early.
    task_id_suffix
        Ends the task id; safe characters only.

    Returns
    -------
    dict
        Lists, mappings and scalars; shares no container with the template, ``args`` or the sample.

    Raises
    ------
    TemplateError
        If a placeholder is unknown, or the template does not render to a task.
    ConfigError
        If a value in the sample's metadata is malformed; the message names the sample.
    """
    context = _context(args, sample, instruction, rollout_id, task_position, num_rollouts)
    payload = render(config.task_template, context, where="polar_task_template")
    if not isinstance(payload.get("agent"), dict):
        raise TemplateError(
            f"polar_task_template.agent rendered to {payload.get('agent')!r:.80}: expected a mapping"
        )
    metadata = payload.get("metadata")
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict):
        raise TemplateError(f"polar_task_template.metadata rendered to {metadata!r:.80}: expected a mapping")
    task_id = to_text(render(config.task_id_template, context, where="polar_task_id_template"))
    payload["task_id"] = safe_task_id(task_id, suffix=task_id_suffix)
    payload["instruction"] = instruction
    payload["num_samples"] = num_rollouts
    payload["metadata"] = {
        **metadata,
        "group_id": sample.group_index if group_id is None else group_id,
        "policy_version": rollout_id if policy_version is None else policy_version,
        "rollout_step": rollout_id,
    }
    enough = None if evaluation else config.early_stop_min_usable_sessions(num_rollouts)
    if enough is not None:
        payload["early_stop_min_usable_sessions"] = enough
    _set_timeouts(
        payload, config, sample, config.eval_agent_timeout if evaluation else config.train_agent_timeout
    )
    _set_step_limit(payload, sample)
    _set_runtime(payload, sample)
    return payload  # type: ignore[no-any-return]


def _context(
    args: Any, sample: Any, instruction: str, rollout_id: int, task_position: int, num_rollouts: int
) -> dict[str, Any]:
    fields = {name: getattr(sample, name, None) for name in _SAMPLE_FIELDS}
    if isinstance(fields["status"], Enum):
        fields["status"] = fields["status"].value
    return {
        "args": args,
        "instruction": instruction,
        "num_rollouts": num_rollouts,
        "num_samples": num_rollouts,
        "rollout_id": rollout_id,
        "sample": fields,
        "sglang": RouterAddress(args),
        "task_position": task_position,
    }


def _set_timeouts(
    payload: dict[str, Any], config: TaskSettings, sample: Any, agent_timeout: float | None
) -> None:
    if config.task_timeout_floor is not None:
        timeout = payload.get("timeout_seconds")
        timeout = _DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
        seconds = _checked(timeout, number(above=0), sample, "the task's timeout_seconds", lax=True)
        if seconds < config.task_timeout_floor:
            payload["timeout_seconds"] = config.task_timeout_floor
    own = _metadata(sample).get("agent_timeout")
    if own is not None:
        agent_timeout = _checked(own, number(above=0), sample, "metadata.agent_timeout")
    if agent_timeout is not None:
        payload["metadata"]["agent_timeout"] = agent_timeout


def _set_step_limit(payload: dict[str, Any], sample: Any) -> None:
    limit = _metadata(sample).get("agent_step_limit")
    if limit is None:
        return
    agent = payload["agent"]
    settings = agent.get("settings") or {}
    if not isinstance(settings, dict):
        raise TemplateError(
            f"polar_task_template.agent.settings rendered to {settings!r:.80}: expected a mapping"
        )
    name = _STEP_LIMIT_SETTINGS.get(agent.get("harness"), "step_limit")
    steps = _checked(limit, integer(at_least=1), sample, "metadata.agent_step_limit")
    agent["settings"] = {**settings, name: steps}


def _set_runtime(payload: dict[str, Any], sample: Any) -> None:
    metadata = _metadata(sample)
    env, command = metadata.get("runtime_env"), metadata.get("runtime_init_command")
    if env is None and command is None:
        return
    runtime = payload.get("runtime")
    if not isinstance(runtime, dict):
        raise ConfigError(
            f"{_name(sample)} has metadata.runtime_env or runtime_init_command, but "
            f"polar_task_template.runtime is {runtime!r:.80}: write the runtime out, because a gateway's "
            "default one cannot be changed per task"
        )
    if env is not None:
        current = runtime.get("env") or {}
        if not isinstance(current, dict):
            raise TemplateError(
                f"polar_task_template.runtime.env rendered to {current!r:.80}: expected a mapping"
            )
        runtime["env"] = {**current, **_checked(env, _STRING_MAP, sample, "metadata.runtime_env")}
    if command is not None:
        command = _checked(command, text, sample, "metadata.runtime_init_command").strip()
        existing = to_text(runtime.get("direct_exec_init_command")).rstrip("; \n")
        runtime["direct_exec_init_command"] = f"{existing} && {command}" if existing else command


def _string_map(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError
    for name, item in value.items():
        if not isinstance(name, str) or not name.strip() or "=" in name or not isinstance(item, str):
            raise ValueError
    return dict(value)


_STRING_MAP = Parser(_string_map, "a mapping from variable names to strings")


def _checked(value: Any, parser: Parser, sample: Any, name: str, *, lax: bool = False) -> Any:
    """Parse one value; unless `lax`, text is no number, because a dataset's row is no command line."""
    plain = value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value
    try:
        if isinstance(plain, str) and parser is not text and not lax:
            raise ValueError
        return parser.convert(plain)
    except ValueError:
        raise ConfigError(f"{_name(sample)}: {name} is {value!r:.80}: expected {parser.allowed}") from None


def _metadata(sample: Any) -> Mapping[str, Any]:
    metadata = getattr(sample, "metadata", None)
    return metadata if isinstance(metadata, Mapping) else {}


def _name(sample: Any) -> str:
    return f"sample {getattr(sample, 'index', None)} of group {getattr(sample, 'group_index', None)}"
