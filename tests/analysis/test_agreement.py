"""What the bridge makes of sessions contradicts the server's files in nothing: one session, two files."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import analysis
from slime_bridge.adapter import convert_session
from slime_bridge.conversion.groups import mark_delivered
from slime_bridge.conversion.types import ConversionOptions, SampleIdentity
from slime_bridge.protocol import decode_session_result
from tests.analysis.sources.source_files import session, trace, write_json
from tests.analysis.test_loading import load

torch = pytest.importorskip("torch")
SESSIONS = 150
VERSIONS = (3, 4, "4", "10", "9", None)


def a_call(random: Random, length: int) -> dict[str, Any]:
    """What a server may tell about a call that sampled so many tokens, in all the places it may stand."""
    call: dict[str, Any] = {"group_id": 7}
    told: dict[str, Any] = {}
    if random.random() < 0.5:
        told["weight_version"] = random.choice(VERSIONS)
    if random.random() < 0.4:
        # Engines count tokens that are not in the response, such as the end of the turn.
        cut = random.randint(0, length + 1)
        told["weight_versions"] = [
            {"version": "3", "start": 0, "end": cut},
            {"version": "5", "start": cut, "end": length + random.randint(1, 2)},
        ]
    for name, value in told.items():
        (call if random.random() < 0.5 else call.setdefault("meta_info", {}))[name] = value
    if random.random() < 0.2:
        call["policy_version"] = random.choice(VERSIONS)
    if random.random() < 0.1:
        call["finish_reason"] = "abort"
    return call


def a_trace(random: Random) -> dict[str, Any]:
    """A trace of some turns."""
    turns = [(random.randint(1, 4), random.randint(0, 3)) for _ in range(random.randint(1, 4))]
    mask = [flag for sampled, returned in turns for flag in [1] * sampled + [0] * returned]
    about: dict[str, Any] = {"completion_metadata": [a_call(random, sampled) for sampled, _ in turns]}
    if random.random() < 0.3:
        about = a_call(random, sum(mask))
    return trace(
        prompt_ids=[1] * random.randint(1, 3),
        response_ids=[random.randint(2, 900) for _ in mask],
        loss_mask=mask,
        response_logprobs=[-random.random() if flag else 0.0 for flag in mask],
        reward=random.choice([0.0, 0.5, 1.0, None]),
        finish_reason=random.choice(["stop", "length", None]),
        metadata=about,
    )


def a_run(folder: Path, random: Random) -> analysis.Run:
    """Sessions as the server's files, and as a dump of what the bridge made of each under some options."""
    samples: list[Any] = []
    for number in range(SESSIONS):
        status = random.choice(["COMPLETED", "COMPLETED", "TIMEOUT", "ERROR"])
        traces = [a_trace(random) for _ in range(random.randint(0, 3))]
        result = session(f"s-{number}", traces, task_id=f"t-{number}", status=status)
        rewards = {"outcome_reward": None, "trace_rewards": [one["reward"] for one in traces]}
        result["trajectory"]["metadata"].update(trace_count=len(traces), evaluation=rewards)
        write_json(folder / f"task_t-{number}" / f"ses_s-{number}.json", result)
        options = ConversionOptions(
            aborted_turns=random.choice(["keep", "mask", "drop"]),
            max_tokens=random.choice([None, None, 4, 8]),
            overlong_traces=random.choice(["clip", "drop"]),
        )
        identity = SampleIdentity(7, number)
        done = convert_session(decode_session_result(json.dumps(result)), identity, options)
        mark_delivered(done.samples, rollout_id=4, policy_version=3, staleness=1, scheduler_group_id=11)
        samples += done.samples
    (folder / "rollout_data").mkdir()
    content = {"rollout_id": 4, "samples": [sample.to_dict() for sample in samples]}
    torch.save(content, folder / "rollout_data" / "4.pt")
    return load(folder)


def test_the_bridge_contradicts_nothing(tmp_path: Path) -> None:
    """Whatever a server tells about turns, and whatever is clipped, masked and dropped on the way."""
    run = a_run(tmp_path, Random(4))
    assert run.problems.empty
    sessions, traces = run.sessions(), run.traces()
    assert len(sessions) == SESSIONS
    joined = traces[traces["sources"] == "polar+rollout_dump"]
    assert len(joined) > 100
    several = joined["weight_version_oldest"] != joined["weight_version_newest"]
    for some in (several, joined["clipped"], joined["altered"], ~joined["altered"]):
        assert some.sum() > 5
    for frame in (run.groups(), sessions, traces):
        assert frame["conflicts"].dropna().tolist() == []


def test_what_was_changed_afterwards_is_noted(tmp_path: Path) -> None:
    """A reward, a version and a mask that were changed in the server's file contradict the dump."""
    a_run(tmp_path, Random(5))
    traces = load(tmp_path).traces()
    untouched = (traces["sources"] == "polar+rollout_dump") & ~traces["altered"]
    whole = untouched & (traces["weight_version_newest"] == "5") & (traces["reward"] == 1.0)
    row = traces[whole.fillna(False)].iloc[0]
    path = next(tmp_path.rglob(f"ses_{row['session_id']}.json"))
    content = json.loads(path.read_text())
    changed = content["trajectory"]["traces"][row["trace_index"]]
    changed["reward"] = 0.25
    changed["loss_mask"][0] = 0
    changed["metadata"] = {"weight_version": "11"}
    write_json(path, content)
    after = load(tmp_path).traces()
    (noted,) = after["conflicts"].dropna().tolist()
    for name in ("reward: polar says 0.25, rollout_dump says 1", "weight_version_newest", "sampled_tokens"):
        assert name in noted
