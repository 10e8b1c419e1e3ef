"""Tensors of a dump as NumPy arrays, without PyTorch.

A tensor is a view of a storage, which is a member of the dump's archive. bfloat16, which NumPy lacks, becomes
float32 without loss; devices, gradients and hooks are dropped. Every number in a tensor's description is
checked against the bytes that are really there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from analysis.pickle_objects import Allowed, Budget, LoadedArray, checked_shape, refused

__all__ = ["Storage", "storage_dtype", "tensor_names"]

_STORAGES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "ComplexFloatStorage": "c8",
    "ComplexDoubleStorage": "c16",
}
_DTYPES = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "bfloat16",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "bool": "?",
    "complex64": "c8",
    "complex128": "c16",
}


class Storage:
    """The numbers behind one or several tensors.

    Parameters
    ----------
    raw
        Its bytes.
    dtype
        NumPy's name of the element type, or ``bfloat16``.
    big_endian
        Byte order.
    """

    __slots__ = ("big_endian", "dtype", "raw")

    def __init__(self, raw: bytes, dtype: str, *, big_endian: bool = False) -> None:
        self.raw = raw
        self.dtype = dtype
        self.big_endian = big_endian

    def __setstate__(self, state: Any) -> None:
        raise refused("a tensor's storage is modified, which no dump does")

    def numbers(self, dtype: str) -> np.ndarray[Any, Any]:
        """Return all of them as a flat array; bfloat16 as its 16 bits."""
        kind = np.dtype("u2" if dtype == "bfloat16" else dtype).newbyteorder(">" if self.big_endian else "<")
        whole = len(self.raw) - len(self.raw) % kind.itemsize
        return np.frombuffer(memoryview(self.raw)[:whole], dtype=kind)


def tensor_names(budget: Budget) -> dict[str, Allowed]:
    """Return what each allowed global of PyTorch leads to, made afresh for one load.

    Parameters
    ----------
    budget
        Charged for everything that is built.

    Returns
    -------
    dict
        Keys are module and name with a blank between.
    """
    functions: Mapping[str, Callable[..., Any]] = {
        "torch Size": lambda sizes=(): checked_shape(sizes),
        "torch device": lambda name, *index: str(name),
        "torch._utils _rebuild_tensor_v2": lambda storage, offset, size, stride, *_: _tensor(
            budget, storage, offset, size, stride, None
        ),
        "torch._utils _rebuild_tensor_v3": lambda storage, offset, size, stride, _g, _h, dtype, *_: _tensor(
            budget, storage, offset, size, stride, dtype
        ),
        "torch._utils _rebuild_parameter": lambda data, *_: _parameter(data),
    }
    names = {name: Allowed(name.replace(" ", "."), call) for name, call in functions.items()}
    for name, code in _STORAGES.items():
        names[f"torch {name}"] = Allowed(f"torch.{name}", value=("storage", code))
    names["torch.storage UntypedStorage"] = Allowed("torch.UntypedStorage", value=("storage", "u1"))
    for name, code in _DTYPES.items():
        names[f"torch {name}"] = Allowed(f"torch.{name}", value=("dtype", code))
    return names


def storage_dtype(kind: Any) -> str:
    """Return the element type that a storage class stands for.

    Raises
    ------
    UnsafePickleError
        If it is no storage class.
    """
    value = kind.value if isinstance(kind, Allowed) else None
    if not isinstance(value, tuple) or value[0] != "storage":
        raise refused("a tensor without a storage class")
    return str(value[1])


def _tensor(budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, dtype: Any) -> LoadedArray:
    if not isinstance(storage, Storage):
        raise refused("a tensor without a storage")
    code = storage.dtype
    if dtype is not None:
        value = dtype.value if isinstance(dtype, Allowed) else None
        if not isinstance(value, tuple) or value[0] != "dtype":
            raise refused("a tensor of unknown dtype")
        code = value[1]
    shape, steps = checked_shape(size), checked_shape(stride)
    flat = storage.numbers(code)
    total = math.prod(shape)
    if len(shape) != len(steps) or type(offset) is not int or offset < 0:
        raise refused("a tensor of unusual shape")
    last = offset + sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
    if total and last >= len(flat):
        raise refused("a tensor that is larger than its storage")
    # Charged even for a view: an expanded tensor costs nothing until somebody looks at it.
    budget.spend(total * (4 if code == "bfloat16" else flat.itemsize))
    numbers = _view(flat, offset, shape, steps, total)
    if code == "bfloat16":
        numbers = (numbers.astype("u4") << np.uint32(16)).view("f4")
    return numbers.view(LoadedArray)


def _view(
    flat: np.ndarray[Any, Any], offset: int, shape: tuple[int, ...], steps: tuple[int, ...], total: int
) -> np.ndarray[Any, Any]:
    if not total:
        return np.empty(shape, dtype=flat.dtype)
    expected, contiguous = 1, True
    for extent, step in zip(reversed(shape), reversed(steps), strict=True):
        contiguous = contiguous and (extent == 1 or step == expected)
        expected *= extent
    if contiguous:
        return flat[offset : offset + total].reshape(shape)
    in_bytes = [step * flat.itemsize for step in steps]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, in_bytes, writeable=False)


def _parameter(data: Any) -> Any:
    if not isinstance(data, LoadedArray):
        raise refused("a parameter without a tensor")
    return data
