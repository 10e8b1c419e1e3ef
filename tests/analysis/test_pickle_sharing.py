"""Tuples that share each other on every level are refused before hashing them could take for ever."""

from __future__ import annotations

import collections
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import pickle_sharing
from analysis.errors import FileLimitError
from analysis.pickle_scan import scan_pickle
from analysis.pickle_sharing import MAX_STEPS, check_sharing, sharing_bound
from analysis.safe_pickle import load_pt
from tests.analysis import pickle_corpus as corpus


def doubled(levels: int, tail: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ("x",)
    for _ in range(levels):
        value = (value, value, *tail)
    return value


def wide(levels: int, width: int) -> bytes:
    """Tuples of one tuple many times over, one inside the other, as a key; from opcodes of their own."""
    body = b"K\x01\x85q\x00"
    for level in range(levels):
        body += (
            b"(" + b"h" + bytes([level]) + (b"h" + bytes([level])) * (width - 1) + b"tq" + bytes([level + 1])
        )
    return corpus.whole(b"}" + body + b"Ns")


def again(number: int) -> bytes:
    """BINGET, twice."""
    return b"h" + bytes([number]) + b"h" + bytes([number])


def states() -> bytes:
    """Each one the state of a dtype, so that it leaves the stack as soon as it is made."""
    order, rest = corpus.text("<"), b"NNN"
    body = corpus.name("numpy", "dtype") + corpus.text("f4") + b"K\x00K\x01\x87R"
    body += b"(K\x03" + order + rest + b"NNNtq\x00b"
    for level in range(60):
        body += b"(h" + bytes([level]) + order + rest + again(level) + b"Ntq" + bytes([level + 1]) + b"b"
    return corpus.whole(body)


def key() -> bytes:
    """What would be hashed in the end: the last of the tuples of a list."""
    body = b"](K\x01\x85q\x00"
    for level in range(60):
        body += again(level) + b"\x86q" + bytes([level + 1])
    return corpus.whole(body + b"e}h" + bytes([60]) + b"Ns\x86")


HOSTILE = {
    "as a key": key(),
    **{
        f"{name}, protocol {protocol}": pickle.dumps(value, protocol=protocol)
        for protocol in (2, 3, 4, 5)
        for name, value in (
            ("pairs", [doubled(60)]),
            ("with numbers", [doubled(60, (1, 2.5, None))]),
            ("with texts", {"a": {"b": doubled(60, ("c", "d"))}}),
        )
    },
    "wide": wide(4, 3000),
    "a long one again and again": corpus.whole(
        b"(" + b"K\x01" * 100_000 + b"tq\x00" + b"}(" + b"h\x00K\x01\x86N" * 10_000 + b"u"
    ),
    "behind a byte that looks the same": corpus.whole(
        b"}K\x01\x85q\x00" + b"".join(b"Kh" + again(n) + b"\x87q" + bytes([n + 1]) for n in range(60)) + b"Ns"
    ),
    "states of a dtype": states(),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_refused_before_anything_is_executed(tmp_path: Path, kind: str) -> None:
    """As a file: a typed error, at once."""
    with pytest.raises(FileLimitError, match="repeat each other too often"):
        check(HOSTILE[kind])
    path = tmp_path / "0.pt"
    path.write_bytes(corpus.archive(HOSTILE[kind]))
    with pytest.raises(FileLimitError):
        load_pt(path)


def steps(value: Any) -> int:
    """What hashing all tuples in a value takes, each place of it once."""
    if isinstance(value, tuple):
        return sum(1 + steps(item) for item in value)
    if isinstance(value, dict):
        return sum(steps(key) + steps(item) for key, item in value.items())
    return sum(steps(item) for item in value) if isinstance(value, list) else 0


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("seed", range(20))
def test_what_comes_from_the_memo_is_never_underestimated(protocol: int, seed: int) -> None:
    """Against plain counting, on values that share at random: what is repeated is counted as often."""
    draws = random.Random(seed)
    known: list[Any] = [(1, "a"), ("b",)]
    for _ in range(draws.randint(5, 40)):
        items = [draws.choice([draws.choice(known), draws.randint(0, 9), "t", None]) for _ in range(3)]
        known.append(draws.choice([tuple, list])(items) if draws.random() < 0.9 else {"k": tuple(items)})
        known = [value for value in known if steps(value) < 100_000]
    data = pickle.dumps(known, protocol=protocol)
    once = sum(1 + len(value) for value in _tuples_of(known))
    assert sharing_bound(data) + once >= steps(_only_tuples(known))


def _tuples_of(value: Any, seen: dict[int, tuple[Any, ...]] | None = None) -> list[tuple[Any, ...]]:
    found = {} if seen is None else seen
    if isinstance(value, tuple) and id(value) not in found:
        found[id(value)] = value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        _tuples_of(item, found)
    return list(found.values())


def _only_tuples(known: list[Any]) -> list[Any]:
    """Tuples without a list or a mapping inside: only those can be hashed."""

    def hashable(value: Any) -> bool:
        return (
            all(hashable(item) for item in value)
            if isinstance(value, tuple)
            else not isinstance(value, list | dict)
        )

    return [value for value in known if isinstance(value, tuple) and hashable(value)]


def test_honest_dumps_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays, constants that samples share, lists of pairs; most of it without the slow look."""
    pair = (1, "both")
    samples = [
        {"tokens": list(range(300)), "pair": pair, "items": [(n, n + 1) for n in range(50)]}
        for _ in range(2000)
    ]
    for protocol in (2, 4):
        data = pickle.dumps(samples, protocol=protocol)
        check(data)
        assert sharing_bound(data) < MAX_STEPS / 20
    monkeypatch.setattr(pickle_sharing, "sharing_bound", lambda data: pytest.fail("looked at slowly"))
    arrays = {"a": [np.arange(5) for _ in range(500)], "b": collections.OrderedDict(c=np.float32(1))}
    check(pickle.dumps(arrays, protocol=2))
    check(pickle.dumps([{"tokens": list(range(300)), "text": "x"} for _ in range(1000)], protocol=2))


def check(data: bytes) -> None:
    check_sharing(data, scan_pickle(data, memory_limit=1 << 30))
