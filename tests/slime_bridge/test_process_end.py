"""How a process with work in flight ends: in seconds, with its books closed, whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge.process_end import exit_on_sigterm, release_sigterm

ROOT = Path(__file__).resolve().parents[2]

TRAINER = """
    import sys, threading
    from slime_bridge.journal import open_journal
    from tests.slime_bridge.rollouts import Source, make_worker
    worker = make_worker(sys.argv[1], Source(), journal=open_journal(sys.argv[2]), polar_fully_async=True)
    worker.collect(0)
    print("ready", flush=True)
    {end}
"""


class User:
    """Somebody who needs exit hooks."""


def run_trainer(polar, folder, end, act=None):
    """Run a trainer with work in flight; return exit code, seconds to its end, and what it logged."""
    script = textwrap.dedent(TRAINER).format(end=end)
    command = [sys.executable, "-c", script, polar.url, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout.readline() == "ready\n", process.communicate()
        if act is not None:
            act(process)
        out, err = process.communicate(timeout=40)
    finally:
        process.kill()
    return process.returncode, err


def events(folder):
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


@pytest.mark.parametrize(
    ("end", "number", "code"),
    [
        ("", None, 0),
        ("sys.exit(5)", None, 5),
        ("worker.collect(1, wanted=8)", signal.SIGTERM, 143),
        ("worker.collect(1, wanted=8)", signal.SIGINT, -signal.SIGINT),
    ],
    ids=["end of script", "sys.exit", "SIGTERM", "Ctrl-C"],
)
def test_process_ends_with_its_books_closed(end, number, code, tmp_path):
    """Tasks are cancelled on the server, what is unfinished is counted, nothing lingers."""
    profile = SessionProfile(duration=0.02)
    script = FaultScript(sessions=profile, faults=[Fault("task_endless", instruction="prompt ([4-9]|1.)$")])
    with serve_polar(script, newer=True) as polar:
        act = None
        if number is not None:

            def act(process):
                polar.wait_until(lambda: polar.submits == 12)
                process.send_signal(number)

        returned, err = run_trainer(polar, tmp_path, end, act)
        assert returned == code, err
        unfinished = 4 if number is None else 8
        assert "unfinished groups are abandoned" in err
        assert len(polar.cancelled) == unfinished
        names = events(tmp_path)
        assert names.count("group_abandoned") == unfinished
        assert names.count("group_drawn") == unfinished + 4
        assert names[-1] == "journal_closed"


def test_handler_of_somebody_else_is_left_alone():
    """Ray and launchers decide for themselves what SIGTERM means."""
    user, before = User(), signal.getsignal(signal.SIGTERM)

    def other(number, frame):
        pass

    try:
        signal.signal(signal.SIGTERM, other)
        assert not exit_on_sigterm(user)
        release_sigterm(user)
        assert signal.getsignal(signal.SIGTERM) is other
    finally:
        signal.signal(signal.SIGTERM, before)


def test_default_action_comes_back_after_the_last_user():
    """Nothing is left behind."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        first, second = User(), User()
        assert exit_on_sigterm(first)
        assert exit_on_sigterm(second)
        release_sigterm(first)
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == 143
        release_sigterm(second)
        release_sigterm(second)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_install_nothing():
    """Python allows signal handlers in the main thread only."""
    results = []
    thread = threading.Thread(target=lambda: results.append(exit_on_sigterm(User())))
    thread.start()
    thread.join()
    assert results == [False]
