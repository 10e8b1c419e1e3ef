"""The trainer's data source as the worker uses it: checked draws, safe returns, reports of how prompts ended.

All of it runs in the thread of the trainer's call. Beside Slime's ``get_samples`` and ``add_samples`` a
source may have ``track_deliveries``, ``mark_delivered`` and ``mark_given_up`` (`slime_bridge.data_source`
has): with them its checkpoints hold every prompt that was not trained on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from slime_bridge.errors import DataSourceError
from slime_bridge.group_task import PromptGroup

__all__ = ["PromptSource"]

logger = logging.getLogger(__name__)


class PromptSource:
    """A data source.

    Parameters
    ----------
    source
        Slime's data source, or anything with ``get_samples(number) -> list of groups``.
    check
        Raises if a group cannot be made into a task request.
    """

    def __init__(self, source: Any, check: Callable[[PromptGroup], None]) -> None:
        self._source = source
        self._check = check
        self._tracked = False

    def draw(self, number: int, take: Callable[[Sequence[PromptGroup], Callable[[], None]], None]) -> int:
        """Draw prompt groups and hand them over; whatever goes wrong in between, they go back.

        Parameters
        ----------
        number
            Groups to ask for.
        take
            Takes the groups over, and calls its second argument as soon as it has.

        Returns
        -------
        int
            How many groups there were, 0 if the source has none.

        Raises
        ------
        DataSourceError
            If the source returns something other than a list of non-empty groups of samples with an index.
        TemplateError, ConfigError
            If a prompt is blank or does not fit the task template.
        """
        if not self._tracked:
            self._tracked = True
            self._report("track_deliveries")
        drawn = self._source.get_samples(number)
        taken: list[bool] = []
        try:
            groups = _checked(drawn)
            for group in groups:
                self._check(group)
            if groups:
                take(groups, lambda: taken.append(True))
        except BaseException:
            # Also an interrupt: what was drawn and not taken over exists nowhere else.
            if not taken and isinstance(drawn, list | tuple):
                self.give_back([list(group) for group in drawn if isinstance(group, list | tuple) and group])
            raise
        return len(groups)

    def give_back(self, groups: Sequence[PromptGroup]) -> list[bool]:
        """Return groups to the source as they were drawn, in order; tell for each whether it was taken."""
        taken = []
        for group in groups:
            try:
                self._source.add_samples([group])
            except Exception as error:  # a source may be read-only or picky; the other prompts still go back
                logger.warning(
                    "The data source does not take the prompt of group_index %s back (%s: %s)",
                    getattr(group[0], "group_index", None),
                    type(error).__name__,
                    error,
                )
                taken.append(False)
            else:
                taken.append(True)
        return taken

    def delivered(self, group_indices: Sequence[int], rollout_id: int) -> None:
        """Report groups that the trainer gets."""
        self._report("mark_delivered", group_indices, rollout_id)

    def given_up(self, group_indices: Sequence[int]) -> None:
        """Report groups that ended without training."""
        if group_indices:
            self._report("mark_given_up", group_indices)

    def _report(self, name: str, *values: Any) -> None:
        report = getattr(self._source, name, None)
        if callable(report):
            report(*values)


def _checked(drawn: Any) -> list[PromptGroup]:
    """Return drawn groups as lists, or say what is wrong with them."""
    if not isinstance(drawn, list | tuple):
        raise DataSourceError(
            f"get_samples returned {type(drawn).__name__}: expected a list of groups, each a list of samples"
        )
    for position, group in enumerate(drawn):
        if not isinstance(group, list | tuple) or not group:
            found = "an empty group" if isinstance(group, list | tuple) else type(group).__name__
            raise DataSourceError(
                f"get_samples returned {found} at position {position}: expected a list of samples, one per "
                "session"
            )
        if any(getattr(sample, "index", None) is None for sample in group):
            raise DataSourceError(
                f"get_samples returned a sample without index at position {position}: trajectories are told "
                "apart by it"
            )
    return [list(group) for group in drawn]
