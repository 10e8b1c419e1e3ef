"""Slime's rollout dumps as rows: by the bridge, by Slime alone, of both versions, and of real Slime code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.discovery import discover
from analysis.lab.dumps import write_rollout_dump
from analysis.sources.base import SourceFile, SourceKind
from analysis.sources.registry import read_files
from slime_bridge._stand_in import Sample
from slime_bridge.adapter import session_result_to_samples
from slime_bridge.conversion.groups import mark_delivered
from slime_bridge.protocol import decode_session_result
from tests.analysis import pickle_corpus as corpus
from tests.analysis.sources.source_files import CAPTURES, read, rows, sample, session, trace, whats

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[3]
DUMP = SourceKind.ROLLOUT_DUMP


def dump(folder: Path, samples: list[Any], *, name: str = "4.pt", rollout_id: Any = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": rollout_id, "samples": samples}, folder / name)
    return folder / name


def bridged(results: list[dict[str, Any]], *, delivered: bool = True) -> list[dict[str, Any]]:
    """Samples as the bridge makes them of session results, as dicts."""
    samples = []
    for position, result in enumerate(results):
        decoded = decode_session_result(json.dumps(result))
        samples += session_result_to_samples(decoded, 7, trajectory_index=14 + position)
    if delivered:
        mark_delivered(samples, rollout_id=4, policy_version=3, staleness=1, scheduler_group_id=11)
    return [value.to_dict() for value in samples]


def test_a_sample_of_slime_alone(tmp_path: Path) -> None:
    """A dump without Polar gives traces, sessions by trajectory and groups; what is not known is missing."""
    shared = {**sample(1), "index": 0, "group_id": 0, "tokens": [1, 2, 5], "response_length": 2,
              "loss_mask": None, "rollout_log_probs": [-1.0, -3.0], "reward": 0.0}  # fmt: skip
    records = read(dump(tmp_path, [sample(0), shared, sample(2)]), DUMP)
    assert records.problems == ()
    first, second, third = rows(records, "trace")
    for name in ("tokens_hash", "path"):
        first.pop(name)
    assert first == {
        "rollout_id": 4, "evaluation": False, "group_index": 7, "trajectory": 0, "sample_index": 0,
        "sample_position": 0, "accepted": True, "placeholder": False, "sample_status": "completed",
        "label": "x", "removed": False, "reward": 1.0, "prompt_tokens": 4, "response_tokens": 4,
        "sampled_tokens": 3, "masked_tokens": 1, "turns": 2, "trainable_tokens": 3, "has_mask": True,
        "has_logprobs": True, "logprob_mean": -0.25, "logprob_min": -0.5, "logprob_sum": -0.75,
        "logprob_zero_share": 1 / 3, "logprob_missing": 0, "weight_version_oldest": "3",
        "weight_version_newest": "4",
    }  # fmt: skip
    assert (second["has_mask"], second["trainable_tokens"], second["logprob_sum"]) == (False, 2, -4.0)
    assert second["reward"] == 0.0, "without Polar, Slime's reward is the reward"
    sessions = rows(records, "session")
    assert [(row["trajectory"], row["kept_traces"], row["reward"]) for row in sessions] == [
        (0, 2, 0.5),
        (2, 1, 1.0),
    ]
    assert sessions[0]["group_state"] == "delivered"
    (group,) = rows(records, "group")
    assert (group["state"], group["accepted"], group["group_index"]) == ("delivered", True, 7)
    assert rows(records, "rollout")[0]["dumped_traces"] == 3


def test_samples_of_the_bridge(tmp_path: Path) -> None:
    """What the bridge wrote into the metadata comes out: session, lag, group, statuses, timing."""
    long = trace(finish_reason="length")
    path = dump(
        tmp_path,
        bridged([session("s-1", [trace(), long]), session("s-2", [], status="TIMEOUT", error="late")]),
    )
    records = read(path, DUMP)
    assert records.problems == ()
    first, second, placeholder = rows(records, "trace")
    assert (first["session_id"], first["trace_index"], first["task_id"], first["group"]) == (
        "s-1",
        0,
        "t-1",
        11,
    )
    assert second["sample_status"] == "truncated"
    assert (placeholder["placeholder"], placeholder["placeholder_reason"]) == (True, "timeout")
    assert placeholder["trainable_tokens"] == 0
    assert not {"reward", "prompt_tokens", "response_tokens", "has_logprobs"} & placeholder.keys()
    good, late = rows(records, "session")
    assert (good["status"], good["completed"], good["usable"], good["staleness"]) == (
        "COMPLETED",
        True,
        True,
        1,
    )
    assert (good["policy_version"], good["rollout_step"], good["run_ms"], good["completions_merged"]) == (
        3,
        4,
        700.0,
        2,
    )
    assert (good["kept_traces"], good["trainable_tokens"], good["response_tokens"]) == (2, 10, 16)
    assert (late["status"], late["error"], late["reason"], late["usable"]) == (
        "TIMEOUT",
        "late",
        "timeout",
        False,
    )
    assert late["kept_traces"] == 0
    (group,) = rows(records, "group")
    assert (group["group"], group["policy_version"], group["rollout_step"], group["staleness"]) == (
        11,
        3,
        4,
        1,
    )


def test_a_reward_that_polar_left_null_is_missing(tmp_path: Path) -> None:
    """The bridge hands the trainer 0 for a missing reward; the frame says missing, unless somebody gave 0."""
    unrated = session("s-1", [trace(reward=None)])
    unrated["trajectory"]["metadata"]["evaluation"]["outcome_reward"] = None
    failed = session("s-2", [trace(reward=0.0)])
    failed["trajectory"]["metadata"]["evaluation"]["outcome_reward"] = 0.0
    samples = bridged([unrated, failed])
    assert [value["reward"] for value in samples] == [{"score": 0.0}] * 2
    records = read(dump(tmp_path, samples), DUMP)
    assert [row.get("reward") for row in rows(records, "trace")] == [None, 0.0]
    assert [row.get("reward") for row in rows(records, "session")] == [None, 0.0]


@pytest.mark.parametrize("key", ["group_id", "rollout_id"])
def test_both_trajectory_keys_give_the_same_rows(tmp_path: Path, key: str) -> None:
    """Dumps of Slime v0.3.0 and v0.3.1 differ in one name, and the frames do not."""
    samples = bridged([session("s-1"), session("s-2")])
    plain = read(dump(tmp_path / "a", samples), DUMP)
    for value in samples:
        value[key] = value.pop("group_id")
    renamed = read(dump(tmp_path / "b", samples), DUMP)
    for grain in ("trace", "session", "group", "rollout"):
        assert plain.table(grain).drop_columns("path").equals(renamed.table(grain).drop_columns("path"))


def test_evaluations_are_told_by_name(tmp_path: Path) -> None:
    """Only the name says that a dump is one of an evaluation; nothing of it was handed to the trainer."""
    records = read(dump(tmp_path, [sample()], name="eval_4.pt"), DUMP)
    assert rows(records, "trace")[0]["evaluation"] is True
    assert "accepted" not in rows(records, "trace")[0]
    assert "state" not in rows(records, "group")[0]
    assert rows(records, "rollout")[0]["evaluation"] is True


@pytest.mark.parametrize(
    ("name", "rollout_id", "expected", "problem"),
    [
        ("4.pt", 4, 4, None),
        ("run_00004.pt", 4, 4, None),
        ("4.pt", None, 4, None),
        ("latest.pt", 4, 4, "its name holds no rollout id"),
        ("5.pt", 4, 4, "name and content name different rollouts"),
        ("eval_5.pt", 5, 5, None),
    ],
)
def test_names_and_ids(
    tmp_path: Path, name: str, rollout_id: int, expected: int, problem: str | None
) -> None:
    """The content's id counts; a name that says another, or none, is told."""
    records = read(dump(tmp_path, [sample()], name=name, rollout_id=rollout_id), DUMP)
    assert rows(records, "trace")[0]["rollout_id"] == expected
    assert whats(records) == ([] if problem is None else [problem])


