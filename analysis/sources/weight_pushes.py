"""Reads the barrier's list of weight pushes: one event each, at the moment before the push."""

from __future__ import annotations

from analysis.sources.base import ReadOptions, Sink, SourceFile
from analysis.sources.records import objects_of
from analysis.sources.values import json_text, moment

__all__ = ["collect"]


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the pushes of one file to the sink; see `analysis.sources.registry.Reader`."""
    for line, record in objects_of(file, sink, options):
        at = moment(record.get("ts"))
        if at is None or not isinstance(record.get("guarded"), bool):
            sink.tally("a line is no weight push", f"line {line.number:,}")
            continue
        sink.add(
            "event",
            {
                "evaluation": False,
                "at": at,
                "kind": "weight_push",
                "event": "weight_push",
                "data": json_text({name: record[name] for name in record if name != "ts"}, options.max_text),
            },
        )
