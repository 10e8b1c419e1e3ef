"""A stand-in for Slime's default data source, for machines without Slime.

It hands out prompts in groups with running numbers, keeps a buffer of returned groups and saves its position,
as Slime's does. It knows neither tokenizers nor chat templates: prompts are what the rows hold, and only
JSONL files or lists of rows are read.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from slime_bridge._stand_in import Sample
from slime_bridge.errors import DataSourceError

__all__ = ["PromptRows", "RolloutDataSourceWithBuffer"]

logger = logging.getLogger(__name__)

_SLICED_PATH = re.compile(r"^(?P<path>.*)@\[(?P<start>\d*):(?P<end>\d*)\]$")


def _read_rows(source: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of ``file.jsonl`` or ``file.jsonl@[start:end]``; a line that is no row is an error."""
    match = _SLICED_PATH.match(source)
    path, start, end = (match["path"], match["start"], match["end"]) if match else (source, "", "")
    if not path.endswith(".jsonl"):
        raise DataSourceError(f"prompt_data {path!r}: only .jsonl can be read without Slime")
    wanted = range(int(start or 0), int(end) if end else 1 << 62)
    row_number = 0
    with open(path, encoding="utf-8") as lines:
        for line_number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if row_number >= wanted.stop:
                return
            if row_number in wanted:
                yield _row(path, line_number, line)
            row_number += 1


