"""How a submission's handle comes to be: a new one, or one that an earlier process began."""

from __future__ import annotations

import contextlib
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.live.addresses import shown_url
from analysis.live.adoption import Adopted, Unfinished, unfinished
from analysis.live.backends import Backend
from analysis.live.plan import Plan, read_plan, write_plan
from analysis.live.recorder import Recorder
from analysis.live.registry import LiveFolder
from analysis.live.submission import Submission
from analysis.live.submission_handle import SubmissionHandle
from slime_bridge.config import PolarSlimeConfig, check_polar_slime_config
from slime_bridge.errors import JournalError
from slime_bridge.journal import EventLog, Journal, NullJournal, read_journal

__all__ = ["resume_submission", "settled_submission", "start_submission"]

_JOURNAL = "polar"
_RESULTS = "polar_results"
_TOKENIZER = "tokenizer"
_NOWHERE = "http://server-is-not-asked.invalid"


def start_submission(backend: Backend, runs: Path, plan: Plan, name: str | None) -> SubmissionHandle:
    """Make a folder for a plan and start it.

    Raises
    ------
    ConfigError, TemplateError
        If a key or a rendered request cannot be used; no folder is left then.
    RunNameError
        If the name cannot be had.
    """
    fresh = range(len(plan.rows))
    args, config = _configuration(backend, runs, plan)
    Submission(plan, config, args, Recorder(NullJournal()), runs, fresh=fresh).check()
    folder = LiveFolder.new(runs, "submission", name, server=_server(backend))
    try:
        write_plan(folder.path, plan)
        if backend.tokenizer is not None:
            shutil.copytree(backend.tokenizer, folder.path / _TOKENIZER)
        return _start(backend, folder, plan, fresh=fresh, resubmits=True)
    except BaseException:
        folder.release()
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def resume_submission(backend: Backend, folder: LiveFolder, *, resubmit: bool) -> SubmissionHandle:
    """Take up what an earlier process left.

    Raises
    ------
    SubmissionError
        If its plan cannot be read.
    RunBusyError
        If somebody drives it.
    """
    with _claimed(folder):
        plan, records, left = _left(folder)
        fresh = left.not_submitted if resubmit else ()
        if not left.under_way and not fresh:
            return _settled(folder, plan, records)
        return _start(
            backend,
            folder,
            plan,
            fresh=fresh,
            adopted=left.under_way,
            resubmits=resubmit,
            history=records,
        )


def settled_submission(folder: LiveFolder) -> SubmissionHandle | None:
    """Return the handle of a submission that has ended, for which no server is needed; else None.

    Raises
    ------
    SubmissionError
        If its plan cannot be read.
    RunBusyError
        If somebody drives it.
    """
    with _claimed(folder):
        plan, records, left = _left(folder)
        if not left.under_way:
            return _settled(folder, plan, records)
    folder.release()
    return None


@contextlib.contextmanager
def _claimed(folder: LiveFolder) -> Iterator[None]:
    """Claim a run for a handle that is made inside, and give the claim up where that fails."""
    folder.lock()
    try:
        yield
    except BaseException:  # also a cell's interrupt: without a handle nobody would ever release it
        folder.release()
        raise


def _left(folder: LiveFolder) -> tuple[Plan, list[dict[str, Any]], Unfinished]:
    """Return the plan, what the journal says, and what that leaves to be done."""
    plan = read_plan(folder.path)
    records: list[dict[str, Any]] = []
    with contextlib.suppress(JournalError):  # it ended before its journal began
        records = list(read_journal(folder.path / _JOURNAL))
    return plan, records, unfinished(records, len(plan.rows))


def _start(
    backend: Backend,
    folder: LiveFolder,
    plan: Plan,
    *,
    fresh: Sequence[int],
    resubmits: bool,
    adopted: Sequence[Adopted] = (),
    history: Sequence[Mapping[str, Any]] = (),
) -> SubmissionHandle:
    args, config = _configuration(backend, folder.path / _JOURNAL, plan)
    journal = Journal(folder.path / _JOURNAL, config=config.describe())
    try:
        submission = Submission(
            plan,
            config,
            args,
            _recorder(journal, history),
            folder.path / _RESULTS,
            listens=backend.callback_host is not None,
            headers=backend.headers,
            fresh=fresh,
            adopted=adopted,
            resubmits=resubmits,
        )
        handle = _handle(folder, submission)
        folder.write(replace(folder.read(), server=_server(backend), state="running", reason="", ended=None))
        handle.start()
    except BaseException:
        journal.close(1.0)
        raise
    return handle


def _settled(folder: LiveFolder, plan: Plan, history: Sequence[Mapping[str, Any]]) -> SubmissionHandle:
    """Return the handle of a submission of which nothing is left to do."""
    args = plan.arguments(polar_url=_NOWHERE, run_dir=folder.path / _JOURNAL, callback_host=None)
    config, _ = check_polar_slime_config(args)
    recorder = _recorder(NullJournal(), history)
    handle = _handle(folder, Submission(plan, config, args, recorder, folder.path / _RESULTS))
    handle.settle()
    return handle


def _recorder(journal: EventLog, history: Sequence[Mapping[str, Any]]) -> Recorder:
    recorder = Recorder(journal)
    # A group that a detached process gave back is open: this one may take it up.
    recorder.hear_history(r for r in history if r.get("event") != "group_returned")
    return recorder


def _handle(folder: LiveFolder, submission: Submission) -> SubmissionHandle:
    tokenizer = folder.path / _TOKENIZER
    return SubmissionHandle(
        folder,
        submission,
        planned=submission.plan.sessions,
        tokenizer=tokenizer if tokenizer.is_dir() else None,
    )


def _configuration(backend: Backend, run_dir: Path, plan: Plan) -> tuple[Namespace, PolarSlimeConfig]:
    args = plan.arguments(polar_url=backend.polar_url, run_dir=run_dir, callback_host=backend.callback_host)
    # The warnings are about training, and nobody trains here.
    config, _ = check_polar_slime_config(args)
    return args, config


def _server(backend: Backend) -> str:
    return "" if backend.embedded else shown_url(backend.polar_url)
