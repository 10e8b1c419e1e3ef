"""Files as servers, trainers and the bridge write them, for tests of the readers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from analysis.schema import to_frame
from analysis.sources.base import FileRecords, Position, ReadOptions, SourceFile, SourceKind
from analysis.sources.registry import read_files

CAPTURES = Path(__file__).resolve().parents[2] / "data" / "polar"


def read(path: Path, kind: SourceKind, *, since: Position | None = None, **options: Any) -> FileRecords:
    """Read one file."""
    file = SourceFile.at(path, kind)
    if since is not None:
        file = SourceFile(file.path, kind, file.size, file.mtime_ns, False, since)
    return read_files([file], options=ReadOptions(**options))


def rows(records: FileRecords, grain: str) -> list[dict[str, Any]]:
    """Rows as dicts, missing values left out."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in records.table(grain).to_pylist()
    ]


def frame(records: FileRecords, grain: str) -> Any:
    """A pandas frame of one table."""
    return to_frame(records.table(grain))


def whats(records: FileRecords) -> list[str]:
    """What is wrong, problem by problem."""
    return [problem.what for problem in records.problems]


def trace(**changes: Any) -> dict[str, Any]:
    """A trace of one merged pair of turns."""
    value = {
        "prompt_ids": [1, 10, 11, 3],
        "response_ids": [20, 21, 2, 4, 30, 5, 40, 2],
        "loss_mask": [1, 1, 1, 0, 0, 0, 1, 1],
        "prompt_messages": [{"role": "user", "content": "Say hello."}],
        "response_messages": [{"role": "assistant", "content": None}, {"role": "tool", "content": "x"}],
        "tools": None,
        "finish_reason": "stop",
        "response_logprobs": [-0.5, -0.25, 0.0, 0.0, 0.0, 0.0, -1.0, -0.25],
        "reward": 1.0,
        "metadata": {
            "group_id": 7,
            "session_id": "s-1",
            "task_id": "t-1",
            "completion_metadata": [{"group_id": 7}, {"group_id": 7}],
        },
    }
    return {**copy.deepcopy(value), **changes}


def session(session_id: str = "s-1", traces: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A session result as the bridge's tasks bring it."""
    stamps = {"group_id": 7, "policy_version": 3, "rollout_step": 4}
    value = {
        "session_id": session_id,
        "task_id": "t-1",
        "status": "COMPLETED",
        "trajectory": {
            "status": "COMPLETED",
            "metadata": {
                "builder": "prefix_merging",
                "session_id": session_id,
                "task_id": "t-1",
                "api_type": "openai_chat",
                "model_requested": "m",
                "model_used": "served-m",
                "record_count": 3,
                "task_metadata": {**stamps, "session_id": session_id},
                "trace_count": 1,
                "reconstruction_stats": {
                    "chains_total": 1,
                    "chains_reconstructed_full": 0,
                    "chains_reconstructed_truncated": 1,
                    "completions_total": 3,
                    "completions_merged": 2,
                },
                **stamps,
                "evaluation": {"strategy": "session_completed", "outcome_reward": 1.0, "trace_rewards": None},
            },
            "traces": [trace()] if traces is None else traces,
            "error": None,
        },
        "timing": {"register_to_init_queue_ms": 2.0, "init_ms": 350.0, "run_ms": 700.0, "postrun_ms": 120.0},
        "node_id": "node-1",
        "error": None,
        "metadata": stamps,
    }
    return {**value, **changes}


def write_json(path: Path, value: Any, *, compact: bool = True) -> Path:
    """Write a value as a server does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, separators=(",", ":") if compact else None), encoding="utf-8")
    return path


def write_lines(path: Path, *values: Any, tail: str = "") -> Path:
    """Write JSON lines, and what a killed writer left after them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values) + tail, encoding="utf-8")
    return path


def sample(index: int = 0, **changes: Any) -> dict[str, Any]:
    """A sample as Slime's `to_dict` gives it, made by no bridge."""
    value = {
        "group_index": 7,
        "index": index,
        "group_id": index,
        "prompt": "Say hello.",
        "tokens": [1, 10, 11, 3, 20, 21, 2, 4],
        "multimodal_inputs": None,
        "multimodal_train_inputs": None,
        "response": "hello",
        "response_length": 4,
        "label": "x",
        "reward": 1.0,
        "loss_mask": [1, 1, 0, 1],
        "weight_versions": ["3", "4"],
        "rollout_log_probs": [-0.5, -0.25, 0.0, 0.0],
        "rollout_routed_experts": None,
        "remove_sample": False,
        "teacher_log_probs": None,
        "status": "completed",
        "metadata": {},
        "generate_function_path": None,
        "train_metadata": None,
        "session_id": None,
        "non_generation_time": 0.0,
        "spec_info": {"spec_accept_token_num": 0, "spec_draft_token_num": 0},
        "prefix_cache_info": {"cached_tokens": 0, "total_prompt_tokens": 0},
    }
    return {**copy.deepcopy(value), **changes}
