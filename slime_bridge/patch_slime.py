"""Makes Slime v0.3.0 return token ids, logprobs and meta info from its OpenAI-compatible adapter.

A file is changed only where its bytes are the ones of the release, and taken back only where they are the
patched ones, so nobody's own changes are ever lost. Applying twice changes nothing, taking back restores
every byte, and a run that was cut short is completed by the next one. What the edits are is listed in
`slime_bridge._patch_edits`; this module knows files and states.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slime_bridge._patch_edits import FILES, MARK, SLIME_VERSION, Edit, FileEdits
from slime_bridge.errors import PatchRefusedError

__all__ = ["PatchResult", "PatchState", "apply_patch", "check_patch", "revert_patch"]

_VERSION = re.compile(r"\bversion\s*=\s*[\"']([^\"']+)[\"']")


class PatchState(StrEnum):
    """What a checkout is."""

    ORIGINAL = "original"
    """As released."""
    PATCHED = "patched"
    """Every edit is in."""
    PARTIAL = "partial"
    """Some files are patched and some are not: applying or reverting was cut short."""


@dataclass(frozen=True, slots=True)
class PatchResult:
    """What was done to a checkout.

    Parameters
    ----------
    directory
        The checkout.
    before, after
        Its state.
    changed
        Files that were written, relative to the checkout.
    """

    directory: Path
    before: PatchState
    after: PatchState
    changed: tuple[str, ...] = ()


def check_patch(directory: str | os.PathLike[str]) -> PatchState:
    """Tell what a checkout is, without changing it.

    Raises
    ------
    PatchRefusedError
        If it is no checkout of Slime v0.3.0, or one of the files is neither as released nor as patched; the
        message says which, and what to do.
    """
    return _state(_read(Path(directory)))


def apply_patch(directory: str | os.PathLike[str]) -> PatchResult:
    """Patch a checkout; nothing is written where it is patched already.

    Raises
    ------
    PatchRefusedError
        As `check_patch`; nothing was written.
    OSError
        A file could not be written; those written before were put back.
    """
    return _change(Path(directory), PatchState.PATCHED)


def revert_patch(directory: str | os.PathLike[str]) -> PatchResult:
    """Take the patch back: every file is byte for byte as released; raises as `apply_patch`."""
    return _change(Path(directory), PatchState.ORIGINAL)


@dataclass(frozen=True, slots=True)
class _File:
    """One file's two forms, and which of them it has."""

    path: Path
    original: bytes
    patched: bytes
    is_patched: bool


def _change(root: Path, wanted: PatchState) -> PatchResult:
    files = _read(root)
    to_patched = wanted is PatchState.PATCHED
    changes = [name for name, file in files.items() if file.is_patched != to_patched]
    if not to_patched:
        changes.reverse()
    written: list[str] = []
    try:
        for name in changes:
            _write(files[name].path, files[name].patched if to_patched else files[name].original)
            written.append(name)
    except OSError:
        for name in reversed(written):
            with contextlib.suppress(OSError):  # the first failure is the one to report
                _write(files[name].path, files[name].original if to_patched else files[name].patched)
        raise
    return PatchResult(root, _state(files), wanted, tuple(changes))


def _state(files: Mapping[str, _File]) -> PatchState:
    patched = [file.is_patched for file in files.values()]
    if all(patched):
        return PatchState.PATCHED
    return PatchState.PARTIAL if any(patched) else PatchState.ORIGINAL


def _read(root: Path) -> dict[str, _File]:
    """Read the files and tell each one's form; refuse what has neither."""
    if not root.is_dir():
        raise PatchRefusedError(f"{root} is no directory: expected a checkout of Slime v{SLIME_VERSION}")
    missing = [edits.path for edits in FILES if not (root / edits.path).is_file()]
    version = _version(root)
    if missing:
        raise PatchRefusedError(
            f"{root} has no {missing[0]}{_said(version)}: expected a checkout of THUDM's Slime "
            f"v{SLIME_VERSION} (PyPI's `slime` is another package)"
        )
    files: dict[str, _File] = {}
    for edits in FILES:
        path = root / edits.path
        file = _forms(path, path.read_bytes(), edits)
        if file is None:
            raise PatchRefusedError(_why(root, edits, path.read_bytes(), version))
        files[edits.path] = file
    return files


def _forms(path: Path, content: bytes, edits: FileEdits) -> _File | None:
    if _sha256(content) == edits.sha256:
        patched = _edited(content, edits.edits)
        if patched is None:
            raise PatchRefusedError(
                f"{path}: the edits do not fit the released file; this is a bug in the patch"
            )
        return _File(path, content, patched, is_patched=False)
    backwards = tuple(Edit(edit.replacement, edit.anchor) for edit in reversed(edits.edits))
    original = _edited(content, backwards)
    if original is None or _sha256(original) != edits.sha256:
        return None
    return _File(path, original, content, is_patched=True)


def _edited(content: bytes, edits: tuple[Edit, ...]) -> bytes | None:
    """Apply edits; None if one of the anchors does not stand exactly once."""
    for edit in edits:
        anchor = edit.anchor.encode()
        if content.count(anchor) != 1:
            return None
        content = content.replace(anchor, edit.replacement.encode())
    return content


def _why(root: Path, edits: FileEdits, content: bytes, version: str | None) -> str:
    """Say why a file is neither as released nor as patched."""
    name = f"{root / edits.path}"
    if version is not None and version != SLIME_VERSION:
        return (
            f"{root} is Slime {version}: only v{SLIME_VERSION} is known; check out the tag v{SLIME_VERSION}"
        )
    restore = f"git -C {root} checkout v{SLIME_VERSION} -- {edits.path}"
    if MARK.encode() in content:
        return (
            f"{name} was patched by another release of slime-bridge, or changed since: restore it with "
            f"`{restore}`, then patch again"
        )
    if _sha256(content.replace(b"\r\n", b"\n")) == edits.sha256:
        return f"{name} has CRLF line ends: check it out again with core.autocrlf off"
    return (
        f"{name} is not the file of Slime v{SLIME_VERSION}: it has local changes (its SHA-256 is "
        f"{_sha256(content)[:12]}…, expected {edits.sha256[:12]}…). Keep them elsewhere, restore the file "
        f"with `{restore}`, then patch"
    )


def _version(root: Path) -> str | None:
    try:
        text = (root / "setup.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _VERSION.search(text)
    return found[1] if found else None


def _said(version: str | None) -> str:
    return "" if version is None else f" (its setup.py says version {version})"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Replace a file at once, keeping its mode; a symbolic link keeps leading to it."""
    target = path.resolve()
    mode = stat.S_IMODE(target.stat().st_mode)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        # An interrupt too: no temporary file is left in somebody's checkout.
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
