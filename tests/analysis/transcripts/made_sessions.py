"""Session files with planted messages and tokens, for the tests of transcripts and of what shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import analysis
from analysis.run import Run

HOSTILE = '</pre><img src=x onerror="window.hit=1"><script>hit()</script>\u202egnp.exe\x1b[31m'


class Words:
    """A tokenizer of a few tokens: words, blanks, newlines, parts of a character, a special token."""

    TEXTS = {
        0: "<|im_end|>",
        1: "how",
        2: " many",
        3: "\n\n",
        4: "\u202e",
        5: "\ufffd",
        6: "        ",
        7: "<b>",
        8: "日本",
    }
    all_special_ids = (0,)

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join(self.TEXTS[int(token)] for token in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        return {5: "<0xE2>"}.get(token, self.TEXTS[token])


def turn_messages(text: str = "It is done.", reasoning: str | None = None) -> list[dict[str, Any]]:
    """A call of a tool, its answer, and a text: two turns."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls\\n-la"}'},
    }
    asks: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    if reasoning is not None:
        asks["reasoning_content"] = reasoning
    return [
        asks,
        {"role": "tool", "tool_call_id": "c1", "content": "total 0"},
        {"role": "assistant", "content": text},
    ]


def trace(
    *,
    prompt: Sequence[dict[str, Any]] = ({"role": "user", "content": "List the files."},),
    response: Sequence[dict[str, Any]] | None = None,
    ids: tuple[Sequence[int], Sequence[int]] = ((1, 2, 3), (1, 2, 6, 5, 7, 0)),
    mask: Sequence[int] = (1, 1, 0, 0, 1, 1),
    versions: Sequence[str] = ("3", "4"),
    **more: Any,
) -> dict[str, Any]:
    """One trace of two turns, the first three and the last of its response tokens sampled by default."""
    return {
        "prompt_ids": list(ids[0]),
        "response_ids": list(ids[1]),
        "loss_mask": list(mask),
        "prompt_messages": list(prompt),
        "response_messages": turn_messages() if response is None else list(response),
        "tools": [
            {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"a": 1}}}
        ],
        "finish_reason": "stop",
        "response_logprobs": [-0.005, -0.5, 0.0, 0.0, -3.0, -7.0][: len(ids[1])],
        "reward": 1.0,
        "metadata": {
            "completion_metadata": [
                {"weight_version": version, "finish_reason": "tool_calls"} for version in versions
            ]
        },
        **more,
    }


def session(session_id: str = "ses-1", *traces: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A session's result, with one trace by default."""
    return {
        "session_id": session_id,
        "task_id": f"task-of-{session_id}",
        "status": "COMPLETED",
        "trajectory": {"status": "COMPLETED", "metadata": {}, "traces": list(traces) or [trace()]},
        "timing": {"register_to_init_queue_ms": 20.0, "init_ms": 10.0, "run_ms": 470.0, "postrun_ms": 0.0},
        "node_id": "node-1",
        "metadata": {},
        **more,
    }


def write_sessions(folder: Path, *sessions: dict[str, Any]) -> Path:
    """Write sessions as Polar stores them."""
    for result in sessions:
        place = folder / f"task_{result['task_id']}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"ses_{result['session_id']}.json").write_text(json.dumps(result))
    return folder


def load_sessions(folder: Path, *sessions: dict[str, Any], tokenizer: Any = None) -> Run:
    """Write sessions and load them."""
    write_sessions(folder, *sessions)
    return analysis.load(folder, index=False, progress=False, tokenizer=tokenizer)
