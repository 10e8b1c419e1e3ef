"""Tensors as NumPy arrays: every dtype, every layout, equal to what PyTorch has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.errors import FileLimitError, LoadError, UnsafePickleError
from analysis.pickle_objects import Allowed, Budget
from analysis.pickle_tensors import Storage, storage_dtype, tensor_names
from analysis.safe_pickle import load_pt
from tests.analysis import pickle_corpus as corpus

torch = pytest.importorskip("torch")

_DTYPES = [
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128", "uint16", "uint32", "uint64",
]  # fmt: skip


def round_trip(path: Path, value: Any) -> Any:
    torch.save(value, path)
    return load_pt(path)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_every_dtype(tmp_path: Path, dtype: str) -> None:
    """Each dtype that NumPy has comes back as itself."""
    tensor = torch.tensor([[0, 1, 3], [1, 0, 7]]).to(getattr(torch, dtype))
    found = round_trip(tmp_path / "1.pt", tensor)
    assert isinstance(found, np.ndarray)
    assert found.dtype == tensor.numpy().dtype
    np.testing.assert_array_equal(np.asarray(found), tensor.numpy())


def test_bfloat16_becomes_float32_without_loss(tmp_path: Path) -> None:
    """Every bfloat16 is a float32: values, infinities and NaN come back exactly."""
    tensor = torch.tensor([1.0, -2.5, 3.14159, float("inf"), float("nan"), 1e-40, 0.0], dtype=torch.bfloat16)
    found = round_trip(tmp_path / "1.pt", tensor)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(found), tensor.float().numpy())


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:],
        lambda t: t[:, ::2],
        lambda t: t[1, 2],
        lambda t: t[:0],
        lambda t: t[0].expand(5, 4),
        lambda t: torch.nn.Parameter(t),
        lambda t: t.clone().requires_grad_(True),
    ],
)
def test_every_layout(tmp_path: Path, view: Any) -> None:
    """Transposed, sliced, strided, scalar, empty and expanded tensors have their numbers in place."""
    tensor = view(torch.arange(12.0).reshape(3, 4))
    np.testing.assert_array_equal(np.asarray(round_trip(tmp_path / "1.pt", tensor)), tensor.detach().numpy())


def test_tensors_that_share_a_storage(tmp_path: Path) -> None:
    """Per-sample slices of one packed buffer are slices of one buffer again; it is read once."""
    packed = torch.arange(1000.0)
    found = round_trip(tmp_path / "1.pt", [packed[i * 10 : i * 10 + 10] for i in range(100)])
    np.testing.assert_array_equal(np.concatenate(found), packed.numpy())
    assert np.shares_memory(found[0], found[99]) or found[0].base is not None


def test_arrays_cannot_be_written(tmp_path: Path) -> None:
    """Arrays of a file are views of its bytes: writing to one would change its siblings, so nobody can."""
    found = round_trip(tmp_path / "1.pt", torch.ones(3))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 2.0


def test_big_endian_storages(tmp_path: Path) -> None:
    """A dump of a big-endian machine says so, and its numbers are right."""
    data = corpus.whole(corpus.tensor(corpus.storage(2), 0, (2,), (1,)))
    path = tmp_path / "1.pt"
    content = np.array([1.5, -2.0], dtype=">f4").tobytes()
    path.write_bytes(corpus.archive(data, members={"data/0": content}, byteorder=b"big"))
    np.testing.assert_array_equal(np.asarray(load_pt(path)), [1.5, -2.0])


def test_float8_and_sparse_are_refused_by_name(tmp_path: Path) -> None:
    """What no dump holds and NumPy cannot hold is named in the error."""
    for tensor, what in (
        (torch.zeros(2).to(torch.float8_e4m3fn), "float8_e4m3fn"),
        (torch.zeros(3).to_sparse(), "sparse"),
    ):
        with pytest.raises(UnsafePickleError, match=what):
            round_trip(tmp_path / "1.pt", tensor)


def test_every_tensor_is_charged() -> None:
    """A view that costs nothing still counts: somebody will look at all of it."""
    rebuild = tensor_names(Budget(1000))["torch._utils _rebuild_tensor_v2"]
    storage = Storage(b"\x00" * 40, "f4")
    rebuild(storage, 0, (10,), (1,), False, {})
    with pytest.raises(FileLimitError):
        rebuild(storage, 0, (1000,), (0,), False, {})


def test_storage_classes() -> None:
    """Only a storage class is a storage class."""
    names = tensor_names(Budget(1))
    assert storage_dtype(names["torch LongStorage"]) == "i8"
    for other in (names["torch Size"], names["torch float32"], "i8", Allowed("x", value=("dtype", "f4"))):
        with pytest.raises(LoadError):
            storage_dtype(other)
