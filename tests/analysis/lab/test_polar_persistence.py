"""The files that Polar leaves on disk: names, contents, truncation, and a disk that refuses."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.lab.polar_server.completion_files import CompletionWriter
from analysis.lab.polar_server.persistence import ResultStore, approximate_size, stored_form
from analysis.lab.polar_server.proxy import Capture
from analysis.lab.polar_server.state import SessionRecord
from analysis.lab.polar_server.testing import Fault, FaultScript, serve_polar
from analysis.lab.polar_server.wire import encode
from tests.analysis.lab.polar_peers import callback_sink, get, submit


def _record(**changes: Any) -> dict[str, Any]:
    record = {
        "completion_id": "msg_0123456789ab",
        "timestamp": "2026-01-01T00:00:00.000000+00:00",
        "request": {"messages": []},
        "original_request": {"messages": []},
        "response": {"choices": []},
        "metadata": {},
    }
    return {**record, **changes}


def _write(store: ResultStore, **changes: Any) -> dict[str, Any]:
    path = store.write_completion(_record(**changes), task_id="t", session_id="s", number=1)
    assert path is not None
    return json.loads(Path(path).read_text())


def test_session_files_hold_the_result_without_trajectory_status(tmp_path: Path):
    """Compact ASCII on one line; the two keys that a reader must put back are gone."""
    with serve_polar(save_dir=tmp_path) as polar:
        submit(polar, "t-1", num_samples=3, metadata={"text": "größer ✓"})
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        body = get(polar, "/rollout/task/t-1").json()
    paths = sorted((tmp_path / "task_t-1").iterdir())
    assert sorted(body["result_paths"]) == [str(path) for path in paths]
    for result in body["results"]:
        raw = (tmp_path / "task_t-1" / f"ses_{result['session_id']}.json").read_bytes()
        assert raw.isascii()
        assert b"\n" not in raw
        assert b": " not in raw.split(b'"text"')[0]
        stored = json.loads(raw)
        assert {"status", "error"} - set(stored["trajectory"]) == {"status", "error"}
        stored["trajectory"].update(status=stored["status"], error=stored["error"])
        assert stored == result


def test_running_the_same_id_again_adds_files(tmp_path: Path):
    """Nothing is cleaned up between runs of one task id."""
    with serve_polar(save_dir=tmp_path) as polar:
        for _ in range(2):
            submit(polar, "t-1", num_samples=2)
            polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
    assert len(list((tmp_path / "task_t-1").glob("ses_*.json"))) == 4


def test_the_file_exists_before_the_session_is_visible(tmp_path: Path):
    """Every path in `result_paths` can be read at once, and stands in completion order."""
    script = FaultScript(faults=[Fault("session_slow", sessions=[0], seconds=2.0)])
    with serve_polar(script=script, save_dir=tmp_path) as polar:
        submit(polar, "t-1", num_samples=2)
        polar.wait_until(lambda: polar.tasks["t-1"].completed_sessions == 1)
        first = get(polar, "/rollout/task/t-1").json()
        assert (
            json.loads(Path(first["result_paths"][0]).read_text())["session_id"]
            == first["results"][0]["session_id"]
        )
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        done = get(polar, "/rollout/task/t-1").json()
        finished = [Path(path).stem.removeprefix("ses_") for path in done["result_paths"]]
        assert finished == [r["session_id"] for r in reversed(done["results"])]


def test_non_finite_numbers_are_null_in_files(tmp_path: Path):
    """Whatever the wire shows, the session file holds null."""
    script = FaultScript(faults=[Fault("nan_reward")])
    with serve_polar(script=script, save_dir=tmp_path) as polar:
        submit(polar, "t-1")
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        assert b'"reward":NaN' in get(polar, "/rollout/task/t-1").content
    (path,) = (tmp_path / "task_t-1").iterdir()
    assert json.loads(path.read_text())["trajectory"]["traces"][0]["reward"] is None


def test_a_disk_that_refuses_fails_the_task_without_a_callback(tmp_path: Path):
    """As on a full disk: status `failed`, no session, no callback."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with callback_sink() as sink, serve_polar(save_dir=blocked) as polar:
        submit(polar, "t-1", callback_url=sink.url)
        polar.wait_until(lambda: polar.tasks["t-1"].status == "failed")
        body = get(polar, "/rollout/task/t-1").json()
        assert (body["results"], body["completed_sessions"], sink.received) == ([], 0, [])


def test_lone_surrogates_reach_the_file(tmp_path: Path):
    """Text that is no valid Unicode is kept as an escape."""
    script = FaultScript(faults=[Fault("session_lone_surrogate")])
    with serve_polar(script=script, save_dir=tmp_path) as polar:
        submit(polar, "t-1")
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        assert b"\\ud83d" in get(polar, "/rollout/task/t-1").content
    (path,) = (tmp_path / "task_t-1").iterdir()
    assert b"\\ud83d" in path.read_bytes()


