"""The handle of a submission: its thread, its journal, its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from analysis.errors import LiveError
from analysis.html import facts, scoped
from analysis.live.handle import LiveHandle
from analysis.live.progress import Snapshot
from analysis.live.progress_view import Headline, duration
from analysis.live.registry import LiveFolder
from analysis.live.submission import Outcome, Submission
from slime_bridge.loop_thread import LoopDiedError, LoopThread, first_cause

if TYPE_CHECKING:
    from analysis.run import Run

__all__ = ["ENDED", "SubmissionHandle", "SubmissionResult"]

logger = logging.getLogger(__name__)

_DRAW_SECONDS = 0.5
_STOP_SECONDS = 3.0
_WORDS = {
    "running": ("running", "running"),
    "finished": ("finished", "done"),
    "budget": ("stopped at its budget", "stopped"),
    "cancelled": ("cancelled", "stopped"),
    "detached": ("left to the server", "stopped"),
    "failed": ("failed", "failed"),
}


ENDED = frozenset(_WORDS) - {"running", "detached"}
"""States that a submission's folder keeps."""


@dataclass(frozen=True)
class SubmissionResult:
    """What came of a submission.

    Attributes
    ----------
    name
        Of the submission.
    state
        ``finished``: every prompt has its end. ``budget``: a bound was reached. ``cancelled``, ``detached``:
        somebody ended it.
    reason
        Which bound, as a sentence; empty otherwise.
    groups
        Groups by how they ended: ``accepted``, ``rejected``, ``given up``, ``abandoned``, ``not submitted``.
    rejections
        Rejected groups by reason.
    sessions
        Sessions by how they ended.
    reward_mean
        Mean reward of completed sessions; NaN without any.
    tokens
        Response tokens.
    seconds
        From the first record to the last.
    lost
        Numbers of prompts whose tasks the server had forgotten; only after `attach`.
    run
        Everything, as `analysis.load` gives it.
    """

    name: str
    state: str
    reason: str
    groups: Mapping[str, int]
    rejections: Mapping[str, int]
    sessions: Mapping[str, int]
    reward_mean: float
    tokens: int
    seconds: float
    lost: tuple[int, ...]
    run: Run

    def _pairs(self) -> list[tuple[str, str]]:
        def counted(counts: Mapping[str, int]) -> str:
            return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "none"

        pairs = [
            ("submission", self.name),
            ("ended", _WORDS[self.state][0] + (f": {self.reason}" if self.reason else "")),
            ("groups", counted(self.groups)),
            ("sessions", counted({name.lower(): number for name, number in self.sessions.items()})),
            (
                "mean reward",
                "no reward" if self.reward_mean != self.reward_mean else f"{self.reward_mean:.3f}",
            ),
            ("response tokens", f"{self.tokens:,}"),
            ("took", duration(self.seconds)),
        ]
        if self.rejections:
            pairs.insert(3, ("rejected", counted(self.rejections)))
        if self.lost:
            pairs.append(("lost by the server", f"prompts {', '.join(map(str, self.lost))}"))
        return pairs

    def __repr__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in self._pairs())

    def _repr_html_(self) -> str:
        return str(scoped(facts(self._pairs())))


