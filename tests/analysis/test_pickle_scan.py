"""The look at a pickle before it is executed: right about every opcode, and quick about numbers."""

from __future__ import annotations

import pickle
import pickletools
import random
from typing import Any

import pytest

from analysis.errors import FileLimitError, IncompleteFileError, UnsafePickleError
from analysis.pickle_scan import MAX_TUPLE_DEPTH, scan_pickle, tuple_depth_bound
from tests.analysis import pickle_corpus as corpus

LIMIT = 1 << 30


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """A value as dumps hold them, with every size of number and string."""
    kinds = ["int", "big", "float", "text", "bytes", "none", "bool", "list", "dict", "tuple", "set"]
    kind = rng.choice(kinds if depth < 5 else kinds[:7])
    if kind == "int":
        return rng.choice([rng.randrange(256), rng.randrange(70_000), rng.randrange(-(2**31), 2**31)])
    if kind == "big":
        return rng.randrange(-(2**200), 2**200)
    if kind == "float":
        return rng.uniform(-1e9, 1e9)
    if kind == "text":
        return "".join(rng.choices("ab]}\x85K\u20ac\U0001f600\n.", k=rng.choice([0, 3, 300])))
    if kind == "bytes":
        return rng.randbytes(rng.choice([0, 5, 300]))
    if kind == "none":
        return None
    if kind == "bool":
        return rng.random() < 0.5
    size = rng.choice([0, 1, 2, 3, 4, 30])
    if kind == "dict":
        return {rng.randrange(10**6): random_value(rng, depth + 1) for _ in range(size)}
    if kind == "set":
        return {rng.randrange(10**6) for _ in range(size)}
    items = [random_value(rng, depth + 1) for _ in range(size)]
    return tuple(items) if kind == "tuple" else items


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_the_standard_librarys_disassembler(protocol: int, seed: int) -> None:
    """Length and globals are those that pickletools finds, whatever numbers and strings look like opcodes."""
    rng = random.Random(seed * 10 + protocol)
    for _ in range(40):
        value = random_value(rng)
        data = pickle.dumps(value, protocol)
        found = scan_pickle(data + b"trailing", memory_limit=LIMIT)
        assert found.length == len(data)
        named = {arg for op, arg, _ in pickletools.genops(data) if op.name == "GLOBAL"}
        assert found.names == {tuple(str(arg).split(" ")) for arg in named}


def depth_of(value: Any) -> int:
    if isinstance(value, tuple):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def deepest(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return max([depth_of(value), *map(deepest, inside)])


@pytest.mark.parametrize("protocol", [2, 4])
def test_depth_is_never_underestimated(protocol: int) -> None:
    """No tuple is nested deeper than the bound says, but for an empty one inside, through the memo or not."""
    rng = random.Random(protocol)
    for _ in range(200):
        value = random_value(rng)
        shared = (value, (value,), [value])
        for case in (value, shared):
            assert tuple_depth_bound(pickle.dumps(case, protocol)) + 1 >= deepest(case)


def test_depth_of_lists_of_tuples_stays_low() -> None:
    """A hundred thousand flat tuples in one list are not taken for deep ones."""
    data = pickle.dumps([("a", i) for i in range(100_000)], 2)
    assert tuple_depth_bound(data) <= 2000
    assert scan_pickle(data, memory_limit=LIMIT).length == len(data)


def test_tensors_and_arrays_are_no_suspects() -> None:
    """The tuples that rebuild many tensors are used at once, so nobody follows them one by one."""
    body = corpus.tensor(corpus.storage(4), 0, (4,), (1,))
    assert scan_pickle(corpus.whole(b"](" + body * 25_000 + b"e"), memory_limit=LIMIT).names


@pytest.mark.parametrize("how", [b"\x85", b"q\x01\x85", b"\x94\x85", b"N\x86"])
def test_chains_of_tuples_are_refused(how: bytes) -> None:
    """However a deep tuple is built, it is refused before anybody hashes it."""
    data = corpus.whole(b"})" + how * (MAX_TUPLE_DEPTH + 5000) + b"Ns")
    with pytest.raises(FileLimitError, match="nested"):
        scan_pickle(data, memory_limit=LIMIT)


def test_chains_through_the_memo_are_refused() -> None:
    """A tuple that is put away and fetched again still counts."""
    steps = b"".join(b"q\x01]h\x01ah\x01\x850"[:-1] for _ in range(MAX_TUPLE_DEPTH + 5000))
    data = corpus.whole(b"](" + b")" + steps + b"e")
    with pytest.raises(FileLimitError, match="nested"):
        scan_pickle(data, memory_limit=LIMIT)


@pytest.mark.parametrize(
    "code", [b"0", b"1", b"2", b"I1\n", b"S'x'\n", b"(l", b"\x82\x01", b"P1\n", b"\x97", b"\x98"]
)
def test_opcodes_that_torch_never_writes(code: bytes) -> None:
    """Opcodes outside of what dumps use are refused: each one less is one less to be wrong about."""
    with pytest.raises(UnsafePickleError, match="opcode"):
        scan_pickle(corpus.whole(b"N" + code), memory_limit=LIMIT)


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x02", b"\x80\x02K", b"\x80\x02cos\n", b"\x80\x02X\x05\x00\x00\x00ab", b"\x80\x02N"]
)
def test_incomplete_pickles(data: bytes) -> None:
    """A pickle that ends before STOP, within an operand or within a name, is incomplete or no pickle."""
    with pytest.raises((IncompleteFileError, UnsafePickleError)):
        scan_pickle(data, memory_limit=LIMIT)


@pytest.mark.parametrize("size", [1 << 20, 1 << 23])
def test_honest_memo_indices_of_large_pickles(size: int) -> None:
    """A million strings make a million memo entries; those indices are believed where they can be true."""
    count = size // 16
    data = pickle.dumps([str(i) for i in range(count)], 2)
    assert scan_pickle(data, memory_limit=1 << 34).length == len(data)


@pytest.mark.parametrize("index", [1 << 20, 1 << 24, (1 << 32) - 1])
def test_absurd_memo_indices(index: int) -> None:
    """An index that a pickle of this size cannot have reached is refused, not allocated."""
    data = corpus.whole(b"N" + b"r" + index.to_bytes(4, "little"))
    with pytest.raises(FileLimitError, match="memo index"):
        scan_pickle(data, memory_limit=LIMIT)


def test_estimate_grows_with_what_is_made() -> None:
    """The estimate is near what CPython takes for lists of numbers and for empty containers."""
    numbers = scan_pickle(pickle.dumps(list(range(300, 100_300)), 2), memory_limit=LIMIT).memory
    assert 2_000_000 < numbers < 10_000_000
    sets = scan_pickle(corpus.whole(b"](" + b"\x8f" * 10_000 + b"e"), memory_limit=LIMIT).memory
    assert 2_000_000 < sets < 10_000_000
