"""The namespace of a lab run is one that the bridge and Slime's hooks accept, and the YAML says the same."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import yaml

from analysis.lab.arguments import (
    EvalDataset,
    polar_keys,
    task_template,
    trainer_arguments,
    write_polar_config,
)
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import AgentTroubles, LabSettings
from slime_bridge._slime import sample_class
from slime_bridge.config import check_polar_slime_config, render_task_payload


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def _arguments(settings: LabSettings, folder: RunFolder) -> argparse.Namespace:
    polar = polar_keys(settings, folder, rollout_url="http://127.0.0.1:1", session_timeout=7.5)
    return trainer_arguments(settings, folder, polar=polar, router_host="127.0.0.1", router_port=2)


def test_the_bridge_resolves_them_without_a_warning(folder: RunFolder) -> None:
    """Every key is known, nothing contradicts another, and limits follow from the settings."""
    config, warnings = check_polar_slime_config(_arguments(LabSettings(), folder))
    assert warnings == []
    assert config.max_groups_in_flight == 32
    assert config.max_sessions_in_flight == 256
    assert config.max_staleness == 3
    assert config.fully_async
    assert config.min_complete_sessions(8) == 7
    assert config.reward_key == "score"
    assert config.run_dir == str(folder.bridge)


def test_task_request_carries_the_prompt_and_the_troubles(folder: RunFolder) -> None:
    """A rendered task names the episode by the prompt's metadata, as a mapping, and the agent's settings."""
    settings = LabSettings(seed=4, troubles=AgentTroubles(failure_rate=0.25))
    args = _arguments(settings, folder)
    config, _ = check_polar_slime_config(args)
    sample = sample_class()(group_index=3, index=24, metadata={"task": "shelf", "episode_seed": 11})
    payload = render_task_payload(
        args=args,
        config=config,
        sample=sample,
        instruction="How many?",
        rollout_id=5,
        task_position=0,
        num_rollouts=8,
    )
    agent = payload["agent"]["settings"]
    assert agent["episode"] == {"task": "shelf", "episode_seed": 11}
    assert agent["failure_rate"] == 0.25
    assert agent["seed"] == 4
    assert payload["timeout_seconds"] == 7.5
    assert payload["num_samples"] == 8
    assert payload["evaluator"] == {"strategy": "lab_task"}


def test_yaml_holds_the_keys_as_they_are(folder: RunFolder) -> None:
    """The file for ``--custom-config-path`` loads to the very mapping that the run uses."""
    polar = polar_keys(LabSettings(), folder, rollout_url="http://127.0.0.1:1", session_timeout=4.0)
    write_polar_config(folder, polar)
    assert yaml.safe_load(folder.polar_config.read_text()) == polar
    assert polar["polar_task_template"] == task_template(LabSettings(), 4.0)


def test_without_held_out_questions_there_is_no_data_set(folder: RunFolder) -> None:
    """`eval_prompts` 0 switches the evaluation off."""
    assert _arguments(LabSettings(eval_prompts=0), folder).eval_datasets == []
    (dataset,) = _arguments(LabSettings(), folder).eval_datasets
    assert dataset.path.endswith("held_out.jsonl")


def test_overrides_go_on_top_of_a_rows_metadata() -> None:
    """A data set's own metadata wins, and the row's mapping is left alone."""
    row = {"task": "shelf", "split": "train"}
    dataset = EvalDataset("x", "x.jsonl", metadata_overrides={"split": "eval"})
    assert dataset.inject_metadata(row) == {"task": "shelf", "split": "eval"}
    assert row["split"] == "train"
    assert EvalDataset("x", "x.jsonl").inject_metadata(None) == {}