def _row(path: str, line_number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as exc:
        raise DataSourceError(f"{path}:{line_number}: not JSON: {exc.msg}") from exc
    if not isinstance(row, dict):
        raise DataSourceError(f"{path}:{line_number}: a row must be an object, got {type(row).__name__}")
    return row


class PromptRows:
    """The prompts of a data source, as samples, shuffled per epoch like Slime's dataset.

    Parameters
    ----------
    rows
        Mappings with the columns named below.
    prompt_key, label_key, metadata_key, tool_key
        Column names. The prompt column must be there; so must the label column, if one is named. Tools end up
        in ``metadata["tools"]``.
    seed
        Base of the shuffle: epoch e uses ``seed + e``.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        prompt_key: str = "input",
        label_key: str | None = None,
        metadata_key: str = "metadata",
        tool_key: str | None = "tools",
        seed: int = 42,
    ) -> None:
        self.origin_samples = [
            _prompt_sample(i, row, prompt_key, label_key, metadata_key, tool_key)
            for i, row in enumerate(rows)
        ]
        self.samples = self.origin_samples
        self.seed = seed
        self.epoch_id = -1

    def shuffle(self, epoch_id: int) -> None:
        """Put the samples into the order of this epoch."""
        if epoch_id == self.epoch_id:
            return
        order = list(range(len(self.origin_samples)))
        random.Random(self.seed + epoch_id).shuffle(order)
        self.samples = [self.origin_samples[i] for i in order]
        self.epoch_id = epoch_id

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> Sample:
        return self.samples[position]


def _prompt_sample(
    position: int,
    row: Mapping[str, Any],
    prompt_key: str,
    label_key: str | None,
    metadata_key: str,
    tool_key: str | None,
) -> Sample:
    for key in filter(None, (prompt_key, label_key)):
        if key not in row:
            raise DataSourceError(f"prompt row {position}: no column {key!r}; it has {sorted(row)}")
    metadata = dict(row.get(metadata_key) or {})
    tools = row.get(tool_key) if tool_key else None
    if tools is not None:
        metadata["tools"] = json.loads(tools) if isinstance(tools, str) else tools
    return Sample(prompt=row[prompt_key], label=row[label_key] if label_key else None, metadata=metadata)


def _pop_first(
    args: Any, rollout_id: int | None, buffer: list[list[Any]], num_samples: int
) -> list[list[Any]]:
    taken = buffer[:num_samples]
    del buffer[: len(taken)]
    return taken


class RolloutDataSourceWithBuffer:
    """Groups of prompt samples with running numbers and a buffer, like Slime's default data source.

    Parameters
    ----------
    args
        Trainer namespace. `prompt_data` is a path to JSONL (with an optional ``@[start:end]``) or a list of
        rows. Read with defaults: `n_samples_per_prompt` (1), `rollout_global_dataset` (True),
        `rollout_shuffle` (False), `rollout_seed` (42), `input_key`, `label_key`, `metadata_key`, `tool_key`,
        `buffer_filter_path`, `save`, `load`.

    Notes ----- Two differences from Slime's: a request may run over the end of the prompts more than once
    without losing any, and the saved state is JSON, in a file of the same name with the suffix ``.json``.
    """

    _STATE = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")

    def __init__(self, args: Any) -> None:
        self.args = args
        self.epoch_id = 0
        self.sample_group_index = 0
        self.sample_index = 0
        self.sample_offset = 0
        self.metadata: dict[str, Any] = {}
        self.buffer: list[list[Any]] = []
        self.dataset = self._load_dataset()
        path = getattr(args, "buffer_filter_path", None)
        self.buffer_filter: Callable[..., list[list[Any]]] = _pop_first
        if path is not None:
            module, _, name = path.rpartition(".")
            self.buffer_filter = getattr(import_module(module), name)

    def _load_dataset(self) -> PromptRows | None:
        args = self.args
        prompts = getattr(args, "prompt_data", None)
        if prompts is None or not getattr(args, "rollout_global_dataset", True):
            return None
        rows = PromptRows(
            _read_rows(prompts) if isinstance(prompts, str) else prompts,
            prompt_key=getattr(args, "input_key", "input"),
            label_key=getattr(args, "label_key", None),
            metadata_key=getattr(args, "metadata_key", "metadata"),
            tool_key=getattr(args, "tool_key", "tools"),
            seed=getattr(args, "rollout_seed", 42),
        )
        if getattr(args, "rollout_shuffle", False):
            rows.shuffle(self.epoch_id)
        return rows

    def _next_prompt(self) -> Sample | None:
        if self.dataset is None:
            return Sample()
        if len(self.dataset) == 0:
            return None
        if self.sample_offset >= len(self.dataset):
            self.epoch_id += 1
            self.sample_offset = 0
            if getattr(self.args, "rollout_shuffle", False):
                self.dataset.shuffle(self.epoch_id)
        prompt = self.dataset[self.sample_offset]
        self.sample_offset += 1
        return prompt

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Return up to `num_samples` groups of `n_samples_per_prompt` samples, buffered ones first."""
        groups = (
            self.buffer_filter(self.args, None, self.buffer, num_samples)
            if self.buffer and num_samples
            else []
        )
        while len(groups) < num_samples:
            prompt = self._next_prompt()
            if prompt is None:
                break
            group = []
            for _ in range(getattr(self.args, "n_samples_per_prompt", 1)):
                sample = copy.deepcopy(prompt)
                sample.group_index, sample.index = self.sample_group_index, self.sample_index
                self.sample_index += 1
                group.append(sample)
            self.sample_group_index += 1
            groups.append(group)
        return groups

    def add_samples(self, samples: list[list[Any]]) -> None:
        """Put groups into the buffer; all of them or, if one has the wrong size, none.

        Raises
        ------
        DataSourceError
            If something is not a list of groups of `n_samples_per_prompt` samples.
        """
        wanted = getattr(self.args, "n_samples_per_prompt", 1)
        for group in samples:
            if not isinstance(group, list) or len(group) != wanted:
                got = len(group) if isinstance(group, list) else type(group).__name__
                raise DataSourceError(f"add_samples takes groups of {wanted} samples in lists, got {got}")
        self.buffer.extend(samples)

    def _state_path(self, folder: str, rollout_id: int | None) -> Path:
        return Path(folder) / "rollout" / f"global_dataset_state_dict_{rollout_id}.json"

    def save(self, rollout_id: int) -> None:
        """Write the position in the prompts below `args.save`, atomically; the buffer is not part of it."""
        folder = getattr(self.args, "save", None)
        if folder is None or not getattr(self.args, "rollout_global_dataset", True):
            return
        path = self._state_path(folder, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".json.part")
        partial.write_text(json.dumps({name: getattr(self, name) for name in self._STATE}), encoding="utf-8")
        os.replace(partial, path)

    def load(self, rollout_id: int | None = None) -> None:
        """Go back to the position saved for `rollout_id` below `args.load`; without that file do nothing."""
        folder = getattr(self.args, "load", None)
        if folder is None or not getattr(self.args, "rollout_global_dataset", True):
            return
        path = self._state_path(folder, rollout_id)
        if not path.exists():
            logger.info("No data source state at %s", path)
            return
        state = json.loads(path.read_text(encoding="utf-8"))
        for name in self._STATE:
            setattr(self, name, state.get(name, getattr(self, name)))
        if self.dataset is not None and getattr(self.args, "rollout_shuffle", False):
            self.dataset.shuffle(self.epoch_id)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge into the metadata that travels with the saved state."""
        self.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata that travels with the saved state."""
        return self.metadata

    def get_buffer_length(self) -> int:
        """Return how many groups wait in the buffer."""
        return len(self.buffer)

    def __len__(self) -> int:
        return 0 if self.dataset is None else len(self.dataset)