class SubmissionHandle(LiveHandle[SubmissionResult]):
    """A submission under way; made by `Lab.submit` and `analysis.live.attach`.

    Parameters
    ----------
    folder
        Its folder, locked.
    submission
        What to run.
    planned
        Sessions in all.
    tokenizer
        See `LiveHandle`.
    """

    def __init__(
        self,
        folder: LiveFolder,
        submission: Submission,
        *,
        planned: int,
        tokenizer: Path | None = None,
    ) -> None:
        super().__init__(folder.path.name, folder.path, tokenizer=tokenizer)
        self._folder = folder
        self._submission = submission
        self._planned = planned
        self._loop: LoopThread | None = None
        self._error: BaseException | None = None
        self._cancelled = False
        self._ended_at: float | None = None

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``budget``, ``cancelled``, ``detached`` or ``failed``."""
        return self._final_state if self.done else "running"

    @property
    def _final_state(self) -> str:
        outcome = self._submission.outcome
        return "failed" if self._error is not None or outcome is None else outcome.kind

    @property
    def reason(self) -> str:
        """Why it ended early, or what it failed of; empty otherwise."""
        if self._error is not None:
            return f"{type(self._error).__name__}: {self._error}"
        outcome = self._submission.outcome
        return "" if outcome is None else outcome.reason

    @property
    def progress(self) -> Snapshot:
        """The numbers at this moment."""
        return self._submission.recorder.snapshot()

    @property
    def lost(self) -> tuple[int, ...]:
        """Numbers of prompts whose tasks the server had forgotten, after `attach`."""
        return tuple(sorted(self._submission.lost))

    def headline(self) -> Headline:
        """Return what stands above the numbers."""
        state = self.state
        word, tone = _WORDS[state]
        now = self._ended_at or time.time()
        first = self.progress.first
        budget = "" if state != "budget" else f"{self.reason}; "
        return Headline(
            title=self.name,
            state=word,
            tone=tone,
            detail=f"{budget}{duration(now - first) if first == first else '0 s'}",
            planned=self._planned,
            error=self.reason if state == "failed" else "",
            now=now,
        )

    def start(self) -> None:
        """Start the thread; called once by whoever made the handle."""
        self._loop = LoopThread(self._main, name=f"live-{self.name}", on_end=self._finish)

    def settle(self) -> None:
        """Take over how it ended before, in place of `start`, where nothing is left to do."""
        record, snapshot = self._folder.read(), self.progress
        if record.state == "failed":
            self._error = LiveError(
                f"it had failed before: {record.reason}; its `run` has what came of it, and "
                f"attach({self.name!r}, resubmit=True) submits the rest"
            )
        # A process that was killed, or left its tasks to the server, could not say that they have ended.
        state = record.state if record.state in ("budget", "cancelled") else "finished"
        self._submission.outcome = Outcome(state, record.reason if state != "finished" else "")
        self._ended_at = record.ended if record.ended is not None else snapshot.last
        if record.state in ENDED:
            self._folder.release()
        else:
            self._folder.end(state)
        self._set_done()

    def cancel(self) -> None:
        """Stop, and cancel what is under way on the server; returns at once, and what is done is kept."""
        self._cancelled = True
        if self._loop is not None:
            self._loop.cancel()

    def detach(self) -> None:
        """Stop here and leave the tasks to the server; `analysis.live.attach` takes them up again."""
        if self._loop is not None and not self.done:
            try:
                self._loop.call(self._submission.detach)
            except LoopDiedError:
                return
            self._loop.cancel()
            self._loop.join(_STOP_SECONDS)

    def close(self) -> None:
        """Cancel, and wait a few seconds for the end of the thread."""
        self.cancel()
        if self._loop is not None:
            self._loop.join(_STOP_SECONDS)

    async def _main(self) -> None:
        async with anyio.create_task_group() as tasks:
            if self._cancelled:
                # Before the loop could be told.
                tasks.cancel_scope.cancel()
            tasks.start_soon(self._draw)
            await self._submission.main()
            tasks.cancel_scope.cancel()

    async def _draw(self) -> None:
        while True:
            self._view.refresh()
            await anyio.sleep(_DRAW_SECONDS)

    def _finish(self, error: BaseException | None) -> None:
        """Note the end; runs in the thread, as its last act."""
        if error is not None:
            self._error = first_cause(error)
            logger.info("%s failed: %s", self.name, self._error)
        elif self._submission.outcome is None:
            self._submission.outcome = Outcome("cancelled")  # before it began
        self._ended_at = time.time()
        self._submission.recorder.close()
        try:
            self._folder.end(self._final_state, self.reason)
        except OSError as failure:
            logger.warning("%s: its end could not be written down: %s", self.folder, failure)
        finally:
            self._set_done()

    def _outcome(self) -> SubmissionResult:
        if self._error is not None:
            if isinstance(self._error, Exception) and not isinstance(self._error, LiveError):
                raise self._error
            raise LiveError(f"{self.name} broke off: {self._error!r}") from self._error
        snapshot = self.progress
        groups = dict(snapshot.groups)
        known = sum(groups.values())
        if (left := len(self._submission.plan.rows) - known) > 0:
            groups["not submitted"] = left
        return SubmissionResult(
            name=self.name,
            state=self.state,
            reason=self.reason,
            groups=groups,
            rejections=snapshot.rejections,
            sessions=snapshot.sessions,
            reward_mean=snapshot.reward_mean,
            tokens=snapshot.tokens,
            seconds=(self._ended_at or time.time()) - snapshot.first,
            lost=self.lost,
            run=self.run,
        )
