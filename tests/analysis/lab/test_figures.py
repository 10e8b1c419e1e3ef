"""Figures and their frames are read back from a run folder, whatever is missing there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch

from analysis.lab.dumps import write_train_dump
from analysis.lab.figures import draw, draw_figures
from analysis.lab.files import append_json_line
from analysis.lab.frames import advantage_frame, lag_frame, read_metrics, rejection_frame, reward_frame
from analysis.lab.run_folder import RunFolder
from analysis.plots import plot_reward

PNG = b"\x89PNG\r\n\x1a\n"


def _journal(folder: RunFolder, *records: dict[str, Any]) -> None:
    folder.bridge.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"v": 1, "seq": i, "ts": 0.0, **record}) for i, record in enumerate(records)]
    (folder.bridge / "journal.jsonl").write_text("\n".join(lines) + "\n{torn")


def _metrics(folder: RunFolder) -> None:
    append_json_line(folder.metrics, {"kind": "evaluation", "rollout_id": 0, "lab/reward_mean": 0.3})
    for rollout in range(3):
        append_json_line(
            folder.metrics,
            {
                "kind": "rollout",
                "rollout_id": rollout,
                "lab/reward_mean": 0.4 + 0.2 * rollout,
                "lab/reward_stderr": 0.05,
                "lab/lag_mean": 1.0,
                "lab/lag_min": 0.0,
                "lab/lag_max": 2.0,
                "lab/token_lag_mean": math.nan,
            },
        )


def _sample(trajectory: int, reward: float, **changes: Any) -> dict[str, Any]:
    base = {
        "group_index": 0,
        "index": trajectory,
        "group_id": trajectory,
        "response_length": 2,
        "loss_mask": [1, 1],
        "reward": {"score": reward},
        "status": "completed",
        "remove_sample": False,
        "metadata": {},
    }
    return base | changes


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_reward_and_lag_rows_come_from_the_metrics(folder: RunFolder) -> None:
    """Training and held-out points are told apart; null stays missing; a torn last line is left out."""
    _metrics(folder)
    with folder.metrics.open("a") as stream:
        stream.write('{"kind": "rollout", "rollout_')
    records = read_metrics(folder.metrics)
    assert len(records) == 4
    frame = reward_frame(records)
    assert frame["series"].tolist() == ["held-out", "training", "training", "training"]
    assert frame["reward_mean"].tolist() == pytest.approx([0.3, 0.4, 0.6, 0.8])
    assert frame["reward_low"].isna().tolist() == [True, False, False, False]
    assert frame["reward_high"].iloc[1] == pytest.approx(0.4 + 1.96 * 0.05)
    lag = lag_frame(records, limit=3)
    assert lag["lag_max"].tolist() == [2.0] * 3
    assert lag["token_lag_mean"].isna().all()
    assert lag["limit"].tolist() == [3.0] * 3


def test_rejections_are_counted_to_the_rollout_being_collected(folder: RunFolder) -> None:
    """Each rejected group belongs to the rollout that was last asked for; quiet rollouts have a row too."""
    _journal(
        folder,
        {"event": "journal_opened"},
        {"event": "rollout_requested", "rollout_id": 0, "wanted": 2},
        {"event": "group_rejected", "group": 1, "reason": "too_stale", "numbers": {}},
        {"event": "group_rejected", "group": 2, "reason": "too_stale", "numbers": {}},
        {"event": "rollout_requested", "rollout_id": 1, "wanted": 2},
        {"event": "rollout_requested", "rollout_id": 2, "wanted": 2},
        {"event": "group_rejected", "group": 3, "reason": "low_complete_fraction", "numbers": {}},
    )
    rows = {(row.rollout_id, row.reason, row.groups) for row in rejection_frame(folder.bridge).itertuples()}
    assert (0, "too_stale", 2) in rows
    assert (2, "low_complete_fraction", 1) in rows
    assert {row[0] for row in rows} == {0, 1, 2}
    assert sum(row[2] for row in rows) == 3


def test_advantages_join_both_dumps(folder: RunFolder) -> None:
    """One row per trajectory: the trained samples' advantage, and the outcome from the reward."""
    samples = [
        _sample(0, 1.0),
        _sample(0, 1.0, loss_mask=[0, 0]),
        _sample(1, 0.0),
        _sample(2, 0.5),
        _sample(3, 0.0, status="aborted", loss_mask=[0, 0]),
    ]
    folder.rollout_data.mkdir()
    torch.save({"rollout_id": 0, "samples": samples}, folder.rollout_data / "0.pt")
    masks = [torch.tensor(sample["loss_mask"], dtype=torch.int32) for sample in samples]
    write_train_dump(folder.train_data, 0, {"loss_masks": masks, "rewards": [1.5, 9.0, -1.0, 0.25, 0.0]})
    frame = advantage_frame(folder, [0, 1], reward_key="score")
    assert frame.to_dict("list") == {
        "rollout_id": [0, 0, 0, 0],
        "advantage": [1.5, -1.0, 0.25, 0.0],
        "outcome": ["success", "failure", "partial", "unusable"],
    }


def test_an_empty_folder_gives_four_figures_that_say_so(folder: RunFolder) -> None:
    """A run that was stopped before its first rollout still draws; nothing stays open or half-written."""
    before = dict(mpl.rcParams)
    paths = list(draw_figures(folder, reward_key="score", lag_limit=3))
    assert [path.name for path in paths] == [
        "reward.png",
        "advantages.png",
        "rejections.png",
        "policy_lag.png",
    ]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    assert sorted(path.name for path in folder.figures.iterdir()) == sorted(path.name for path in paths)
    assert dict(mpl.rcParams) == before


def test_a_failed_drawing_leaves_no_file(folder: RunFolder) -> None:
    """Ctrl-C in the middle of a figure leaves neither a part nor a wrong picture."""

    def interrupted(frame: object, *, ax: object) -> None:
        raise KeyboardInterrupt

    _metrics(folder)
    draw(plot_reward, reward_frame(read_metrics(folder.metrics)), folder.figures / "a.png")
    with pytest.raises(KeyboardInterrupt):
        draw(interrupted, reward_frame([]), folder.figures / "b.png")
    assert [path.name for path in folder.figures.iterdir()] == ["a.png"]


def test_figures_are_one_column_wide_at_print_resolution(folder: RunFolder) -> None:
    """A PNG has 300 dots per inch over 3.3 inches."""
    path = draw(plot_reward, reward_frame([]), folder.figures / "a.png")
    header = path.read_bytes()[16:24]
    assert (int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")) == (990, 690)
