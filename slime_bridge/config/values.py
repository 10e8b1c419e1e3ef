"""From the trainer's arguments to the checked values of every field, with all that is wrong found at once.

A key that cannot be read is noted, and the rest is checked as if it were absent; a rule about several keys is
checked only where those can be read. Whoever starts a training is told everything in one error. The module
knows no warnings: what it finds cannot work.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from slime_bridge import _parsing as parse
from slime_bridge.config.keys import ENVIRONMENT_KEYS, KEYS, SLIME_KEYS, Key
from slime_bridge.errors import ConfigError
from slime_bridge.redaction import redact
from slime_bridge.topology import resolve_rollout_url

__all__ = ["read_key", "resolve_reward_values", "resolve_values", "run_dir", "slime_value", "unknown_keys"]

_T = TypeVar("_T")
_TOKENS = parse.integer(at_least=1)
_SHARED_GPUS = ("colocate", "offload", "offload_rollout", "offload_train")
_OWN_PREFIXES = ("polar_", "polar-", "gdpo_", "dvao_")
_TEMPLATES = ("polar_task_template", "polar_task_id_template", "polar_instruction_template")


class _Problems:
    """Collects configuration errors, each once, and raises them together."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    def attempt(self, step: Callable[[], _T], otherwise: _T) -> _T:
        """Return what a step returns, or `otherwise` where it finds something wrong."""
        try:
            return step()
        except ConfigError as exc:
            if str(exc) not in map(str, self.errors):
                self.errors.append(exc)
            return otherwise

    def found(self, *keys: str) -> bool:
        """Tell whether one of these keys is known to be wrong."""
        return any(error.key in keys for error in self.errors)

    def raise_all(self) -> None:
        """Raise the one error as it is, or several as one that has them as `problems`."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            lines = "".join(f"\n- {error}" for error in self.errors)
            together = ConfigError(f"{len(self.errors)} keys cannot be used:{lines}")
            together.problems = tuple(self.errors)
            raise together


def resolve_values(args: Any) -> dict[str, Any]:
    """Return the value of each field of `PolarSlimeConfig`.

    Raises
    ------
    ConfigError
        If anything is wrong: with one problem, that one; with several, all in one error, in the order of the
        keys, which has them as ``problems``.
    """
    problems = _Problems()
    values: dict[str, Any] = {}
    for key in (*KEYS, *SLIME_KEYS, *ENVIRONMENT_KEYS):
        raw = os.environ.get(key.name) or None if key in ENVIRONMENT_KEYS else getattr(args, key.name, None)
        values[key.field] = problems.attempt(lambda key=key, raw=raw: read_key(key, raw), key.default)  # type: ignore[misc]
    if not problems.found("polar_task_template"):
        problems.attempt(lambda: _check_agent(values["task_template"]), None)
    problems.attempt(lambda: resolve_reward_values(args, values), None)
    if values["rollout_url"] is None and not problems.found("polar_rollout_url", "polar_topology_path"):
        values["rollout_url"] = problems.attempt(
            lambda: _url_from_topology(values["topology_path"], args), None
        )
    values["callback_bind_host"] = values["callback_bind_host"] or values["callback_host"]
    if not problems.found("polar_run_dir"):
        values["run_dir"] = problems.attempt(lambda: run_dir(args, values["run_dir"]), None)
    values["max_tokens"] = _max_tokens(args, values, problems)
    if values["fully_async"]:
        _refuse_shared_gpus(args, problems)
    problems.raise_all()
    return values


def read_key(key: Key, value: Any) -> Any:
    """Return the parsed value of a key; null, as an empty line in YAML gives it, is the same as absent.

    Raises
    ------
    ConfigError
        If the key has a value that it cannot have, or is required and absent.
    """
    if value is None:
        if key.required:
            raise _error(key.name, f"{key.name} is not set: expected {key.parser.allowed}")
        return key.default
    try:
        return key.parser.convert(value)
    except (ValueError, RecursionError):
        pass
    shown = "***" if key.secret else redact(f"{value!r:.200}")
    raise _error(key.name, f"{key.name} is {shown}: expected {key.parser.allowed}")


def slime_value(args: Any, name: str, parser: parse.Parser, *, default: Any) -> Any:
    """Return the parsed value of one of Slime's own arguments.

    Raises
    ------
    ConfigError
        As `read_key`.
    """
    return read_key(Key(name, default, parser, ""), getattr(args, name, None))


def _error(key: str, text: str) -> ConfigError:
    error = ConfigError(text)
    error.key = key
    return error


def _check_agent(task_template: Mapping[str, Any]) -> None:
    agent = task_template.get("agent")
    if not agent:
        raise _error(
            "polar_task_template",
            "polar_task_template has no `agent`: expected a mapping that says which agent to run",
        )
    if not isinstance(agent, Mapping) and not (isinstance(agent, str) and agent.startswith("{")):
        raise _error(
            "polar_task_template",
            f"polar_task_template.agent is {agent!r:.80}: expected a mapping such as {{harness: shell}}, or "
            "a placeholder for one",
        )


def resolve_reward_values(args: Any, values: dict[str, Any]) -> None:
    """Fill in the reward key and the estimator's hyper-parameters, in place.

    Raises
    ------
    ConfigError
        If the keys choose two estimators.
    """
    values["advantage_estimator_kwargs"] = values["advantage_estimator_kwargs"] or {}
    values["reward_key"] = values["reward_key"] or slime_value(
        args, "reward_key", parse.text, default="score"
    )
    for name in ("gdpo", "dvao"):
        other = "dvao" if name == "gdpo" else "gdpo"
        chosen = values["advantage_estimator"] or ("" if values[f"{other}_reward_keys"] is None else other)
        if values[f"{name}_reward_keys"] is not None and chosen not in ("", name):
            raise _error(
                f"{name}_reward_keys",
                f"{name}_reward_keys chooses the estimator {name}, but {chosen!r} is chosen too: expected "
                "one of them",
            )


def _url_from_topology(topology_path: str | None, args: Any) -> str:
    if topology_path is None:
        raise _error(
            "polar_rollout_url",
            "neither polar_rollout_url nor polar_topology_path is set: expected the rollout server's base "
            "URL such as `http://10.0.0.5:8080`, or the path of Polar's topology file",
        )
    try:
        return resolve_rollout_url(topology_path, args)
    except ConfigError as exc:
        exc.key = "polar_topology_path"
        raise


def run_dir(args: Any, chosen: str | None) -> str | None:
    """Return the journal's folder: the chosen one, else ``polar`` under Slime's ``save``, else None.

    Raises
    ------
    ConfigError
        If ``save`` is no path.
    """
    save = getattr(args, "save", None)
    if chosen is not None or getattr(args, "polar_run_dir", None) is not None:
        return chosen
    return os.path.join(slime_value(args, "save", parse.path, default=None), "polar") if save else None


def _max_tokens(args: Any, values: Mapping[str, Any], problems: _Problems) -> int | None:
    """Return the most tokens a trace may have.

    Slime fills ``seq_length`` with a placeholder where a launch script leaves it out, so it counts only where
    one of the keys that rely on it is set.
    """

    def tokens(name: str, default: int | None) -> int | None:
        return problems.attempt(lambda: slime_value(args, name, _TOKENS, default=default), default)

    per_gpu = tokens("max_tokens_per_gpu", None)
    ranks = tokens("context_parallel_size", 1) or 1
    own: int | None = values["max_trajectory_tokens"]
    over_cap: bool = values["allow_single_sample_over_token_cap"]
    capacity: dict[str, int] = {}
    if per_gpu is not None and not over_cap:
        capacity["max_tokens_per_gpu * context_parallel_size"] = per_gpu * ranks
    if own is not None or over_cap:
        seq_length = tokens("seq_length", None)
        if seq_length is not None:
            capacity["seq_length"] = seq_length
    for name, most in capacity.items():
        if own is not None and own > most:
            text = (
                f"polar_max_trajectory_tokens is {own}: expected at most {most}, which is {name}, what the "
                "trainer can take in one trace"
            )
            problems.errors.append(_error("polar_max_trajectory_tokens", text))
    return min([*capacity.values(), *([] if own is None else [own])], default=None)


def _refuse_shared_gpus(args: Any, problems: _Problems) -> None:
    for name in _SHARED_GPUS:
        on = problems.attempt(
            lambda name=name: slime_value(args, name, parse.boolean, default=False),  # type: ignore[misc]
            False,
        )
        if on:
            text = (
                f"polar_fully_async is true and {name} is on: expected one of them. Fully-async keeps "
                "sessions generating while the trainer works, but with shared or offloaded GPUs the engines "
                "must be quiet then: their memory release would wait for those sessions and time out"
            )
            problems.errors.append(_error("polar_fully_async", text))


def unknown_keys(args: Any) -> Iterable[str]:
    """Yield one sentence for each attribute that looks like a key of the bridge and is none.

    An attribute that a template names is the user's own.
    """
    known = {key.name: key.name.removeprefix("polar_") for key in KEYS}
    templates = repr([getattr(args, name, None) for name in _TEMPLATES])
    for name in sorted(getattr(args, "__dict__", ())):
        if name.startswith(_OWN_PREFIXES) and name not in known and f"args.{name}" not in templates:
            # What all names begin with says nothing about which one was meant.
            own = name.replace("-", "_").removeprefix("polar_")
            close = difflib.get_close_matches(own, known.values(), n=1)
            meant = [key for key, short in known.items() if short in close]
            yield f"{name} is not a known key and has no effect" + (
                f": did you mean {meant[0]}?" if meant else ""
            )
