"""Polar's results as session and trace rows: real captures, strange servers, torn and hostile files."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from analysis.sources.base import SourceFile, SourceKind
from analysis.sources.polar_wire import _Call
from analysis.sources.registry import read_files
from slime_bridge.conversion import turns
from tests.analysis.sources.source_files import CAPTURES, frame, read, rows, session, trace, whats, write_json

SESSION, TASK = SourceKind.POLAR_SESSION, SourceKind.POLAR_TASK


def one(tmp_path: Path, value: Any, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Session row and trace rows of one result that loads without a problem."""
    records = read(write_json(tmp_path / "ses_s-1.json", value), SESSION, **options)
    assert records.problems == ()
    (row,) = rows(records, "session")
    return row, rows(records, "trace")


def test_every_column_of_a_session(tmp_path: Path) -> None:
    """Ids, outcome, reward, tokens, timing and building of a result stand in its row."""
    row, _ = one(tmp_path, session())
    path = row.pop("path")
    assert path == str(tmp_path / "ses_s-1.json")
    assert json.loads(row.pop("evaluation_report"))["strategy"] == "session_completed"
    assert json.loads(row.pop("task_metadata")) == {"group_id": 7, "policy_version": 3, "rollout_step": 4}
    assert row == {
        "rollout_id": 4, "evaluation": False, "group_index": 7, "task_id": "t-1", "session_id": "s-1",
        "attempted": True, "finished": True, "status": "COMPLETED", "node_id": "node-1", "completed": True,
        "early_stopped": False, "usable": True, "reward": 1.0, "outcome_reward": 1.0,
        "evaluator": "session_completed", "policy_version": 3, "rollout_step": 4, "traces": 1,
        "prompt_tokens": 4, "response_tokens": 8, "masked_tokens": 3, "turns": 2, "trainable_tokens": 5,
        "register_to_init_queue_ms": 2.0, "init_ms": 350.0, "run_ms": 700.0, "postrun_ms": 120.0,
        "builder": "prefix_merging", "api_type": "openai_chat", "model_requested": "m",
        "model_used": "served-m", "record_count": 3, "completions_total": 3, "completions_merged": 2,
        "chains_total": 1, "chains_full": 0, "chains_truncated": 1,
    }  # fmt: skip


def test_every_column_of_a_trace(tmp_path: Path) -> None:
    """Counts and logprob summaries cover sampled tokens; exact zeros among them are counted, not dropped."""
    _, (row,) = one(tmp_path, session())
    del row["path"]
    assert row == {
        "rollout_id": 4, "evaluation": False, "group_index": 7, "task_id": "t-1", "session_id": "s-1",
        "trace_index": 0, "finish_reason": "stop", "reward": 1.0, "prompt_tokens": 4, "response_tokens": 8,
        "sampled_tokens": 5, "masked_tokens": 3, "turns": 2, "calls": 2, "messages": 2, "has_mask": True,
        "has_logprobs": True, "logprob_mean": -0.4, "logprob_min": -1.0, "logprob_sum": -2.0,
        "logprob_zero_share": 0.2, "logprob_missing": 0,
    }  # fmt: skip


def test_captures_of_real_runs() -> None:
    """The numbers that the captures' description gives come out of their files."""
    names = ["long", "merged", "no_token_ids", "small"]
    files = [SourceFile.at(CAPTURES / f"session_result.{name}.json", SESSION) for name in names]
    records = read_files([*files, SourceFile.at(CAPTURES / "task_status.json", TASK)])
    assert records.problems == ()
    sessions = frame(records, "session")
    assert sessions["traces"].tolist() == [1, 1, 10, 1, 1]
    assert sessions["usable"].tolist() == [True, True, False, True, True]
    assert sessions["reward"].isna().tolist() == [True, True, False, True, True]
    traces = frame(records, "trace").set_index("session_id", append=True)
    long = traces.iloc[0]
    assert (long["prompt_tokens"], long["response_tokens"], long["sampled_tokens"]) == (2965, 15803, 8506)
    assert round(long["logprob_zero_share"] * long["sampled_tokens"]) == 2119
    lost = frame(records, "trace").query("session_id.str.startswith('sk-polar-bfff')")
    assert lost["response_tokens"].isna().all()
    assert not lost["has_logprobs"].any()
    assert lost["finish_reason"].eq("length").all()


