"""What it would cost to hash the tuples of a pickle, which a few bytes can make take for ever.

A tuple of a tuple twice, of that twice, and so on: sixty levels take a few hundred bytes, and as the key of a
mapping they would be walked over 2**60 times, in C code that nothing can interrupt. `check_sharing` refuses
that before anything is executed. Most dumps take no tuple from the memo and are passed at once.

Knows opcodes only, of a pickle that `analysis.pickle_scan` has walked over.
"""

from __future__ import annotations

from analysis.errors import FileLimitError
from analysis.pickle_opcodes import GETS, MARK, MEMOIZE, PUTS, SCALARS, SMALL_TUPLES, TUPLE, after, operand
from analysis.pickle_scan import NEXT_GET, PickleScan

__all__ = ["MAX_STEPS", "check_sharing", "sharing_bound"]

MAX_STEPS = 1_000_000_000
"""Most items that hashing all tuples of a file may walk over: ten seconds or so."""


def check_sharing(data: bytes, scan: PickleScan) -> None:
    """Refuse a pickle whose tuples share each other so often that hashing them would not end.

    Parameters
    ----------
    data
        The pickle, up to its STOP.
    scan
        What was found in it.

    Raises
    ------
    FileLimitError
        If they would take more than `MAX_STEPS`.
    """
    if _may_share(data, scan) and sharing_bound(data) > MAX_STEPS:
        raise FileLimitError(
            "holds tuples that repeat each other too often", f"more than {MAX_STEPS:,} items, written out"
        )


def _may_share(data: bytes, scan: PickleScan) -> bool:
    """Tell whether a tuple may be taken from the memo; right about every pickle that does it."""
    if not scan.tuples:
        return False
    for start, end in scan.runs:
        while (found := NEXT_GET.match(data, start, end)) is not None:
            index = int.from_bytes(found[1] or found[2], "little")
            if index in scan.tuples or -1 in scan.tuples:
                return True
            start = found.end()
    return False


def sharing_bound(data: bytes) -> int:
    """Return a number of steps that hashing every tuple of a scanned pickle once does not exceed.

    Within one marked stretch of the stack each tuple counts as if it held everything before it. Stops at the
    first number above `MAX_STEPS`.
    """
    held, steps, stored = [0], 0, 0
    memo: dict[int, int] = {}
    position, fresh = 0, 0  # `fresh`: size of the tuple that the last opcode left on top, or 0
    while position < len(data) and steps <= MAX_STEPS:
        run = SCALARS.match(data, position)
        if run is not None:
            held[-1] += run.end() - position
            position, fresh = run.end(), 0
            continue
        code = data[position]
        if code in PUTS or code == MEMOIZE:
            memo[stored if code == MEMOIZE else operand(data, position)] = fresh
            stored += 1
        elif code in GETS:
            fresh = memo.get(operand(data, position), 0)
            held[-1] += fresh + 1
            steps += fresh
        elif code == MARK:
            held.append(0)
            fresh = 0
        elif code == TUPLE or code in SMALL_TUPLES:
            inner = held.pop() if code == TUPLE and len(held) > 1 else None
            fresh = (held[-1] if inner is None else inner) + 1
            held[-1] += 1 if inner is None else fresh
        else:
            if code in b"eu\x90\x91" and len(held) > 1:
                held.pop()
            held[-1] += 1
            fresh = 0
        position = after(data, position)
    return steps
