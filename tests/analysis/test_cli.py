"""The command line: subcommands are found, answer at once and turn endings into exit codes."""

from __future__ import annotations

import argparse
import subprocess
import sys
import types
from pathlib import Path

import pytest

from analysis import cli
from analysis.lab import command
from analysis.lab.interrupts import Interrupted


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A registered subcommand `job --number N` whose end the test decides."""
    module = types.ModuleType("tests_cli_job")
    module.add_arguments = lambda parser: parser.add_argument("--number", type=int, default=0)
    module.run = lambda options: options.number
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("job", "do a job", module.__name__, "lab"),))
    return module


def test_a_subcommand_gets_its_options_and_gives_the_exit_code(job: types.ModuleType) -> None:
    """Options belong to the subcommand; what `run` returns is the exit code."""
    assert cli.main(["job", "--number", "3"]) == 3


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names each job with its summary and exits well."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for entry in cli.COMMANDS:
        assert entry.name in shown
        assert entry.summary in shown


@pytest.mark.parametrize("argv", [["unknown"], ["job", "--number", "x"]])
def test_unusable_arguments_exit_with_two(job: types.ModuleType, argv: list[str]) -> None:
    """An unknown job or a wrong value: usage and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (Interrupted(15), 143)])
def test_an_interruption_becomes_its_exit_code(
    job: types.ModuleType, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    """Ctrl-C that no job handled ends with 130 and a word, not with a traceback."""

    def interrupted(options: argparse.Namespace) -> int:
        raise error

    job.run = interrupted
    assert cli.main(["job"]) == code
    assert capsys.readouterr().err == "interrupted\n"


def test_a_missing_library_is_named_with_the_extra_that_brings_it(
    job: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the extra the user reads what to install; an error in our own modules stays a traceback."""

    def missing(name: str) -> None:
        def run(options: argparse.Namespace) -> int:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        job.run = run

    missing("torch")
    assert cli.main(["job"]) == 2
    assert "needs torch" in capsys.readouterr().err
    missing("analysis.lab.gone")
    with pytest.raises(ModuleNotFoundError):
        cli.main(["job"])


def test_help_needs_the_core_only() -> None:
    """Options are listed where none of the optional libraries is installed."""
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('tqdm', 'torch', 'pandas', 'matplotlib', 'fastapi'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from analysis import cli\n"
        "try: cli.main(['lab', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert cli.main(['lab']) == 2\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--rollouts" in done.stdout
    # The package is not on PyPI, so its name alone installs nothing.
    assert "pip install '.[lab]' in a checkout" in done.stderr


def _options(*argv: str) -> argparse.Namespace:
    return cli.build_parser().parse_args(["lab", *argv])


def test_lab_options_become_settings() -> None:
    """Few flags: seed, rollouts and a faster run; an explicit number of rollouts wins over `--fast`."""
    plain = command.settings_from(_options())
    assert (plain.seed, plain.rollouts) == (0, 40)
    chosen = command.settings_from(_options("--seed", "3", "--rollouts", "12"))
    assert (chosen.seed, chosen.rollouts) == (3, 12)
    assert command.settings_from(_options("--fast")).rollouts == 8
    fast = command.settings_from(_options("--fast", "--rollouts", "20"))
    assert fast.rollouts == 20
    assert fast.rollout_batch_size == 8


def test_lab_refuses_a_folder_with_something_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run never mixes its files with those of another one."""
    (tmp_path / "old.txt").touch()
    assert cli.main(["lab", "--out", str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.txt"]


def test_lab_refuses_values_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value is named on stderr, and no folder appears."""
    assert cli.main(["lab", "--rollouts", "0", "--out", str(tmp_path / "run")]) == 2
    assert "rollouts must be between" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
