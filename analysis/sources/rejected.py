"""Reads the bridge's file of rejected groups: one group per line, with the samples it would have given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.sources.base import ReadOptions, Sink, SourceFile
from analysis.sources.group_cells import number_cells
from analysis.sources.records import objects_of
from analysis.sources.sample_rows import SampleBatch, add_samples
from analysis.sources.values import integer, json_text, mapping, moment, text
from slime_bridge.journal.schema import SCHEMA_VERSION

__all__ = ["collect"]


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the groups of one file to the sink; see `analysis.sources.registry.Reader`."""
    for line, record in objects_of(file, sink, options):
        version = integer(record.get("v"))
        samples = record.get("samples")
        if version is None or not isinstance(samples, list):
            sink.tally("a line is no rejected group", f"line {line.number:,}")
        elif version > SCHEMA_VERSION:
            sink.tally(
                "written by a newer version",
                f"line {line.number:,}: schema {version}, known up to {SCHEMA_VERSION}",
                "update this package",
            )
        else:
            add_samples(sink, options, samples, _batch(record, line.offset, options.max_text))


def _batch(record: Mapping[str, Any], offset: int, limit: int) -> SampleBatch:
    numbers = mapping(record.get("numbers"))
    return SampleBatch(
        source="rejected",
        rollout_id=integer(record.get("rollout_id")),
        evaluation=False,
        accepted=False,
        group=integer(record.get("group")),
        result=offset,
        cells={
            "state": "rejected",
            "reject_reason": text(record.get("reason")),
            "verdict_numbers": json_text(numbers, limit),
            "ended_at": moment(record.get("ts")),
            "samples_kept": True,
            **number_cells(numbers),
        },
    )
