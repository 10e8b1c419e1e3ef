"""Evaluation datasets: which there are, their settings, their rows, and proof of the files' content.

Settings are looked up as Slime does: the dataset's own entry, then the defaults beside it, then the trainer's
arguments. Whatever is wrong (a missing file, a name used twice, a row without a prompt) is an
`EvaluationError` here, before anything is submitted. It knows nothing of tasks or servers.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import difflib
import hashlib
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from slime_bridge.errors import EvaluationError

__all__ = ["EvalDataset", "EvalPrompt", "load_prompts", "resolve_eval_datasets"]

logger = logging.getLogger(__name__)

_SLICED_PATH = re.compile(r"^(?P<path>.*)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]$")
# Attributes of the trainer's arguments that stand in where neither the dataset nor the defaults say.
_FALLBACKS: dict[str, tuple[str, ...]] = {
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "tool_key": ("eval_tool_key", "tool_key"),
    "metadata_key": ("metadata_key",),
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt", "n_samples_per_prompt"),
    "temperature": ("eval_temperature", "rollout_temperature"),
    "top_p": ("eval_top_p", "rollout_top_p"),
    "top_k": ("eval_top_k", "rollout_top_k"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
}
_DEFAULTS: dict[str, Any] = {
    "input_key": "input",
    "tool_key": "tools",
    "metadata_key": "metadata",
    "n_samples_per_eval_prompt": 1,
}
_WITHOUT_EFFECT = ("custom_generate_function_path", "app_service")


@dataclass(frozen=True, kw_only=True)
class EvalDataset:
    """One evaluation dataset with all its settings resolved.

    Parameters
    ----------
    name, path
        As configured; the path may end in a slice of rows, ``@[start:stop]``.
    input_key, label_key, tool_key, metadata_key
        Columns; None for a column that is not used.
    n_samples_per_eval_prompt
        Sessions per prompt, at least 1.
    temperature, top_p, top_k, max_response_len, min_new_tokens, stop, stop_token_ids
        Sampling limits for the agent's model calls; None where nobody says.
    eval_task_timeout
        Seconds for each session; None for the task template's.
    rm_type, metadata_overrides
        What goes into each prompt's metadata.
    """

    name: str
    path: str
    input_key: str = "input"
    label_key: str | None = None
    tool_key: str | None = "tools"
    metadata_key: str = "metadata"
    n_samples_per_eval_prompt: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_len: int | None = None
    min_new_tokens: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    eval_task_timeout: float | None = None
    rm_type: str | None = None
    metadata_overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sampling_params(self) -> dict[str, Any]:
        """The sampling limits that are set, by Slime's names."""
        names = (
            "temperature",
            "top_p",
            "top_k",
            "max_response_len",
            "min_new_tokens",
            "stop",
            "stop_token_ids",
        )
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def inject_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a row's metadata with `rm_type` and the overrides on top."""
        reward_model = {} if self.rm_type is None else {"rm_type": self.rm_type}
        return {**metadata, **reward_model, **self.metadata_overrides}


_FIELDS = {field.name: field for field in dataclasses.fields(EvalDataset)}


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """One row of a dataset.

    Parameters
    ----------
    prompt
        Text or chat messages, as in the file.
    label
        The label column, None without one.
    metadata
        The row's metadata with tools, reward model and overrides.
    """

    prompt: Any
    label: Any
    metadata: dict[str, Any]


def resolve_eval_datasets(args: Any) -> list[EvalDataset]:
    """Resolve the trainer's evaluation datasets.

    Parameters
    ----------
    args
        Trainer arguments. `eval_datasets` is Slime's list of entries, a list of mappings, or what an
        ``--eval-config`` file holds: a mapping with ``defaults`` and ``datasets`` (a list, or a mapping by
        name).

    Returns
    -------
    list of EvalDataset
        In order; empty if there are none.

    Raises
    ------
    EvaluationError
        A name is missing or used twice, a path is missing, or a value cannot be used.
    """
    entries, defaults = _entries(getattr(args, "eval_datasets", None))
    datasets = [_resolve(entry, defaults, args) for entry in entries]
    seen: set[str] = set()
    for dataset in datasets:
        if dataset.name in seen:
            raise EvaluationError(f"eval_datasets: two datasets are called {dataset.name!r}; rename one")
        seen.add(dataset.name)
    return datasets


