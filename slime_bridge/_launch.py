"""What a launch script gives to Slime, read from files: the keys of its configuration, and prompt rows.

For tools that run outside a training. As Slime does with ``--custom-config-path``, each top-level key of
the file becomes an attribute of ``args``; what Slime's command line would add is given as ``key=value``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import yaml

from slime_bridge._stand_in import Sample
from slime_bridge.errors import ConfigError

__all__ = ["PromptRow", "arguments", "read_config_file", "read_prompt_rows", "synthetic_row"]

_CORRECT_ROWS = "correct the rows"
_LIKELY = {
    "input_key": ("prompt", "question", "instruction", "messages", "problem", "query", "text", "input"),
    "label_key": ("label", "answer", "solution", "target"),
}
_SLICED_PATH = re.compile(r"^(?P<path>.*)@\[(?P<start>\d*):(?P<stop>\d*)\]$")


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; plain YAML keeps the last one and says nothing."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                raise ConfigError(f"line {key.start_mark.line + 1}: the key {key.value!r} stands there twice")
            seen.add(key.value)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_config_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the YAML file that ``--custom-config-path`` names.

    Raises
    ------
    ConfigError
        If it cannot be read, is no YAML, is no mapping, or has a key twice; the message names file and place.
    """
    try:
        with open(path, encoding="utf-8") as file:
            document = yaml.load(file, Loader=_StrictLoader)  # a subclass of the safe loader
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        # A ValueError is a byte that is no UTF-8, or a date that does not exist.
        raise ConfigError(f"{path} is not YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(document, dict):
        kind = "nothing" if document is None else f"a {type(document).__name__}"
        raise ConfigError(f"{path} holds {kind}: expected a mapping of keys such as polar_rollout_url")
    for key in document:
        if not isinstance(key, str):
            raise ConfigError(
                f"{path}: the key {key!r} is no text: expected a name such as polar_rollout_url"
            )
    return document


def arguments(keys: Mapping[str, Any], settings: Iterable[str] = ()) -> SimpleNamespace:
    """Return ``args`` with the keys of a file and, stronger, settings ``key=value`` with values in YAML.

    Raises
    ------
    ConfigError
        If a setting has no ``=``, no key, or a value that is no YAML.
    """
    args = SimpleNamespace(**keys)
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--set {setting!r}: expected key=value, such as rollout_batch_size=32")
        try:
            setattr(args, key, yaml.safe_load(text))
        except (yaml.YAMLError, ValueError, RecursionError) as exc:
            words = " ".join(str(exc).split())
            raise ConfigError(f"--set {setting!r:.200}: the value is not YAML: {words}") from exc
    return args


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One line of prompt data: its number, and the sample it makes, or what is wrong with it.

    Parameters
    ----------
    line
        Line number in the file, from 1; 0 for a row that comes from no file.
    sample
        The sample as Slime's data source makes it; None where `problem` says why there is none.
    problem
        What is wrong.
    skipped
        Whether Slime would pass over the line without an error.
    fix
        What to do about the problem; empty where only the template or the row can be corrected.
    """

    line: int
    sample: Any = None
    problem: str | None = None
    skipped: bool = False
    fix: str = ""


def read_prompt_rows(source: str, args: Any, *, limit: int | None = None) -> Iterator[PromptRow]:
    """Read JSONL prompt data, ``file.jsonl`` or ``file.jsonl@[start:stop]``.

    Parameters
    ----------
    source
        The path, as ``--prompt-data`` takes it.
    args
        Gives the names of the columns: ``input_key``, ``label_key``, ``metadata_key``, ``tool_key``.
    limit
        Most rows to read; None for all.

    Yields
    ------
    PromptRow
        One per line that is not blank. Samples are numbered from 0 and are the first of their groups.

    Raises
    ------
    ConfigError
        If the file cannot be read, or is no JSONL.
    """
    match = _SLICED_PATH.match(source)
    path, start, stop = (match["path"], match["start"], match["stop"]) if match else (source, "", "")
    if not path.endswith(".jsonl"):
        raise ConfigError(f"prompt data {path!r}: only .jsonl files are read here")
    first, end = int(start or 0), int(stop) if stop else None
    position = given = 0
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                row = _row(number, line, args, position)
                if not row.skipped:
                    position += 1
                    if position <= first or (end is not None and position > end):
                        continue
                if limit is not None and given >= limit:
                    return
                given += 1
                yield row
    except OSError as exc:
        raise ConfigError(f"prompt data {path!r} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"prompt data {path!r} is not UTF-8: {exc.reason} at byte {exc.start}") from exc


def synthetic_row(prompt: Any = "Say hello.") -> PromptRow:
    """Return a row that comes from no file."""
    return PromptRow(0, Sample(prompt=prompt, index=0, group_index=0))


def _row(number: int, line: str, args: Any, position: int) -> PromptRow:
    try:
        row = json.loads(line)
    except ValueError:
        return PromptRow(
            number, problem="is not JSON; Slime passes over such a line", skipped=True, fix=_CORRECT_ROWS
        )
    if not isinstance(row, dict):
        return PromptRow(number, problem=f"is no JSON object but a {type(row).__name__}", fix=_CORRECT_ROWS)
    prompt_key = getattr(args, "input_key", None) or "input"
    label_key = getattr(args, "label_key", None)
    for name, key in (("input_key", prompt_key), ("label_key", label_key)):
        if key is not None and key not in row:
            column = next((likely for likely in _LIKELY[name] if likely in row), "COLUMN")
            return PromptRow(
                number,
                problem=f"has no column {key!r} ({name}); it has {sorted(row)}",
                fix=f"name the column as Slime's command line does: --set {name}={column}",
            )
    metadata = row.get(getattr(args, "metadata_key", None) or "metadata") or {}
    if not isinstance(metadata, dict):
        return PromptRow(number, problem=f"has metadata that is a {type(metadata).__name__}, not an object")
    tools = row.get(getattr(args, "tool_key", None) or "tools")
    if tools is not None:
        try:
            metadata = {**metadata, "tools": json.loads(tools) if isinstance(tools, str) else tools}
        except ValueError:
            return PromptRow(number, problem="has tools in a text that is not JSON")
    label = row[label_key] if label_key else None
    return PromptRow(
        number,
        Sample(prompt=row[prompt_key], label=label, metadata=metadata, index=position, group_index=position),
    )
