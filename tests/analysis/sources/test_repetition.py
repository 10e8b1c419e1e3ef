"""Files that hold one thing many times over take no more memory than others: they are cut off, and listed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.sources.values import json_text
from tests.analysis import pickle_corpus as corpus
from tests.analysis.test_loading import load

BEYOND = '{"__truncated": true, "characters": null}'


def doubled(levels: int, inner: Any = ("x",)) -> list[Any]:
    """A list of two to the power of `levels` items that takes some kilobytes."""
    value = [inner]
    for _ in range(levels):
        value = [value, value]
    return value


def test_what_doubles_on_every_level_is_not_written_out() -> None:
    """Lists, tuples, mappings, keys, bytes, sets; 2**60 items, or one long text a thousand times."""
    long_text = "x" * 1_000_000
    mapped: Any = {"a": 1}
    paired: Any = ("x",)
    for _ in range(60):
        mapped, paired = {"a": mapped, "b": mapped}, (paired, paired)
    for value in (
        doubled(60),
        paired,
        mapped,
        [frozenset([long_text])] * 1000,
        [long_text] * 1000,
        [long_text.encode()] * 1000,
        [{long_text: 1}] * 1000,
    ):
        assert json_text(value) == BEYOND


def test_lists_inside_themselves_end() -> None:
    """A cycle has no text at all."""
    cycle: list[Any] = []
    cycle.append(cycle)
    assert json_text(cycle) == BEYOND


def test_honest_values_are_as_before() -> None:
    """Shared parts are written as often as they occur; long texts are counted."""
    part = {"a": [1, 2.5, None, "é"]}
    assert json.loads(json_text([part, part]) or "") == [part, part]
    assert json_text(["x" * 30_000]) == '{"__truncated": true, "characters": 30004}'
    assert json_text(doubled(3)) == json.dumps(doubled(3), separators=(",", ":"))


def dump(folder: Path, samples: list[Any]) -> Path:
    path = folder / "rollout_data" / "0.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(corpus.archive(pickle.dumps({"rollout_id": 0, "samples": samples}, protocol=2)))
    return path


def sample(number: int, **more: Any) -> dict[str, Any]:
    return {
        "index": number, "group_index": 0, "tokens": [1, 2, 3], "response_length": 1, "reward": 1.0,
        "status": "completed", "loss_mask": [1], "rollout_log_probs": [-0.1], **more,
    }  # fmt: skip


def test_a_dump_whose_metadata_doubles(tmp_path: Path) -> None:
    """Wherever a dump's values become text."""
    bomb = doubled(60)
    polar = {
        "session_id": "s", "session_status": "COMPLETED", "result_metadata": {"a": bomb},
        "trajectory_metadata": {"evaluation": {"report": bomb}, "builder": bomb},
        "timing": {"extra": bomb}, "result_error": None,
    }  # fmt: skip
    samples = [
        sample(
            0, metadata={"polar": polar}, trace={"events": [{"type": "event", "name": "e", "attrs": bomb}]}
        ),
        sample(1, reward={"score": 1.0, "parts": bomb}, prompt=bomb, label=bomb),
        sample(2, label=10**5000),
    ]
    path = dump(tmp_path, samples)
    assert path.stat().st_size < 20_000
    run = load(tmp_path)
    assert len(run.traces()) == 3
    assert run.problems.empty
    assert run.traces()["reward_components"].dropna().tolist() == [BEYOND]
    assert run.sessions()["task_metadata"].dropna().tolist() == [BEYOND]


def test_a_dump_that_repeats_one_text(tmp_path: Path) -> None:
    """Twenty kilobytes in each of some thousand small samples."""
    label = "x" * 20_000
    path = dump(tmp_path, [sample(number, label=label) for number in range(3000)])
    run = load(tmp_path, max_bytes=64 * 2**20)
    assert run.problems["what"].tolist() == ["repeats long texts too often"]
    assert run.problems["path"].tolist() == [str(path)]
    assert run.traces().empty
    assert len(load(tmp_path).traces()) == 3000


@pytest.mark.parametrize("kind", ["session", "task"])
def test_a_result_that_repeats_its_ids(tmp_path: Path, kind: str) -> None:
    """Every trace takes the ids of its session: long ids and many empty traces are refused together."""
    result = {
        "session_id": "s" * 20_000, "task_id": "t", "status": "COMPLETED",
        "trajectory": {"status": "COMPLETED", "traces": [{}] * 5000},
    }  # fmt: skip
    folder = tmp_path / "task_t"
    folder.mkdir()
    whole = result if kind == "session" else {"task_id": "t", "status": "completed", "results": [result]}
    (folder / ("ses_s.json" if kind == "session" else "task.json")).write_text(json.dumps(whole))
    run = load(tmp_path, max_bytes=64 * 2**20)
    assert run.problems["what"].tolist() == ["repeats long texts too often"]
    assert run.traces().empty
    assert isinstance(run, analysis.Run)