def load_prompts(datasets: Iterable[EvalDataset], *, integrity: str | None = None) -> list[list[EvalPrompt]]:
    """Read the rows of all datasets.

    Parameters
    ----------
    datasets
        Which to read.
    integrity
        Base64 of the JSON that lists each dataset's file with its SHA-256; None to trust the files.

    Returns
    -------
    list of list of EvalPrompt
        The rows of each dataset in file order, at least one each.

    Raises
    ------
    EvaluationError
        A file is missing, unreadable, empty or not the listed one, or a row has no prompt; the message names
        it.
    """
    expected = None if integrity is None else _read_manifest(integrity)
    return [_load(dataset, expected) for dataset in datasets]


def _entries(configured: Any) -> tuple[list[Any], Mapping[str, Any]]:
    """Return the entries and the defaults beside them."""
    defaults: Mapping[str, Any] = {}
    if isinstance(configured, Mapping):
        content = configured.get("eval", configured)
        unknown = set(content) - {"defaults", "datasets"} if isinstance(content, Mapping) else {"?"}
        if unknown:
            raise EvaluationError(
                f"eval_datasets: expected `defaults` and `datasets`, got {sorted(map(str, unknown))}"
            )
        defaults = content.get("defaults") or {}
        configured = content.get("datasets")
        for key in sorted(set(defaults) - set(_FALLBACKS)):
            logger.warning("eval_datasets: the default %r is not used%s", key, _suggest(key, _FALLBACKS))
    if isinstance(configured, Mapping):
        return [{"name": name, **(entry or {})} for name, entry in configured.items()], defaults
    return list(configured or []), defaults


def _resolve(entry: Any, defaults: Mapping[str, Any], args: Any) -> EvalDataset:
    own: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else dict(vars(entry))
    name = own.get("name")
    where = f"eval_datasets[{name!r}]"
    for key in sorted(own):
        if key in _WITHOUT_EFFECT and own[key] is not None:
            logger.warning("%s: %s has no effect: Polar's agents generate", where, key)
        elif key not in _FIELDS and key not in _WITHOUT_EFFECT:
            logger.warning("%s: the key %r is not used%s", where, key, _suggest(key, _FIELDS))
    values: dict[str, Any] = {key: own.get(key) for key in _FIELDS}
    for key, attributes in _FALLBACKS.items():
        # An explicit null in the dataset's mapping counts, as it does for Slime.
        if isinstance(entry, Mapping) and key in own:
            continue
        if values[key] is None:
            candidates = [
                defaults.get(key),
                *(getattr(args, a, None) for a in attributes),
                _DEFAULTS.get(key),
            ]
            values[key] = next((value for value in candidates if value is not None), None)
    values["metadata_overrides"] = values["metadata_overrides"] or {}
    _check(values, where)
    # An explicit null can switch off labels and tools, but not these.
    values |= {key: _DEFAULTS[key] for key in _DEFAULTS if values[key] is None and key != "tool_key"}
    return EvalDataset(**values)


def _check(values: Mapping[str, Any], where: str) -> None:
    for key in ("name", "path"):
        if not isinstance(values[key], str) or not values[key].strip():
            raise EvaluationError(f"{where}: {key} must be a text that is not blank, got {values[key]!r}")
    if not isinstance(values["metadata_overrides"], Mapping):
        raise EvaluationError(f"{where}: metadata_overrides must be a mapping")
    for key in ("n_samples_per_eval_prompt", "max_response_len", "eval_task_timeout"):
        value, whole = values[key], key != "eval_task_timeout"
        positive = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**53
        if value is not None and not (positive and (isinstance(value, int) or not whole)):
            kind = "integer" if whole else "number"
            raise EvaluationError(f"{where}: {key} must be a positive {kind}, got {value!r}")


