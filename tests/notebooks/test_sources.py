"""Notebooks as committed: no outputs, stable cells, a promise at the top, links that lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import nbformat
import pytest

from analysis.notebook_runner import notebook_files

NOTEBOOKS = notebook_files()
EXPECTED = [
    "00_tour",
    "01_load_and_check",
    "02_advantages",
    "03_rejections_and_lag",
    "04_explore_sessions",
    "05_live_run",
    "06_evaluation_and_comparing_runs",
]
PLACES = re.compile(r"""(?:^|[\s"'(=])(?:/(?:home|root|work|tmp|Users|mnt|data)/|[A-Z]:\\)""")


def committed(path: Path) -> str:
    """What git holds of a notebook; the file itself outside of a checkout."""
    shown = subprocess.run(
        ["git", "show", f":./{path.name}"], cwd=path.parent, capture_output=True, text=True, check=False
    )
    return shown.stdout if shown.returncode == 0 else path.read_text(encoding="utf-8")


def test_the_seven_notebooks_are_there_in_reading_order():
    assert [path.stem for path in NOTEBOOKS] == EXPECTED


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_clean(path):
    content = json.loads(committed(path))
    nbformat.validate(content)
    assert (content["nbformat"], content["nbformat_minor"]) >= (4, 5)
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in content["metadata"]
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    assert [cell["execution_count"] for cell in code] == [None] * len(code)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    # Those that an editor makes up are hexadecimal, and new at each save of a copied cell.
    assert [name for name in ids if re.fullmatch(r"[0-9a-f]{8,}(-[0-9a-f]+)*", name)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_says_what_the_reader_will_be_able_to_do(path):
    first = nbformat.read(path, as_version=4).cells[0]
    assert first.cell_type == "markdown"
    title, _, promise = first.source.partition("\n")
    assert title.startswith("# ")
    assert promise.strip().startswith("After this notebook you can")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_text_and_code_take_turns(path):
    """Small cells: none longer than a screen, and words for every few of them."""
    cells = nbformat.read(path, as_version=4).cells
    assert max(len(cell.source.splitlines()) for cell in cells) <= 30
    words = [cell.cell_type == "markdown" for cell in cells]
    longest = max(len(run) for run in "".join("m" if word else "c" for word in words).split("m"))
    assert longest <= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_of_a_machine_is_in_a_notebook_and_links_lead_somewhere(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert PLACES.search(cell.source) is None, cell.id
        for target in re.findall(r"\]\(([^)#:]+)\)", cell.source):
            assert (path.parent / target).is_file(), f"{cell.id} links to {target}"
