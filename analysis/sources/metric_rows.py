"""Rows of the metric table from mappings of names to numbers, with the unit that the catalogue declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from analysis.sources.base import Sink
from analysis.sources.values import number, text
from slime_bridge.metric_catalogue import CATALOGUE

__all__ = ["add_metrics", "dataset_of", "unit_of"]

_DATASET = re.compile(r"polar/eval/([^/]+)/[^/]+")
_MAX_DEPTH = 4


def add_metrics(sink: Sink, metrics: Mapping[str, Any], limit: int, **cells: Any) -> None:
    """Add one row per metric.

    Numbers and null get a value, booleans count as 0 and 1, short texts are kept as text, mappings are
    flattened with ``/`` between the names. Lists and other objects have no place in this table.

    Parameters
    ----------
    metrics
        Values by name.
    limit
        Longest text to keep, in characters.
    **cells
        What all rows share: rollout_id, evaluation, stream, step, at.
    """
    for name, value in _flattened(metrics, "", 0):
        row = {**cells, "name": name, "unit": unit_of(name)}
        if (dataset := dataset_of(name)) is not None:
            row["dataset"] = dataset
        if isinstance(value, str):
            row["text"] = text(value, limit)
        else:
            row["value"] = float(value) if isinstance(value, bool) else number(value)
        sink.add("metric", row)


def dataset_of(name: str) -> str | None:
    """Return the evaluation data set that a metric of the bridge is about, None for any other."""
    match = _DATASET.fullmatch(name)
    return match[1] if match is not None else None


@cache
def unit_of(name: str) -> str | None:
    """Return the unit of one of the bridge's metrics, None for any other."""
    plain, patterns = _units()
    if name in plain:
        return plain[name]
    return next((unit for pattern, unit in patterns if pattern.fullmatch(name)), None)


@cache
def _units() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    plain = {metric.name: metric.unit for metric in CATALOGUE if "{" not in metric.name}
    patterns = []
    for metric in CATALOGUE:
        if metric.name not in plain:
            parts = re.split(r"\{\w+\}", metric.name)
            patterns.append((re.compile("[^/]+".join(map(re.escape, parts))), metric.unit))
    return plain, patterns


def _flattened(metrics: Mapping[str, Any], stem: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        name = f"{stem}{text(key) or ''}"
        if isinstance(value, Mapping):
            if depth < _MAX_DEPTH:
                yield from _flattened(value, f"{name}/", depth + 1)
        elif value is None or isinstance(value, str | bool | int | float):
            yield name, value
