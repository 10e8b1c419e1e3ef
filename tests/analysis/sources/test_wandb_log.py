"""W&B's log without W&B: records in blocks, torn ends, damage, and a file of the real library."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import ForeignFileError
from analysis.sources.wandb_log import LogEnd, history_rows

BLOCK = 1 << 15


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def history(step: int, values: dict[str, Any], *, nested: bool = True) -> bytes:
    """One record of `wandb.log`, with names as W&B has them."""
    items = b""
    for name, value in values.items():
        key = (
            b"".join(field(2, part.encode()) for part in name.split("/"))
            if nested
            else field(1, name.encode())
        )
        items += field(1, key + field(16, json.dumps(value).encode()))
    return field(1, 7) + field(2, items + field(2, field(1, step)))


def log(*records: bytes) -> bytes:
    """A log file of records, split over blocks as the format demands."""
    out = b":W&B" + b"\xee\xbe\x00"
    for record in records:
        rest, first = record, True
        while True:
            left = BLOCK - len(out) % BLOCK
            if left < 7:
                out += b"\x00" * left
                left = BLOCK
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not rest]
            checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
            out += checksum.to_bytes(4, "little") + len(part).to_bytes(2, "little") + bytes([kind]) + part
            first = False
            if not rest:
                break
    return out


def read(data: bytes) -> tuple[list[tuple[int | None, dict[str, Any]]], LogEnd]:
    end = LogEnd()
    return [(row.step, row.values) for row in history_rows(data, end)], end


def test_history() -> None:
    """Names, values and steps come out; records of other kinds are passed over."""
    other = field(1, 3) + field(17, b"settings")
    rows, end = read(
        log(other, history(0, {"a": 1.5, "rollout/x": "t"}), history(1, {"b": [1]}, nested=False))
    )
    assert rows == [(0, {"a": 1.5, "rollout/x": "t"}), (1, {"b": [1]})]
    assert (end.problem, end.damaged) == (None, 0)


@pytest.mark.parametrize("size", [10, 30_000, 32_740, 32_761, 70_000, 200_000])
def test_records_over_blocks(size: int) -> None:
    """Records that end at, near or far beyond the end of a block come out whole."""
    values = {"text": "x" * size}
    rows, end = read(log(*(history(step, values) for step in range(4))))
    assert rows == [(step, values) for step in range(4)]
    assert end.problem is None


def test_torn_at_every_byte() -> None:
    """However a log is cut, the records before the cut come out, and the cut is told."""
    records = [history(step, {"a": step}) for step in range(3)]
    whole, ends = log(*records), []
    for count in range(4):
        ends.append(len(log(*records[:count])))
    for length in range(8, len(whole)):
        rows, end = read(whole[:length])
        assert len(rows) == sum(place <= length for place in ends[1:])
        assert (end.problem is None) == (length in ends)


def test_damage_costs_its_block_only() -> None:
    """A record whose checksum is wrong is counted, and reading goes on at the next block."""
    data = bytearray(log(*(history(step, {"text": "x" * 20_000}) for step in range(8))))
    data[40_000] ^= 1
    rows, end = read(bytes(data))
    assert end.damaged >= 1
    assert 4 <= len(rows) < 8
    assert rows[-1][0] == 7


def test_zero_bytes_at_the_end() -> None:
    """Space that a file system set aside and nobody wrote is the end."""
    rows, end = read(log(history(0, {"a": 1})) + b"\x00" * 500)
    assert len(rows) == 1
    assert end.problem is not None


@pytest.mark.parametrize(
    "record",
    [b"\xff" * 30, b"\x12\x7f", field(2, b"\x0a\xff"), varint(2 << 3 | 3), field(2, field(1, b"\xff\xff"))],
)
def test_records_that_are_no_protocol_buffers(record: bytes) -> None:
    """Nonsense inside a record with a right checksum is counted, and the next record is read."""
    rows, end = read(log(record, history(1, {"a": 1})))
    assert rows[-1] == (1, {"a": 1})
    assert end.damaged + len(rows) == 2


def test_bare_nan() -> None:
    """W&B writes NaN as Python does."""
    rows, _ = read(log(field(2, field(1, field(1, b"a") + field(16, b"NaN")))))
    assert rows[0][1]["a"] != rows[0][1]["a"]


@pytest.mark.parametrize("data", [b"", b":W&", b"hello world", b"PK\x03\x04" + b"\x00" * 50])
def test_other_files(data: bytes) -> None:
    """What does not begin like a log is none."""
    with pytest.raises(ForeignFileError):
        read(data)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes(seed: int) -> None:
    """Any bytes end in rows or in counts, never in another error."""
    rng = random.Random(seed)
    data = bytearray(log(*(history(step, {"a": step, "t": "x" * 500}) for step in range(100))))
    for _ in range(30):
        data[rng.randrange(7, len(data))] = rng.randrange(256)
    rows, _ = read(bytes(data))
    assert len(rows) <= 100


def test_the_real_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What W&B itself writes offline reads back: names, numbers, steps."""
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    record = wandb_internal_pb2.Record()
    for name, value in (("polar/x", "0.5"), ("text", '"hi"')):
        item = record.history.item.add()
        item.nested_key.extend(name.split("/"))
        item.value_json = value
    record.history.step.num = 7
    rows, _ = read(log(record.SerializeToString()))
    assert rows == [(7, {"polar/x": 0.5, "text": "hi"})]
    assert wandb.__version__
