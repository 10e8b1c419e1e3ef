"""What a submission will do: prompts as rows, the trainer's arguments they are rendered with, bounds.

A plan is plain data and stands in the submission's folder, so that another process can take it up again. It
holds no credentials: where the server is and how to be let in is the connection's.
"""

from __future__ import annotations

import difflib
import json
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from analysis.errors import SubmissionError
from analysis.lab.files import write_text
from analysis.live.budgets import Budget
from slime_bridge.config.keys import KEYS

__all__ = ["Plan", "prompt_rows", "read_plan", "refuse_unknown_keys", "write_plan"]

PLAN_VERSION = 1
_FILE = "submission.json"
_PROMPTS = "prompts.jsonl"
_SUBMIT_OPTIONS = ("n_samples", "name", "max_seconds", "max_tokens", "max_sessions", "max_in_flight")
_ROW_KEYS = ("prompt", "label", "metadata")


@dataclass(frozen=True)
class Plan:
    """One submission.

    Attributes
    ----------
    rows
        One per prompt: ``prompt`` (text or chat messages), ``label``, ``metadata``.
    n_samples
        Sessions per prompt.
    keys
        The bridge's ``polar_*`` keys without the server's address.
    max_in_flight
        Sessions under way at a time; at least one group is.
    budget
        Bounds on all of it.
    """

    rows: tuple[Mapping[str, Any], ...]
    n_samples: int
    keys: Mapping[str, Any]
    max_in_flight: int = 64
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if not self.rows:
            raise SubmissionError("there is no prompt to submit")
        for name in ("n_samples", "max_in_flight"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SubmissionError(f"{name} must be a whole number of at least 1, got {value!r}")

    @property
    def sessions(self) -> int:
        """Sessions of all prompts."""
        return len(self.rows) * self.n_samples

    @property
    def groups_in_flight(self) -> int:
        """Groups under way at a time."""
        return max(1, self.max_in_flight // self.n_samples)

    def arguments(self, *, polar_url: str, run_dir: Path, callback_host: str | None) -> Namespace:
        """Return the namespace that the bridge's configuration is read from."""
        reward_key = self.keys.get("polar_reward_key", "score")
        given = {
            "polar_reward_key": reward_key,
            "reward_key": reward_key,
            "rollout_batch_size": self.groups_in_flight,
            "n_samples_per_prompt": self.n_samples,
            "update_weights_interval": 1,
            **self.keys,
            "polar_rollout_url": polar_url,
            "polar_run_dir": str(run_dir),
        }
        if callback_host is not None:
            given["polar_callback_host"] = callback_host
        return Namespace(**given)


def prompt_rows(prompts: Any) -> tuple[Mapping[str, Any], ...]:
    """Read prompts in any of the forms that a submission takes.

    Parameters
    ----------
    prompts
        A text; a mapping with ``prompt`` (or ``input``), and perhaps ``label`` and ``metadata``; a list of
        chat messages (mappings with ``role``); several of any of these; a data frame with these columns; or
        the path of a JSONL file with one row per line.

    Raises
    ------
    SubmissionError
        If something else is among them; the message says which.
    """
    if isinstance(prompts, Path) or (isinstance(prompts, str) and prompts.endswith(".jsonl")):
        return _read_rows(Path(prompts))
    if hasattr(prompts, "to_dict") and hasattr(prompts, "columns"):
        return tuple(_row(row, place) for place, row in enumerate(prompts.to_dict("records")))
    if isinstance(prompts, str | Mapping) or _is_chat(prompts):
        prompts = [prompts]
    if not isinstance(prompts, Iterable):
        raise SubmissionError(f"prompts must be texts, messages or rows, got {type(prompts).__name__}")
    return tuple(_row(item, place) for place, item in enumerate(prompts))


def refuse_unknown_keys(keys: Mapping[str, Any], given: Iterable[str]) -> None:
    """Raise if a key that was passed is none of the bridge's, and no template asks for it.

    Parameters
    ----------
    keys
        All keys, with ``polar_`` before them.
    given
        Those that were passed with this submission. A misspelt bound would be no bound.

    Raises
    ------
    SubmissionError
        For the first such key; names the nearest one.
    """
    known = [key.name for key in KEYS]
    templates = json.dumps([value for name, value in keys.items() if name.endswith("_template")], default=str)
    for name in given:
        if name not in known and f"args.{name}" not in templates:
            asked = name.removeprefix("polar_")
            options = [*_SUBMIT_OPTIONS, *(key.removeprefix("polar_") for key in known)]
            close = difflib.get_close_matches(asked, options, n=1)
            hint = f": did you mean {close[0]}?" if close else "; `slime-bridge keys` lists them"
            raise SubmissionError(f"{asked} is no option of submit and no key of the bridge{hint}")


def _row(item: Any, place: int) -> Mapping[str, Any]:
    if isinstance(item, str) or _is_chat(item):
        row: dict[str, Any] = {"prompt": item, "label": None}
    elif isinstance(item, Mapping):
        row = {name: item.get(name) for name in _ROW_KEYS}
        row["prompt"] = item.get("prompt", item.get("input"))
    else:
        raise SubmissionError(f"prompt {place} is a {type(item).__name__}, not a text, messages or a row")
    prompt, metadata = row["prompt"], row.get("metadata")
    if not (isinstance(prompt, str) or _is_chat(prompt)) or not prompt:
        raise SubmissionError(f"prompt {place} has no text and no messages: {str(prompt)[:80]!r}")
    # Data frames hold NaN where a row has no metadata.
    row["metadata"] = dict(metadata) if isinstance(metadata, Mapping) else {}
    return row


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def _read_rows(path: Path) -> tuple[Mapping[str, Any], ...]:
    rows = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_row(json.loads(line), number))
    except (OSError, ValueError) as error:
        if isinstance(error, SubmissionError):
            raise
        raise SubmissionError(f"{path}: cannot be read as one prompt per line: {error}") from error
    return tuple(rows)


def write_plan(folder: Path, plan: Plan) -> None:
    """Write a plan into a submission's folder."""
    try:
        # ASCII, because lone surrogates of broken text have no UTF-8 and JSON has an escape for them.
        lines = [json.dumps(row) for row in plan.rows]
        record = {
            "version": PLAN_VERSION,
            "n_samples": plan.n_samples,
            "max_in_flight": plan.max_in_flight,
            "keys": dict(plan.keys),
            "budget": asdict(plan.budget),
        }
        text = json.dumps(record, indent=2)
    except (TypeError, ValueError) as error:
        raise SubmissionError(f"prompts and keys must be plain data that JSON can hold: {error}") from error
    write_text(folder / _PROMPTS, "".join(f"{line}\n" for line in lines))
    write_text(folder / _FILE, text + "\n")


def read_plan(folder: Path) -> Plan:
    """Read the plan in a folder.

    Raises
    ------
    SubmissionError
        If there is none, or one of a newer version.
    """
    try:
        record = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        if record["version"] > PLAN_VERSION:
            raise SubmissionError(f"{folder / _FILE} was written by a newer version")
        return Plan(
            rows=_read_rows(folder / _PROMPTS),
            n_samples=record["n_samples"],
            keys=record["keys"],
            max_in_flight=record["max_in_flight"],
            budget=Budget(**record["budget"]),
        )
    except FileNotFoundError as error:
        raise SubmissionError(f"{folder} holds no submission") from error
    except SubmissionError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise SubmissionError(f"{folder / _FILE} is damaged: {error!r}") from error
