"""The server as a process: starts from its command line, says where it listens, ends on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from analysis.lab.polar_server.__main__ import _parser, load_script, main, settings_from
from tests.analysis.lab.polar_peers import shelf_policy, stub_engine, task
from tests.analysis.lab.test_polar_agents import _request, _seed

ROOT = Path(__file__).parents[3]

# Processes take their time to start on a machine with other work.
pytestmark = pytest.mark.timeout(180)


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the server and yield it with its first line of output."""
    command = [sys.executable, "-W", "error", "-m", "analysis.lab.polar_server", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def _url(line: str) -> str:
    assert line.startswith("rollout server http://127.0.0.1:"), line
    return line.split()[2].rstrip(";")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_agents_and_ends_on_a_signal(tmp_path: Path, number: signal.Signals):
    """Sessions of minutes, streams and idle connections that are open do not keep the process."""
    with (
        stub_engine(shelf_policy) as engine,
        _process("--router-url", engine.url, "--port", "0", "--save-dir", str(tmp_path)) as (process, line),
        httpx.Client(base_url=_url(line), trust_env=False, verify=False, timeout=20) as client,
    ):
        done = {"task_id": "t-1", "num_samples": 2, **_request(_seed(named_item=False))}
        assert client.post("/rollout/task/submit", json=done).status_code == 200
        deadline = time.monotonic() + 30
        while client.get("/rollout/task/t-1").json()["status"] == "running":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        slow = _request(_seed(named_item=True), settings={"tool_latency_median": 600.0}, timeout_seconds=600)
        client.post("/rollout/task/submit", json={"task_id": "t-2", "num_samples": 8, **slow})
        with client.stream("GET", "/events") as stream:
            next(stream.iter_lines())
            process.send_signal(number)
            assert process.wait(40) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert len(list(tmp_path.rglob("ses_*.json"))) == 2
    assert len(list(tmp_path.rglob("*-msg_*.json"))) >= 4


def test_it_plays_a_script(tmp_path: Path):
    """A script from a file drives the process; JSON and YAML are read."""
    script = {
        "sessions": {"reward": 0.5},
        "faults": [{"kind": "response_status", "on": "submit", "times": 1}],
    }
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    with _process("--script", str(path), "--port", "0") as (_, line):
        url = f"{_url(line)}/rollout/task/submit"
        assert httpx.post(url, json=task(), trust_env=False, verify=False).status_code == 503
        assert httpx.post(url, json=task(), trust_env=False, verify=False).status_code == 200


def _settings(*arguments: str) -> Any:
    return settings_from(_parser().parse_args(arguments))


def test_options_reach_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Everything on the command line counts, over a topology too; the token comes from the environment."""
    monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "secret")
    settings = _settings(
        "--router-url", "http://e:1", "--gateway-port", "7", "--node-id", "gw", "--max-run-workers", "3",
        "--no-completion-files", "--newer", "--engine", "vllm", "--model-served", "m",
        "--init-seconds", "0.5",
    )  # fmt: skip
    (node,) = settings.nodes
    assert (node.inference_url, node.port, node.node_id, node.max_run_workers) == ("http://e:1", 7, "gw", 3)
    assert (node.engine, node.model_served, node.init_seconds) == ("vllm", "m", 0.5)
    assert (settings.persist_completions, settings.newer, settings.scripted) == (False, True, False)
    assert (settings.port, settings.host, settings.control_token) == (8080, "127.0.0.1", "secret")
    topology = tmp_path / "topology.yaml"
    topology.write_text("gateway: {nodes: [{id: a}, {id: b}]}")
    settings = _settings(
        "--config", str(topology), "--router-url", "http://e:2", "--port", "9", "--host", "127.0.0.1"
    )
    assert [node.inference_url for node in settings.nodes] == ["http://e:2"] * 2
    assert (settings.port, settings.host) == (9, "127.0.0.1")
    with pytest.raises(ValueError, match="fits only one"):
        _settings("--config", str(topology), "--node-id", "x")


def test_the_kinds_of_faults_are_listed(capsys: pytest.CaptureFixture[str]):
    """`--list-faults` needs nothing else and starts nothing."""
    assert main(["--list-faults"]) == 0
    assert "callback_lost" in capsys.readouterr().out


def test_scripts_are_read_from_yaml(tmp_path: Path):
    """YAML that holds no mapping is an error that names the file."""
    path = tmp_path / "script.yaml"
    path.write_text("seed: 3\nfaults:\n- {kind: callback_lost, tasks: [1]}\n")
    assert load_script(path).faults[0].tasks == [1]
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"script.yaml must hold a mapping"):
        load_script(path)


def test_wrong_command_lines_and_taken_ports(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Exit code 2 for what is asked wrongly, 1 when the server cannot start; the reason is logged."""
    monitored = (
        ([], 2, "--router-url"),
        (["--config", str(tmp_path / "none.yaml")], 2, "none.yaml"),
        (["--script", str(tmp_path / "none.yaml")], 2, "none.yaml"),
    )
    for arguments, code, text in monitored:
        assert main(arguments) == code
        assert text in caplog.text
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["--router-url", "http://127.0.0.1:9", "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot start" in caplog.text