def test_both_ways_of_reading_agree(tmp_path: Path) -> None:
    """The patient decoder, which a bare NaN in the metadata brings in, gives the rows of the fast one."""
    for number, capture in enumerate(sorted(CAPTURES.glob("session_result.*.json"))):
        value = json.loads(capture.read_bytes())
        fast = read(write_json(tmp_path / f"{number}_a.json", value), SESSION)
        value["metadata"] = {**value["metadata"], "x": float("nan")}
        slow = read(write_json(tmp_path / f"{number}_b.json", value), SESSION)
        for grain in ("session", "trace"):
            drop = {"path", "task_metadata"}
            pairs = zip(rows(fast, grain), rows(slow, grain), strict=True)
            for a, b in pairs:
                assert {k: v for k, v in a.items() if k not in drop} == {
                    k: v for k, v in b.items() if k not in drop
                }


def test_token_places(tmp_path: Path) -> None:
    """Each trace with tokens has a place: its number in the session, and the session's in a task record."""
    lost = trace(prompt_ids=[], response_ids=[], loss_mask=[], response_logprobs=None)
    results = [session("a"), session("b", [lost, trace(prompt_ids=[9])])]
    path = write_json(tmp_path / "t.json", {"task_id": "t-1", "status": "completed", "results": results})
    records = read(path, TASK)
    assert [row["position"] for row in rows(records, "session")] == [0, 1]
    refs = records.token_refs.to_pylist()
    assert [(ref["session_id"], ref["result"], ref["item"]) for ref in refs] == [("a", 0, 0), ("b", 1, 1)]
    alone = read(write_json(tmp_path / "ses_a.json", session("a")), SESSION).token_refs.to_pylist()
    assert [(ref["result"], ref["item"], ref["rollout_id"], ref["evaluation"]) for ref in alone] == [
        (None, 0, 4, False)
    ]


def test_one_bad_session_leaves_its_siblings(tmp_path: Path) -> None:
    """In a task record, a session that cannot be read is one problem; a second copy of one is another."""
    results = [session("a"), {"session_id": "b"}, session("a"), 5, session("c", status="ERROR")]
    path = write_json(tmp_path / "t.json", {"task_id": "t", "status": "completed", "results": results})
    records = read(path, TASK)
    assert [row["session_id"] for row in rows(records, "session")] == ["a", "c"]
    assert whats(records) == [
        "a session cannot be read",
        "a session is listed twice",
        "a session cannot be read",
    ]
    assert records.problems[0].path.endswith("t.json:results[1]")


def test_task_record_with_bare_nan(tmp_path: Path) -> None:
    """A record that the fast decoder refuses is taken apart by the patient one."""
    value = {
        "task_id": "t",
        "status": "completed",
        "results": [session("a", [trace(reward=float("nan"))]), session("b")],
    }
    records = read(write_json(tmp_path / "t.json", value), TASK)
    assert records.problems == ()
    assert [row["session_id"] for row in rows(records, "session")] == ["a", "b"]


def test_sessions_without_traces_keep_their_row(tmp_path: Path) -> None:
    """Sessions without a trace have a row, and the trace table has its columns and no rows."""
    paths = [
        write_json(tmp_path / f"ses_{i}.json", session(f"s-{i}", [], status="TIMEOUT", error="late"))
        for i in range(3)
    ]
    records = read_files([SourceFile.at(path, SESSION) for path in paths])
    sessions = frame(records, "session")
    assert sessions["traces"].tolist() == [0, 0, 0]
    assert sessions["error"].tolist() == ["late"] * 3
    assert sessions[["prompt_tokens", "trainable_tokens"]].isna().all().all()
    traces = frame(records, "trace")
    assert len(traces) == 0
    assert str(traces["logprob_mean"].dtype) == "Float64"


