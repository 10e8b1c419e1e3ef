"""Append-only event log of a run, written by its own thread so that it can neither stop nor slow training."""

from slime_bridge.journal.writer import (
    EventLog,
    Journal,
    JournalAuditor,
    JournalProblem,
    NullJournal,
    Violation,
    audit,
    open_journal,
    prompt_fields,
    read_journal,
)

__all__ = [
    "EventLog",
    "Journal",
    "JournalAuditor",
    "JournalProblem",
    "NullJournal",
    "Violation",
    "audit",
    "open_journal",
    "prompt_fields",
    "read_journal",
]
