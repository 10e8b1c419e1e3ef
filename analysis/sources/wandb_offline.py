"""Reads the metrics of W&B runs from the files that W&B leaves on disk, offline or not, without W&B.

Every process of a run writes a file of its own under the same run id; rows carry the file's name as their
stream. Slime's step names say which rollout a row belongs to.
"""

from __future__ import annotations

import os

from analysis.sources.base import ReadOptions, Sink, SourceFile
from analysis.sources.files import read_bytes
from analysis.sources.metric_rows import MetricsOf, add_metrics
from analysis.sources.metrics import place_of
from analysis.sources.values import moment
from analysis.sources.wandb_log import LogEnd, history_rows

__all__ = ["collect"]


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the history of one run file to the sink; see `analysis.sources.registry.Reader`."""
    end = LogEnd()
    stream = os.path.basename(file.path).removesuffix(".wandb")
    for row in history_rows(read_bytes(file, options), end):
        rollout_id, evaluation = place_of(row.values)
        add_metrics(
            sink,
            file.path,
            {name: value for name, value in row.values.items() if not name.startswith("_")},
            options.max_text,
            MetricsOf(rollout_id, evaluation, stream, row.step, moment(row.values.get("_timestamp"))),
        )
    if end.damaged:
        sink.problem("records cannot be read", f"{end.damaged:,} of its log")
    if end.problem:
        sink.problem(
            "ends too early", f"{end.problem}: a live run, or one that was killed", "load or refresh again"
        )
