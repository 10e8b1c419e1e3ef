"""Summaries of samples that context parallelism cut are those of the same samples in one piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.test_context_parallel import slime_slice
from tests.analysis.test_loading import load

torch = pytest.importorskip("torch")
SHAPES = [(3, 40), (7, 5), (1, 1), (30, 61), (12, 33), (2, 90)]
PER_TOKEN = ("advantages", "returns", "log_probs", "rollout_log_probs", "ref_log_probs", "kl", "entropy")
BY_NATURE = ["run", "path", "train_rank", "train_slice", "train_slices", "train_position"]
SAMPLER = ["logprob_mean", "logprob_min", "logprob_sum", "logprob_zero_share", "logprob_missing"]


def contents() -> dict[str, list[Any]]:
    """What a trainer holds of some samples, each whole."""
    random = np.random.default_rng(0)
    data: dict[str, list[Any]] = {name: [] for name in ("tokens", "loss_masks", *PER_TOKEN)}
    for prompt, response in SHAPES:
        data["tokens"].append(torch.from_numpy(random.integers(0, 9, prompt + response)))
        data["loss_masks"].append(torch.from_numpy((random.random(response) < 0.6).astype(np.int32)))
        for name in PER_TOKEN:
            data[name].append(random.normal(size=response).astype(np.float32))
    data["response_lengths"] = [response for _, response in SHAPES]
    data["sample_indices"] = list(range(len(SHAPES)))
    data["rewards"] = [1.0] * len(SHAPES)
    return data


def write(
    folder: Path, data: dict[str, list[Any]], *, ranks: int = 1, copies: int = 1, padding: int = 0
) -> None:
    """Write the dumps of all ranks, tensor-parallel ranks changing fastest."""
    (folder / "train_data").mkdir(parents=True)
    totals = [prompt + response for prompt, response in SHAPES]
    padded = [total + padding for total in totals]
    for number in range(ranks * copies):
        own = dict(data)
        if padding:
            own["max_seq_lens"] = padded
        for name in PER_TOKEN:
            own[name] = [
                torch.from_numpy(
                    slime_slice(values, total, number // copies, ranks, most if padding else None)
                    if ranks > 1
                    else values
                )
                for values, total, most in zip(data[name], totals, padded, strict=True)
            ]
        content = {"rollout_id": 2, "rank": number, "rollout_data": own}
        torch.save(content, folder / "train_data" / f"2_{number}.pt")


def frame(folder: Path) -> pd.DataFrame:
    return load(folder).traces().sort_values("sample_index", ignore_index=True)


@pytest.mark.parametrize(("ranks", "copies", "padding"), [(2, 1, 0), (4, 1, 0), (3, 2, 0), (2, 2, 6)])
def test_all_ranks(tmp_path: Path, ranks: int, copies: int, padding: int) -> None:
    """With every rank's dump, each number is that of the whole sample."""
    data = contents()
    write(tmp_path / "whole", data)
    write(tmp_path / "cut", data, ranks=ranks, copies=copies, padding=padding)
    whole, cut = frame(tmp_path / "whole"), frame(tmp_path / "cut")
    assert cut["train_slices"].tolist() == [ranks] * len(SHAPES)
    assert cut["train_slice"].isna().all()
    assert cut["train_partial"].tolist() == [False] * len(SHAPES)
    dropped = [*BY_NATURE, *SAMPLER]
    pd.testing.assert_frame_equal(cut.drop(columns=dropped), whole.drop(columns=dropped), rtol=1e-6)


def test_a_rank_is_missing(tmp_path: Path) -> None:
    """With one of two ranks, the row says which one it has, and how many tokens its means are over."""
    data = contents()
    write(tmp_path, data, ranks=2)
    (tmp_path / "train_data" / "2_1.pt").unlink()
    found = frame(tmp_path)
    assert found["train_slice"].tolist() == [0] * len(SHAPES)
    assert found["train_partial"].tolist() == [True] * len(SHAPES)
    for row, (prompt, response) in enumerate(SHAPES):
        total = prompt + response
        values = slime_slice(data["advantages"][row], total, 0, 2)
        mask = slime_slice(data["loss_masks"][row].numpy(), total, 0, 2) == 1
        assert found["train_tokens"][row] == len(values)
        assert found["train_weight"][row] == mask.sum()
        mean = found["advantage"][row]
        assert mean is pd.NA if not mask.any() else np.isclose(mean, values[mask].mean())


def test_a_slice_of_unknown_place(tmp_path: Path) -> None:
    """A single short sample does not tell how it was cut: it is marked, and its mean is over the slice."""
    data = {name: values[:1] for name, values in contents().items()}
    data["advantages"] = [np.float32([1.0, 2.0])]
    for name in PER_TOKEN[1:]:
        del data[name]
    (tmp_path / "train_data").mkdir()
    own = {**data, "advantages": [torch.tensor([1.0, 2.0])]}
    torch.save({"rollout_id": 2, "rank": 1, "rollout_data": own}, tmp_path / "train_data" / "2_1.pt")
    (row,) = frame(tmp_path).to_dict("records")
    assert pd.isna(row["train_slices"])
    assert (row["train_partial"], row["train_tokens"], row["advantage"]) == (True, 2, 1.5)
