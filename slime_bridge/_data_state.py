"""Prompt groups as plain records, and the data source's state file.

A record is made of nothing but null, booleans, numbers, strings, lists and mappings with string keys, so that
the state file needs no unpickling and PyTorch's weights-only loader reads it. A prompt that holds anything
else (an image, a date) is recorded as its row in the dataset. It does not know which groups are to be saved.
"""

from __future__ import annotations

import copy
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from slime_bridge.errors import DataSourceError

__all__ = [
    "decode_group",
    "encode_group",
    "find_state",
    "latest_state_before",
    "read_state",
    "state_path",
    "write_state",
]

_MAX_DEPTH = 100


class _NotPlain(Exception):
    """A value that a record cannot hold."""


def _plain(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a copy of a value that consists of plain containers and scalars only."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if depth and kind in (list, tuple):
        return [_plain(item, depth - 1) for item in value]
    if depth and kind is dict and all(type(key) is str for key in value):
        return {key: _plain(item, depth - 1) for key, item in value.items()}
    raise _NotPlain(kind.__name__)


def encode_group(samples: Sequence[Any], *, row: int | None) -> dict[str, Any]:
    """Record a prompt group.

    Parameters
    ----------
    samples
        The group, at least one sample with ``to_dict``.
    row
        The prompt's row in the dataset, if it was drawn from there and is untouched since; None otherwise.

    Returns
    -------
    dict
        ``group_index``, ``indices`` (one per sample), ``row``, and ``samples``: one dict if the samples
        differ in their index only, else one per sample; None if the content is not plain and the row has to
        do.

    Raises
    ------
    DataSourceError
        The content is not plain, and there is no row.
    """
    first = samples[0]
    record: dict[str, Any] = {
        "group_index": first.group_index,
        "indices": [sample.index for sample in samples],
        "row": row,
        "samples": None,
    }
    try:
        kept = samples[:1] if row is not None else samples
        contents = [_plain({**sample.to_dict(), "index": None}) for sample in kept]
    except _NotPlain as error:
        if row is None:
            raise DataSourceError(
                f"group {first.group_index}: a prompt holds a {error}, which the state file cannot keep"
            ) from error
        return record
    same = all(content == contents[0] for content in contents)
    return record | {"samples": contents[:1] if same else contents}


def decode_group(record: Mapping[str, Any], *, sample_class: Any, rows: Sequence[Any] | None) -> list[Any]:
    """Make the samples of a record.

    Parameters
    ----------
    record
        What `encode_group` returned.
    sample_class
        Slime's `Sample`, or its stand-in.
    rows
        The dataset's prompts in file order, None without a dataset.

    Returns
    -------
    list
        One sample per recorded index.

    Raises
    ------
    DataSourceError
        The record is damaged, or names a row that the dataset does not have.
    """
    try:
        indices, contents = record["indices"], record["samples"]
        if contents is None:
            templates = [rows[record["row"]]] if rows is not None else []
            samples = [copy.deepcopy(template) for template in templates for _ in indices]
        else:
            contents = contents * len(indices) if len(contents) == 1 else contents
            samples = [sample_class.from_dict(_plain(dict(content))) for content in contents]
        for sample, index in zip(samples, indices, strict=True):
            sample.group_index, sample.index = record["group_index"], index
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, _NotPlain) as error:
        raise DataSourceError(
            f"a saved prompt group cannot be restored ({type(error).__name__}: {error}); "
            "the state file is damaged, or the prompt data is not the one it was saved with"
        ) from error
    return samples


def state_path(folder: str | os.PathLike[str], rollout_id: int | None, *, suffix: str) -> Path:
    """Return the path of the state of a rollout; Slime's own name, with ``.pt`` or ``.json``."""
    return Path(folder) / "rollout" / f"global_dataset_state_dict_{rollout_id}{suffix}"


def find_state(folder: str | os.PathLike[str], rollout_id: int | None) -> Path | None:
    """Return the state file of a rollout, whichever form it has, None where there is none."""
    paths = (state_path(folder, rollout_id, suffix=suffix) for suffix in (".pt", ".json"))
    return next((path for path in paths if path.exists()), None)


def latest_state_before(folder: str | os.PathLike[str], rollout_id: int) -> Path | None:
    """Return the state file of the latest rollout before this one, None where there is none."""
    pattern = "global_dataset_state_dict_*"
    found = {
        int(path.stem.rpartition("_")[2])
        for path in Path(folder, "rollout").glob(pattern)
        if path.suffix in (".pt", ".json") and path.stem.rpartition("_")[2].isdecimal()
    }
    earlier = [number for number in found if number < rollout_id]
    return find_state(folder, max(earlier)) if earlier else None


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state file: complete and on disk, or not at all.

    Parameters
    ----------
    path
        With suffix ``.pt`` (a ``torch.save`` of plain containers) or ``.json``.
    state
        What to keep. Values under ``metadata`` that are not plain make it unreadable without unpickling.

    Raises
    ------
    DataSourceError
        The metadata is not plain.
    OSError
        The file cannot be written; an older one of that name is untouched.
    """
    try:
        plain = _plain(dict(state))
    except _NotPlain as error:
        raise DataSourceError(
            f"{path}: the data source's metadata holds a {error}; keep plain values in it"
        ) from error
    content = io.BytesIO()
    if path.suffix == ".pt":
        import_module("torch").save(plain, content)
    else:
        content.write(json.dumps(plain).encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:  # also an interrupt must leave no half-written file
        os.unlink(partial)
        raise


def read_state(path: Path) -> dict[str, Any]:
    """Read a state file of ours or of Slime, without unpickling anything but plain containers.

    Parameters
    ----------
    path
        An existing file.

    Raises
    ------
    DataSourceError
        The file is damaged, holds something else, or needs PyTorch where there is none.
    """
    try:
        if path.suffix == ".pt":
            state = import_module("torch").load(path, map_location="cpu", weights_only=True)
        else:
            state = json.loads(path.read_bytes())
    except Exception as error:  # torch has many types for damaged files; none may pass for a fresh start
        raise DataSourceError(f"{path}: the data source's state cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise DataSourceError(
            f"{path}: the data source's state must be a mapping, not {type(state).__name__}"
        )
    return state
