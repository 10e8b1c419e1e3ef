"""A run whose every text is hostile: messages, tools, reports, errors, reasons, prompts and file names."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

from analysis.lab.run_folder import RunFolder
from tests.hostile import CANARY, HOSTILE

SECRETS = {
    "API key": "sk-proj-abcdefgh12345678",
    "AWS key": "AKIAABCDEFGHIJKLMNOP",
    "credentials in a URL": "https://me:hunter2@example.org/x",
    "authorization header": "Authorization: Bearer abc.def-123456",
    "value behind a secret's name": 'password = "pa55word"',
    "JSON web token": "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
}
"""One credential of each kind, and what of it must never be seen."""

HIDDEN = (
    "abcdefgh12345678",
    "ABCDEFGHIJKLMNOP",
    "hunter2",
    "abc.def-123456",
    "pa55word",
    "SflKxw",
    "MIIEowIB",
)


def make_hostile(folder: RunFolder, texts: tuple[str, ...] = HOSTILE) -> Path:
    """Replace every text in a run folder; return the folder, renamed to something hostile."""
    supply = cycle(f"{CANARY} {text}" for text in texts)
    for path in sorted(folder.root.rglob("ses_*.json")):
        record = json.loads(path.read_bytes())
        record["error"] = next(supply) if record["status"] != "COMPLETED" else None
        record["node_id"] = "<b>node</b>"
        for trace in record["trajectory"]["traces"] if record["trajectory"] else ():
            trace["prompt_messages"] = [{"role": "user", "content": next(supply)}]
            trace["response_messages"] = _answers(supply)
            trace["tools"] = [
                {"type": "function", "function": {"name": next(supply), "description": next(supply)}}
            ]
            trace["finish_reason"] = "<i>stop</i>"
        if record["trajectory"]:
            record["trajectory"]["metadata"]["evaluation"] = {"detail": next(supply), "outcome_reward": 0.5}
        path.write_text(json.dumps(record), "utf-8")
    for path in folder.root.rglob("journal*.jsonl"):
        lines = [_rewritten(json.loads(line), supply) for line in path.read_text("utf-8").splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (folder.root / "task_x").mkdir(exist_ok=True)
    (folder.root / "task_x" / "ses_<img src=x onerror=alert(1)>.json").write_text("{torn", "utf-8")
    return folder.root.rename(folder.root.with_name("<img src=x onerror=window.hit=1>\u202erun"))


def _answers(supply: Any) -> list[dict[str, Any]]:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": next(supply)[:200], "arguments": next(supply)},
    }
    return [
        {
            "role": "assistant",
            "content": next(supply),
            "reasoning_content": next(supply),
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c", "content": next(supply)},
        {"role": "<script>", "content": next(supply)},
    ]


def _rewritten(record: dict[str, Any], supply: Any) -> dict[str, Any]:
    if "prompt_preview" in record:
        record["prompt_preview"] = next(supply)[:2000]
    for session in record.get("sessions", ()):
        if isinstance(session, dict) and session.get("detail"):
            session["detail"] = next(supply)[:2000]
    if record.get("event") == "group_rejected":
        record["reason"] = "<script>window.hit=1</script>"
    return record
