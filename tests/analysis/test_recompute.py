"""Advantages recomputed with the run's own estimator, as its journal names it; nothing foreign is run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from analysis.lab.run_folder import RunFolder
from tests.analysis.sources.source_files import session, trace, write_json
from tests.analysis.test_loading import load

REWARDS = (1.0, 0.0, 0.25, 1.0)
SPREAD = np.std(REWARDS, ddof=1)
OTHERS = [r - (sum(REWARDS) - r) / 3 for r in REWARDS]
CENTRED = [r - np.mean(REWARDS) for r in REWARDS]
SLIME = {"advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": True}


def a_run(folder: Path, *configs: dict[str, Any], **options: Any) -> analysis.Run:
    """One group of four sessions, and a journal that was opened with these configurations."""
    for number, reward in enumerate(REWARDS):
        one = session(f"s-{number}", [trace(reward=reward)], task_id=f"t-{number}")
        write_json(folder / f"task_t-{number}" / f"ses_s-{number}.json", one)
    opened = [
        {"v": 1, "seq": 0, "ts": 1000.0 + i, "event": "journal_opened", "versions": {}, "config": c, "pid": 1}
        for i, c in enumerate(configs)
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in opened))
    return load(folder, **options)


def recomputed(run: analysis.Run) -> list[float]:
    """The column of both tables, which agree for sessions of one trace; NaN where it is missing."""
    found = [
        frame["advantage_recomputed"].to_numpy(float, na_value=np.nan)
        for frame in (run.sessions(), run.traces())
    ]
    np.testing.assert_array_equal(*found)
    return list(found[0])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, OTHERS),
        (
            {"advantage_estimator": None, "advantage_estimator_kwargs": {}, "slime": SLIME},
            [x / SPREAD for x in OTHERS],
        ),
        ({"slime": {**SLIME, "grpo_std_normalization": False}}, OTHERS),
        ({"slime": {**SLIME, "advantage_estimator": "reinforce_plus_plus_baseline"}}, OTHERS),
        ({"slime": {**SLIME, "rewards_normalization": False}}, REWARDS),
        ({"slime": {**SLIME, "advantage_estimator": "ppo"}}, REWARDS),
        ({"advantage_estimator": "dr_grpo", "slime": SLIME}, CENTRED),
        (
            {"advantage_estimator": "grpo", "advantage_estimator_kwargs": {"std_normalization": False}},
            CENTRED,
        ),
    ],
)
def test_the_estimator_of_the_journal(tmp_path: Path, config: dict[str, Any], expected: list[float]) -> None:
    """Name, hyper-parameters and Slime's switches decide; without any, the bridge's default."""
    run = a_run(tmp_path, config)
    assert run.problems.empty
    np.testing.assert_allclose(recomputed(run), expected)


def test_the_last_opening_counts(tmp_path: Path) -> None:
    """A run that went on with another estimator is asked about with that one, where no worker is known."""
    run = a_run(tmp_path, {"advantage_estimator": "loo"}, {"advantage_estimator": "dr_grpo"})
    np.testing.assert_allclose(recomputed(run), CENTRED)


MODULE = """
import numpy as np
IMPORTED = True

def halves(rewards, groups, trajectories):
    return np.asarray(rewards) / 2

def broken(rewards, groups, trajectories):
    raise RuntimeError("no idea")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with estimators of the user's."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "estimators_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.delitem(sys.modules, "estimators_of_mine", raising=False)
    return "estimators_of_mine"


def test_a_class_of_ones_own_needs_trust(tmp_path: Path, own: str) -> None:
    """A journal is data: what it names is imported only with `trusted=True`, and the problem says so."""
    config = {"advantage_estimator": f"{own}:halves", "slime": SLIME}
    run = a_run(tmp_path / "run", config)
    assert np.isnan(recomputed(run)).all()
    assert own not in sys.modules
    (problem,) = run.problems.to_dict("records")
    assert problem["path"].endswith("journal.jsonl")
    assert f"{own}:halves" in problem["what"]
    assert "trusted=True" in problem["fix"]
    trusted = load(tmp_path / "run", trusted=True)
    assert trusted.problems.empty
    np.testing.assert_allclose(recomputed(trusted), [r / 2 for r in REWARDS])


