"""The cell that awaits a live run, interrupted in a real kernel: the waiting ends and the run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest
from jupyter_client.manager import KernelManager

from tests.analysis.live.support import HANGING, KEYS, serve_polar

PATIENCE = 60.0

# Whatever wakes the loop of the kernel lets it notice an interrupt: nothing is shown here.
SUBMIT = """
from analysis import live
lab = live.connect({url!r}, runs_dir={runs!r}, config={keys!r})
handle = lab.submit("a", 2)
print("submitted")
"""


class Kernel:
    """A kernel that runs cells one by one."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(extra_arguments=["--log-level=ERROR"])
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str, *, interrupt: bool = False) -> list[str]:
        """Run a cell, interrupted when it says so; return what it printed and the names of its errors."""
        request, said = self.client.execute(code), []
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1.0)
            except Empty:
                continue
            content = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                said += content["text"].split()
                if interrupt and "waiting" in content["text"]:
                    interrupt = False
                    self.manager.interrupt_kernel()
            elif message["msg_type"] == "error":
                said.append(content["ename"])
            elif content.get("execution_state") == "idle":
                return said
        raise AssertionError(f"the cell has not ended within {PATIENCE:g} s; it said {said}")


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.mark.parametrize("waits", ["await handle", "handle.wait()", "handle.result()"])
def test_an_interrupted_cell_ends_and_the_run_goes_on(kernel: Kernel, tmp_path: Path, waits: str) -> None:
    """ipykernel cancels the task of a cell that awaits, and raises in one that does not."""
    with serve_polar(HANGING, newer=True) as polar:
        runs = str(tmp_path)
        assert kernel.run(SUBMIT.format(url=polar.url, runs=runs, keys=KEYS)) == ["submitted"]
        polar.wait_until(lambda: polar.running_sessions == 2)
        ended = "CancelledError" if waits.startswith("await") else "KeyboardInterrupt"
        cell = f"print('waiting', flush=True)\n{waits}"
        # Twice, as somebody would who believes that it did not work.
        assert kernel.run(cell, interrupt=True) == ["waiting", ended]
        assert kernel.run(cell, interrupt=True) == ["waiting", ended]
        assert polar.running_sessions == 2
        assert kernel.run("print(handle.state)") == ["running"]
        assert kernel.run("handle.cancel()\nprint((await handle).state)") == ["cancelled"]
        polar.wait_until(lambda: polar.running_sessions == 0)
        assert kernel.run("lab.close()") == []
