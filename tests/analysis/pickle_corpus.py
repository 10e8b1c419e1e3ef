"""Hostile dumps, built in code: pickles that want to run something, to fill memory, or to crash."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping

PROTO, STOP = b"\x80\x02", b"."


def archive(
    data: bytes,
    *,
    members: Mapping[str, bytes] | None = None,
    root: str = "dump",
    compression: int = zipfile.ZIP_STORED,
    byteorder: bytes | None = b"little",
) -> bytes:
    """An archive as `torch.save` writes it, around any pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as out:
        out.writestr(f"{root}/data.pkl", data)
        if byteorder is not None:
            out.writestr(f"{root}/byteorder", byteorder)
        for name, content in (members or {}).items():
            out.writestr(f"{root}/{name}", content)
        out.writestr(f"{root}/version", b"3\n")
    return buffer.getvalue()


def name(module: str, attribute: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    """BINUNICODE."""
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    """The shortest integer opcode."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def raw_bytes(value: bytes) -> bytes:
    """Bytes as protocol 2 has them."""
    return name("_codecs", "encode") + text(value.decode("latin1")) + text("latin1") + b"\x86R"


def call(function: bytes, *arguments: bytes) -> bytes:
    """REDUCE with a tuple of arguments."""
    return function + b"(" + b"".join(arguments) + b"tR"


def whole(body: bytes) -> bytes:
    return PROTO + body + STOP


def storage(count: int, key: str = "0", kind: str = "FloatStorage", module: str = "torch") -> bytes:
    """A persistent id of a tensor's storage."""
    return b"(" + text("storage") + name(module, kind) + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(store: bytes, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    shape = b"(" + b"".join(map(number, size)) + b"t"
    steps = b"(" + b"".join(map(number, stride)) + b"t"
    hooks = call(name("collections", "OrderedDict"))
    return call(
        name("torch._utils", "_rebuild_tensor_v2"), store, number(offset), shape, steps, b"\x89", hooks
    )


class _Runs:
    def __init__(self, function: object, *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> object:
        return self._call


def _dumped(value: object, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol)


def _builtin(function: object, *arguments: object) -> bytes:
    return _dumped(_Runs(function, *arguments))


def _reconstruct(kind: bytes, shape: bytes = b"K\x00\x85") -> bytes:
    return call(name("numpy.core.multiarray", "_reconstruct"), kind, shape, raw_bytes(b"b"))


def _dtype(code: str) -> bytes:
    return call(name("numpy", "dtype"), text(code), b"\x89", b"\x88")


_GETATTR = name("__builtin__", "getattr")
_NDARRAY = name("numpy", "ndarray")
_PLAIN_DTYPE = _dtype("f8") + b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
_TOUCH = text("touch canary")


def executing() -> dict[str, bytes]:
    """Pickles that would run something in an ordinary unpickler."""
    import os
    import subprocess

    system = call(name("posix", "system"), _TOUCH)
    return {
        "os.system": _builtin(os.system, "touch canary"),
        "eval": _builtin(eval, "open('canary', 'w')"),
        "exec": _builtin(exec, "open('canary', 'w')"),
        "popen": _builtin(subprocess.Popen, ["touch", "canary"]),
        "protocol 4": _dumped(_Runs(os.system, "touch canary"), 4),
        "hidden in a sample": _dumped(
            {"rollout_id": 1, "samples": [{"metadata": _Runs(os.system, "touch canary")}]}
        ),
        "getattr chain": whole(
            call(call(_GETATTR, call(_GETATTR, name("os", "path"), text("os")), text("system")), _TOUCH)
        ),
        "dotted name": whole(
            b"\x80\x04" + text("torch") + text("serialization.os.system") + b"\x93" + _TOUCH + b"\x85R"
        ),
        "as an argument of set": whole(call(name("__builtin__", "set"), b"(" + system + b"l")),
        "as an argument of OrderedDict": whole(
            call(name("collections", "OrderedDict"), b"](" + system + b"e")
        ),
        "as an array's class": whole(_reconstruct(name("os", "system"))),
        "as a persistent id": whole(system + b"Q"),
        "INST": whole(b"(" + _TOUCH + b"ios\nsystem\n"),
        "OBJ": whole(b"(" + name("os", "system") + _TOUCH + b"o"),
        "EXT1": whole(b"\x82\x01"),
        "copyreg": whole(
            call(name("copy_reg", "_reconstructor"), name("os", "system"), name("os", "system"), b"N")
        ),
        "codec": whole(call(name("_codecs", "decode"), text("x"), text("rot13"))),
        "import": whole(call(name("__builtin__", "__import__"), text("antigravity"))),
    }


def bending() -> dict[str, bytes]:
    """Pickles that misuse what is allowed."""
    rebuild = name("torch._utils", "_rebuild_tensor_v2")
    array = _reconstruct(_NDARRAY)
    eight = raw_bytes(b"\x00" * 8)
    state = b"(K\x01K\x01\x85" + _PLAIN_DTYPE + b"\x89" + eight + b"t"
    return {
        "encode with another codec": whole(
            call(name("_codecs", "encode"), text("x"), text("unicode_escape"))
        ),
        "encode of no text": whole(call(name("_codecs", "encode"), b"K\x01", text("latin1"))),
        "encode without arguments": whole(call(name("_codecs", "encode"))),
        "state for a function": whole(rebuild + b"}" + text("x") + b"K\x01sb"),
        "slot state for a function": whole(rebuild + b"N}" + text("function") + b"Ns\x86b"),
        "state for OrderedDict": whole(
            call(name("collections", "OrderedDict")) + b"}" + text("items") + b"Nsb"
        ),
        "items for a number": whole(b"K\x01" + text("a") + b"K\x02s"),
        "OrderedDict of a text": whole(call(name("collections", "OrderedDict"), text("ab"))),
        "OrderedDict called as a class": whole(name("collections", "OrderedDict") + b")\x81"),
        "new array of any size": whole(_NDARRAY + b"(" + number(1 << 40) + b"\x85t\x81"),
        "array of another class": whole(_reconstruct(name("__builtin__", "set"))),
        "array of another shape": whole(_reconstruct(_NDARRAY, number(1 << 40) + b"\x85")),
        "array of objects": whole(array + b"(K\x01K\x01\x85" + _dtype("O8") + b"\x89](K\x01et" + b"b"),
        "array content that is a list": whole(array + b"(K\x01K\x01\x85" + _PLAIN_DTYPE + b"\x89](K\x01etb"),
        "array content too short": whole(array + b"(K\x01K\x02\x85" + _PLAIN_DTYPE + b"\x89" + eight + b"tb"),
        "array of negative shape": whole(
            array + b"(K\x01J\xff\xff\xff\xff\x85" + _PLAIN_DTYPE + b"\x89" + eight + b"tb"
        ),
        "array filled twice": whole(array + b"q\x01" + state + b"b0h\x01" + state + b"b"),
        "array filled once more": whole(array + state + b"b" + state + b"b"),
        "dtype with fields": whole(
            _dtype("V8") + b"(K\x03" + text("|") + b"N" + text("a") + b"\x85}K\x08K\x01K\x10tb"
        ),
        "dtype with a strange state": whole(
            _dtype("f8") + b"(K\x03" + text("<") + b"NNN" + b"K\x08" * 6 + b"tb"
        ),
        "dtype of references": whole(_dtype("O")),
        "dtype of no size": whole(_dtype("S0")),
        "dtype that is evaluated": whole(_dtype("f8,f8")),
        "scalar of objects": whole(
            call(name("numpy.core.multiarray", "scalar"), _dtype("O8"), raw_bytes(b"cos\n"))
        ),
        "scalar too short": whole(
            call(name("numpy.core.multiarray", "scalar"), _PLAIN_DTYPE, raw_bytes(b"ab"))
        ),
        "tensor larger than its storage": whole(tensor(storage(4), 0, (5,), (1,))),
        "tensor that starts behind its storage": whole(tensor(storage(4), 4, (1,), (1,))),
        "tensor of negative offset": whole(tensor(storage(4), -1, (1,), (1,))),
        "tensor of negative stride": whole(tensor(storage(4), 3, (4,), (-1,))),
        "tensor of absurd size": whole(tensor(storage(4), 0, (1 << 61, 8), (0, 0))),
        "tensor of many dimensions": whole(tensor(storage(4), 0, (1,) * 40, (1,) * 40)),
        "tensor that expands to much": whole(tensor(storage(4), 0, (1 << 40,), (0,))),
        "tensor without a storage": whole(tensor(b"N", 0, (1,), (1,))),
        "storage that is missing": whole(tensor(storage(4, key="9"), 0, (1,), (1,))),
        "storage outside the archive": whole(tensor(storage(4, key="../../etc/passwd"), 0, (1,), (1,))),
        "storage smaller than it claims": whole(tensor(storage(1 << 30), 0, (1,), (1,))),
        "storage of an unknown class": whole(tensor(storage(4, kind="QInt8Storage"), 0, (1,), (1,))),
        "storage class that is a function": whole(
            tensor(storage(4, kind="_rebuild_tensor_v2", module="torch._utils"), 0, (1,), (1,))
        ),
        "persistent id of another kind": whole(text("storage") + b"Q"),
        "persistent id in text": whole(b"Pstorage\n"),
        "unhashable key": whole(b"}]K\x01s"),
        "call of a number": whole(b"K\x01)R"),
        "nothing on the stack": whole(b"R"),
        "mark that is missing": whole(b"e"),
        "memo that is missing": whole(b"h\x07"),
        "protocol of the future": b"\x80\x09N.",
        "unknown opcode": whole(b"\xff"),
        "opcode of protocol 0": whole(b"I1\n"),
        "text that is no UTF-8": whole(b"X\x02\x00\x00\x00\xff\xfe"),
    }


def swelling() -> dict[str, bytes]:
    """Small pickles that would take gigabytes, or the process with them."""
    many = 300_000
    return {
        "memo index": whole(b"Nr\xff\xff\xff\x7f"),
        "memo index in text": whole(b"Np99999999999\n"),
        "bytes": whole(b"\x8e" + struct.pack("<Q", 1 << 40)),
        "bytearray": whole(b"\x96" + struct.pack("<Q", 1 << 40)),
        "text": whole(b"\x8d" + struct.pack("<Q", 1 << 60)),
        "integer": whole(b"\x8b" + struct.pack("<I", (1 << 31) - 1)),
        "integer in text": whole(b"L" + b"9" * 100_000 + b"L\n"),
        "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "lists": whole(b"](" + b"]" * (many * 10) + b"e"),
        "dicts": whole(b"](" + b"}" * (many * 10) + b"e"),
        "sets": whole(b"](" + b"\x8f" * many + b"e"),
        "sets of one list": whole(
            b"](" + b"".join(number(i) for i in range(256, 20_000)) + b"eq\x01"
            + name("__builtin__", "set") + b"q\x02(" + b"h\x02h\x01\x85R" * 2000 + b"t"
        ),
        "bytes of one text": whole(
            text("x" * 1_000_000) + b"q\x01" + text("latin1") + b"q\x02"
            + name("_codecs", "encode") + b"q\x03(" + b"h\x03h\x01h\x02\x86R" * 5000 + b"t"
        ),
        "tensors of one storage": whole(
            b"(" + tensor(storage(250_000, key="big"), 0, (250_000,), (1,)) * 3000 + b"t"
        ),
        "nested tuples as a key": whole(b"})" + b"\x85" * 1_000_000 + b"Ns"),
        "nested tuples through the memo": whole(b"})" + b"q\x01\x85" * 500_000 + b"Ns"),
        "nested pairs in a set": whole(
            name("__builtin__", "set") + b"](" + b")" + b"N\x86" * 500_000 + b"e\x85R"
        ),
    }  # fmt: skip