def _suggest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _read_manifest(encoded: str) -> dict[str, tuple[str, str]]:
    """Decode the manifest into path and hash by dataset name."""
    where = "POLAR_EVAL_DATA_INTEGRITY_B64"
    try:
        manifest = json.loads(base64.b64decode(encoded, validate=True))
        if manifest["schema_version"] != 1 or manifest["algorithm"] != "sha256":
            raise EvaluationError(f"{where}: only schema_version 1 with algorithm sha256 is known")
        listed = {entry["name"]: (entry["path"], entry["sha256"].lower()) for entry in manifest["datasets"]}
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvaluationError(
            f"{where} is not base64 of {{schema_version, algorithm, datasets: [{{name, path, sha256}}]}}: "
            f"{error!r}"
        ) from error
    if len(listed) != len(manifest["datasets"]):
        raise EvaluationError(f"{where}: a dataset is listed twice")
    return listed


def _load(dataset: EvalDataset, expected: Mapping[str, tuple[str, str]] | None) -> list[EvalPrompt]:
    match = _SLICED_PATH.match(dataset.path)
    path = match["path"] if match else dataset.path
    where = f"evaluation dataset {dataset.name!r}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise EvaluationError(f"{where}: {path} cannot be read: {error.strerror or error}") from error
    if expected is not None:
        _check_integrity(dataset, path, data, expected)
    start, stop = (match["start"], match["stop"]) if match else ("", "")
    if "-" in start + stop:
        raise EvaluationError(
            f"{where}: a slice counts from the start, negative numbers mean nothing: {dataset.path}"
        )
    rows = list(_rows(path, data, where))[int(start or 0) : int(stop) if stop else None]
    if not rows:
        raise EvaluationError(f"{where}: {dataset.path} has no rows")
    return [
        _prompt(dataset, row, f"{where}, row {number}") for number, row in enumerate(rows, int(start or 0))
    ]


def _check_integrity(
    dataset: EvalDataset, path: str, data: bytes, expected: Mapping[str, tuple[str, str]]
) -> None:
    if dataset.name not in expected:
        raise EvaluationError(f"evaluation dataset {dataset.name!r} is not in POLAR_EVAL_DATA_INTEGRITY_B64")
    listed, digest = expected[dataset.name]
    sliced = _SLICED_PATH.match(listed)
    if (sliced["path"] if sliced else listed) != path:
        raise EvaluationError(f"evaluation dataset {dataset.name!r}: the file is {path}, listed is {listed}")
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise EvaluationError(
            f"evaluation dataset {dataset.name!r}: {path} has SHA-256 {actual}, listed is {digest}"
        )


def _rows(path: str, data: bytes, where: str) -> Iterator[Mapping[str, Any]]:
    if path.endswith(".jsonl"):
        yield from _json_rows(data, where)
    elif path.endswith(".parquet"):
        try:
            table = import_module("pyarrow.parquet").read_table(io.BytesIO(data))
        except ModuleNotFoundError as error:
            raise EvaluationError(
                f"{where}: {path} needs pyarrow; install it, or convert the file to JSONL"
            ) from error
        except Exception as error:  # pyarrow raises its own types for damaged files
            raise EvaluationError(f"{where}: {path} is not a Parquet file: {error}") from error
        yield from table.to_pylist()
    else:
        raise EvaluationError(f"{where}: {path} is neither .jsonl nor .parquet")


def _json_rows(data: bytes, where: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise EvaluationError(f"{where}: line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise EvaluationError(f"{where}: line {number} is no object")
        yield row


def _prompt(dataset: EvalDataset, row: Mapping[str, Any], where: str) -> EvalPrompt:
    for key in filter(None, (dataset.input_key, dataset.label_key)):
        if key not in row:
            raise EvaluationError(f"{where}: there is no column {key!r}; it has {sorted(map(str, row))}")
    metadata = _parsed(row.get(dataset.metadata_key) or {}, f"{where}: {dataset.metadata_key}")
    if not isinstance(metadata, Mapping):
        raise EvaluationError(
            f"{where}: {dataset.metadata_key} must be a mapping, got {type(metadata).__name__}"
        )
    tools = _parsed(row.get(dataset.tool_key) if dataset.tool_key else None, f"{where}: {dataset.tool_key}")
    if tools is not None:
        metadata = {**metadata, "tools": tools}
    label = row[dataset.label_key] if dataset.label_key else None
    return EvalPrompt(row[dataset.input_key], label, dataset.inject_metadata(metadata))


def _parsed(value: Any, where: str) -> Any:
    """Decode a column that holds JSON as text, which Parquet files often do."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise EvaluationError(f"{where} is a text that is not JSON: {error}") from error
