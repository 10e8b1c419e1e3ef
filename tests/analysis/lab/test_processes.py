"""Child processes: ready, stopped within a bound, and never left behind, however the parent ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from analysis.errors import ProcessError, ProcessExitedError, ProcessNotReadyError
from analysis.lab.processes import ChildProcess, free_port, http_status

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
NAP = "time.sleep(600)"
DEAF = f"import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n{NAP}"
STUBBORN = [sys.executable, "-c", DEAF]


def wait_for(condition: object, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_free_ports_differ_and_can_be_bound() -> None:
    """Each call gives another port, and it is free."""
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", ports[0]))


def test_child_runs_in_a_session_of_its_own_and_logs_to_a_file(tmp_path: Path) -> None:
    """Ctrl-C in the terminal does not reach the child; its output, both streams, lands in the file."""
    code = f"import sys, time\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\n{NAP}"
    log = tmp_path / "a" / "log"
    with ChildProcess([sys.executable, "-c", code], name="talker", log_path=log) as child:
        assert child.running
        assert child.pid is not None
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        wait_for(lambda: "err" in child.log_tail())
        assert "out" in child.log_tail()
        pid = child.pid
    assert not alive(pid)
    assert child.returncode == -signal.SIGTERM


def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    """A deaf child ends within the bound, and stopping again is harmless."""
    child = ChildProcess(STUBBORN, name="deaf", log_path=tmp_path / "log", stop_timeout=0.3).start()
    wait_for(lambda: "deaf" in child.log_tail())
    assert child.stop() == -signal.SIGKILL
    assert child.stop() == -signal.SIGKILL
    assert not child.running


@pytest.mark.parametrize("end", ["stop", "exit"])
def test_grandchildren_go_with_the_child(tmp_path: Path, end: str) -> None:
    """Nothing of the group outlives the child, whether it is stopped or ends by itself."""
    wait = "time.sleep(600)" if end == "stop" else ""
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"print(p.pid, flush=True)\n{wait}"
    )
    with ChildProcess([sys.executable, "-c", code], name="parent", log_path=tmp_path / "log") as child:
        wait_for(lambda: (tmp_path / "log").read_text().strip().isdigit())
        grandchild = int((tmp_path / "log").read_text())
        if end == "exit":
            assert child.wait(20) == 0
            wait_for(lambda: not alive(grandchild))
    wait_for(lambda: not alive(grandchild))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_child_dies_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    """A parent that is killed, without a chance to clean up, takes its children with it."""
    log = str(tmp_path / "log")
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom analysis.lab.processes import ChildProcess\n"
        f"child = ChildProcess({STUBBORN!r}, name='deaf', log_path=Path({log!r})).start()\n"
        "print(child.pid, flush=True)\ntime.sleep(600)\n"
    )
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # Once the program itself runs, only the death signal can end it.
        wait_for(lambda: "deaf" in (tmp_path / "log").read_text())
        parent.send_signal(number)
    wait_for(lambda: not alive(pid))


def test_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """Linux ties the death signal to a thread; a child started from a short-lived one must stay."""
    child = ChildProcess(SLEEP, name="child", log_path=tmp_path / "log")
    starter = threading.Thread(target=child.start)
    starter.start()
    starter.join()
    assert child.wait(0.5) is None
    assert child.running
    child.stop()


def test_parent_that_forgets_stops_its_children_at_exit(tmp_path: Path) -> None:
    """A script that ends without stopping its child leaves nothing behind, and is not held up by it."""
    log = str(tmp_path / "log")
    code = (
        "from pathlib import Path\nfrom analysis.lab.processes import ChildProcess\n"
        f"child = ChildProcess({STUBBORN!r}, name='child', log_path=Path({log!r})).start()\n"
        "print(child.pid, flush=True)\n"
    )
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=40, check=True
    )
    wait_for(lambda: not alive(int(done.stdout)))


def test_interrupt_while_waiting_still_stops_the_child(tmp_path: Path) -> None:
    """KeyboardInterrupt inside the block passes through, and the child is gone."""
    child = ChildProcess(SLEEP, name="child", log_path=tmp_path / "log")

    def work() -> None:
        with child:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert child.pid is not None
    assert not alive(child.pid)


def test_wait_ready_sees_the_url_answer(tmp_path: Path) -> None:
    """Ready means status 200; anything else goes on waiting."""
    port = free_port()
    argv = [
        sys.executable,
        "-m",
        "http.server",
        str(port),
        "--bind",
        "127.0.0.1",
        "--directory",
        str(tmp_path),
    ]
    url = f"http://127.0.0.1:{port}/"
    with ChildProcess(argv, name="files", log_path=tmp_path / "log", ready_url=url) as child:
        child.wait_ready(30)
        assert http_status(url) == 200
        assert http_status(f"{url}nothing") == 404
        child.ready_url = f"{url}nothing"
        with pytest.raises(ProcessNotReadyError, match="status 404"):
            child.wait_ready(0.2)
    assert http_status(url, timeout=0.5) is None


def test_wait_ready_tells_at_once_when_the_child_has_ended(tmp_path: Path) -> None:
    """A child that dies on its way up is reported at once, with its status and the end of its log."""
    argv = [sys.executable, "-c", "import sys; sys.exit('no such checkpoint')"]
    url = f"http://127.0.0.1:{free_port()}/"
    with ChildProcess(argv, name="engine", log_path=tmp_path / "log", ready_url=url) as child:
        with pytest.raises(ProcessExitedError, match="(?s)engine ended with status 1.*no such checkpoint"):
            child.wait_ready(300)


def test_a_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    """The name of the missing program is in the log, and the status is not 0."""
    with ChildProcess(["no-such-program-here"], name="ghost", log_path=tmp_path / "log") as child:
        assert child.wait(20) == 1
        assert "no-such-program-here: No such file" in child.log_tail()


def test_what_cannot_be_started_or_waited_for_is_an_error(tmp_path: Path) -> None:
    """An unusable log, a second start and a missing ready_url are typed errors."""
    with pytest.raises(ProcessError, match="cannot be started"):
        ChildProcess(SLEEP, name="child", log_path=tmp_path).start()
    with ChildProcess(SLEEP, name="child", log_path=tmp_path / "log") as child:
        with pytest.raises(ProcessError, match="started before"):
            child.start()
        with pytest.raises(ProcessError, match="no ready_url"):
            child.wait_ready(1)
    unstarted = ChildProcess(SLEEP, name="child", log_path=tmp_path / "log", ready_url="http://127.0.0.1:1/")
    assert unstarted.stop() is None
    with pytest.raises(ProcessExitedError, match="was not started"):
        unstarted.wait_ready(1)


def test_environment_is_added_to_the_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child sees the parent's variables and its own."""
    monkeypatch.setenv("FROM_PARENT", "1")
    code = "import os; print(os.environ['FROM_PARENT'] + os.environ['OWN'])"
    argv = [sys.executable, "-c", code]
    with ChildProcess(argv, name="env", log_path=tmp_path / "log", env={"OWN": "2"}) as child:
        assert child.wait(20) == 0
    assert (tmp_path / "log").read_text() == "12\n"


def test_stopped_children_leave_no_thread(tmp_path: Path) -> None:
    """The thread that keeps a child ends with it."""
    before = set(threading.enumerate())
    with ChildProcess(SLEEP, name="child", log_path=tmp_path / "log"):
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) == before
