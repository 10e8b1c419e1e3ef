"""The archive that `torch.save` writes: a zip with one pickle and one member per tensor storage.

Reads members by name and never extracts anything, so that names in the archive reach no file system. What an
archive claims about itself is compared with the bytes that are there before memory is spent on it. Knows
nothing about what the pickle holds.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from types import TracebackType
from typing import IO, BinaryIO

from analysis.errors import FileLimitError, ForeignFileError, IncompleteFileError, LoadError
from analysis.pickle_objects import Budget

__all__ = ["TorchArchive"]

_LOCAL_HEADER = b"PK\x03\x04"
_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_END64_LOCATOR = b"PK\x06\x07"
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MAX_MEMBERS = 2_000_000
_MAX_RATIO = 100
_FREE_RATIO_BYTES = 1 << 20
_CHUNK = 1 << 24


class TorchArchive:
    """One open archive.

    Parameters
    ----------
    path
        The file.
    budget
        Charged for every member that is read.

    Raises
    ------
    IncompleteFileError
        If the file is empty, or cut off.
    ForeignFileError
        If it is no such archive.
    FileLimitError
        If it has more members than any dump.
    OSError
        If it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], budget: Budget) -> None:
        self._budget = budget
        self._file = open(path, "rb")
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            _check_start(self._file.read(16))
            _check_directory(self._file, self._size)
            self._zip = _opened(self._file)
            self._members = {info.filename: info for info in self._zip.infolist()}
            self._root = self._find_root()
        except BaseException:
            # Whatever it was: nobody else will close the file.
            self._file.close()
            raise

    def __enter__(self) -> TorchArchive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def big_endian(self) -> bool:
        """Whether numbers in storages have their most significant byte first."""
        name = f"{self._root}byteorder"
        return name in self._members and self._read(name).strip() == b"big"

    def pickle(self) -> bytes:
        """Return the pickle."""
        return self._read(f"{self._root}data.pkl")

    def storage(self, key: str) -> bytes:
        """Return the bytes of one storage.

        Raises
        ------
        LoadError
            If there is none under this key, or it cannot be read whole.
        """
        return self._read(f"{self._root}data/{key}")

    def _find_root(self) -> str:
        roots = [name[: -len("data.pkl")] for name in self._members if name.endswith("/data.pkl")]
        roots = [root for root in roots if root.count("/") == 1]
        if len(roots) != 1:
            raise ForeignFileError("is no dump", "a zip archive that `torch.save` did not write")
        if f"{roots[0]}constants.pkl" in self._members:
            raise ForeignFileError("is no dump", "a TorchScript model")
        return roots[0]

    def _read(self, name: str) -> bytes:
        info = self._members.get(name)
        if info is None:
            raise LoadError("is damaged", f"its member {name[:80]!r} is missing")
        if info.flag_bits & 1:
            raise ForeignFileError("is no dump", "an encrypted archive")
        if info.file_size > max(_FREE_RATIO_BYTES, _MAX_RATIO * info.compress_size):
            raise FileLimitError(
                "is packed too tightly to be genuine",
                f"{info.compress_size:,} bytes that become {info.file_size:,}",
                "`torch.save` does not compress at all",
            )
        if info.compress_size > self._size:
            raise LoadError("is damaged", f"its member {name[:80]!r} claims more bytes than the file has")
        self._budget.spend(info.file_size)
        try:
            with self._zip.open(info) as member:
                return _read_whole(member, info.file_size)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            struct.error,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise LoadError("is damaged", f"its member {name[:80]!r}: {error}", "copy it again") from error


def _read_whole(member: IO[bytes], size: int) -> bytes:
    parts = []
    left = size
    while left > 0:
        part = member.read(min(left, _CHUNK))
        if not part:
            raise EOFError("ends too early")
        parts.append(part)
        left -= len(part)
    # One more step, so that the checksum is looked at.
    if member.read(1):
        raise EOFError("is longer than it claims")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_start(head: bytes) -> None:
    if not head:
        raise IncompleteFileError("is empty", "", "load it again when it is complete")
    if head.startswith(_LOCAL_HEADER) or _LOCAL_HEADER.startswith(head):
        return
    if head.startswith(_LEGACY):
        raise ForeignFileError(
            "is in PyTorch's old format",
            "written by PyTorch before 1.6, or with `_use_new_zipfile_serialization=False`",
            "load it with `torch.load` and save it again",
        )
    if head.startswith(b"\x80"):
        raise ForeignFileError("is a bare pickle", "not an archive that `torch.save` wrote")
    raise ForeignFileError("is no dump", "not an archive that `torch.save` wrote")


def _check_directory(file: BinaryIO, size: int) -> None:
    """Look at the size of the directory before anybody makes objects of its entries."""
    tail_size = min(size, 22 + 20 + 56 + 65535)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    end = tail.rfind(_END)
    if end < 0 or len(tail) - end < 22:
        raise IncompleteFileError(
            "ends too early", "its directory is missing: torn, or still being written", "load it again later"
        )
    (members,) = struct.unpack_from("<H", tail, end + 10)
    locator = tail.rfind(_END64_LOCATOR, 0, end)
    if members == 0xFFFF and locator >= 0 and len(tail) - locator >= 20:
        (place,) = struct.unpack_from("<Q", tail, locator + 8)
        file.seek(min(place, size))
        head = file.read(56)
        if len(head) == 56 and head.startswith(_END64):
            (members,) = struct.unpack_from("<Q", head, 32)
    file.seek(0)
    if members > _MAX_MEMBERS:
        raise FileLimitError("is no genuine dump", f"an archive of {members:,} members")


def _opened(file: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, struct.error, OverflowError, ValueError, NotImplementedError) as error:
        raise IncompleteFileError(
            "ends too early, or is damaged", str(error)[:200], "load it again when it is complete"
        ) from error
