"""The trainer's own filters: Slime's hooks around a rollout, and the pruning of complete batches.

A rollout function that replaces Slime's own has to call these hooks itself, or the flags do nothing:

- ``--dynamic-sampling-filter-path``: asked once for each accepted group, with all its samples, the
  placeholders of failed sessions (reward 0, ABORTED) among them, as Slime hands over failed samples
  (`slime_bridge.sampling_filters` has a filter that leaves them out). A dropped group is replaced by a fresh
  prompt and counted under Slime's metric name.
- ``--rollout-sample-filter-path``: called with the groups of the complete batch.
- ``--rollout-all-samples-process-path``: called after it, with every group that finished since the previous
  batch, kept or dropped, in the order of their first sample's index, and with the data source.

``polar_drop_all_wrong_groups`` and ``polar_balance_all_correct_groups`` act before the last two: on the
complete batch, without a refill, and never down to nothing. Slime counts trajectories: where its
``global_batch_size`` is that of the full batch, a pruned one is an error there.

All of it runs in the thread of the trainer's call, and only while that lasts: hooks may share state with
each other and with the trainer. A hook that raises ends the call with a `FilterError`; what the call would
have got is there for the next one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from slime_bridge.acceptance import Accepted, Rejected, RejectReason
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import SessionOutcome
from slime_bridge.errors import ConfigError, FilterError
from slime_bridge.metrics.inputs import is_rated, succeeded

__all__ = ["TrainerFilters"]

logger = logging.getLogger(__name__)


class TrainerFilters:
    """The filters of one worker.

    Parameters
    ----------
    config
        Names the hooks.
    args
        Handed to them.

    Raises
    ------
    ConfigError
        If a hook cannot be loaded.
    """

    def __init__(self, config: PolarSlimeConfig, args: Any) -> None:
        self._config = config
        self._args = args
        self._dynamic = _load("dynamic_sampling_filter_path", config.dynamic_sampling_filter_path)
        self._batch = _load("rollout_sample_filter_path", config.rollout_sample_filter_path)
        self._all = _load("rollout_all_samples_process_path", config.rollout_all_samples_process_path)

    @property
    def asked_about_groups(self) -> bool:
        """Whether there is a filter to ask about each accepted group."""
        return self._dynamic is not None

    @property
    def wants_all_samples(self) -> bool:
        """Whether the samples of rejected groups have to be kept for a hook."""
        return self._all is not None

    def judge(self, samples: list[Any], verdict: Accepted | Rejected) -> Accepted | Rejected:
        """Ask the dynamic filter about a group that is good enough otherwise."""
        if self._dynamic is None or isinstance(verdict, Rejected):
            return verdict
        output = _called("dynamic_sampling_filter_path", self._dynamic, self._args, samples)
        if getattr(output, "keep", output):
            return verdict
        reason = getattr(output, "reason", None)
        return Rejected(RejectReason.FILTERED, {**verdict.numbers, "filter_reason": reason})

    def surplus(self, groups: Sequence[Sequence[SessionOutcome]], rollout_id: int) -> dict[int, Rejected]:
        """Tell which groups of a complete batch are pruned.

        Parameters
        ----------
        groups
            The sessions of each group.
        rollout_id
            Seeds the choice among groups that are all correct.

        Returns
        -------
        dict
            Verdict by position in `groups`; at least one position is left out.
        """
        won = [[succeeded(session) for session in sessions if is_rated(session)] for sessions in groups]
        wrong = [number for number, results in enumerate(won) if not any(results)]
        right = [number for number, results in enumerate(won) if results and all(results)]
        dropped: dict[int, RejectReason] = {}
        if self._config.drop_all_wrong_groups and len(wrong) < len(groups):
            dropped |= dict.fromkeys(wrong, RejectReason.ALL_WRONG)
        if self._config.balance_all_correct_groups:
            mixed = len(groups) - len(wrong) - len(right)
            others = len(groups) - len(right) - len(dropped)
            keep = max(mixed, 0 if others else 1)
            if len(right) > keep:
                kept = random.Random(rollout_id).sample(right, keep)
                dropped |= dict.fromkeys(set(right) - set(kept), RejectReason.ALL_CORRECT)
        return {
            number: Rejected(reason, {"rated": len(won[number]), "succeeded": sum(won[number])})
            for number, reason in sorted(dropped.items())
        }

    def finish(self, groups: list[list[Any]], rejected: Sequence[list[Any]], data_source: Any) -> None:
        """Call the hooks for a complete batch.

        Parameters
        ----------
        groups
            The samples of the batch, one list per group; the hooks may change the samples.
        rejected
            The samples of the groups that were rejected since the previous batch.
        data_source
            The trainer's.
        """
        if self._batch is not None:
            _called("rollout_sample_filter_path", self._batch, self._args, groups)
        if self._all is not None:
            finished = sorted([*groups, *(group for group in rejected if group)], key=lambda g: g[0].index)
            _called("rollout_all_samples_process_path", self._all, self._args, finished, data_source)


def _load(key: str, path: str | None) -> Callable[..., Any] | None:
    """Load a hook as Slime does: everything before the last dot is the module."""
    if path is None:
        return None
    module, _, name = path.rpartition(".")
    try:
        hook = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise anything
        plain = isinstance(error, ImportError | AttributeError | ValueError)
        kind = "" if plain else f"{type(error).__name__}: "
        raise ConfigError(f"{key} is {path!r}, which cannot be loaded: {kind}{error}") from error
    if not callable(hook):
        raise ConfigError(f"{key} is {path!r}, which is no function but a {type(hook).__name__}")
    return hook  # type: ignore[no-any-return]


def _called(key: str, hook: Callable[..., Any], *values: Any) -> Any:
    try:
        return hook(*values)
    except (Exception, SystemExit) as error:  # a hook raises what it likes; the trainer gets its name too
        raise FilterError(f"{key} raised {type(error).__name__}: {error}") from error
