"""Many small sessions, and sessions with side calls: no file is read twice, and traces are told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import analysis
from tests.analysis.test_loading import session, write_session

ROOT = Path(__file__).resolve().parents[2]

# Audit hooks stay for the life of a process, so the counting happens in one of its own.
COUNTING = """
import collections, json, os, sys
opened = collections.Counter()
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        name = os.path.basename(os.fsdecode(arguments[0]))
        if name.startswith("ses_"):
            opened[name] += 1
sys.addaudithook(hook)
import analysis
run = analysis.load(sys.argv[1], engine="serial", index=False)
print(json.dumps({"opened": opened, "sessions": len(run.sessions()), "traces": len(run.traces())}))
"""


def test_the_work_grows_with_the_sessions_and_no_faster(tmp_path: Path) -> None:
    """Each file of three hundred and of six hundred sessions is opened equally often, at most twice."""
    counts = {}
    for number in (300, 600):
        for name in range(number):
            write_session(tmp_path / str(number), f"s{name}", task=f"t{name // 8}")
        done = subprocess.run(
            [sys.executable, "-c", COUNTING, str(tmp_path / str(number))],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        )
        seen = json.loads(done.stdout)
        assert (seen["sessions"], seen["traces"], len(seen["opened"])) == (number, number, number)
        counts[number] = Counter(seen["opened"].values())
    [(often, _)] = counts[300].items()
    assert counts[600] == {often: 600}
    assert often <= 2


def test_side_calls_can_be_listed_and_left_out(tmp_path: Path) -> None:
    """One long trace and two of a single turn: one trajectory, three rows, told apart by their turns."""
    body = json.loads(session("s1", traces=3, tokens=40))
    long, *tiny = body["trajectory"]["traces"]
    long["loss_mask"] = ([1] * 8 + [0] * 2) * 4
    for trace in tiny:
        trace.update(response_ids=[7, 8], loss_mask=[1, 1], response_logprobs=[-0.1, -0.2])
    path = write_session(tmp_path, "s1")
    path.write_text(json.dumps(body))
    run = analysis.load(tmp_path, index=False)
    [one] = run.sessions().to_dict("records")
    assert one["traces"] == 3
    side = run.traces().query("turns == 1")
    assert list(side["response_tokens"]) == [2, 2]
    assert set(side["session_id"]) == {"s1"}
    [kept] = run.traces().query("turns > 1").to_dict("records")
    assert (kept["turns"], kept["response_tokens"]) == (4, 40)
