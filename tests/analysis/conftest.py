"""What tests of loading share: one run folder by the real writers, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analysis.lab.run_folder import RunFolder
from tests.analysis.embedded_run import make_embedded_run


@pytest.fixture(scope="session")
def _embedded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_embedded_run(tmp_path_factory.mktemp("embedded") / "lab")


@pytest.fixture
def embedded(_embedded: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of a small run by the real writers, to do with what a test likes."""
    return RunFolder(Path(shutil.copytree(_embedded.root, tmp_path / "lab")))
