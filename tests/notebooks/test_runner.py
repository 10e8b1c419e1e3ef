"""Notebooks executed and opened: failures name their cell, pages need no kernel, copies spare one's work."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest

from analysis import cli, cli_notebook
from analysis.errors import NotebookError
from analysis.notebook_runner import execute, notebook_files, without_widgets

V4 = nbformat.v4
VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


def written(path: Path, *cells: str) -> Path:
    nbformat.write(V4.new_notebook(cells=[V4.new_code_cell(cell) for cell in cells]), path)
    return path


def test_a_failure_names_notebook_and_cell_and_shows_both_code_and_error(tmp_path):
    path = written(tmp_path / "broken.ipynb", "x = 1", "x / 0  # here")
    broken = nbformat.read(path, as_version=4).cells[1].id
    with pytest.raises(NotebookError) as failed:
        execute(path)
    message = str(failed.value)
    assert message.startswith(f"broken.ipynb failed in cell 2 of 2, {broken}:")
    assert "x / 0  # here" in message
    assert "ZeroDivisionError" in message


def test_the_command_goes_on_after_a_failure_and_says_so_with_its_exit_code(tmp_path, monkeypatch, capsys):
    notebooks = [
        written(tmp_path / "a.ipynb", "1 / 0"),
        written(tmp_path / "b.ipynb", "import os; os.getcwd()"),
    ]
    monkeypatch.setattr("analysis.notebook_runner.notebook_files", lambda: notebooks)
    assert cli.main(["notebook", "--execute", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().out
    assert "a.ipynb failed in cell 1 of 1" in shown
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.html"]
    assert str(tmp_path) in (tmp_path / "out" / "b.html").read_text()


def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    """Executing takes minutes."""
    ran = []
    monkeypatch.setattr("analysis.notebook_runner.execute", lambda path, **_: ran.append(path))
    (tmp_path / "file").write_text("")
    assert cli.main(["notebook", "--execute", str(tmp_path / "file")]) == 1
    assert "File exists" in capsys.readouterr().err
    assert ran == []


def test_pages_show_what_widgets_held_and_say_where_a_kernel_is_needed():
    def widget(name, **state):
        return {"model_name": name, "state": state}

    saved = {
        "box": widget("VBoxModel", children=["IPY_MODEL_one", "IPY_MODEL_two"]),
        "one": widget("HTMLModel", value="<b>first</b>"),
        "two": widget("HTMLModel", value="<i>second</i>"),
        "mixed": widget("HBoxModel", children=["IPY_MODEL_one", "IPY_MODEL_any"]),
        "any": widget("AnyModel"),
        "tqdm": widget("HBoxModel", children=["IPY_MODEL_one", "IPY_MODEL_bar", "IPY_MODEL_two"]),
        "bar": widget("FloatProgressModel", value=3.0),
    }
    outputs = [
        V4.new_output("display_data", data={VIEW: {"model_id": model}, "text/html": "old"})
        for model in ("box", "tqdm", "mixed", "gone")
    ]
    notebook = V4.new_notebook(
        cells=[V4.new_code_cell("show", outputs=outputs), V4.new_markdown_cell("text")],
        metadata={"widgets": {STATE: {"state": saved}}},
    )
    box, mixed, gone = (output.data for output in without_widgets(notebook).cells[0].outputs)
    assert box == {"text/html": "<div><b>first</b></div><div><i>second</i></div>"}
    assert "run this notebook in JupyterLab" in mixed["text/html"]
    assert "run this notebook in JupyterLab" in gone["text/html"]
    assert VIEW in notebook.cells[0].outputs[0].data


def test_copies_never_overwrite_what_is_there(tmp_path, capsys):
    kept = tmp_path / notebook_files()[0].name
    kept.write_text("my own work")
    opened = cli_notebook.place_notebooks(notebook_files(), tmp_path)
    assert kept.read_text() == "my own work"
    assert "stays as it is" in capsys.readouterr().out
    assert [path.read_bytes() for path in opened[1:]] == [path.read_bytes() for path in notebook_files()[1:]]


def test_a_checkout_opens_its_own_notebooks_and_installed_ones_are_copied(tmp_path, monkeypatch):
    assert cli_notebook.place_notebooks(notebook_files(), None) == notebook_files()
    (tmp_path / "share").mkdir()
    installed = written(tmp_path / "share" / "00_tour.ipynb", "1")
    monkeypatch.chdir(tmp_path)
    opened = cli_notebook.place_notebooks([installed], None)
    assert opened == [tmp_path / cli_notebook.COPY / "00_tour.ipynb"]


def test_jupyterlab_opens_the_notebook_with_this_python(tmp_path):
    argv, environment = cli_notebook.launch(tmp_path / "00_tour.ipynb", ["--no-browser"], {"HOME": "x"})
    assert argv[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={tmp_path}" in argv
    assert "--LabApp.default_url=/lab/tree/00_tour.ipynb" in argv
    assert argv[-1] == "--no-browser"
    assert environment == {"HOME": "x", "JUPYTER_PREFER_ENV_PATH": "1"}


def test_options_after_two_dashes_go_to_jupyterlab():
    options = cli.build_parser().parse_args(["notebook", "--", "--no-browser", "--port=1"])
    assert options.jupyter == ["--no-browser", "--port=1"]
