"""Slime's default data source with whole epochs and checkpoints that lose no prompt.

`CeilEpochRolloutDataSourceWithBuffer` extends Slime's ``RolloutDataSourceWithBuffer`` where Slime is
installed and a stand-in otherwise; the class is made when it is first asked for, so importing this module
imports no Slime. It does not know what becomes of a group: whoever draws reports that.

When Slime calls ``save``: `train.py` after the training step of ``rollout_id``, before the next ``generate``.
`train_async.py` issues ``generate(rollout_id + 1)`` before it trains on ``rollout_id``, and the manager runs
its calls in order, so ``save(rollout_id)`` runs after that next rollout was handed over, but its groups have
not been trained on. Slime's own source saves its position only: a resume skips the next rollout's prompts,
whatever waits in the buffer, and whatever a worker has in flight. This one also saves the prompts themselves:

- drawn and neither delivered nor settled: in flight, waiting for another attempt, accepted and buffered;
- delivered to a rollout later than the one saved;
- handed back through ``add_samples``.

``load`` brings them back before anything else is drawn, in the order they were first drawn, each once, with
their old numbers. What a run trained on after the checkpoint is trained on again, as the model's weights were
set back too.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime_bridge import _data_state, _slime
from slime_bridge.errors import DataSourceError

__all__ = ["CeilEpochRolloutDataSourceWithBuffer", "ceil_to_batch_size"]

logger = logging.getLogger(__name__)

_CLASS_NAME = "CeilEpochRolloutDataSourceWithBuffer"
_STATE_KEY = "slime_bridge"
_STATE_VERSION = 1
_POSITION = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")
# A save comes at most one rollout after the delivery it must not forget; the rest is margin.
_KEPT_ROLLOUTS = 4


def ceil_to_batch_size(size: int, batch_size: int) -> int:
    """Round a number of prompts up to whole batches.

    Parameters
    ----------
    size
        Prompts, at least 0.
    batch_size
        Prompts per rollout, at least 1.
    """
    if batch_size < 1:
        raise DataSourceError(f"rollout_batch_size must be at least 1, got {batch_size}")
    return -(-size // batch_size) * batch_size


@dataclass(slots=True)
class _Drawn:
    """A group that was drawn: its place in the order of first draws, its record, where it was delivered."""

    order: int
    record: dict[str, Any]
    rollout_id: int | None = None


if TYPE_CHECKING:
    from slime_bridge._stand_in_data import RolloutDataSourceWithBuffer as _Base
else:
    _Base = object


class _CeilEpoch(_Base):
    """What `CeilEpochRolloutDataSourceWithBuffer` adds to its base."""

    _state_suffix = ".json"

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self._tracking = False
        self._drawn: dict[int, _Drawn] = {}
        self._next_order = 0
        self._restored: deque[tuple[list[Any], dict[str, Any]]] = deque()
        self._rows: dict[int, int] | None = None

    def __len__(self) -> int:
        """Return the number of prompts, rounded up to whole batches."""
        return ceil_to_batch_size(super().__len__(), getattr(self.args, "rollout_batch_size", 1))

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Draw prompt groups: restored ones first, then the buffer, then the dataset, round after round.

        Parameters
        ----------
        num_samples
            Groups wanted.

        Returns
        -------
        list of list of Sample
            As many groups, fewer only if there is no dataset row to draw.
        """
        groups: list[list[Any]] = []
        while self._restored and len(groups) < num_samples:
            group, record = self._restored.popleft()
            self._note_draw(group, record)
            groups.append(group)
        while len(groups) < num_samples:
            drawn = self._draw(num_samples - len(groups))
            if not drawn:
                break
            groups += drawn
        return groups

    def _draw(self, wanted: int) -> list[list[Any]]:
        """Draw from the buffer and the dataset; at most one round of the dataset at a time.

        Slime's source wraps once per call: a larger request would come back short.
        """
        size = super().__len__()
        first_new, offset = self.sample_group_index, self.sample_offset
        before = self._dataset_order()
        groups: list[list[Any]] = super().get_samples(min(wanted, size) if size else wanted)
        fresh = [g for g in groups if g and g[0].group_index is not None and g[0].group_index >= first_new]
        tail = before[offset : offset + len(fresh)]
        prompts = [*tail, *self._dataset_order()[: len(fresh) - len(tail)]]
        rows = {id(group): self._row_of(prompt) for group, prompt in zip(fresh, prompts, strict=False)}
        for group in groups:
            self._note_draw(group, None, row=rows.get(id(group)))
        return groups

    def _dataset_order(self) -> list[Any]:
        samples: list[Any] = getattr(self.dataset, "samples", None) or []
        return samples

    def _row_of(self, prompt: Any) -> int | None:
        if self._rows is None:
            rows = getattr(self.dataset, "origin_samples", None) or []
            self._rows = {id(row): position for position, row in enumerate(rows)}
        return self._rows.get(id(prompt))

    def _note_draw(self, group: list[Any], record: dict[str, Any] | None, row: int | None = None) -> None:
        if not self._tracking or not group or (key := group[0].group_index) is None:
            return
        known = self._drawn.get(key)
        if known is not None:
            known.rollout_id = None
            return
        kept = record if record is not None else self._encode(group, row)
        if kept is not None:
            self._drawn[key] = _Drawn(self._take_order(), kept)

    def _take_order(self) -> int:
        self._next_order += 1
        return self._next_order

    def _encode(self, group: list[Any], row: int | None = None) -> dict[str, Any] | None:
        try:
            return _data_state.encode_group(group, row=row)
        except DataSourceError as error:
            logger.warning("A checkpoint cannot bring this prompt back: %s", error)
            return None

    def track_deliveries(self) -> None:
        """Remember each group drawn from now on until `mark_delivered` or `mark_given_up` reports its end.

        For a rollout function that reports. Without this call the source behaves as Slime's: what was drawn
        counts as trained on.
        """
        self._tracking = True

    def mark_delivered(self, group_indices: Iterable[int], rollout_id: int) -> None:
        """Report groups that were handed to the trainer.

        Parameters
        ----------
        group_indices
            The groups' ``group_index``; unknown ones are ignored.
        rollout_id
            The rollout they are part of; a checkpoint of an earlier one still holds them.
        """
        self._tracking = True
        for key in group_indices:
            if key in self._drawn:
                self._drawn[key].rollout_id = rollout_id
        settled = [
            key
            for key, drawn in self._drawn.items()
            if drawn.rollout_id is not None and drawn.rollout_id <= rollout_id - _KEPT_ROLLOUTS
        ]
        for key in settled:
            del self._drawn[key]

    def mark_given_up(self, group_indices: Iterable[int]) -> None:
        """Report groups that ended without training: rejected for their content, or out of attempts.

        Parameters
        ----------
        group_indices
            The groups' ``group_index``; unknown ones are ignored. No checkpoint brings them back.
        """
        self._tracking = True
        for key in group_indices:
            self._drawn.pop(key, None)

    def get_buffer_length(self) -> int:
        """Return how many groups wait to be drawn again, restored ones included."""
        return len(self.buffer) + len(self._restored)

    def unsettled_groups(self, rollout_id: int | None = None) -> list[int]:
        """List the groups that a checkpoint of `rollout_id` (None: of the latest rollout) would bring back.

        Returns
        -------
        list of int
            Their ``group_index``, in the order of first draws.
        """
        records = self._records(rollout_id)
        return [record["group_index"] for record in records if record["group_index"] is not None]

    def _records(self, rollout_id: int | None) -> list[dict[str, Any]]:
        """Collect what a checkpoint has to bring back, in the order of first draws."""
        found: dict[int, tuple[int, dict[str, Any]]] = {}
        for key, drawn in self._drawn.items():
            later = drawn.rollout_id is not None and rollout_id is not None and drawn.rollout_id > rollout_id
            if drawn.rollout_id is None or later:
                found[key] = (drawn.order, drawn.record)
        waiting = [(group, record) for group, record in self._restored]
        # What waits in the buffer is drawn as it is now, so its present content counts.
        waiting += [(group, record) for group in self.buffer if (record := self._encode(group)) is not None]
        rest = []
        for position, (group, record) in enumerate(waiting):
            key = group[0].group_index
            if key is None:
                rest.append(record)
            else:
                order = found[key][0] if key in found else self._next_order + 1 + position
                found[key] = (order, record)
        ordered = sorted(found.values(), key=lambda entry: entry[0])
        return [record for _, record in ordered] + rest

    def save(self, rollout_id: int) -> None:
        """Write position and unfinished prompts below ``args.save``, atomically.

        The file has Slime's name and keys, and one more; Slime's own source can load it. See the module for
        when this is called.
        """
        folder = getattr(self.args, "save", None)
        if folder is None or not getattr(self.args, "rollout_global_dataset", True):
            return
        state = {name: getattr(self, name) for name in _POSITION}
        state[_STATE_KEY] = {
            "version": _STATE_VERSION,
            "rollout_id": rollout_id,
            "groups": self._records(rollout_id),
        }
        path = _data_state.state_path(folder, rollout_id, suffix=self._state_suffix)
        _data_state.write_state(path, state)
        logger.info("%s: %d unfinished prompt groups saved", path, len(state[_STATE_KEY]["groups"]))

    def load(self, rollout_id: int | None = None) -> None:
        """Go back to the state saved for `rollout_id` below ``args.load``.

        A trainer writes the model first: one that was killed in between finds no state for its model. Then
        the latest earlier state is taken, with a warning: prompts trained on since come again, none is lost.
        Without any state nothing happens.

        Raises
        ------
        DataSourceError
            The file is damaged, or does not fit the prompt data.
        """
        folder = getattr(self.args, "load", None)
        if folder is None or not getattr(self.args, "rollout_global_dataset", True):
            return
        path = _data_state.find_state(folder, rollout_id)
        if path is None and rollout_id is not None:
            path = _data_state.latest_state_before(folder, rollout_id)
            if path is not None:
                logger.warning(
                    "%s: no data source state for rollout %d; going on from %s, so what was trained on since "
                    "then is trained on again",
                    folder,
                    rollout_id,
                    path.name,
                )
        if path is None:
            logger.info("%s: no data source state for rollout %s", folder, rollout_id)
            return
        state = _data_state.read_state(path)
        extra = state.get(_STATE_KEY) or {}
        if extra.get("version", _STATE_VERSION) != _STATE_VERSION:
            raise DataSourceError(f"{path}: state version {extra['version']} is not {_STATE_VERSION}")
        for name in _POSITION:
            setattr(self, name, state.get(name, {} if name == "metadata" else 0))
        if self.dataset is not None and getattr(self.args, "rollout_shuffle", False):
            self.dataset.shuffle(self.epoch_id)
        self._drawn.clear()
        self.buffer.clear()
        rows = getattr(self.dataset, "origin_samples", None)
        sample_class = _slime.sample_class()
        records = extra.get("groups", [])
        groups = [_data_state.decode_group(r, sample_class=sample_class, rows=rows) for r in records]
        self._restored = deque(
            (self._resized(group), record) for group, record in zip(groups, records, strict=True)
        )
        logger.info("%s: %d unfinished prompt groups restored", path, len(self._restored))

    def _resized(self, group: list[Any]) -> list[Any]:
        """Fit a restored group to this run's `n_samples_per_prompt`; further samples get fresh numbers."""
        wanted = getattr(self.args, "n_samples_per_prompt", 1)
        while len(group) < wanted:
            sample = copy.deepcopy(group[0])
            sample.index = self.sample_index
            self.sample_index += 1
            group.append(sample)
        return group[:wanted]