def test_completion_files_rename_the_request(tmp_path: Path):
    """`transformed_request` on disk, `request` live, and the time of writing."""
    stored = _write(ResultStore(tmp_path), request={"a": 1})
    assert stored["transformed_request"] == {"a": 1}
    assert "request" not in stored
    assert stored["__written_at"].endswith("+00:00")
    (path,) = (tmp_path / "task_t" / "sessions" / "s" / "completions").iterdir()
    assert path.name == "0001-msg_0123456789ab.json"


def test_nan_is_a_bare_literal_in_completion_files(tmp_path: Path):
    """As Polar writes it, so that readers meet it."""
    store = ResultStore(tmp_path)
    path = store.write_completion(
        _record(response={"x": float("nan")}), task_id="t", session_id="s", number=12345
    )
    assert Path(str(path)).name.startswith("12345-")
    assert '"x": NaN' in Path(str(path)).read_text()


def test_large_fields_are_cut_and_marked(tmp_path: Path):
    """Strings get an ellipsis, mappings and lists keep what leads and say that something is missing."""
    store = ResultStore(tmp_path, max_field_bytes=40)
    stored = _write(
        store,
        timestamp="x" * 100,
        response={"id": "short", "choices": ["y" * 50], "usage": 1},
        metadata=["a" * 30, "b" * 30],
        request={"small": 1},
    )
    assert stored["timestamp"] == "x" * 40 + "…"
    assert stored["response"] == {
        "id": "short",
        "__truncated": True,
        "_truncated_keys_omitted": ["choices", "usage"],
    }
    assert stored["metadata"] == ["a" * 30, {"__truncated": True}]
    assert stored["transformed_request"] == {"small": 1}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON)
def test_sizes_add_up(first: Any, second: Any):
    """A container is as large as what it holds."""
    assert approximate_size([first, second]) == approximate_size(first) + approximate_size(second)
    assert approximate_size({"ab": first}) == 2 + approximate_size(first)
    assert approximate_size(None) == 0


@given(JSON)
def test_encoding_is_valid_json(value: Any):
    """Both encoders give JSON that decodes to the same value."""
    assert json.loads(encode(value)) == json.loads(json.dumps(value))
    assert json.loads(encode(value, literal_nan=True)) == json.loads(json.dumps(value))


def test_stored_form_of_something_malformed():
    """A result that is none is stored as it is."""
    assert stored_form({"x": 1}) == {"x": 1}
    assert stored_form({"trajectory": {"status": "ERROR", "error": None, "traces": []}}) == {
        "trajectory": {"traces": []}
    }


def test_nothing_is_written_without_a_folder():
    """No `save_dir`, no files, and no paths in results."""
    store = ResultStore(None)
    session = SessionRecord("s", "t", 0, result={"status": "ERROR"})
    assert store.write_session(session) is None
    assert store.write_completion(_record(), task_id="t", session_id="s", number=1) is None


def test_the_writer_numbers_sessions_apart_and_ends(tmp_path: Path):
    """Each session counts from 1; closing waits for what is queued."""
    writer = CompletionWriter(ResultStore(tmp_path))
    for session in ("a", "b", "a"):
        writer.put(Capture(session, "t", api_type="openai_chat"), _record())
    writer.close()
    names = sorted(p.relative_to(tmp_path).parts[2] + "/" + p.name[:4] for p in tmp_path.rglob("*.json"))
    assert names == ["a/0001", "a/0002", "b/0001"]
    assert not [thread for thread in threading.enumerate() if thread.name == "completion-writer"]


def test_a_full_queue_drops_records_instead_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A slow disk costs numbers in the sequence, never a session's time; the rest is given up at the end."""
    started, release = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> None:
        started.set()
        release.wait(20)

    monkeypatch.setattr(ResultStore, "write_completion", slow)
    writer = CompletionWriter(ResultStore(tmp_path))
    capture = Capture("a", "t")
    writer.put(capture, _record())
    assert started.wait(20)
    for _ in range(1500):
        writer.put(capture, _record())
    assert writer.dropped == 1500 - 1024
    threading.Timer(0.3, release.set).start()
    writer.close(timeout=0.2)
    release.set()


def test_a_failing_disk_is_counted(tmp_path: Path):
    """Completion files that cannot be written do not stop anything."""
    blocked = tmp_path / "file"
    blocked.write_text("x")
    writer = CompletionWriter(ResultStore(blocked))
    writer.put(Capture("a", "t"), _record())
    writer.close()
    assert writer.failed == 1
