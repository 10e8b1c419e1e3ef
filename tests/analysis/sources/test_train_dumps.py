"""Slime's train dumps as trace rows: advantages as trained, joined by index and tokens, never by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.sources.base import SourceFile, SourceKind
from analysis.sources.registry import read_files
from tests.analysis.sources.source_files import read, rows, sample, whats

torch = pytest.importorskip("torch")
TRAIN = SourceKind.TRAIN_DUMP


def rollout_data(indices: list[Any], **changes: Any) -> dict[str, Any]:
    """What a rank holds of samples with these indices."""
    n = len(indices)
    value = {
        "tokens": [torch.tensor([1, 10, 11, 3, 20, 21, 2, 4])] * n,
        "response_lengths": [4] * n,
        "total_lengths": [8] * n,
        "rewards": [0.5 + i for i in range(n)],
        "raw_reward": [1.0] * 9,
        "truncated": [0] * n,
        "sample_indices": indices,
        "group_ids": list(range(100, 100 + n)),
        "loss_masks": [torch.tensor([1, 1, 0, 1], dtype=torch.int32)] * n,
        "group_mask_sums": torch.full((n,), 3.0),
        "global_batch_sizes": [2, 2],
        "num_microbatches": [1, 2],
        "micro_batch_indices": [[0, 2], [1], [3]],
        "rollout_log_probs": [torch.tensor([-0.5, -0.25, 0.0, 0.0])] * n,
        "log_probs": [torch.tensor([-0.25, -0.25, 9.0, 0.5])] * n,
        "advantages": [torch.tensor([1.0, 2.0, 99.0, -3.0])] * n,
        "returns": [torch.tensor([1.0, 1.0, 1.0, 1.0])] * n,
        "kl": [torch.zeros(4)] * n,
    }
    return {**value, **changes}


def dump(folder: Path, data: Any, *, rollout_id: Any = 4, rank: Any = 0, name: str = "4_0.pt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": rollout_id, "rank": rank, "rollout_data": data}, folder / name)
    return folder / name


def test_every_column(tmp_path: Path) -> None:
    """Rewards, advantages, returns and logprobs are summarised over trainable tokens only."""
    records = read(dump(tmp_path, rollout_data([14, 15, 14, 16])), TRAIN)
    assert records.problems == ()
    found = rows(records, "trace")
    first = found[0]
    assert len(first.pop("tokens_hash")) == 16
    del first["path"]
    assert first == {
        "rollout_id": 4, "evaluation": False, "trajectory": 100, "sample_index": 14, "prompt_tokens": 4,
        "response_tokens": 4, "trainable_tokens": 3, "advantage_raw": 0.5, "advantage": 0.0,
        "advantage_min": -3.0, "advantage_max": 2.0, "return_mean": 1.0, "kl_mean": 0.0, "trained": True,
        "train_rank": 0, "train_position": 0, "train_step": 0, "train_tokens": 4, "train_weight": 3,
        "train_partial": False,
        "train_logprob_mean": 0.0, "train_logprob_diff": 0.25, "train_logprob_abs_diff": 0.25,
        "train_logprob_max_diff": 0.5, "logprob_mean": -0.25, "logprob_min": -0.5, "logprob_sum": -0.75,
        "logprob_zero_share": 1 / 3, "logprob_missing": 0,
    }  # fmt: skip
    assert [row["train_step"] for row in found] == [0, 1, 0, 1]
    assert rows(records, "rollout")[0]["optimizer_steps"] == 2
    assert rows(records, "rollout")[0]["global_batch_size"] == 2


def test_tokens_join_with_the_rollout_dump(tmp_path: Path) -> None:
    """Index and token digest of a trained sample are those of the rollout dump, lists or tensors."""
    torch.save({"rollout_id": 4, "samples": [sample(14)]}, tmp_path / "4.pt")
    first, second = (
        SourceFile.at(tmp_path / "4.pt", SourceKind.ROLLOUT_DUMP),
        SourceFile.at(dump(tmp_path, rollout_data([14])), TRAIN),
    )
    rollout, train = rows(read_files([first, second]), "trace")
    for name in (
        "tokens_hash",
        "sample_index",
        "prompt_tokens",
        "response_tokens",
        "rollout_id",
        "logprob_mean",
    ):
        assert rollout[name] == train[name], name


def test_context_parallel_slices_are_marked(tmp_path: Path) -> None:
    """A rank with a slice of each sample says so; its means are over the slice."""
    half = [torch.tensor([1.0, 2.0])] * 2
    data = rollout_data(
        [1, 2], advantages=half, rollout_log_probs=half, log_probs=half, returns=half, kl=half
    )
    (first, _) = rows(read(dump(tmp_path, data), TRAIN), "trace")
    assert (first["train_partial"], first["train_tokens"], first["advantage"]) == (True, 2, 1.5)
    assert first["trainable_tokens"] == 3


def test_stages_without_advantages(tmp_path: Path) -> None:
    """Earlier pipeline stages have rewards and no advantages: they are missing, not 0."""
    data = rollout_data([1])
    for name in ("advantages", "returns", "log_probs", "kl", "rollout_log_probs"):
        del data[name]
    (row,) = rows(read(dump(tmp_path, data), TRAIN), "trace")
    assert row["advantage_raw"] == 0.5
    assert not {"advantage", "train_tokens", "train_partial", "logprob_mean"} & row.keys()


def test_the_name_stands_in_for_missing_ids(tmp_path: Path) -> None:
    """Without ids in the content, those of the name count."""
    (row,) = rows(
        read(dump(tmp_path, rollout_data([1]), rollout_id=None, rank=None, name="7_3.pt"), TRAIN), "trace"
    )
    assert (row["rollout_id"], row["train_rank"]) == (7, 3)


def test_numpy_and_bfloat16(tmp_path: Path) -> None:
    """Values in bfloat16 and in NumPy arrays are read as well."""
    data = rollout_data([1], advantages=[torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16)],
                        rollout_log_probs=[np.array([-1.0, -1.0, -1.0, -1.0], dtype=np.float16)])  # fmt: skip
    (row,) = rows(read(dump(tmp_path, data), TRAIN), "trace")
    assert row["advantage"] == pytest.approx(7 / 3)
    assert row["logprob_mean"] == -1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": [0.5]},
        {"sample_indices": [None, None]},
        {"loss_masks": [None, None]},
        {"advantages": 5},
        {"advantages": [None, torch.zeros(0)]},
        {"rewards": [float("nan")] * 2},
        {"micro_batch_indices": None},
        {"num_microbatches": [10**12]},
        {"micro_batch_indices": [[99], [-1], ["x"]]},
        {"response_lengths": [9, 9]},
        {"tokens": [torch.zeros((2, 2)), None]},
        {"global_batch_sizes": []},
        {"log_probs": [torch.zeros(2)] * 2},
        {"rewards": torch.tensor([0.5, 0.25])},
    ],
)
def test_strange_lists_keep_the_rows(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Lists that are short, missing or of another type cost their cells, never a row."""
    records = read(dump(tmp_path, rollout_data([1, 2], **changes)), TRAIN)
    assert len(rows(records, "trace")) == 2
    assert set(whats(records)) <= {"lists of different length"}


@pytest.mark.parametrize(
    "content", [None, [], {"rollout_id": 1, "samples": []}, {"rollout_data": {"tokens": 5}}]
)
def test_other_files(tmp_path: Path, content: Any) -> None:
    """What is no train dump is one problem."""
    torch.save(content, tmp_path / "4_0.pt")
    assert whats(read(tmp_path / "4_0.pt", TRAIN)) == ["holds no train dump"]


def test_an_empty_rank(tmp_path: Path) -> None:
    """A rank without samples has no rows, and its rollout has one."""
    records = read(dump(tmp_path, rollout_data([])), TRAIN)
    assert rows(records, "trace") == []
    assert rows(records, "rollout")[0]["trained_traces"] == 0