@pytest.mark.parametrize(
    ("name", "kwargs", "says"),
    [
        ("nobody_has_this:Thing", {}, "nobody_has_this"),
        ("estimators_of_mine:broken", {}, "no idea"),
        ("grpo", {"wrong": 1}, "hyper-parameters of grpo"),
        ("gdpo", {"keys": "a"}, "keys"),
        ("no such", {}, "no such"),
    ],
)
def test_estimators_that_cannot_be_had(
    tmp_path: Path, own: str, name: str, kwargs: dict[str, Any], says: str
) -> None:
    """Advantages are missing, one problem says why, and everything else is loaded."""
    config = {"advantage_estimator": name, "advantage_estimator_kwargs": kwargs}
    run = a_run(tmp_path / "run", config, trusted=True)
    assert np.isnan(recomputed(run)).all()
    assert run.sessions()["reward"].tolist() == list(REWARDS)
    (problem,) = run.problems.to_dict("records")
    assert says in problem["what"] + problem["why"]


def test_a_configuration_that_is_nonsense(tmp_path: Path) -> None:
    """Whatever stands in the journal's configuration, the rest of the run loads."""
    for number, config in enumerate(([], "x", {"advantage_estimator": 5}, {"advantage_estimator_kwargs": [1]},
                                     {"slime": 3, "gdpo_reward_keys": 7})):  # fmt: skip
        run = a_run(tmp_path / str(number), config)  # type: ignore[arg-type]
        assert len(run.sessions()) == 4


def test_components(tmp_path: Path) -> None:
    """Estimators of several rewards find them in the dump's mappings; without them there is no answer."""
    torch = pytest.importorskip("torch")
    config = {"gdpo_reward_keys": ["right", "short"], "slime": SLIME}
    run = a_run(tmp_path, config)
    assert run.problems.empty
    assert np.isnan(recomputed(run)).all()
    right, short = np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.5, 0.25, 1.0, 0.0])
    samples = [
        {
            "group_index": 7, "index": i, "tokens": [1, 10, 11, 3, 20 + i], "response_length": 1,
            "loss_mask": [1], "reward": {"score": REWARDS[i], "right": right[i], "short": short[i]},
            "rollout_log_probs": [-0.5], "status": "completed", "group_id": i, "remove_sample": False,
            "metadata": {"polar": {"session_id": f"s-{i}", "task_id": f"t-{i}", "trace_index": 0}},
        }
        for i in range(4)
    ]  # fmt: skip
    (tmp_path / "rollout_data").mkdir()
    torch.save({"rollout_id": 4, "samples": samples}, tmp_path / "rollout_data" / "4.pt")
    found = recomputed(load(tmp_path))
    parts = [(part - part.mean()) / (part.std(ddof=1) + 1e-4) for part in (right, short)]
    total = parts[0] + parts[1]
    np.testing.assert_allclose(found, (total - total.mean()) / (total.std(ddof=1) + 1e-4))


def test_the_bridge_writes_down_what_slime_was_told(embedded: RunFolder) -> None:
    """A run of the bridge is recomputed to what its trainer was handed, by what its journal says alone."""
    run = load(embedded.root)
    events = run.events()
    opened = json.loads(events[events["event"] == "journal_opened"]["data"].iloc[-1])
    assert opened["config"]["slime"] == {**SLIME, "grpo_std_normalization": False}
    traces = run.traces()
    handed = traces[traces["advantage_raw"].notna() & traces["advantage_recomputed"].notna()]
    assert len(handed) > 10
    np.testing.assert_allclose(
        handed["advantage_recomputed"].to_numpy(float), handed["advantage_raw"].to_numpy(float), atol=1e-6
    )
