"""Connecting: to what answers, with clear words about what does not, and never a credential on the screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from analysis import live
from analysis.errors import (
    ConnectError,
    LiveError,
    PolarUnreachableError,
    RouterUnreachableError,
    SubmissionError,
)
from analysis.lab.polar_server.testing import Fault, FaultScript, serve_polar
from analysis.lab.processes import free_port
from analysis.live.backends import read_keys
from tests.analysis.live.support import KEYS, lab_at, live_threads


@pytest.fixture(autouse=True)
def _no_servers_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLAR_ROLLOUT_URL", "SGLANG_ROUTER_URL", "POLAR_CONTROL_PLANE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_importing_starts_and_loads_nothing() -> None:
    """A plain import costs no pandas, PyTorch or thread."""
    code = (
        "import sys, threading\n"
        "from analysis import live\n"
        "import analysis\n"
        "assert analysis.live is live\n"
        "loaded = {'pandas', 'torch', 'httpx', 'ipywidgets', 'IPython'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert threading.active_count() == 1\n"
        "assert set(live.__all__) <= {*dir(live), *live._HOMES}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_nobody_there_is_said_with_the_way_out(tmp_path: Path) -> None:
    """The address without its credentials, and what to check."""
    url = f"http://user:secret@127.0.0.1:{free_port()}"
    with pytest.raises(PolarUnreachableError, match="check polar_url") as caught:
        live.connect(url, runs_dir=tmp_path)
    assert "secret" not in str(caught.value)
    assert live_threads() == []


def test_somebody_else_there_is_no_rollout_server(tmp_path: Path) -> None:
    """A gateway answers, and is something else; so is what answers with errors only."""
    with serve_polar(gateways=1) as polar:
        with pytest.raises(PolarUnreachableError):
            live.connect(polar.gateways["node-1"].url, runs_dir=tmp_path)
    with serve_polar(FaultScript(faults=[Fault("response_status", on="health", status=500)])) as polar:
        with pytest.raises(PolarUnreachableError, match="500"):
            live.connect(polar.url, runs_dir=tmp_path)


def test_a_router_that_was_named_must_answer(tmp_path: Path) -> None:
    """It is looked at once, at the start; what is no router is told apart from what is not there."""
    with serve_polar() as polar:
        with pytest.raises(RouterUnreachableError, match="no router answers"):
            live.connect(polar.url, f"http://127.0.0.1:{free_port()}", runs_dir=tmp_path)
        with live.connect(polar.url, polar.url, runs_dir=tmp_path) as lab:
            assert lab.router_url == polar.url  # it answers /health


def test_the_environment_names_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And they are shown without what lets one in."""
    with serve_polar(control_token="secret-token", newer=True) as polar:
        monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "secret-token")
        monkeypatch.setenv("POLAR_ROLLOUT_URL", polar.url.replace("http://", "http://user:secret@"))
        with live.connect(runs_dir=tmp_path, config=KEYS) as lab:
            handle = lab.submit("a", 2, name="mine")
            assert handle.result(20).state == "finished"
            shown = [repr(lab), lab._repr_html_(), repr(handle), handle._repr_html_(), lab.polar_url]
            written = [
                path.read_text(errors="replace") for path in (tmp_path / "mine").rglob("*") if path.is_file()
            ]
        assert not [text for text in shown + written if "secret" in text]
        assert all("basic" in r.headers["authorization"].lower() for r in polar.submissions)


def test_settings_of_the_embedded_stack_do_not_fit_a_server(tmp_path: Path) -> None:
    """They would have no effect; unknown ones are named."""
    with serve_polar() as polar:
        with pytest.raises(SubmissionError, match="engines"):
            live.connect(polar.url, runs_dir=tmp_path, engines=2)
    with pytest.raises(SubmissionError, match="no_such"):
        live.connect(runs_dir=tmp_path, embedded=True, no_such=1)


def test_a_closed_connection_does_nothing_more(tmp_path: Path) -> None:
    """Closing twice is closing once."""
    with lab_at(tmp_path) as (lab, _):
        lab.close()
        lab.close()
        for action in (lambda: lab.submit("a"), lab.preflight, lambda: lab.watch(tmp_path), lab.train):
            with pytest.raises(LiveError, match="closed"):
                action()


def test_what_a_server_cannot_do_is_said(tmp_path: Path) -> None:
    """Training is Slime's there, and its agents' questions are not known."""
    with lab_at(tmp_path) as (lab, _):
        with pytest.raises(LiveError, match=r"lab\.watch"):
            lab.train("rloo")
        with pytest.raises(SubmissionError, match="prompts of yours"):
            lab.prompts()
    with lab_at(tmp_path, config=None) as (lab, _):
        with pytest.raises(SubmissionError, match="task_template"):
            lab.submit("a")


def test_keys_of_a_file_leave_addresses_out(tmp_path: Path) -> None:
    """Where to connect to is the connection's."""
    path = tmp_path / "polar.yaml"
    path.write_text("polar_rollout_url: http://elsewhere\npolar_task_template: {agent: {harness: lab}}\n")
    assert read_keys(path) == {"polar_task_template": {"agent": {"harness": "lab"}}}
    assert read_keys(None) == {}
    path.write_text("[1, 2]")
    with pytest.raises(SubmissionError, match="mapping"):
        read_keys(path)
    with pytest.raises(SubmissionError, match="cannot be read"):
        read_keys(tmp_path / "none.yaml")


def test_preflight_is_the_doctors(tmp_path: Path) -> None:
    """As a frame and as a table; hostile answers of a server are shown as text."""
    with lab_at(tmp_path) as (lab, _):
        preflight = lab.preflight(["<script>alert(1)</script>"], timeout=20.0)
        frame = preflight.frame
        assert {"configuration", "rollout server", "gateways", "probe task"} <= set(frame["check"])
        assert set(frame["severity"]) <= {"ok", "info", "skipped", "warning", "error"}
        assert preflight.ok == ("error" not in set(frame["severity"]))
        html = preflight._repr_html_()
        assert "<script>" not in html
        assert "wb-badge" in html
        assert "rollout server" in repr(preflight)


def test_errors_are_the_builtins_that_one_would_catch() -> None:
    """A refused connection is a ConnectionError."""
    assert issubclass(PolarUnreachableError, ConnectionError)
    assert issubclass(ConnectError, LiveError)
