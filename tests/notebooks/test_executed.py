"""Every notebook runs from top to bottom, in a folder of its own, on runs that the test made."""

from __future__ import annotations

import nbformat
import pytest

from analysis.notebook_runner import execute, notebook_files, write_page

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]


@pytest.mark.parametrize("path", notebook_files(), ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, looked_at, tmp_path):
    before = path.read_bytes()
    cells: list[int] = []
    executed = execute(path, folder=tmp_path, on_cell=lambda number, total: cells.append(number))
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert cells == list(range(1, len(executed.cells) + 1))
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert "error" not in kinds
    assert kinds & {"execute_result", "display_data"}
    said = [output.text for cell in code for output in cell.outputs if output.output_type == "stream"]
    assert [text for text in said if "Warning" in text or "Traceback" in text] == []
    page = write_page(executed, tmp_path / "page.html").read_text(encoding="utf-8")
    assert nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].lstrip("# ") in page
    assert path.read_bytes() == before
