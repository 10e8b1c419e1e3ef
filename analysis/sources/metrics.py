"""Reads ``metrics.jsonl``: one JSON object per rollout and per evaluation, its numbers by name.

Understands the lab's file and anything alike: the rollout is ``rollout_id``, else one of Slime's step names,
else ``step``; an evaluation says so in ``kind``, or has nothing but ``eval/…`` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.sources.base import ReadOptions, Sink, SourceFile
from analysis.sources.files import check_size
from analysis.sources.metric_rows import MetricsOf, add_metrics
from analysis.sources.records import objects_of
from analysis.sources.values import integer, moment

__all__ = ["collect", "place_of"]

_ABOUT = frozenset(
    {"kind", "rollout_id", "ts", "time", "timestamp", "step", "_step", "_timestamp", "_runtime"}
)
_STEPS = ("rollout_id", "rollout/step", "eval/step", "step")


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the metrics of one file to the sink; see `analysis.sources.registry.Reader`."""
    check_size(file, options)
    for line, record in objects_of(file, sink, options):
        metrics = {name: value for name, value in record.items() if name not in _ABOUT}
        rollout_id, evaluation = place_of(record)
        step = integer(record.get("step"))
        add_metrics(
            sink,
            file.path,
            metrics,
            options.max_text,
            MetricsOf(
                rollout_id=rollout_id,
                evaluation=evaluation,
                stream="metrics",
                step=line.number - 1 if step is None else step,
                at=moment(record.get("ts", record.get("time", record.get("timestamp")))),
            ),
        )


def place_of(record: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Return which rollout a record of metrics is about, and whether it is an evaluation.

    None where the record does not say.
    """
    rollout_id = next((found for name in _STEPS if (found := integer(record.get(name))) is not None), None)
    kind = record.get("kind")
    if kind in ("evaluation", "eval"):
        return rollout_id, True
    if kind in ("rollout", "train", "training"):
        return rollout_id, False
    names = [name for name in record if name not in _ABOUT and not name.startswith("_")]
    evaluations = sum(name.startswith(("eval/", "polar/eval/")) for name in names)
    if not names or 0 < evaluations < len(names):
        return rollout_id, None
    return rollout_id, bool(evaluations)