def test_rewards_of_several_entries(tmp_path: Path) -> None:
    """A reward that is a mapping is reduced by the key and kept whole; without a known key it is missing."""
    samples = [
        sample(0, reward={"score": 1.0, "style": 0.25}),
        sample(1, reward={"a": 1, "b": 2}),
        sample(2, reward={"x": 3}),
    ]
    path = dump(tmp_path, samples)
    records = read(path, DUMP)
    assert [row.get("reward") for row in rows(records, "trace")] == [1.0, None, 3.0]
    assert json.loads(rows(records, "trace")[0]["reward_components"]) == {"score": 1.0, "style": 0.25}
    assert whats(records) == ["the reward is not clear"]
    assert "reward_key" in records.problems[0].fix
    keyed = read(path, DUMP, reward_key="style")
    assert [row.get("reward") for row in rows(keyed, "trace")] == [0.25, None, None]


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": None}, {"reward": float("nan")}, {"reward": "high"}, {"tokens": None}, {"tokens": []},
        {"response_length": 99}, {"response_length": -1}, {"loss_mask": [1]}, {"loss_mask": "abcd"},
        {"rollout_log_probs": [None] * 4}, {"rollout_log_probs": [float("nan")] * 4}, {"status": None},
        {"metadata": None}, {"metadata": {"polar": 5}}, {"index": 2**70}, {"group_id": "seven"},
        {"weight_versions": None}, {"prefix_cache_info": None}, {"trace": {"events": [1, {}]}},
        {"label": "\ud83d"},
        {"rollout_log_probs": None, "loss_mask": None}, {"metadata": {"polar": {"turns": 1, "timing": []}}},
    ],
)  # fmt: skip
def test_strange_samples_keep_their_row(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Whatever one sample holds, it has a row, and its neighbours have theirs."""
    records = read(dump(tmp_path, [sample(0), {**sample(1), **changes}, sample(2)]), DUMP)
    found = rows(records, "trace")
    assert len(found) == 3
    assert [row["sample_position"] for row in found] == [0, 1, 2]
    assert all(
        problem.what in ("token arrays do not fit", "the reward is not clear") for problem in records.problems
    )


def test_what_is_no_sample(tmp_path: Path) -> None:
    """Items that are no samples are one problem, and positions stay those of the file."""
    records = read(dump(tmp_path, [5, None, sample(0), {"x": 1}]), DUMP)
    assert [row["sample_position"] for row in rows(records, "trace")] == [2]
    assert whats(records) == ["holds something that is no sample"]
    assert "3 times" in records.problems[0].why


@pytest.mark.parametrize("content", [[], {}, {"samples": 5}, {"rollout_id": 1, "rollout_data": {}}, None, 7])
def test_other_files_of_torch(tmp_path: Path, content: Any) -> None:
    """A file of torch that is no rollout dump is one problem that says what it holds."""
    torch.save(content, tmp_path / "4.pt")
    records = read(tmp_path / "4.pt", DUMP)
    assert whats(records) == ["holds no rollout dump"]
    assert records.tables == {}


def test_tensors_and_arrays_in_samples(tmp_path: Path) -> None:
    """Log-probs, masks and tokens that are tensors or arrays are read like lists, with equal digests."""
    plain = sample(0)
    arrays = sample(
        0,
        tokens=torch.tensor(plain["tokens"]),
        loss_mask=np.array(plain["loss_mask"]),
        rollout_log_probs=torch.tensor(plain["rollout_log_probs"], dtype=torch.bfloat16),
        rollout_routed_experts=np.zeros((7, 2, 2), dtype=np.int32),
        reward=np.float32(1.0),
    )
    first, second = (
        rows(read(dump(tmp_path / str(i), [value]), DUMP), "trace")[0]
        for i, value in enumerate((plain, arrays))
    )
    for row in (first, second):
        del row["path"]
    assert first == second


def test_hostile_dumps_are_listed(tmp_path: Path) -> None:
    """A dump that wants to run something is one problem naming the option, and the next dump is read."""
    bad = tmp_path / "3.pt"
    bad.write_bytes(corpus.archive(corpus.executing()["hidden in a sample"]))
    good = dump(tmp_path, [sample()])
    records = read_files([SourceFile.at(bad, DUMP), SourceFile.at(good, DUMP)])
    assert len(rows(records, "trace")) == 1
    assert "trusted=True" in records.problems[0].fix
    assert "system" in records.problems[0].why


def test_trusted_is_passed_on(tmp_path: Path) -> None:
    """With `trusted`, a dump with an enum in its metadata loads."""
    path = dump(tmp_path, [sample(0, metadata={"status": Sample.Status.COMPLETED})])
    assert "trusted=True" in str(read(path, DUMP).problems[0])
    records = read(path, DUMP, trusted=True)
    assert records.problems == ()
    assert len(rows(records, "trace")) == 1


def test_sample_tracing_becomes_events(tmp_path: Path) -> None:
    """Spans that Slime recorded on a sample are events with the sample's ids, in order."""
    span = {
        "name": "generate",
        "ts": 1.5,
        "trace_id": "t",
        "attempt": 0,
        "span_id": "a",
        "parent_span_id": None,
    }
    events = [
        {**span, "type": "span_start", "attrs": {"n": 1}},
        {**span, "type": "span_end", "ts": 2.0},
        {"type": "?"},
        5,
    ]
    records = read(dump(tmp_path, [sample(3, trace={"version": 1, "events": events})]), DUMP)
    start, end = rows(records, "event")
    assert (start["kind"], start["event"], start["seq"], start["sample_index"]) == (
        "span_start",
        "generate",
        0,
        3,
    )
    assert (start["at"].timestamp(), end["at"].timestamp()) == (1.5, 2.0)
    assert json.loads(start["data"]) == {"n": 1}


def test_token_places(tmp_path: Path) -> None:
    """A dump's arrays are found again by their place in the list; placeholders have none."""
    path = dump(tmp_path, bridged([session("s-1", [], status="ERROR", error="x"), session("s-2")]))
    refs = read(path, DUMP).token_refs.to_pylist()
    assert [(ref["item"], ref["session_id"], ref["source"]) for ref in refs] == [(1, "s-2", "rollout_dump")]


def test_dumps_of_the_lab(tmp_path: Path) -> None:
    """Captures through the bridge and the lab's writer keep the numbers that Polar's own files have."""
    samples = []
    for index, name in enumerate(("small", "merged", "long")):
        result = decode_session_result((CAPTURES / f"session_result.{name}.json").read_bytes())
        samples += session_result_to_samples(result, 0, trajectory_index=index)
    records = read(write_rollout_dump(tmp_path, 4, samples), DUMP)
    direct = read_files(
        [
            SourceFile.at(CAPTURES / f"session_result.{n}.json", SourceKind.POLAR_SESSION)
            for n in ("small", "merged", "long")
        ]
    )
    names = [
        "session_id",
        "prompt_tokens",
        "response_tokens",
        "sampled_tokens",
        "turns",
        "logprob_mean",
        "logprob_zero_share",
    ]
    ours, polars = (table.table("trace").select(names).to_pylist() for table in (records, direct))
    assert ours == polars


_REAL_SLIME = """
import argparse, ast, logging, sys
from pathlib import Path
import torch
from slime.utils.types import Sample

slime, folder = Path(sys.argv[1]), sys.argv[2]
# Slime's own method, out of a module whose imports need a cluster.
tree = ast.parse((slime / "slime/ray/rollout.py").read_text())
functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
method = next(node for node in functions if node.name == "_save_debug_rollout_data")
names = {"Path": Path, "torch": torch, "logger": logging.getLogger()}
exec(compile(ast.Module([method], []), "rollout.py", "exec"), names)

samples = []
for i in range(4):
    sample = Sample(
        group_index=i // 2, index=i, group_id=i, prompt="p", tokens=[1, 2, 3, 4 + i], response="r",
        response_length=2, reward=float(i % 2), loss_mask=[1, 1], rollout_log_probs=[-0.5, -0.25],
        status=Sample.Status.COMPLETED, weight_versions=["3"], metadata={"note": "x"}, label="l",
    )
    sample.trace = {"version": 1, "events": [{"type": "event", "name": "e", "ts": 1.0}]}
    samples.append(sample)
samples[3].status = Sample.Status.TRUNCATED
args = argparse.Namespace(save_debug_rollout_data=folder + "/rollout_data/{rollout_id}.pt")
manager = argparse.Namespace(args=args)
names["_save_debug_rollout_data"](manager, samples, rollout_id=5, evaluation=False)
names["_save_debug_rollout_data"](manager, {"aime": {"samples": samples[:1]}}, rollout_id=5, evaluation=True)
"""


@pytest.mark.slime
@pytest.mark.skipif("SLIME_DIR" not in os.environ, reason="SLIME_DIR names no Slime checkout")
def test_dumps_of_real_slime(tmp_path: Path) -> None:
    """Samples of real Slime v0.3.0, saved by its own code, load into the same frame as the stand-in's."""
    slime = os.environ["SLIME_DIR"]
    done = subprocess.run(
        [sys.executable, "-c", _REAL_SLIME, slime, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": slime},
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = discover(tmp_path)
    assert [os.path.basename(file.path) for file in found.files] == ["5.pt", "eval_5.pt"]
    both = read_files(found.files)
    assert both.problems == ()
    assert [row["evaluation"] for row in rows(both, "trace")] == [False] * 4 + [True]
    records = read(tmp_path / "rollout_data" / "5.pt", DUMP)
    traces = rows(records, "trace")
    assert [row["trajectory"] for row in traces] == [0, 1, 2, 3]
    assert [row["group_index"] for row in traces] == [0, 0, 1, 1]
    assert [row["reward"] for row in traces] == [0.0, 1.0, 0.0, 1.0]
    assert [row["sample_status"] for row in traces] == ["completed"] * 3 + ["truncated"]
    assert all(row["logprob_sum"] == -0.75 for row in traces)
    assert len(rows(records, "event")) == 4
    fields = {
        "prompt": "p",
        "response": "r",
        "response_length": 2,
        "loss_mask": [1, 1],
        "label": "l",
        "rollout_log_probs": [-0.5, -0.25],
        "status": Sample.Status.COMPLETED,
        "weight_versions": ["3"],
    }
    ours = [
        Sample(
            group_index=i // 2, index=i, group_id=i, tokens=[1, 2, 3, 4 + i], reward=float(i % 2), **fields
        )
        for i in range(3)
    ]
    same = read(write_rollout_dump(tmp_path / "ours", 5, ours), DUMP)
    drop = ["path"]
    assert (
        same.table("trace").drop_columns(drop).equals(records.table("trace").slice(0, 3).drop_columns(drop))
    )
