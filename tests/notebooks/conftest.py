"""The runs that the notebooks look at in tests: two small ones by the embedded stack, made once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.lab.example import EXAMPLES, make_example

SMALLER = {"rollouts": 4, "rollout_batch_size": 4, "eval_prompts": 16, "warm_start_steps": 200}


@pytest.fixture(scope="session")
def example_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two runs that differ in their learning rate."""
    place = tmp_path_factory.mktemp("examples")
    return [
        make_example(place / f"run{number}", replace(settings, **SMALLER))
        for number, settings in enumerate(EXAMPLES)
    ]


@pytest.fixture
def looked_at(example_folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let notebooks look at the test's runs."""
    monkeypatch.setenv("WORKBENCH_RUN", os.pathsep.join(map(str, example_folders)))
    for name in ("POLAR_ROLLOUT_URL", "SGLANG_ROUTER_URL", "WORKBENCH_RUNS"):
        monkeypatch.delenv(name, raising=False)
    return example_folders