def test_missing_rewards_stay_missing(tmp_path: Path) -> None:
    """A reward that nobody gave is missing, not 0; the evaluator's outcome stands in for the session."""
    row, traces = one(tmp_path, session(traces=[trace(reward=None)]))
    assert "reward" not in traces[0]
    assert row["reward"] == 1.0
    value = session(traces=[trace(reward=None)])
    del value["trajectory"]["metadata"]["evaluation"]
    row, _ = one(tmp_path, value)
    assert "reward" not in row
    assert "outcome_reward" not in row


def test_session_reward_votes(tmp_path: Path) -> None:
    """The session's reward is the mean over traces that can be trained on; others do not vote."""
    masked = trace(reward=9.0, loss_mask=[0] * 8)
    row, _ = one(tmp_path, session(traces=[trace(reward=0.5), trace(reward=1.0), masked, trace(reward=None)]))
    assert row["reward"] == 0.75
    row, _ = one(tmp_path, session(status="ERROR", error="step 0 exited with code 1"))
    assert (row["reward"], row["usable"], row["completed"], row["trainable_tokens"]) == (1.0, False, False, 0)


def test_newer_servers(tmp_path: Path) -> None:
    """Newer timing fields have columns, unknown ones are kept, and the server's own filter is told."""
    timing = {
        "run_ms": "700.5", "agent_exec_ms": 12, "runtime_exec_count": 3, "init_ms": None, "postrun_ms": True,
        "runtime_exec_ms_by_category": {"agent": 1.5}, "warp_ms": 9.25, "shields": {"up": True},
    }  # fmt: skip
    verdict = {
        "masked": True,
        "trainable": False,
        "reason": "session_timeout",
        "detail": "x",
        "original_reward": 0.5,
    }
    about = {**trace()["metadata"], "training_filter": verdict}
    row, (only,) = one(tmp_path, session(timing=timing, traces=[trace(reward=0.0, metadata=about)]))
    assert (row["run_ms"], row["agent_exec_ms"], row["runtime_exec_count"]) == (700.5, 12.0, 3)
    assert json.loads(row["runtime_exec_ms_by_category"]) == {"agent": 1.5}
    assert json.loads(row["timing_extra"]) == {"warp_ms": 9.25, "shields": {"up": True}, "postrun_ms": True}
    assert "init_ms" not in row
    assert row["usable"] is False
    assert (only["masked_by_server"], only["filter_reason"], only["original_reward"]) == (
        True,
        "session_timeout",
        0.5,
    )


def test_timeouts_that_the_server_calls_trainable(tmp_path: Path) -> None:
    """A timeout of the agent's own budget keeps its tokens, as in the bridge; an error never does."""
    about = {**trace()["metadata"], "training_filter": {"trainable": True, "reason": "agent_timeout"}}
    row, _ = one(tmp_path, session(status="TIMEOUT", traces=[trace(metadata=about)]))
    assert row["usable"] is True
    row, _ = one(tmp_path, session(status="ERROR", error="x", traces=[trace(metadata=about)]))
    assert row["usable"] is False


def test_early_stopped_sessions(tmp_path: Path) -> None:
    """A session that the server stopped as surplus says so, in either place."""
    row, _ = one(tmp_path, session(status="ERROR", traces=[], metadata={"early_stop_cancelled": True}))
    assert row["early_stopped"] is True


def test_weight_versions(tmp_path: Path) -> None:
    """Versions come from engines, else from gateways that overwrite the stamp; a constant stamp is none."""
    calls = [{"weight_version": "10"}, {"weight_version": "9"}]
    row, (only,) = one(tmp_path, session(traces=[trace(metadata={"completion_metadata": calls})]))
    assert (only["weight_version_oldest"], only["weight_version_newest"]) == ("9", "10")
    assert (row["weight_version_oldest"], row["weight_version_newest"]) == ("9", "10")
    stamped = [{"policy_version": 3}, {"policy_version": 5}]
    _, (only,) = one(tmp_path, session(traces=[trace(metadata={"completion_metadata": stamped})]))
    assert (only["weight_version_oldest"], only["weight_version_newest"]) == ("3", "5")
    _, (only,) = one(
        tmp_path, session(traces=[trace(metadata={"completion_metadata": [{"policy_version": 3}] * 2})])
    )
    assert "weight_version_oldest" not in only


