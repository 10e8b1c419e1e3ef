"""The archive around a dump: what it claims is compared with what is there."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest

from analysis.errors import FileLimitError, ForeignFileError, IncompleteFileError, LoadError
from analysis.pickle_objects import Budget
from analysis.torch_archive import TorchArchive
from tests.analysis import pickle_corpus as corpus

PICKLE = corpus.whole(b"N")


def opened(path: Path, content: bytes, limit: int = 1 << 24) -> TorchArchive:
    path.write_bytes(content)
    return TorchArchive(path, Budget(limit))


def test_reads_members(tmp_path: Path) -> None:
    """Pickle, storages and byte order are found under whatever name the archive has."""
    content = corpus.archive(PICKLE, root="eval_3", members={"data/0": b"abc"})
    with opened(tmp_path / "1.pt", content) as archive:
        assert archive.pickle() == PICKLE
        assert archive.storage("0") == b"abc"
        assert archive.big_endian is False


def test_missing_members_are_damage(tmp_path: Path) -> None:
    """A storage that is not there is named."""
    with (
        opened(tmp_path / "1.pt", corpus.archive(PICKLE)) as archive,
        pytest.raises(LoadError, match="data/7"),
    ):
        archive.storage("7")


@pytest.mark.parametrize("key", ["../data.pkl", "/etc/passwd", "..", "0/../../x"])
def test_keys_are_no_paths(tmp_path: Path, key: str) -> None:
    """A storage key is looked up among the members and reaches no file system."""
    with (
        opened(tmp_path / "1.pt", corpus.archive(PICKLE)) as archive,
        pytest.raises(LoadError, match="missing"),
    ):
        archive.storage(key)


def test_members_with_paths_are_never_extracted(tmp_path: Path) -> None:
    """Names that point outside stay names."""
    inner = tmp_path / "inner"
    inner.mkdir()
    content = corpus.archive(PICKLE, members={"../../evil": b"x", "data/../../evil2": b"x"})
    with opened(inner / "1.pt", content) as archive:
        archive.pickle()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1.pt", "inner"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", IncompleteFileError),
        (b"PK", IncompleteFileError),
        (b"PK\x03\x04 and then nothing", IncompleteFileError),
        (b"\x80\x02N.", ForeignFileError),
        (b"hello", ForeignFileError),
        (b"\x00" * 100, ForeignFileError),
    ],
)
def test_what_is_no_archive(tmp_path: Path, content: bytes, error: type[LoadError]) -> None:
    """Empty, torn and foreign files are told apart."""
    with pytest.raises(error):
        opened(tmp_path / "1.pt", content)


def test_other_archives(tmp_path: Path) -> None:
    """A zip of somebody else, two pickles, or a TorchScript model is no dump."""
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as out:
        out.writestr("readme.txt", "x")
    script = corpus.archive(PICKLE, members={"constants.pkl": b"x"})
    two = io.BytesIO()
    with zipfile.ZipFile(two, "w") as out:
        out.writestr("a/data.pkl", PICKLE)
        out.writestr("b/data.pkl", PICKLE)
    for content in (other.getvalue(), script, two.getvalue()):
        with pytest.raises(ForeignFileError):
            opened(tmp_path / "1.pt", content)


def test_zip_bombs(tmp_path: Path) -> None:
    """A member that unpacks to a thousand times its size is refused; ordinary compression is read."""
    bomb = corpus.archive(PICKLE + b"\x00" * (64 << 20), compression=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 20
    with (
        opened(tmp_path / "1.pt", bomb, limit=1 << 30) as archive,
        pytest.raises(FileLimitError, match="tightly"),
    ):
        archive.pickle()
    honest = corpus.archive(PICKLE + bytes(range(256)) * 100, compression=zipfile.ZIP_DEFLATED)
    with opened(tmp_path / "2.pt", honest) as archive:
        assert archive.pickle().startswith(PICKLE)


def test_members_are_charged(tmp_path: Path) -> None:
    """Reading one member again and again uses up the budget: archives may let members overlap."""
    content = corpus.archive(PICKLE, members={"data/0": b"x" * 1000})
    with opened(tmp_path / "1.pt", content, limit=2500) as archive:
        archive.storage("0")
        archive.storage("0")
        with pytest.raises(FileLimitError):
            archive.storage("0")


def test_absurd_member_counts(tmp_path: Path) -> None:
    """A directory that claims billions of members is refused before objects are made of them."""
    content = bytearray(corpus.archive(PICKLE))
    end = content.rfind(b"PK\x05\x06")
    count = struct.pack("<H", 0xFFFF)
    content[end + 8 : end + 10] = content[end + 10 : end + 12] = count
    zip64 = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 0, 0)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1)
    with pytest.raises(FileLimitError, match="members"):
        opened(tmp_path / "1.pt", bytes(content[:end]) + zip64 + locator + bytes(content[end:]))


def test_damage_inside_a_member(tmp_path: Path) -> None:
    """A flipped bit in a storage is found by its checksum."""
    content = bytearray(corpus.archive(PICKLE, members={"data/0": b"abcdefgh" * 10}))
    content[content.find(b"abcdefgh") + 3] ^= 1
    with opened(tmp_path / "1.pt", bytes(content)) as archive, pytest.raises(LoadError, match="damaged"):
        archive.storage("0")


def test_encrypted_members(tmp_path: Path) -> None:
    """An encrypted member is refused in words."""
    content = bytearray(corpus.archive(PICKLE))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(mark) + place] |= 1
    with (
        opened(tmp_path / "1.pt", bytes(content)) as archive,
        pytest.raises(ForeignFileError, match="encrypted"),
    ):
        archive.pickle()
