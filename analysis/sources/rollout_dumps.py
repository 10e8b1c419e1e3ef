"""Reads Slime's rollout dumps: the samples of one training rollout or one evaluation.

Dumps of Slime v0.3.0 and v0.3.1, which name the trajectory key differently, give the same rows. Whether a
dump is one of an evaluation stands only in its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from analysis.errors import ForeignFileError
from analysis.safe_pickle import load_pt
from analysis.sources.base import ReadOptions, Sink, SourceFile
from analysis.sources.dump_names import parse_dump_name
from analysis.sources.sample_rows import SampleBatch, add_samples
from analysis.sources.values import integer

__all__ = ["collect"]


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the samples of one dump to the sink; see `analysis.sources.registry.Reader`."""
    content = load_pt(file.path, trusted=options.trusted, max_bytes=options.memory_limit())
    if not isinstance(content, Mapping) or not isinstance(content.get("samples"), list):
        raise ForeignFileError("holds no rollout dump", _described(content))
    name = parse_dump_name(os.path.basename(file.path))
    rollout_id = integer(content.get("rollout_id"))
    if rollout_id is None:
        rollout_id = name.rollout_id
    elif name.rollout_id is None:
        sink.problem(
            "its name holds no rollout id",
            f"taken for training rollout {rollout_id}; an evaluation would look the same",
            "write dumps under names with `{rollout_id}`: without it each overwrites the last",
        )
    elif rollout_id != name.rollout_id:
        sink.problem(
            "name and content name different rollouts",
            f"{name.rollout_id} and {rollout_id}",
            "the content is believed; the file may have been renamed",
        )
    samples = content["samples"]
    batch = SampleBatch(
        source="rollout_dump",
        rollout_id=rollout_id,
        evaluation=name.evaluation,
        accepted=None if name.evaluation else True,
        cells={} if name.evaluation else {"state": "delivered"},
    )
    add_samples(sink, options, samples, batch)
    sink.add(
        "rollout", {"rollout_id": rollout_id, "evaluation": name.evaluation, "dumped_traces": len(samples)}
    )


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return "a mapping with the keys " + ", ".join(str(key)[:40] for key in list(content)[:8])
    return f"a {type(content).__name__}"