def test_evaluations(tmp_path: Path) -> None:
    """A task with a data set is an evaluation; one without any stamp says nothing about it."""
    row, (only,) = one(
        tmp_path, session(metadata={"eval_dataset": "aime", "group_id": 1, "policy_version": 2})
    )
    assert (row["evaluation"], row["dataset"]) == (True, "aime")
    assert (only["evaluation"], only["dataset"]) == (True, "aime")
    value = session(metadata={})
    value["trajectory"]["metadata"] = {}
    value["trajectory"]["traces"] = [trace(metadata={"group_id": "g7"})]
    row, _ = one(tmp_path, value)
    assert not {"evaluation", "group_index", "rollout_id", "policy_version"} & row.keys()


def test_stored_form_and_nulls(tmp_path: Path) -> None:
    """The stored form lacks the trajectory's status; nulls stand for anything absent."""
    value = session()
    del value["trajectory"]["status"], value["trajectory"]["error"]
    row, _ = one(tmp_path, value)
    assert row["completed"] is True
    nothing = dict.fromkeys(trace())
    value = session(traces=[nothing], timing=None, node_id=None, metadata=None)
    value["trajectory"]["metadata"] = None
    row, (only,) = one(tmp_path, value)
    assert row["usable"] is False
    assert only == {
        "path": row["path"], "task_id": "t-1", "session_id": "s-1", "trace_index": 0, "messages": 0,
        "has_mask": False, "has_logprobs": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss_mask": []}, {"has_mask": False, "response_tokens": 8, "logprob_sum": -2.0}),
        ({"loss_mask": [True] * 8}, {"sampled_tokens": 8}),
        ({"loss_mask": [1.0] * 8}, {"sampled_tokens": 8}),
        ({"response_ids": []}, {"response_tokens": 0}),
        ({"response_logprobs": [None, -0.5, 0, 0, 0, 0, -1, -2]}, {"logprob_missing": 1}),
        ({"response_logprobs": [None, -0.5, 0, 0, 0, 0, -1, -2]}, {"logprob_sum": -3.5}),
        ({"response_logprobs": ["-1"] * 8}, {"logprob_sum": -5.0}),
        ({"response_logprobs": [float("nan")] * 8}, {"logprob_missing": 5}),
        ({"response_logprobs": [float("-inf")] + [-1] * 7}, {"logprob_missing": 1, "logprob_min": -1.0}),
        ({"reward": "1.5"}, {"reward": 1.5}),
        ({"reward": 1e400}, {}),
    ],
)  # fmt: skip
def test_strange_arrays_that_mean_something(tmp_path: Path, changes: Any, expected: Any) -> None:
    """Numbers as text, booleans, nulls and NaN are read as what they mean."""
    records = read(write_json(tmp_path / "ses_s.json", session(traces=[trace(**changes)])), SESSION)
    (row,) = rows(records, "trace")
    assert {name: row.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_mask": [1, 1]},
        {"loss_mask": [2] * 8},
        {"response_logprobs": [-1.0]},
    ],
)
def test_arrays_that_do_not_fit_are_told(tmp_path: Path, changes: Any) -> None:
    """A mask or logprobs of another length keep the row, give no summary, and are one problem in all."""
    records = read(write_json(tmp_path / "ses_s.json", session(traces=[trace(**changes)] * 3)), SESSION)
    assert len(rows(records, "trace")) == 3
    assert all("logprob_mean" not in row for row in rows(records, "trace"))
    assert whats(records) == ["token arrays do not fit"]
    assert records.problems[0].why.startswith("3 times, first: ")


