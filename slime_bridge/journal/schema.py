"""The journal's interface: its events and their fields as data, and the log that keeps nothing.

It knows nothing of files or threads. `slime_bridge.journal` writes and reads these records, and
`slime_bridge.journal.audit` proves conservation from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["ENVELOPE", "EVENTS", "SCHEMA_VERSION", "TERMINAL_EVENTS", "EventLog", "EventSpec", "NullJournal"]

SCHEMA_VERSION = 1
"""Version in the field ``v`` of every record; it grows when a reader of older records would be wrong."""

ENVELOPE = ("v", "seq", "ts", "event")
"""Fields of every record: schema version, number within one opening of the file, Unix seconds, event name."""


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One kind of record.

    Parameters
    ----------
    meaning
        What has happened when the record is written.
    fields
        Names of the fields beside the envelope that every such record carries. More may be present.
    """

    meaning: str
    fields: tuple[str, ...]


EVENTS: Mapping[str, EventSpec] = MappingProxyType(
    {
        "journal_opened": EventSpec(
            "a process opened the file; group numbers and `seq` start again", ("versions", "config", "pid")
        ),
        "capabilities": EventSpec(
            "the server was asked what it can do, or a feature that it lacks was asked for: its optional "
            "features (null: it does not say), and what has no effect by key or feature",
            ("features", "inactive"),
        ),
        "rollout_requested": EventSpec("the trainer asked for a rollout", ("rollout_id", "wanted")),
        "group_drawn": EventSpec(
            "a prompt group was taken from the data source",
            ("group", "group_index", "sample_indices", "prompt_sha256", "prompt_preview"),
        ),
        "task_submitted": EventSpec(
            "a task for the group was sent to the rollout server",
            ("group", "task_id", "attempt", "policy_version", "rollout_id"),
        ),
        "task_result": EventSpec(
            "a terminal result of the task arrived",
            ("group", "task_id", "attempt", "via", "seconds", "sessions"),
        ),
        "verdict": EventSpec(
            "the group was judged on its content", ("group", "accepted", "reason", "numbers")
        ),
        "group_delivered": EventSpec(
            "the trainer received the group",
            (
                "group",
                "rollout_id",
                "policy_version",
                "staleness",
                "staleness_in_flight",
                "staleness_in_queue",
            ),
        ),
        "group_rejected": EventSpec(
            "the group was thrown away for its content", ("group", "reason", "numbers")
        ),
        "group_requeued": EventSpec(
            "infrastructure failed; the prompt waits for another attempt", ("group", "reason", "detail")
        ),
        "group_returned": EventSpec("the prompt went back to the data source", ("group",)),
        "group_abandoned": EventSpec("the process stopped with the group unfinished", ("group",)),
        "group_given_up": EventSpec("the prompt used up its attempts", ("group", "attempts", "last_error")),
        "outage": EventSpec("the rollout server cannot be reached", ("since",)),
        "outage_over": EventSpec("the rollout server answers again", ()),
        "rollout_summary": EventSpec("a rollout was handed over", ("rollout_id", "metrics", "ledger")),
        "evaluation_summary": EventSpec("an evaluation ended", ("rollout_id", "metrics")),
        "records_dropped": EventSpec(
            "records were lost at this place: the queue was full or the disk refused them",
            ("count", "events"),
        ),
        "journal_closed": EventSpec("the process closed the file", ()),
    }
)
"""Every event by name. ``group`` is the scheduler's number of a group, unique within one opening."""

TERMINAL_EVENTS = frozenset(
    {"group_delivered", "group_rejected", "group_returned", "group_abandoned", "group_given_up"}
)
"""Exactly one of these ends the life of each drawn group."""


class EventLog:
    """What the bridge writes its history to. This base class keeps nothing."""

    @property
    def path(self) -> Path | None:
        """The file that the records go to, or None when nothing is kept."""
        return None

    @property
    def dropped(self) -> int:
        """Number of records that were lost because the queue was full or the disk refused them."""
        return 0

    def record(self, event: str, /, **fields: Any) -> None:
        """Note one event. Returns at once and never raises.

        Parameters
        ----------
        event
            A name from `slime_bridge.journal.schema.EVENTS`.
        **fields
            The event's fields. They are encoded before the call returns, so the caller may change them
            afterwards.
        """

    def rejected_group(
        self,
        *,
        group: int,
        rollout_id: int | None,
        reason: str,
        numbers: Mapping[str, Any],
        samples: Sequence[Any],
    ) -> None:
        """Keep the samples of a rejected group. Returns at once and never raises.

        Parameters
        ----------
        group, rollout_id, reason, numbers
            As in the ``group_rejected`` record.
        samples
            Sample-like objects (with ``to_dict``) or mappings. They are encoded later, by the writer: the
            caller hands them over and must not change them any more.
        """

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything recorded so far is written.

        Parameters
        ----------
        timeout
            Longest wait in seconds.

        Returns
        -------
        bool
            Whether it was written in time.
        """
        return True

    def close(self, timeout: float = 5.0) -> None:
        """Write what is queued and a ``journal_closed`` record, then let go of the files; harmless to repeat.

        Parameters
        ----------
        timeout
            Longest wait in seconds; a disk that hangs for longer is left to the (daemon) writer thread.
        """


class NullJournal(EventLog):
    """The journal of a run that has none."""
