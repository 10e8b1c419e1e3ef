"""What `workbench lab` refuses before it starts anything."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from analysis.lab.command import add_arguments, run, settings_from


def _options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lo", "did you mean 'loo'"),
        ("no_such_module:Mine", "cannot import"),
        ("no_such_module:Mine", "PYTHONPATH=. before the command"),
    ],
)
def test_an_unknown_estimator_is_refused_at_once(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing has started yet, and no run folder was made."""
    assert run(_options("--estimator", name, "--out", str(tmp_path / "run"))) == 2
    said = capsys.readouterr()
    assert reason in said.err + said.out
    assert not (tmp_path / "run").exists()


def test_a_known_estimator_becomes_a_setting() -> None:
    """Its name is kept as it was given."""
    assert settings_from(_options("--estimator", "rloo")).advantage_estimator == "rloo"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "names and values, got a list"),
        ('{"rollouts": 3', "is not JSON: "),
        ('{"seed": "x"}', "seed must be a number between 0 and 2147483647, got 'x'"),
        ('{"fully_async": "no"}', "fully_async must be true or false"),
        ('{"train": [1]}', "TrainerSettings is made from names and values, got list"),
        (
            '{"advantage_estimator": "grpo", "advantage_estimator_kwargs": [1]}',
            "advantage_estimator_kwargs must",
        ),
        ('{"advantage_estimator": 3}', "advantage_estimator must be a name"),
        ('{"advantage_estimator": "grpo", "advantage_estimator_kwargs": {"x": 1}}', "unexpected keyword"),
    ],
)
def test_unusable_settings_are_one_line(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is named with its value; exit code 2, and nothing was made."""
    path = tmp_path / "s.json"
    path.write_text(text)
    assert run(_options("--settings", str(path), "--out", str(tmp_path / "run"))) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_file_that_cannot_be_read_is_named_without_an_error_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path once, and the reason in words."""
    assert run(_options("--settings", str(tmp_path / "nope.json"))) == 2
    assert (
        capsys.readouterr().err
        == f"workbench lab: --settings {tmp_path / 'nope.json'}: no such file or directory\n"
    )
    (tmp_path / "file").touch()
    assert run(_options("--out", str(tmp_path / "file" / "run"))) == 2
    said = capsys.readouterr().err
    assert "not a directory" in said
    assert "Errno" not in said