def test_lone_surrogates(tmp_path: Path) -> None:
    """Half a surrogate pair in an error or a message neither empties a conversation nor loses the session."""
    path = tmp_path / "ses_s.json"
    path.write_text(json.dumps(session(error="bad \ud83d char", status="ERROR")), encoding="utf-8")
    (row,) = rows(read(path, SESSION), "session")
    assert row["error"] == "bad \N{REPLACEMENT CHARACTER} char"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b"\x00" * 50, "is empty"),
        (b"[1, 2]", "holds no session result"),
        (b'{"a": 1}', "holds no session result"),
        (b"hello", "is no JSON document"),
        (b'{"session_id": "a" "b"}', "is damaged"),
        (b"[" * 200_000 + b"]" * 200_000, "is too deeply nested"),
        (b'{"session_id":"a","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "is too deeply nested"),
    ],
)
def test_files_that_are_no_session(tmp_path: Path, content: bytes, what: str) -> None:
    """Empty, foreign, damaged and absurdly nested files are one problem each, with what to do."""
    path = tmp_path / "ses_s.json"
    path.write_bytes(content)
    records = read(path, SESSION)
    assert whats(records) == [what]
    assert records.tables == {}


def test_torn_files_beside_good_ones(tmp_path: Path) -> None:
    """Three good results, one cut in half, one empty: three rows, and two problems that name the files."""
    good = [write_json(tmp_path / f"ses_{i}.json", session(f"s-{i}")) for i in range(3)]
    torn, empty = tmp_path / "ses_torn.json", tmp_path / "ses_empty.json"
    data = good[0].read_bytes()
    torn.write_bytes(data[: len(data) // 2])
    empty.write_bytes(b"")
    paths = [good[0], torn, good[1], empty, good[2]]
    records = read_files([SourceFile.at(path, SESSION) for path in paths])
    assert [row["session_id"] for row in rows(records, "session")] == ["s-0", "s-1", "s-2"]
    assert [(problem.path, problem.what) for problem in records.problems] == [
        (str(torn), "ends too early"),
        (str(empty), "is empty"),
    ]
    torn.write_bytes(data)
    assert read(torn, SESSION).problems == ()


def test_truncation_at_many_places(tmp_path: Path) -> None:
    """Wherever a result is cut, it is one problem, never a row with half the truth."""
    path = tmp_path / "ses_s.json"
    data = json.dumps(session()).encode()
    for length in range(1, len(data), 7):
        path.write_bytes(data[:length])
        records = read(path, SESSION)
        assert records.tables == {}, length
        assert len(records.problems) == 1
        assert records.problems[0].what in ("ends too early", "is damaged"), (length, records.problems)


def test_enormous_numbers_and_texts(tmp_path: Path) -> None:
    """Integers beyond 64 bits are missing, endless texts are cut, and the row is there."""
    value = session(error="x" * 100_000, status="ERROR")
    value["trajectory"]["metadata"]["record_count"] = 10**30
    value["metadata"]["group_id"] = 2**63
    row, _ = one(tmp_path, value, max_text=1000)
    assert "record_count" not in row
    assert len(row["error"]) == 1000
    assert row["error"].endswith("…")


def test_size_limit(tmp_path: Path) -> None:
    """A file above the limit is not read at all; the error names the option."""
    path = write_json(tmp_path / "ses_s.json", session())
    records = read(path, SESSION, max_bytes=100)
    assert whats(records) == ["is too large"]
    assert "max_bytes" in records.problems[0].fix


def test_files_that_vanish_or_are_none(tmp_path: Path) -> None:
    """A file that is gone, or a folder in its place, is a problem."""
    files = [SourceFile(str(tmp_path / "gone.json"), SESSION), SourceFile(str(tmp_path), SESSION)]
    records = read_files(files)
    assert whats(records) == ["cannot be read", "is no regular file"]


def test_a_record_of_thousands_of_sessions(tmp_path: Path) -> None:
    """A task's record with thousands of sessions has a row for each, in order."""
    ids = [f"s-{i}" for i in range(2000)]
    value = {"task_id": "t", "status": "completed", "results": [session(name) for name in ids]}
    records = read(write_json(tmp_path / "t.json", value), TASK)
    assert [row["session_id"] for row in rows(records, "session")] == ids
    assert [ref["result"] for ref in records.token_refs.to_pylist()] == list(range(2000))


def test_every_key_that_tells_versions_is_read() -> None:
    """The fast decoder knows each key of a call that the bridge's reading of turns looks at."""
    looked_at = set(re.findall(r'entry\.get\("(\w+)"', inspect.getsource(turns)))
    assert looked_at
    assert looked_at <= set(_Call.__struct_fields__)