_classes: dict[Any, Any] = {}


def _class_over(base: Any) -> Any:
    """Return the data source class over this base, always the same one."""
    if base not in _classes:
        doc = """Slime's default data source with epochs rounded up to whole batches and lossless checkpoints.

    Parameters
    ----------
    args
        Slime's arguments. Beside those that Slime's source reads: `rollout_batch_size`, to round `len` up, so
        that ``num_epoch`` epochs include the tail of the data. 30 prompts in batches of 16 make 2 rollouts,
        in which each prompt is seen once and the first two of the next epoch's order a second time.

    Notes
    -----
    The rollout function calls `track_deliveries` once, then `mark_delivered` and `mark_given_up`; see the
    module `slime_bridge.data_source` for what checkpoints then hold.
    """
        # Slime's own source writes with torch, which is loaded then; the stand-in writes JSON.
        suffix = ".pt" if base.__module__.startswith("slime.") else ".json"
        members = {"__module__": __name__, "__doc__": doc, "_state_suffix": suffix}
        _classes[base] = type(_CLASS_NAME, (_CeilEpoch, base), members)
    return _classes[base]


if TYPE_CHECKING:

    class CeilEpochRolloutDataSourceWithBuffer(_CeilEpoch):
        """Slime's default data source with whole epochs and lossless checkpoints."""


def __getattr__(name: str) -> Any:
    """Make the data source class over the Slime that is installed when it is first asked for."""
    if name == _CLASS_NAME:
        return _class_over(_slime.data_source_base())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
