"""What is found under `analysis.stats`: every function by one name, and errors that say what to do."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pandas as pd
import pytest

from analysis import stats
from analysis.errors import StatsError
from analysis.stats.frames import as_frames
from tests.analysis.stats.builder import RunBuilder

PAGE = Path(__file__).resolve().parents[3] / "docs" / "analysis.md"
FILTERS = ("all_correct", "all_wrong", "constant_rewards")
ARGUMENTS = {"compare": (["loo"],), "recompute": ("loo",), "autopsy": (0,), "prompt_history": ("p",)}
OF_RUNS = sorted(set(stats.__all__) - set(FILTERS) - {"simulate"})


def test_every_name_is_a_function_though_modules_have_the_same() -> None:
    """`stats.lag` stays the function when the module of that name is imported."""
    for name in stats.__all__:
        assert inspect.isfunction(getattr(stats, name)), name
        assert name in str(stats.__doc__) or name in FILTERS
    for name in ("lag", "replay", "timing", "autopsy"):
        importlib.import_module(f"analysis.stats.{name}")
        assert inspect.isfunction(getattr(stats, name))


def test_every_function_is_in_the_page() -> None:
    """By the name that it is called with."""
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in stats.__all__ if f"stats.{name}" not in text and name not in FILTERS] == []


@pytest.mark.parametrize("name", OF_RUNS)
def test_what_is_no_run_is_refused_with_a_hint(name: str) -> None:
    """A table of something else, or a path, is told from a run at once."""
    for wrong in (pd.DataFrame({"a": [1]}), "runs/lab"):
        with pytest.raises(StatsError, match=r"analysis\.load|run\.traces"):
            getattr(stats, name)(wrong, *ARGUMENTS.get(name, ()))


def test_recompute_takes_a_run_a_mapping_or_a_table_of_traces() -> None:
    """All three give the same, and a table needs no more than rewards and who belongs to whom."""
    builder = RunBuilder()
    builder.group([1.0, 0.0, 0.0])
    tables = builder.tables()
    traces = as_frames(tables).traces
    found = stats.recompute(tables, "loo")
    assert found["advantage"].tolist() == [1.0, -0.5, -0.5]
    assert stats.recompute(traces, "loo")["advantage"].tolist() == [1.0, -0.5, -0.5]
    few = traces[["evaluation", "rollout_id", "group_index", "trajectory", "reward", "trainable_tokens"]]
    assert stats.recompute(few, "loo")["advantage"].tolist() == [1.0, -0.5, -0.5]
