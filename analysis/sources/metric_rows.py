"""Rows of the metric table from mappings of names to numbers, with the unit that the catalogue declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from analysis.sources.base import Sink
from analysis.sources.values import number, text
from slime_bridge.metrics.catalogue import CATALOGUE

__all__ = ["MetricsOf", "add_metrics", "dataset_of", "unit_of"]

_DATASET = re.compile(r"polar/eval/([^/]+)/[^/]+")
_MAX_DEPTH = 4
_LAYOUT = (
    "path",
    "rollout_id",
    "evaluation",
    "dataset",
    "stream",
    "name",
    "value",
    "text",
    "unit",
    "step",
    "at",
)


@dataclass(frozen=True, slots=True)
class MetricsOf:
    """What all metrics of one record share.

    Parameters
    ----------
    rollout_id, evaluation
        What they are about, None where unknown.
    stream
        What wrote them.
    step
        Position on the x axis.
    at
        Moment in microseconds.
    """

    rollout_id: int | None
    evaluation: bool | None
    stream: str
    step: int | None
    at: int | None


def add_metrics(sink: Sink, path: str, metrics: Mapping[str, Any], limit: int, about: MetricsOf) -> None:
    """Add one row per metric.

    Numbers and null get a value, booleans count as 0 and 1, short texts are kept as text, mappings are
    flattened with ``/`` between the names. Lists and other objects have no place in this table.

    Parameters
    ----------
    path
        The file.
    metrics
        Values by name.
    limit
        Longest text to keep, in characters.
    about
        What all rows share.
    """
    rows = sink.rows_of("metric", _LAYOUT)
    for name, value in _flattened(metrics, "", 0):
        shown = text(value, limit) if isinstance(value, str) else None
        figure = float(value) if isinstance(value, bool) else number(value)
        rows.append(
            (
                path,
                about.rollout_id,
                about.evaluation,
                dataset_of(name),
                about.stream,
                name,
                figure,
                shown,
                unit_of(name),
                about.step,
                about.at,
            )
        )


@lru_cache(maxsize=10_000)
def dataset_of(name: str) -> str | None:
    """Return the evaluation data set that a metric of the bridge is about, None for any other."""
    match = _DATASET.fullmatch(name)
    return match[1] if match is not None else None


@lru_cache(maxsize=10_000)
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
