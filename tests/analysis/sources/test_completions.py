"""Captured model calls as rows: whole ones, cut ones, and those of newer gateways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.lab.polar_server.persistence import ResultStore
from analysis.sources.base import SourceKind
from tests.analysis.sources.source_files import CAPTURES, read, rows, whats, write_json

COMPLETION = SourceKind.COMPLETION


def record(**changes: Any) -> dict[str, Any]:
    value = {
        "completion_id": "msg_0123456789ab",
        "timestamp": "2026-01-01T00:00:01.500000+00:00",
        "session_id": "s-1",
        "task_id": "t-1",
        "api_type": "anthropic",
        "model_requested": "m",
        "model_used": "served",
        "original_request": {"messages": []},
        "transformed_request": {
            "messages": [{"role": "user"}],
            "tools": [{}, {}],
            "temperature": 0.7,
            "top_p": 1,
        },
        "response": {
            "choices": [
                {
                    "finish_reason": "tool_calls",
                    "message": {"role": "assistant", "content": None, "tool_calls": [{}, {}]},
                    "prompt_token_ids": [1, 2, 3],
                    "token_ids": [4, 5],
                    "logprobs": {"content": [{"logprob": -0.5}, {"logprob": 0.0}]},
                }
            ],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        },
        "metadata": {
            "group_id": 7,
            "policy_version": 3,
            "rollout_step": 4,
            "session_id": "s-1",
            "task_id": "t-1",
        },
        "__written_at": "2026-01-01T00:00:02+00:00",
    }
    return {**value, **changes}


def one(tmp_path: Path, value: Any, name: str = "0012-msg_0123456789ab.json") -> dict[str, Any]:
    records = read(write_json(tmp_path / name, value), COMPLETION)
    assert records.problems == ()
    (row,) = rows(records, "completion")
    return row


def test_every_column(tmp_path: Path) -> None:
    """Ids, request, answer, tokens and times of a call stand in its row."""
    row = one(tmp_path, record())
    assert row.pop("answered_at").isoformat() == "2026-01-01T00:00:01.500000+00:00"
    assert row.pop("written_at").isoformat() == "2026-01-01T00:00:02+00:00"
    del row["path"]
    assert row == {
        "rollout_id": 4, "evaluation": False, "group_index": 7, "task_id": "t-1", "session_id": "s-1",
        "completion_number": 12, "completion_id": "msg_0123456789ab", "api_type": "anthropic",
        "model_requested": "m", "model_used": "served", "finish_reason": "tool_calls", "prompt_tokens": 3,
        "completion_tokens": 2, "cached_tokens": 1, "prompt_ids": 3, "response_ids": 2, "messages": 1,
        "tools": 2, "tool_calls": 2, "policy_version": 3, "logprob_mean": -0.25, "logprob_min": -0.5,
        "logprob_sum": -0.5, "logprob_zero_share": 0.5, "logprob_missing": 0, "temperature": 0.7,
        "top_p": 1.0,
        "truncated": False,
    }  # fmt: skip


def test_a_captured_record() -> None:
    """A record of a real gateway loads with its 512 logprobs."""
    (row,) = rows(read(CAPTURES / "completion_record.json", COMPLETION), "completion")
    assert (row["completion_tokens"], row["finish_reason"], row["tool_calls"]) == (512, "length", 0)
    assert row["logprob_zero_share"] == pytest.approx(276 / 512)
    assert "completion_number" not in row
    assert "response_ids" not in row, "this engine gave ids under another name, in the logprobs"


def test_cut_records(tmp_path: Path) -> None:
    """A field that the gateway's writer cut marks the call as unfit for training."""
    store = ResultStore(tmp_path, max_field_bytes=200)
    value = record(response=record()["response"] | {"choices": record()["response"]["choices"] * 20})
    live = {("request" if key == "transformed_request" else key): item for key, item in value.items()}
    path = store.write_completion(live, task_id="t-1", session_id="s-1", number=1)
    assert path is not None
    (row,) = rows(read(Path(path), COMPLETION), "completion")
    assert (row["truncated"], row["truncated_fields"]) == (True, "response")
    assert "prompt_ids" not in row
    nested = one(tmp_path, record(original_request={"messages": [{"a": [{"__truncated": True}]}]}))
    assert nested["truncated_fields"] == "original_request"
    text = one(tmp_path, record(error="x" * 2000 + "…"))
    assert text["truncated_fields"] == "error"
    assert one(tmp_path, record(note="to be continued…"))["truncated"] is False


def test_newer_gateways(tmp_path: Path) -> None:
    """Roles, engine times and weight versions have columns; times of several requests are added up."""
    about = {
        "completion_role": "router_policy",
        "weight_version": "9",
        "inference_timings": [{"e2e_ms": 10, "queue_ms": 1.5}, {"e2e_ms": 5, "queue_ms": None}, 7],
    }
    row = one(tmp_path, record(metadata=about))
    assert (row["completion_role"], row["e2e_ms"], row["queue_ms"]) == ("router_policy", 15.0, 1.5)
    assert row["weight_version"] == "9"
    assert "decode_ms" not in row


def test_live_records_call_the_request_otherwise(tmp_path: Path) -> None:
    """What the gateway answers over HTTP names the request differently and leaves ids to the metadata."""
    value = record()
    value["request"] = value.pop("transformed_request")
    for name in ("session_id", "task_id", "api_type", "__written_at"):
        del value[name]
    row = one(tmp_path, value, name="saved.json")
    assert (row["session_id"], row["task_id"], row["messages"]) == ("s-1", "t-1", 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"response": None},
        {"response": {"choices": []}},
        {"response": {"choices": ["x"]}},
        {"metadata": None},
        {"response": {"choices": [{"logprobs": {"content": [None, {}, {"logprob": "x"}]}}]}},
        {"timestamp": "soon"},
        {"transformed_request": []},
        {"response": {"error": {"message": "boom"}}},
        {"response": {"usage": 5}},
        {"response": {"choices": [{"finish_reason": {"type": "stop"}, "logprobs": None, "message": None}]}},
    ],
)
def test_strange_records_keep_their_row(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Whatever an answer lacks, the call has a row."""
    assert one(tmp_path, record(**changes))["completion_id"] == "msg_0123456789ab"


def test_errors_of_the_engine(tmp_path: Path) -> None:
    """An answer that is an error says so."""
    assert one(tmp_path, record(response={"error": {"message": "boom"}}))["error"] == "boom"
    assert one(tmp_path, record(response={"error": "bang"}))["error"] == "bang"


def test_bare_nan(tmp_path: Path) -> None:
    """Gateways write bare NaN: the logprob is missing, the record is not."""
    text = json.dumps(record()).replace("-0.5}", "NaN}")
    path = tmp_path / "0001-msg_a.json"
    path.write_text(text)
    (row,) = rows(read(path, COMPLETION), "completion")
    assert (row["logprob_missing"], row["logprob_mean"]) == (1, 0.0)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        ('{"completion_id": "x"', "ends too early"),
        ('{"session_id": "x"}', "holds no captured model call"),
        ("[]", "holds no captured model call"),
    ],
)
def test_what_is_no_record(tmp_path: Path, content: str, what: str) -> None:
    """Torn and foreign files are one problem each."""
    path = tmp_path / "0001-msg_a.json"
    path.write_text(content)
    assert whats(read(path, COMPLETION)) == [what]
