"""Dumps have Slime's layout, appear whole, and open without running code."""

from __future__ import annotations

import pickle
import pickletools
import zipfile
from pathlib import Path

import pytest
import torch

from analysis.lab.dumps import (
    flatten_samples,
    read_dump,
    rollout_dump_path,
    train_dump_path,
    write_rollout_dump,
    write_train_dump,
)
from slime_bridge._slime import sample_class


def _sample(index: int) -> object:
    cls = sample_class()
    return cls(
        group_index=index // 2,
        index=index,
        prompt=[{"role": "user", "content": "hä?"}],
        tokens=[1, 2, 3],
        response="[assistant] \ud800 7",
        response_length=2,
        reward={"score": float("nan")},
        loss_mask=[1, 0],
        rollout_log_probs=[-0.5, 0.0],
        status=cls.Status.TRUNCATED,
        metadata={"polar": {"timing": {"run_ms": 1.5}}},
    )


def test_names_are_slimes() -> None:
    """Training and evaluation dumps of one id stand side by side; train dumps carry the rank."""
    folder = Path("d")
    assert rollout_dump_path(folder, 7) == folder / "7.pt"
    assert rollout_dump_path(folder, 7, evaluation=True) == folder / "eval_7.pt"
    assert train_dump_path(folder, 7) == folder / "7_0.pt"


def test_rollout_dump_round_trip(tmp_path: Path) -> None:
    """Nested samples come out flat and in order, as dicts with the status as text, keys in Slime's order."""
    samples = [[[_sample(0)], [_sample(1)]], [[_sample(2), _sample(3)]]]
    path = write_rollout_dump(tmp_path / "rollout_data", 5, samples)
    content = read_dump(path)
    assert content["rollout_id"] == 5
    assert [sample["index"] for sample in content["samples"]] == [0, 1, 2, 3]
    first = content["samples"][0]
    assert first["status"] == "truncated"
    assert first["loss_mask"] == [1, 0]
    assert first["reward"]["score"] != first["reward"]["score"]
    assert list(first)[:5] == ["group_index", "index", "group_id", "prompt", "tokens"]
    assert [entry.name for entry in path.parent.iterdir()] == ["5.pt"]


def test_evaluation_dump_does_not_replace_the_training_dump(tmp_path: Path) -> None:
    """Both kinds of one rollout id exist at once."""
    write_rollout_dump(tmp_path, 0, [_sample(0)])
    write_rollout_dump(tmp_path, 0, [_sample(1)], evaluation=True)
    assert read_dump(tmp_path / "0.pt")["samples"][0]["index"] == 0
    assert read_dump(tmp_path / "eval_0.pt")["samples"][0]["index"] == 1


def test_dump_names_no_code(tmp_path: Path) -> None:
    """The pickle inside a rollout dump imports nothing at all."""
    path = write_rollout_dump(tmp_path, 1, [_sample(0)])
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        opcodes = [opcode.name for opcode, _, _ in pickletools.genops(archive.read(name))]
    assert not {"GLOBAL", "STACK_GLOBAL", "REDUCE"} & set(opcodes)


def test_train_dump_stores_views_at_their_own_size(tmp_path: Path) -> None:
    """A short slice of a long tensor is stored short, and values, dtypes and lists survive."""
    long = torch.arange(200_000, dtype=torch.float32)
    data = {"log_probs": [long[5:8], long[100:101]], "rewards": [1.0, -1.0], "group_mask_sums": torch.ones(2)}
    path = write_train_dump(tmp_path, 3, data)
    assert path.stat().st_size < 20_000
    content = read_dump(path)
    assert (content["rollout_id"], content["rank"]) == (3, 0)
    assert content["rollout_data"]["log_probs"][0].tolist() == [5.0, 6.0, 7.0]
    assert content["rollout_data"]["log_probs"][1].dtype == torch.float32
    assert content["rollout_data"]["rewards"] == [1.0, -1.0]


def test_reading_refuses_code_and_other_shapes(tmp_path: Path) -> None:
    """A file with a hostile pickle does not run, and one without a mapping is named in the error."""

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("code in a dump was run",))

    torch.save({"samples": [Hostile()]}, tmp_path / "bad.pt", pickle_module=pickle)
    with pytest.raises(pickle.UnpicklingError):
        read_dump(tmp_path / "bad.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"list\.pt: expected a mapping"):
        read_dump(tmp_path / "list.pt")


def test_flatten_keeps_order_at_any_depth() -> None:
    """Lists of any depth become one list; an empty group disappears."""
    assert flatten_samples([1, [2, [3, []]], [[4]]]) == [1, 2, 3, 4]
