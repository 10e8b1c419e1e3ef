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
    ("name", "reason"), [("lo", "did you mean 'loo'"), ("no_such_module:Mine", "cannot import")]
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
