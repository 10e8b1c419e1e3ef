"""A short training run through the real engine, router, rollout server and hook, and what it leaves."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from analysis.lab.checkpoint import load_parameters
from analysis.lab.dumps import read_dump
from analysis.lab.frames import read_metrics
from analysis.lab.interrupts import Interrupts
from analysis.lab.progress import Progress
from analysis.lab.run import run_lab
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import LabSettings
from analysis.lab.summary import Summary
from slime_bridge._slime import sample_class
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.journal.audit import audit
from slime_bridge.journal.reader import read_journal
from slime_bridge.reward_post_process import post_process_rewards
from slime_bridge.sample_view import is_placeholder, polar_metadata, trajectory_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

SETTINGS = LabSettings(seed=0, rollouts=8, rollout_batch_size=8, n_samples_per_prompt=8, eval_prompts=64)


class Run:
    """One finished run: its folder, what it said, what it summed up, and the threads around it."""

    def __init__(self, root: Path) -> None:
        self.folder = RunFolder(root)
        self.stream = io.StringIO()
        before = set(threading.enumerate())
        with Interrupts() as interrupts:
            self.summary: Summary = run_lab(
                SETTINGS, self.folder, progress=Progress(self.stream), interrupts=interrupts
            )
        self.new_threads = set(threading.enumerate()) - before
        self.text = self.stream.getvalue()
        self.records = read_metrics(self.folder.metrics)
        self.rollouts = [record for record in self.records if record["kind"] == "rollout"]

    def samples(self, rollout_id: int) -> list[dict[str, Any]]:
        return read_dump(self.folder.rollout_data / f"{rollout_id}.pt")["samples"]

    def train_data(self, rollout_id: int) -> dict[str, Any]:
        return read_dump(self.folder.train_data / f"{rollout_id}_0.pt")["rollout_data"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    threads = torch.get_num_threads()
    yield Run(tmp_path_factory.mktemp("lab") / "run")
    torch.set_num_threads(threads)


def test_the_policy_gets_better(run: Run) -> None:
    """Held-out questions are answered better after eight rollouts than before them."""
    assert run.summary.rollouts == SETTINGS.rollouts
    assert 0.1 < run.summary.eval_before < 0.6
    assert run.summary.eval_after > run.summary.eval_before
    assert [record["rollout_id"] for record in run.records if record["kind"] == "evaluation"] == [0, 8]


def test_everything_a_real_run_leaves_is_there(run: Run) -> None:
    """Dumps, results, journal, metrics, configuration, tokenizer, checkpoints, figures; none half-written."""
    folder = run.folder
    ids = range(SETTINGS.rollouts)
    assert {path.name for path in folder.rollout_data.iterdir()} == {
        *(f"{i}.pt" for i in ids),
        "eval_0.pt",
        f"eval_{SETTINGS.rollouts}.pt",
    }
    assert {path.name for path in folder.train_data.iterdir()} == {f"{i}_0.pt" for i in ids}
    names = {"reward.png", "advantages.png", "rejections.png", "policy_lag.png"}
    assert {path.name for path in folder.figures.iterdir()} == names
    assert {path.name for path in folder.checkpoint.iterdir()} == {"initial", "final"}
    assert (folder.tokenizer / "tokenizer.json").is_file()
    assert (folder.bridge / "journal.jsonl").is_file()
    assert {path.name for path in folder.logs.iterdir()} == {
        "lab.log",
        "engine-0.log",
        "router.log",
        "rollout-server.log",
    }
    assert not [path for path in folder.root.rglob("*") if "partial" in path.name]
    assert "Traceback" not in "".join(path.read_text() for path in folder.logs.iterdir())


def test_nothing_is_left_running(run: Run) -> None:
    """No thread of the run lives on, and no port that it named still accepts connections."""
    assert not [thread for thread in run.new_threads if thread.is_alive()]
    ports = [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", run.text)]
    assert len(ports) >= 3
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_every_rollout_is_a_whole_batch(run: Run) -> None:
    """Eight groups of eight trajectories each time, one trajectory key per session, arrays aligned."""
    for rollout_id in range(SETTINGS.rollouts):
        samples = run.samples(rollout_id)
        assert len({sample["group_index"] for sample in samples}) == 8
        assert len({trajectory_of(sample) for sample in samples}) == 64
        for sample in samples:
            assert len(sample["loss_mask"]) == len(sample["rollout_log_probs"]) == sample["response_length"]
            assert 1 <= sample["response_length"] < len(sample["tokens"])
            assert sample["session_id"] or is_placeholder(sample)


def test_ratio_is_one_where_the_policy_did_not_move(run: Run) -> None:
    """At lag 0 the trainer's log-probs are the engine's, except behind a turn that was rendered anew.

    The rollout server renders earlier turns from their text, as Polar does; where that gives other tokens
    than were sampled, the engine saw another context than the merged trace holds. A first turn has none.
    """
    samples, data = run.samples(0), run.train_data(0)
    assert {version for sample in samples for version in sample["weight_versions"]} == {"0"}
    later_close = later = first = 0
    for i, mask in enumerate(data["loss_masks"]):
        sampled = mask.bool()
        if not bool(sampled.any()):
            continue
        close = (data["log_probs"][i] - data["rollout_log_probs"][i]).abs() < 1e-4
        start = int(sampled.int().argmax())
        gaps = (~sampled[start:]).nonzero()
        end = start + int(gaps[0]) if len(gaps) else len(sampled)
        assert bool(close[start:end].all()), f"sample {i}, first turn"
        first += end - start
        later += int(sampled[end:].sum())
        later_close += int((close & sampled)[end:].sum())
    assert first > 0
    assert later_close > 0.8 * later


def test_lag_is_real(run: Run) -> None:
    """Later batches were sampled by older weights than they are trained with, as the engine reports."""
    assert run.summary.lag_mean > 0.3
    assert run.summary.lag_max <= SETTINGS.max_async_level + 1
    versions = {v for k in range(SETTINGS.rollouts) for s in run.samples(k) for v in s["weight_versions"]}
    assert len(versions) >= 4
    for rollout_id in range(SETTINGS.rollouts):
        for sample in run.samples(rollout_id):
            staleness = polar_metadata(sample).get("policy_staleness")
            assert 0 <= staleness <= SETTINGS.max_async_level + 1
            assert all(int(version) <= rollout_id for version in sample["weight_versions"])


def test_train_dump_is_what_the_hooks_make_of_the_rollout_dump(run: Run) -> None:
    """Same samples in the same order; advantages are the hook's, computed again from the dump."""
    args = Namespace(**json.loads(run.folder.config.read_text())["args"])
    for rollout_id in (0, SETTINGS.rollouts - 1):
        samples = [sample_class().from_dict(sample) for sample in run.samples(rollout_id)]
        data = run.train_data(rollout_id)
        raw, rewards = post_process_rewards(args, samples)
        assert [tokens.tolist() for tokens in data["tokens"]] == [sample.tokens for sample in samples]
        assert data["sample_indices"] == [sample.index for sample in samples]
        assert data["rewards"] == rewards
        assert data["raw_reward"] == raw
        for i, advantages in enumerate(data["advantages"]):
            assert advantages.tolist() == pytest.approx([rewards[i]] * samples[i].response_length)


