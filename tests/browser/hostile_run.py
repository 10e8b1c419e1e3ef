"""Runs in which every name, id, reason and message tries to be more than text; made where a notebook runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from tests.analysis.stats.builder import RunBuilder
from tests.hostile import CANARY, HOSTILE

BAD = (
    '"><img src=x onerror=window.hit=1><svg onload=window.hit=1></svg>'
    f"<script>window.hit=1</script>'{CANARY}"
)
"""One text with several ways out, short enough to be seen whole."""

_DECIDING = {"group": ("state", "verdict"), "session": ("status",)}
"""Columns whose words decide what is drawn; in the last group they are hostile too."""


def hostile_tables() -> dict[str, Any]:
    """Frames of a run: each text in them hostile, one group for each of the corpus."""
    texts = [text for text in HOSTILE if _storable(text)]
    builder = RunBuilder(run=BAD)
    builder.worker = BAD
    for number, text in enumerate([*texts, BAD]):
        builder.group(
            [1.0, 0.0, None],
            rollout_id=number % 4,
            prompt=text,
            accepted=number % 3 != 0,
            reject_reason=text if number % 3 == 0 else None,
            sessions=[
                {},
                {"error": text, "reason": text, "detail": text},
                {"completed": False, "error": text},
            ],
        )
    tables = builder.tables()
    return {
        grain: _hostile(grain, table) if isinstance(table, pd.DataFrame) else table
        for grain, table in tables.items()
    }


def _hostile(grain: str, table: pd.DataFrame) -> pd.DataFrame:
    table = table.copy()
    deciding = _DECIDING.get(grain.removesuffix("s"), ())
    for name in table.columns:
        if table[name].dtype != "string" or name in ("run", "worker", "data", "event", "kind"):
            continue
        if name in deciding:
            table.loc[table.index[-1], name] = BAD
        else:
            table[name] = (BAD + " " + table[name].fillna("")).astype("string")
    return table


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # readers replace what is no character
        return False
    return True


def hostile_journal(folder: Path) -> Path:
    """A run folder with a journal whose words are hostile, and files whose names are."""
    journal = folder / "polar"
    journal.mkdir(parents=True)
    records: list[dict[str, Any]] = [
        {"event": "journal_opened", "pid": 1, "versions": {BAD: BAD}, "config": {BAD: BAD}},
        {"event": "rollout_requested", "rollout_id": 0, "wanted": 2},
        {"event": "group_drawn", "group": 0, "group_index": 0, "sessions": 2, "prompt_preview": BAD},
        {"event": "task_submitted", "group": 0, "task_id": BAD, "attempt": 1, "sessions": 2},
        {
            "event": "task_result",
            "group": 0,
            "task_id": BAD,
            "attempt": 1,
            "status": BAD,
            "sessions": [{"session_id": BAD, "status": BAD, "error": BAD}],
        },
        {"event": "group_rejected", "group": 0, "rollout_id": 0, "reason": BAD, "numbers": {BAD: BAD}},
        {"event": "group_drawn", "group": 1, "group_index": 1, "sessions": 2, "prompt_preview": BAD},
        {"event": "task_submitted", "group": 1, "task_id": BAD + "1", "attempt": 1, "sessions": 2},
        {"event": "group_requeued", "group": 1, "reason": BAD, "detail": BAD},
        {"event": BAD, "group": 1},
    ]
    lines = [json.dumps({"v": 1, "ts": 1.7e9 + place, **record}) for place, record in enumerate(records)]
    (journal / "journal.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("<img src=x onerror=window.hit=1>.json", "<svg onload=window.hit=1>.pt"):
        (folder / name).write_text("{ this is no JSON")
    return folder
