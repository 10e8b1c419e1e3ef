"""Names of live runs: each is a folder below one folder of runs, with a record of how it ended.

::

    <runs>/<name>/live.json     kind, name, server, state; written in one step
    <runs>/<name>/live.lock     locked by the process that drives the run, and by none after that one's end
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.errors import RunBusyError, RunNameError, RunNotFoundError
from analysis.lab.files import write_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LiveFolder", "LiveRecord", "runs_frame", "runs_folder"]

RUNS_VARIABLE = "WORKBENCH_RUNS"
"""Environment variable that names the folder of runs; without it, ``runs`` in the working folder."""

_RECORD = "live.json"
_LOCK = "live.lock"
_VERSION = 1
_LATEST = 2.0**33  # seconds, in the year 2242: what pandas can hold
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def runs_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that live runs are in."""
    return Path(given or os.environ.get(RUNS_VARIABLE) or "runs").expanduser().resolve()


@dataclass(frozen=True)
class LiveRecord:
    """What a live run says about itself.

    Attributes
    ----------
    kind
        ``submission`` or ``training``.
    name
        Of its folder.
    server
        Address of the rollout server, without credentials; empty for the embedded stack.
    created
        Unix seconds.
    state
        ``running`` until whoever drives it says otherwise: ``finished``, ``budget``, ``cancelled``,
        ``detached``, ``failed``. A process that was killed says nothing.
    reason
        Of the state.
    ended
        Unix seconds; None while it runs.
    """

    kind: str
    name: str
    server: str
    created: float
    state: str = "running"
    reason: str = ""
    ended: float | None = None


class LiveFolder:
    """One live run's folder.

    Parameters
    ----------
    path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unlock: Callable[[], object] | None = None

    @classmethod
    def new(cls, runs: Path, kind: str, name: str | None, *, server: str) -> LiveFolder:
        """Make a folder, locked for this process.

        Parameters
        ----------
        runs
            The folder of runs.
        kind
            Of the run.
        name
            Of the run; one from the kind and the time if None.
        server
            Address of the rollout server, without credentials.

        Raises
        ------
        RunNameError
            If the name is taken, or cannot be the name of a folder.
        """
        if name is not None and not _usable(name):
            raise RunNameError(
                f"{name!r} cannot name a run: use letters, digits, dots, dashes and underscores, at most 100"
            )
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1000):
            stem = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
            chosen = name or (f"{stem}-{number}" if number else stem)
            try:
                (runs / chosen).mkdir()
            except FileExistsError:
                if name is None:
                    continue
                raise RunNameError(
                    f"there is a run {name!r} in {runs} already: choose another name, or take that one up "
                    f"with live.attach({name!r})"
                ) from None
            folder = cls(runs / chosen)
            folder.lock()
            folder.write(LiveRecord(kind, chosen, server, time.time()))
            return folder
        raise RunNameError(f"no free name found in {runs}")

    @classmethod
    def find(cls, runs: Path, name: str) -> LiveFolder:
        """Return the folder of a run.

        Raises
        ------
        RunNotFoundError
            If there is none of this name.
        """
        if not _usable(name) or not (runs / name / _RECORD).is_file():
            known = sorted(path.parent.name for path in runs.glob(f"*/{_RECORD}"))
            shown = ", ".join(known[-10:]) or "none"
            raise RunNotFoundError(f"no live run {name!r} in {runs}; there are: {shown}")
        return cls(runs / name)

    def lock(self) -> None:
        """Claim the run for this process until `release`.

        Raises
        ------
        RunBusyError
            If somebody drives it at present.
        """
        try:
            import fcntl
        except ImportError:  # no such locks on this platform: two drivers are the user's to avoid
            return
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise RunBusyError(
                f"{self.path.name} is driven by another process, or by another handle of this one; cancel or "
                "detach it there first"
            ) from error
        # With this object, or with the process, the claim ends too.
        self._unlock = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Give the claim up; harmless to repeat."""
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()

    def read(self) -> LiveRecord:
        """Return the record.

        Raises
        ------
        RunNotFoundError
            If there is none that can be read.
        """
        try:
            content = json.loads((self.path / _RECORD).read_text(encoding="utf-8"))
            known = {name: content[name] for name in LiveRecord.__dataclass_fields__ if name in content}
            return _checked(LiveRecord(**known))
        except (OSError, ValueError, TypeError) as error:
            raise RunNotFoundError(f"{self.path / _RECORD} cannot be read: {error}") from error

    def write(self, record: LiveRecord) -> None:
        """Replace the record."""
        content: Mapping[str, Any] = {"version": _VERSION, **asdict(record)}
        write_text(self.path / _RECORD, json.dumps(content, indent=2) + "\n")

    def end(self, state: str, reason: str = "") -> None:
        """Write down how the run ended, and give the claim up."""
        try:
            with contextlib.suppress(RunNotFoundError):
                self.write(replace(self.read(), state=state, reason=reason, ended=time.time()))
        finally:
            self.release()


def _usable(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _checked(record: LiveRecord) -> LiveRecord:
    """Return a record that was read, if its values are what they should be; raise ValueError otherwise."""
    for name in ("kind", "name", "server", "state", "reason"):
        if not isinstance(getattr(record, name), str):
            raise ValueError(f"{name} is no text")
    for name in ("created", "ended"):
        seconds = getattr(record, name)
        number = isinstance(seconds, int | float) and 0 <= seconds < _LATEST
        if not number and not (name == "ended" and seconds is None):
            raise ValueError(f"{name} is no time")
    return record


def runs_frame(runs: Path) -> pd.DataFrame:
    """Return all live runs below a folder, newest first.

    Returns
    -------
    DataFrame
        ``name``, ``kind``, ``state``, ``reason``, ``created``, ``ended`` (UTC), ``server``, ``folder``.
    """
    import pandas as pd

    rows = []
    for path in runs.glob(f"*/{_RECORD}"):
        with contextlib.suppress(RunNotFoundError):
            rows.append({**asdict(LiveFolder(path.parent).read()), "folder": str(path.parent)})
    columns = ["name", "kind", "state", "reason", "created", "ended", "server", "folder"]
    frame = pd.DataFrame(rows, columns=columns)
    for column in ("created", "ended"):
        frame[column] = pd.to_datetime(pd.to_numeric(frame[column]), unit="s", utc=True)
    return frame.sort_values("created", ascending=False, ignore_index=True)
