"""Commands on a terminal: no job, closed streams, a reader that leaves, and errors in words."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_bridge import cli
from slime_bridge.terminal import reason, run_command

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def shell(text: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which BRIDGE and WORKBENCH are the two commands."""
    for word, module in (("BRIDGE", "slime_bridge.cli"), ("WORKBENCH", "analysis.cli")):
        text = text.replace(word, f"{sys.executable} -m {module}")
    return subprocess.run(
        ["bash", "-c", text], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [("BRIDGE", ("doctor", "patch-slime")), ("BRIDGE journal", ("audit",)), ("WORKBENCH", ("lab", "load"))],
)
def test_without_a_job_the_jobs_are_listed(call: str, words: tuple[str, ...]) -> None:
    """The bare command answers what can be done, and that is no error."""
    done = shell(call)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n    {word}" in done.stdout or f"\n  {word}" in done.stdout for word in words)


@pytest.mark.parametrize("call", ["BRIDGE --version", "WORKBENCH --version"])
def test_both_commands_say_their_version(call: str) -> None:
    """One number for both: they are one package."""
    done = shell(call)
    assert done.returncode == 0
    assert "slime-bridge 0." in done.stdout


@pytest.mark.parametrize("call", ["BRIDGE keys >&-", "WORKBENCH --help >&-", "WORKBENCH load /tmp >&-"])
def test_a_closed_standard_output_is_one_line(call: str) -> None:
    """The result has nowhere to go: exit code 2 and the reason, no traceback."""
    done = shell(call)
    assert done.returncode == 2
    assert done.stderr.endswith("standard output is closed, so there is nowhere to write the result\n")
    assert done.stderr.count("\n") == 1


def test_a_closed_standard_error_takes_nothing_from_the_result() -> None:
    """Whoever closes it wants no complaints; the rest goes on."""
    done = shell("BRIDGE keys 2>&-")
    assert done.returncode == 0
    assert done.stdout.startswith("# Configuration")
    assert shell("BRIDGE journal audit /nowhere 2>&-").returncode == 2


@pytest.mark.parametrize("call", ["BRIDGE keys", "BRIDGE --help", "WORKBENCH --help"])
def test_a_reader_that_is_gone_ends_a_command_as_the_signal_does(call: str) -> None:
    """In silence, also where the help itself is what nobody reads."""
    read, write = os.pipe()
    os.close(read)
    module = {"BRIDGE": "slime_bridge.cli", "WORKBENCH": "analysis.cli"}[call.split()[0]]
    argv = [sys.executable, "-m", module, *call.split()[1:]]
    try:
        done = subprocess.run(
            argv, env=ENVIRONMENT, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(write)
    assert done.stderr == ""
    # argparse itself passes over a help text that nobody reads.
    assert done.returncode in ((0, 141) if "--help" in call else (141,))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("call", ["BRIDGE keys", "WORKBENCH lab --help", "BRIDGE --version"])
def test_a_full_disk_is_said_in_words(call: str, unbuffered: str) -> None:
    """A result that was not written is no success, and no traceback either."""
    done = shell(f"PYTHONUNBUFFERED={unbuffered} {call} > /dev/full")
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr
    if unbuffered and call != "BRIDGE keys":
        return  # argparse itself passes over a help text that cannot be written
    assert done.returncode == 2
    assert "no space left on device" in done.stderr


def test_an_interruption_is_a_word_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    """At whatever point it comes, the parsing of options included."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert run_command("x", interrupted) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_reasons_are_words() -> None:
    """A system error without its number and its class; a missing key without the quotes of its repr."""
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "nope.json")
    assert reason(missing) == "nope.json: no such file or directory"
    assert reason(OSError("a text of its own")) == "a text of its own"
    assert reason(KeyError("no column x")) == "no column x"
    assert reason(ValueError("3 is too many")) == "3 is too many"


@pytest.mark.parametrize(
    "argv", [["journal", "audit", "nope"], ["doctor", "-c", "nope"], ["patch-slime", "nope"]]
)
def test_no_error_number_reaches_the_terminal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A path that is not there is named, in one line."""
    assert cli.main(argv) == 2
    said = capsys.readouterr().err
    assert "nope" in said
    assert "Errno" not in said
    assert said.count("\n") == 1
