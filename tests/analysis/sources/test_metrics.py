"""Metrics files: names, numbers and rollouts, of the lab and of anybody who writes alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.lab.files import append_json_line
from analysis.sources.base import SourceKind
from analysis.sources.metrics import place_of
from tests.analysis.sources.source_files import read, rows, whats, write_lines

METRICS = SourceKind.METRICS


def test_rows(tmp_path: Path) -> None:
    """One row per number, with rollout, kind, time, unit and data set."""
    path = tmp_path / "metrics.jsonl"
    append_json_line(
        path, {"kind": "rollout", "rollout_id": 4, "ts": 10.5, "polar/reward_mean": 0.5, "x": float("nan")}
    )
    append_json_line(
        path, {"kind": "evaluation", "rollout_id": 4, "ts": 11, "polar/eval/aime/reward_mean": 1, "ok": True}
    )
    records = read(path, METRICS)
    assert records.problems == ()
    reward, missing, evaluation, ok = rows(records, "metric")
    assert reward["at"].timestamp() == 10.5
    for row in (reward, missing, evaluation, ok):
        del row["at"], row["path"]
    assert reward == {"rollout_id": 4, "evaluation": False, "stream": "metrics", "name": "polar/reward_mean",
                      "value": 0.5, "unit": "reward", "step": 0}  # fmt: skip
    assert "value" not in missing
    assert (evaluation["evaluation"], evaluation["dataset"], evaluation["unit"]) == (True, "aime", "reward")
    assert ok["value"] == 1.0


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"kind": "rollout", "rollout_id": 3}, (3, False)),
        ({"kind": "evaluation", "rollout_id": 3}, (3, True)),
        ({"rollout/step": 5, "rollout/x": 1}, (5, False)),
        ({"eval/step": 5, "eval/aime": 1}, (5, True)),
        ({"step": 2, "loss": 1}, (2, False)),
        ({"step": 2}, (2, None)),
        ({"rollout/step": 1, "eval/aime": 1}, (1, None)),
        ({"rollout_id": "x", "a": 1}, (None, False)),
        ({}, (None, None)),
    ],
)
def test_which_rollout(record: dict[str, Any], expected: tuple[Any, Any]) -> None:
    """Rollout and kind come from the record's own words, and are missing where it has none."""
    assert place_of(record) == expected


def test_nested_values_and_texts(tmp_path: Path) -> None:
    """Nested names are joined, texts are kept, lists are left out, and deep nesting ends."""
    deep: dict[str, Any] = {"x": 1}
    for _ in range(50):
        deep = {"d": deep}
    record = {"rollout_id": 1, "a": {"b": {"c": 2}}, "note": "hi", "list": [1], "none": None, "deep": deep}
    records = read(write_lines(tmp_path / "metrics.jsonl", record), METRICS)
    found = {row["name"]: row.get("value", row.get("text")) for row in rows(records, "metric")}
    assert found == {"a/b/c": 2.0, "note": "hi", "none": None}


def test_torn_and_foreign_lines(tmp_path: Path) -> None:
    """A torn last line waits for its end; foreign lines are told; reading goes on where it ended."""
    path = write_lines(
        tmp_path / "metrics.jsonl", {"rollout_id": 0, "a": 1}, [1], tail='{"rollout_id": 1, "a"'
    )
    first = read(path, METRICS)
    assert [row["value"] for row in rows(first, "metric")] == [1.0]
    assert sorted(whats(first)) == ["a line holds no JSON object", "an incomplete last line"]
    with path.open("a") as stream:
        stream.write(": 2}\n")
    second = read(path, METRICS, since=first.positions[str(path)])
    assert [(row["rollout_id"], row["value"], row["step"]) for row in rows(second, "metric")] == [(1, 2.0, 2)]


def test_bare_nan_and_infinity(tmp_path: Path) -> None:
    """Python's own writer emits NaN and Infinity: NaN is missing, an infinity is a value."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"rollout_id": 1, "a": NaN, "b": -Infinity, "c": 1e999}\n')
    found = {row["name"]: row.get("value") for row in rows(read(path, METRICS), "metric")}
    assert found == {"a": None, "b": float("-inf"), "c": float("inf")}
