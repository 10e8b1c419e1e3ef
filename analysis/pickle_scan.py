"""A look at a pickle before anything of it is executed: what it names, and what it would cost.

The C unpickler trusts the numbers in its input: one opcode can make it allocate gigabytes, and a chain of
one byte opcodes can exhaust the C stack when a nested tuple is hashed. `scan_pickle` walks over the opcodes
without running them and refuses such input. Dumps hold millions of numbers, so runs of fixed-size opcodes are
skipped by one regular expression, which cannot backtrack; only strings, globals and calls are looked at one
by one.

Knows opcodes only: not which names are allowed, nor what they build.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from analysis.errors import FileLimitError, IncompleteFileError, UnsafePickleError
from analysis.pickle_opcodes import (
    FRAME,
    GETS,
    GLOBAL,
    MARK,
    MEMOIZE,
    PREFIXED,
    PROTO,
    PUTS,
    SCALARS,
    SMALL_TUPLES,
    TEXTS,
    TUPLE,
    after,
    operand,
)

__all__ = ["MAX_TUPLE_DEPTH", "NEXT_GET", "PickleScan", "scan_pickle", "tuple_depth_bound"]

MAX_TUPLE_DEPTH = 20_000
"""Deepest nesting of tuples; hashing one uses about 60 bytes of C stack per level, of at least 8 MiB."""

_INT = rb"(?:K.|M..|J....)"
# One or more integers, with the tuple that the last one, two or three of them make: such a tuple is flat.
_INTS = _INT + rb"(?:" + _INT + rb"(?:" + _INT + rb"++[\x85-\x87]?+|[\x85\x86]?+)|\x85?+)"
_FIXED = _INTS + rb"|G.{8}|[N\x88\x89\]})(aesu\x94]|[hq].|j...."
# An index of the memo makes the unpickler allocate a table of that size: large ones are only believed far
# into a large pickle, and one by one in between.
_RUN = re.compile(rb"(?:" + _FIXED + rb"|r..[\x00-\x0f]\x00)++", re.DOTALL)
_RUN_LATE = re.compile(rb"(?:" + _FIXED + rb"|r...\x00)++", re.DOTALL)
NEXT_GET = re.compile(
    rb"(?:" + _INTS + rb"|G.{8}|[N\x88\x89\]})(aesu\x94]|q.|r....)*+(?:h(.)|j(....))", re.DOTALL
)
"""Within a run, the next opcode that takes something from the memo, and what precedes it."""

_LATE = 1 << 26
_MEMO_BYTES = 4
_USED_AT_ONCE = re.compile(rb"(?:q.|r....|\x94)?[RQb]", re.DOTALL)

_CALLS = b"RQb\x81\x92\x90\x91\x93\x8f"  # REDUCE, BINPERSID, BUILD, NEWOBJ, NEWOBJ_EX, sets, STACK_GLOBAL
_STOP, _LONG_BINPUT = 0x2E, 0x72
_BINPUT, _MEMOIZE = 0x71, 0x94

_RUN_COST = 12  # a number of two bytes takes 3 bytes here and 28 plus a reference of 8 in memory
_LIST_COST, _DICT_COST, _CALL_COST, _STRING_COST = 64, 72, 320, 64
_MAX_NAME = 512


@dataclass(slots=True)
class PickleScan:
    """What a pickle holds.

    Parameters
    ----------
    length
        Bytes up to and including its STOP.
    memory
        Estimate of what loading it takes, in bytes; right within a factor of about three either way.
    names
        Globals that it names, as (module, name). Those of newer protocols, which come from the stack, are not
        among them.
    tuples
        Where tuples stand in the memo; flat ones of at most three integers are left out. -1 stands for those
        of newer protocols, which do not say where.
    runs
        Beginning and end of the stretches that hold nothing but opcodes of a fixed size, so that every opcode
        that takes something from the memo stands in one.
    """

    length: int = 0
    memory: int = 0
    names: set[tuple[str, str]] = field(default_factory=set)
    tuples: set[int] = field(default_factory=set)
    runs: list[tuple[int, int]] = field(default_factory=list)


def scan_pickle(data: bytes, *, memory_limit: int) -> PickleScan:
    """Walk over a pickle without executing it.

    Parameters
    ----------
    data
        The pickle; bytes after its STOP are ignored.
    memory_limit
        Largest estimate of memory to accept, in bytes.

    Raises
    ------
    IncompleteFileError
        If it ends within an opcode or without STOP.
    FileLimitError
        If loading it would take more memory than allowed, or nests tuples too deeply.
    UnsafePickleError
        If it holds an opcode that `torch.save` never writes, or an absurd operand.
    """
    found = PickleScan()
    position, suspects, size = 0, 0, len(data)
    while position < size:
        run = (_RUN if position < _LATE else _RUN_LATE).match(data, position)
        if run is not None:
            found.memory += _run_cost(data, position, run.end())
            found.runs.append((position, run.end()))
            position = run.end()
            if position >= size:
                break
        code = data[position]
        if code in PREFIXED:
            position = _skip_prefixed(data, position, found)
        elif code in _CALLS:
            found.memory += _CALL_COST
            position += 1
        elif code in SMALL_TUPLES or code == TUPLE:
            position += 1
            found.memory += _STRING_COST
            suspects += _USED_AT_ONCE.match(data, position) is None
            _note_tuple(data, position, found)
        elif code == _STOP:
            found.length = position + 1
            _check_tuples(data[: position + 1], suspects)
            return found
        else:
            position = _skip_rare(data, position, found)
        if found.memory > memory_limit:
            raise FileLimitError(
                "would take too much memory",
                f"more than {memory_limit / 2**20:,.0f} MiB by the look of its first {position:,} bytes",
                "pass a larger `max_bytes` if the file is genuine",
            )
    raise IncompleteFileError("ends too early", "its pickle has no end", "load it again when it is complete")


def _run_cost(data: bytes, start: int, end: int) -> int:
    lists, dicts = data.count(b"]", start, end), data.count(b"}", start, end)
    return _RUN_COST * (end - start) + _LIST_COST * lists + _DICT_COST * dicts


def _note_tuple(data: bytes, position: int, found: PickleScan) -> None:
    """Note where the tuple that was just made goes in the memo, if it does."""
    if position < len(data):
        if data[position] == _BINPUT:
            found.tuples.add(data[position + 1] if position + 1 < len(data) else -1)
        elif data[position] == _LONG_BINPUT:
            found.tuples.add(int.from_bytes(data[position + 1 : position + 5], "little"))
        elif data[position] == _MEMOIZE:
            found.tuples.add(-1)


def _skip_prefixed(data: bytes, position: int, found: PickleScan) -> int:
    code = data[position]
    width = PREFIXED[code]
    length = int.from_bytes(data[position + 1 : position + 1 + width], "little")
    end = position + 1 + width + length
    if end > len(data):
        raise IncompleteFileError(
            "ends too early",
            f"an item at byte {position:,} of its pickle claims {length:,} bytes",
            "load it again when it is complete",
        )
    found.memory += _STRING_COST + (4 * length if code in TEXTS else length)
    return end


def _skip_rare(data: bytes, position: int, found: PickleScan) -> int:
    """Step over an opcode that stands alone in ordinary dumps, and return where the next one begins."""
    code = data[position]
    if code == GLOBAL:
        middle = data.find(b"\n", position, position + _MAX_NAME)
        end = data.find(b"\n", middle + 1, middle + _MAX_NAME)
        if middle < 0 or end < 0:
            raise _strange(data, position, "a global without a name")
        names = data[position + 1 : end].decode("utf-8", "replace").split("\n")
        found.names.add((names[0], names[1]))
        return end + 1
    if code == _LONG_BINPUT:
        index = int.from_bytes(data[position + 1 : position + 5], "little")
        if index * _MEMO_BYTES > position:
            raise FileLimitError(
                "holds an absurd number", f"memo index {index:,} at byte {position:,} of its pickle", ""
            )
        return position + 5
    if code == PROTO:
        return position + 2
    if code == FRAME:
        length = int.from_bytes(data[position + 1 : position + 9], "little")
        if position + 9 + length > len(data):
            raise IncompleteFileError(
                "ends too early", f"a frame at byte {position:,} of its pickle claims {length:,} bytes", ""
            )
        return position + 9
    # A fixed-size opcode only gets here when its operand is cut off.
    if code in b"KMJGhqj":
        raise IncompleteFileError("ends too early", "its pickle ends within a number", "load it again later")
    raise _strange(data, position, f"opcode 0x{code:02x}")


def _strange(data: bytes, position: int, what: str) -> UnsafePickleError:
    return UnsafePickleError(
        "is no pickle that `torch.save` writes",
        f"{what} at byte {position:,}",
        "pass `trusted=True` only if you trust its writer like your own shell",
    )


def _check_tuples(data: bytes, suspects: int) -> None:
    """Refuse nesting so deep that hashing it could exhaust the C stack; most dumps have no suspect at all."""
    if suspects > MAX_TUPLE_DEPTH and tuple_depth_bound(data) > MAX_TUPLE_DEPTH:
        raise FileLimitError(
            "is too deeply nested", f"more than {MAX_TUPLE_DEPTH:,} tuples inside each other"
        )


def tuple_depth_bound(data: bytes) -> int:
    """Return a number that tuples of a scanned pickle are not nested deeper than, empty ones not counted.

    Follows tuples through stack and memo. Within one marked stretch of the stack each tuple counts as if it
    held all earlier ones, so the bound is too high for lists of tuples, by at most a batch of 1,000 a level.
    Stops at the first number above `MAX_TUPLE_DEPTH`.
    """
    levels, deepest, stored = [0], 0, 0
    memo: dict[int, int] = {}
    position, fresh = 0, -1  # `fresh`: depth of the tuple that the last opcode left on top, or -1
    while position < len(data) and deepest <= MAX_TUPLE_DEPTH:
        run = SCALARS.match(data, position)
        if run is not None:
            position, fresh = run.end(), -1
            continue
        code = data[position]
        if code in PUTS or code == MEMOIZE:
            index = stored if code == MEMOIZE else operand(data, position)
            stored += 1
            memo.pop(index, None)
            if fresh > 0:
                memo[index] = fresh
        elif code in GETS:
            fresh = memo.get(operand(data, position), 0)
            levels[-1] = max(levels[-1], fresh)
        elif code == MARK:
            levels.append(0)
            fresh = -1
        elif code in SMALL_TUPLES or code == TUPLE:
            inner = levels.pop() if code == TUPLE and len(levels) > 1 else levels[-1]
            fresh = inner + 1
            levels[-1] = max(levels[-1], fresh)
            deepest = max(deepest, fresh)
        else:
            if code in b"eu\x90\x91" and len(levels) > 1:
                levels.pop()
            fresh = -1
        position = after(data, position)
    return deepest
