"""Trainings on the embedded stack, each in a process of its own, followed from the files they write.

The process is `workbench lab`: engine, router, rollout server, trainer and the production hook. It shares
nothing with the notebook but its folder, so an interrupted cell does not disturb it, several run side by
side, and it ends with the notebook's kernel at the latest.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.errors import TrainingError
from analysis.html import facts, scoped
from analysis.lab.files import write_text
from analysis.lab.processes import ChildProcess
from analysis.lab.settings import LabSettings
from analysis.live.following import RunFollower
from analysis.live.handle import LiveHandle
from analysis.live.progress import Point, Snapshot
from analysis.live.progress_view import Headline, duration
from analysis.live.registry import LiveFolder

if TYPE_CHECKING:
    from analysis.run import Run

__all__ = ["TrainingHandle", "TrainingResult", "run_path", "training_process"]

logger = logging.getLogger(__name__)

_INTERVAL = 0.5
_STOP_SECONDS = 15.0
_SETTINGS = "settings.json"
_LOG = "training.log"
_STATES = {
    "running": ("training", "running"),
    "finished": ("trained", "done"),
    "cancelled": ("cancelled", "stopped"),
    "failed": ("failed", "failed"),
    "ended": ("ended with its notebook", "stopped"),
}


def run_path(folder: Path) -> Path:
    """Return where a training's run is, below its live folder."""
    return folder / "run"


def training_process(folder: Path, settings: LabSettings) -> ChildProcess:
    """Write down the settings and return the process that trains with them, not started."""
    path = folder / _SETTINGS
    write_text(path, json.dumps(settings.to_dict(), indent=2) + "\n")
    argv = [sys.executable, "-m", "analysis.cli", "lab", "--settings", str(path)]
    argv += ["--out", str(run_path(folder)), "--no-figures"]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return ChildProcess(
        argv, name="training", log_path=folder / _LOG, env=environment, stop_timeout=_STOP_SECONDS
    )


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training.

    Attributes
    ----------
    name
        Of the training.
    state
        ``finished``, or ``cancelled``: then with the rollouts until then.
    reward
        Points of the mean reward per rollout.
    held_out
        Points of the mean reward on held-out questions, by updates of the policy.
    seconds
        From start to end.
    run
        Everything, as `analysis.load` gives it.
    """

    name: str
    state: str
    reward: tuple[Point, ...]
    held_out: tuple[Point, ...]
    seconds: float
    run: Run

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = [("training", self.name), ("ended", _STATES[self.state][0]), ("took", duration(self.seconds))]
        for label, points in (("training reward", self.reward), ("held-out reward", self.held_out)):
            if points:
                pairs.append((label, f"{points[0].value:.3f} at first, {points[-1].value:.3f} at last"))
        return pairs

    def __repr__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in self._pairs())

    def _repr_html_(self) -> str:
        return str(scoped(facts(self._pairs())))


class TrainingHandle(LiveHandle[TrainingResult]):
    """A training; made by `Lab.train` and `analysis.live.attach`.

    Parameters
    ----------
    folder
        Its live folder.
    process
        What trains; None for a training of an earlier kernel.
    rollouts
        How many it will have; None if nobody knows.
    label
        What tells it apart from others beside it.
    on_look
        Called in a thread after each look at the files.
    """

    def __init__(
        self,
        folder: LiveFolder,
        process: ChildProcess | None,
        *,
        rollouts: int | None = None,
        label: str = "",
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(folder.path.name, run_path(folder.path))
        self.label = label or self.name
        self.rollouts = rollouts
        self._live_folder = folder
        self._process = process
        self._on_look = on_look
        self._cancelled = False
        self._ended_at: float | None = None
        self._started_at = time.time()
        self._follower = RunFollower(self.folder, interval=_INTERVAL, on_look=self._looked)

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``cancelled``, ``failed``, or ``ended`` with an earlier kernel."""
        if not self.done:
            return "running"
        return self._final_state

    @property
    def _final_state(self) -> str:
        if self._process is None:
            recorded = self._live_folder.read().state
            return recorded if recorded in _STATES and recorded != "running" else "ended"
        if self._process.returncode == 0:
            return "finished"
        return "cancelled" if self._cancelled else "failed"

    @property
    def progress(self) -> Snapshot:
        """The numbers as of the latest look."""
        return self._follower.snapshot()

    @property
    def log(self) -> str:
        """The last lines that the training said."""
        path = self._live_folder.path / _LOG
        try:
            return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        except OSError:
            return ""

    def headline(self) -> Headline:
        """Return what stands above the numbers."""
        state = self.state
        word, tone = _STATES[state]
        snapshot = self.progress
        of = "" if self.rollouts is None else f" of {self.rollouts}"
        done = len(snapshot.curves.get("reward", ()))
        last = self.log.splitlines()[-1:] if state == "running" and not done else []
        now = self._ended_at or time.time()
        span = now - self._started_at if self._process is not None else snapshot.last - snapshot.first
        return Headline(
            title=self.label,
            state=word,
            tone=tone,
            detail=", ".join([f"{done}{of} rollouts", duration(span), *last]),
            error=self.log if state == "failed" else "",
            now=now,
        )

    def start(self) -> None:
        """Start the process and its follower; called once by whoever made the handle."""
        if self._process is not None:
            self._process.start()
        else:
            self._follower.look()
            self._set_done()
            return
        self._follower.start()

    def cancel(self) -> None:
        """Let the training end early, in order; returns at once, and what is finished is kept."""
        self._cancelled = True

    def close(self) -> None:
        """Cancel, and wait for the end of the process."""
        self.cancel()
        if self._process is not None:
            self._process.stop()
        self._follower.stop(_STOP_SECONDS)
        self._finish()

    def _looked(self) -> bool:
        """Look after the process; runs in the follower's thread."""
        if self._cancelled and self._process is not None and self._process.running:
            self._process.stop()
        over = self._process is None or not self._process.running
        if over:
            self._follower.look()
            self._finish()
        self._view.refresh()
        self._on_look()
        return over

    def _finish(self) -> None:
        if self.done:
            return
        self._ended_at = time.time()
        try:
            # First, because whoever waits for the end may take the folder up at once.
            self._live_folder.end(self._final_state)
        except OSError as error:
            logger.warning("%s: its end could not be written down: %s", self._live_folder.path, error)
        finally:
            self._set_done()

    def _outcome(self) -> TrainingResult:
        state = self.state
        if state == "failed":
            code = None if self._process is None else self._process.returncode
            raise TrainingError(f"the training {self.name!r} ended with status {code}\n{self.log}")
        snapshot = self.progress
        curves: Mapping[str, tuple[Point, ...]] = snapshot.curves
        return TrainingResult(
            name=self.name,
            state=state,
            reward=curves.get("reward", ()),
            held_out=curves.get("held-out reward", ()),
            seconds=(self._ended_at or snapshot.last) - self._started_at
            if self._process is not None
            else snapshot.last - snapshot.first,
            run=self.run,
        )
