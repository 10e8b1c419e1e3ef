"""Topology files: what Polar accepts is accepted, what it refuses is refused with the key's name."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.lab.polar_server.topology import TopologyError, load_topology, settings_from_topology

MINIMAL: dict[str, Any] = {"gateway": {"nodes": [{"id": "n"}]}}


def _load(tmp_path: Path, data: Any) -> Any:
    path = tmp_path / "topology.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return load_topology(path)


def test_defaults_are_polars(tmp_path: Path):
    """A file with one node gets all the documented defaults."""
    topology = _load(tmp_path, {"gateway": {"nodes": [{}]}, "path": "anything"})
    settings = settings_from_topology(topology)
    assert (settings.host, settings.port, settings.save_dir) == ("0.0.0.0", 8080, None)
    assert (settings.dispatch_poll_seconds, settings.callback_grace_seconds) == (1.0, 120.0)
    assert (settings.heartbeat_seconds, settings.max_field_bytes, settings.scripted) == (30, 1_048_576, False)
    (node,) = settings.nodes
    assert (node.node_id, node.port, node.engine) == (socket.gethostname(), 8081, "sglang")
    assert (node.max_init_workers, node.max_run_workers, node.max_postrun_workers) == (4, 2, 4)
    assert node.inference_url == "http://127.0.0.1:8000"


def test_everything_can_be_set(tmp_path: Path):
    """Each key reaches the setting it belongs to; numbers may be text."""
    data = {
        "rollout": {
            "host": "127.0.0.1", "port": "9000", "public_url": "http://r:1/base/",
            "save_dir": "out",
            "dispatch_poll_interval_seconds": 0.5, "callback_grace_seconds": 0,
        },
        "gateway": {
            "heartbeat_interval_seconds": 5,
            "rollout_server_url": "http://r:1",
            "completion_persistence": {"enabled": False, "max_field_bytes": 10, "queue_size": 5},
            "nodes": [
                {
                    "id": " a ", "host": "127.0.0.1", "port": 1, "public_url": "http://g:2",
                    "model_served": " m ",
                    "inference": {"engine": "vllm", "base_url": "http://e:3/"}, "max_init_workers": 7,
                    "max_run_workers": 8, "max_postrun_workers": 9,
                    "default_runtime": {"image": "i", "unknown": 1},
                },
                {"id": "b"},
            ],
        },
    }  # fmt: skip
    settings = settings_from_topology(_load(tmp_path, data))
    assert (settings.port, settings.public_url, settings.save_dir) == (9000, "http://r:1/base", "out")
    assert (settings.callback_grace_seconds, settings.persist_completions) == (0.0, False)
    first, second = settings.nodes
    assert (first.node_id, first.public_url, first.model_served) == ("a", "http://g:2", "m")
    assert (first.engine, first.inference_url) == ("vllm", "http://e:3")
    assert (first.max_init_workers, first.max_run_workers, first.max_postrun_workers) == (7, 8, 9)
    assert second.node_id == "b"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "must hold a mapping"),
        ("- a", "must hold a mapping"),
        ("a: [", "is not YAML"),
        ({}, "gateway"),
        ({"gateway": {"nodes": []}}, "gateway.nodes"),
        ({"gateway": {"nodes": [{"id": "n"}, {"id": "n"}]}}, "names n more than once"),
        ({"gateway": {"nodes": [{"id": " "}]}}, "gateway.nodes.0.id"),
        ({"gateway": {"nodes": [{"port": 0}]}}, "gateway.nodes.0.port"),
        ({"gateway": {"nodes": [{"sglang": {}}]}}, "gateway.nodes.0.sglang"),
        ({"gateway": {"nodes": [{"max_run_workers": 0}]}}, "max_run_workers"),
        ({**MINIMAL, "rollout": None}, "rollout"),
        ({**MINIMAL, "rollout": {"port": "x"}}, "rollout.port"),
        ({**MINIMAL, "rollout": {"public_url": "${URL}"}}, "rollout.public_url"),
        ({**MINIMAL, "rollout": {"save_dir": " "}}, "rollout.save_dir"),
        ({**MINIMAL, "rollout": {"dispatch_poll_interval_seconds": 0}}, "dispatch_poll"),
        ({**MINIMAL, "extra": 1}, "extra"),
        ({"gateway": {"heartbeat_interval_seconds": 1.5, "nodes": [{}]}}, "heartbeat"),
    ],
)
def test_what_polar_refuses_is_refused(tmp_path: Path, data: Any, text: str):
    """The error names the file and the key."""
    with pytest.raises(TopologyError, match=text) as caught:
        _load(tmp_path, data)
    assert "topology.yaml" in str(caught.value)


def test_missing_files_and_folders(tmp_path: Path):
    """A missing file is FileNotFoundError, a folder says that it is one."""
    with pytest.raises(FileNotFoundError):
        load_topology(tmp_path / "none.yaml")
    with pytest.raises(TopologyError, match="is a directory"):
        load_topology(tmp_path)
