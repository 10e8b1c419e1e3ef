"""Ctrl-C while notebooks are executed: it ends there, with one word and no kernel left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RUNNER = """
import sys
from pathlib import Path
import nbformat
from analysis import cli_notebook, notebook_runner
from slime_bridge.terminal import run_command

cell = nbformat.v4.new_code_cell(
    f"import os, pathlib, time\\npathlib.Path({sys.argv[1]!r}).write_text(str(os.getpid()))\\ntime.sleep(60)"
)
first, second = Path(sys.argv[2]) / "first.ipynb", Path(sys.argv[2]) / "second.ipynb"
for path in (first, second):
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
sys.exit(run_command("workbench", lambda: cli_notebook._execute([first, second], Path(sys.argv[2]) / "out")))
"""


@pytest.mark.parametrize("signum", [signal.SIGINT])
def test_ctrl_c_ends_the_execution_and_the_kernel(tmp_path: Path, signum: int) -> None:
    """The second notebook is not begun, and the interruption is not told as a failure of the first."""
    mark = tmp_path / "kernel"
    job = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RUNNER), str(mark), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not (mark.exists() and mark.read_text()):
            assert job.poll() is None, job.communicate()
        os.killpg(job.pid, signum)
        out, err = job.communicate(timeout=40)
    finally:
        job.kill()
        job.wait()
    assert (job.returncode, err) == (130, "interrupted\n")
    assert "FAILED" not in out
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
