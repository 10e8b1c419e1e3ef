"""The opcodes of a pickle as far as walks over its tuples tell them apart, and where each one ends."""

from __future__ import annotations

import re

__all__ = [
    "BYTES",
    "FRAME",
    "GETS",
    "GLOBAL",
    "MARK",
    "MEMOIZE",
    "PREFIXED",
    "PROTO",
    "PUTS",
    "SCALARS",
    "SMALL_TUPLES",
    "TEXTS",
    "TUPLE",
    "after",
    "operand",
]

TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
BYTES = {0x42: 4, 0x43: 1, 0x8E: 8, 0x96: 8, 0x8A: 1, 0x8B: 4}  # BINBYTES and relatives, LONG1, LONG4
PREFIXED = {**TEXTS, **BYTES}
"""Bytes of the length that stands before the content."""

SMALL_TUPLES = b"\x85\x86\x87"
TUPLE, MARK, GLOBAL, PROTO, FRAME = 0x74, 0x28, 0x63, 0x80, 0x95
GETS = b"hj"  # BINGET, LONG_BINGET
PUTS = b"qr"  # BINPUT, LONG_BINPUT
MEMOIZE = 0x94
_OPERANDS = {**dict.fromkeys(b"hq", 1), **dict.fromkeys(b"jr", 4), PROTO: 1, FRAME: 8}

SCALARS = re.compile(rb"(?:K.|M..|J....|G.{8}|[N\x88\x89\]})as])++", re.DOTALL)
"""Opcodes that make no tuple and take none from the memo, as many as there are."""


def operand(data: bytes, position: int) -> int:
    """Return the number behind the opcode at a position, 0 where it has none."""
    return int.from_bytes(data[position + 1 : position + 1 + _OPERANDS.get(data[position], 0)], "little")


def after(data: bytes, position: int) -> int:
    """Return where the opcode at a position ends."""
    code = data[position]
    if code in PREFIXED:
        width = PREFIXED[code]
        return position + 1 + width + int.from_bytes(data[position + 1 : position + 1 + width], "little")
    if code == GLOBAL:
        return data.index(b"\n", data.index(b"\n", position) + 1) + 1
    return position + 1 + _OPERANDS.get(code, 0)