def test_journal_accounts_for_every_group(run: Run) -> None:
    """Every drawn group ends exactly once, and the table's counts are the journal's."""
    assert audit(read_journal(run.folder.bridge)) == []
    events = [record["event"] for record in read_journal(run.folder.bridge)]
    assert events.count("group_delivered") == run.summary.accepted == SETTINGS.rollouts * 8
    assert events.count("group_rejected") == sum(run.summary.rejected.values())
    assert events[-1] == "journal_closed"


def test_sessions_are_on_disk_as_polar_saves_them(run: Run) -> None:
    """Each delivered session has its result file, under its task, with the same tokens."""
    files = {
        path.stem.removeprefix("ses_"): path for path in run.folder.polar_results.glob("task_*/ses_*.json")
    }
    for sample in run.samples(SETTINGS.rollouts - 1):
        stored = json.loads(files[sample["session_id"]].read_text())
        assert stored["task_id"] == polar_metadata(sample)["task_id"]
        if not is_placeholder(sample):
            trace = stored["trajectory"]["traces"][polar_metadata(sample)["trace_index"]]
            assert trace["prompt_ids"] + trace["response_ids"] == sample["tokens"]


def test_configuration_drives_a_cluster_run_unchanged(run: Run) -> None:
    """The YAML resolves to the same configuration as the namespace that the run used."""
    written = json.loads(run.folder.config.read_text())
    assert written["settings"] == json.loads(json.dumps(SETTINGS.to_dict()))
    assert {"python", "torch", "sglang-router"} <= set(written["versions"])
    keys = yaml.safe_load(run.folder.polar_config.read_text())
    args = {name: value for name, value in written["args"].items() if not name.startswith("polar_")}
    from_yaml = resolve_polar_slime_config(Namespace(**args, **keys))
    assert from_yaml == resolve_polar_slime_config(Namespace(**written["args"]))


def test_weights_were_trained_and_published(run: Run) -> None:
    """The final checkpoint differs from the initial one, and every step moved the weights."""
    initial, final = (load_parameters(run.folder.checkpoint / name) for name in ("initial", "final"))
    assert not torch.equal(initial["model.embed_tokens.weight"], final["model.embed_tokens.weight"])
    assert all(record["train/grad_norm"] > 0 for record in run.rollouts)
    assert all(record["train/global_batch_size"] == 64 for record in run.rollouts)


def test_the_words_are_whole_lines_with_the_numbers(run: Run) -> None:
    """One line per rollout with time left, and the table with the captures at the end."""
    lines = run.text.splitlines()
    rollouts = [line for line in lines if line.startswith("rollout ")]
    assert len(rollouts) == SETTINGS.rollouts
    for line in rollouts:
        assert re.fullmatch(
            r"rollout \d/8  reward [\d.]+  lag [\d.]+  total \d+ accepted, \d+ rejected  "
            r"left \d+:\d\d",
            line,
        )
    assert any("2,883 tokens, 149 response, 119 trainable" in line for line in lines)
    assert lines[-1] == f"everything is in {run.folder.root}"
