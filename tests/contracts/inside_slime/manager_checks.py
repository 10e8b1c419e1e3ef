"""Slime's RolloutManager with the bridge's samples: validation, dump, metrics, conversion, split."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slime_bridge.reward_post_process import post_process_rewards
from slime_bridge.sample_view import reward_value, trainable_tokens, trajectory_of
from tests.contracts.inside_slime.samples import GROUP_SIZE, converted_groups

TRAJECTORIES = 16


def arguments(**changes: Any) -> SimpleNamespace:
    """Everything that generating and converting reads."""
    values = {
        "advantage_estimator": "grpo",
        "balance_data": False,
        "ci_test": False,
        "custom_rollout_log_function_path": None,
        "custom_eval_rollout_log_function_path": None,
        "debug_rollout_only": False,
        "debug_train_only": False,
        "global_batch_size": TRAJECTORIES,
        "grpo_std_normalization": False,
        "load_debug_rollout_data": None,
        "load_debug_rollout_data_subsample": None,
        "log_passrate": False,
        "log_reward_category": None,
        "max_tokens_per_gpu": 4096,
        "micro_batch_size": 1,
        "n_samples_per_eval_prompt": GROUP_SIZE,
        "n_samples_per_prompt": GROUP_SIZE,
        "reward_key": "score",
        "rewards_normalization": True,
        "rollout_batch_size": TRAJECTORIES // GROUP_SIZE,
        "rollout_num_gpus": 1,
        "save_debug_rollout_data": None,
        "use_dynamic_batch_size": True,
        "use_fault_tolerance": False,
        "use_tensorboard": False,
        "use_wandb": False,
        "wandb_always_use_train_step": False,
    }
    return SimpleNamespace(**{**values, **changes})


def manager(args: SimpleNamespace, groups: list[Any], *, dp: int = 2) -> Any:
    """The real manager, without the actors that its constructor starts."""
    import slime.ray.rollout as slime_rollout

    from slime_bridge._slime import rollout_output_classes

    train_output, _ = rollout_output_classes()
    real = object.__new__(slime_rollout.RolloutManager)
    real.args = args
    real.generate_rollout = lambda *_, evaluation: train_output(samples=groups, metrics={"polar/x": 1.0})
    real.data_source = object()
    real.custom_reward_post_process_func = post_process_rewards
    real.custom_convert_samples_to_train_data_func = None
    real._health_monitors, real.servers = [], {}
    real.set_train_parallel_config(
        {"dp_size": dp, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    )
    return real


def flat(groups: list[list[Any]]) -> list[Any]:
    return [sample for group in groups for sample in group]


def nested(groups: list[list[Any]]) -> list[Any]:
    """Prompt, trajectory, samples: the form in which Slime checks that siblings share their key."""
    answer = []
    for group in groups:
        by_trajectory: dict[Any, list[Any]] = {}
        for sample in group:
            by_trajectory.setdefault(trajectory_of(sample), []).append(sample)
        answer.append(list(by_trajectory.values()))
    return answer


def check_every_sample_obeys_slimes_rules() -> None:
    """The checklist for a valid training result, for good samples and placeholders alike."""
    samples = flat(converted_groups())
    assert len({trajectory_of(s) for s in samples}) == TRAJECTORIES
    for sample in samples:
        assert all(type(token) is int and token >= 0 for token in sample.tokens)
        assert 1 <= sample.response_length < len(sample.tokens)
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        assert set(sample.loss_mask) <= {0, 1}
        assert all(type(value) is float for value in sample.rollout_log_probs)
        assert isinstance(sample.response, str)
        assert type(sample.status).__qualname__ == "Sample.Status"
        assert set(sample.reward) == {"score"}
        assert sample.index is not None
        assert len(sample.tokens) <= 4096


def check_generate_splits_over_ranks() -> None:
    """From the hook's output to what each trainer rank receives: every trajectory once, nothing lost."""
    groups = converted_groups()
    samples = flat(groups)
    boxes = manager(arguments(), groups).generate(3)
    ranks = [box.inner for box in boxes]
    assert len(ranks) == 2
    positions = sorted(position for rank in ranks for position in rank["partition"])
    assert positions == list(range(len(samples)))
    raw, rewards = post_process_rewards(arguments(), samples)
    for rank in ranks:
        assert rank["raw_reward"] == raw
        assert rank["global_batch_sizes"] == [TRAJECTORIES]
        for local, position in enumerate(rank["partition"]):
            sample = samples[position]
            assert rank["tokens"][local] == sample.tokens
            assert rank["loss_masks"][local] == sample.loss_mask
            assert rank["rollout_log_probs"][local] == sample.rollout_log_probs
            assert rank["rewards"][local] == rewards[position]
            assert rank["group_ids"][local] == sample.group_id == sample.index
            assert rank["truncated"][local] == int(sample.status.name == "TRUNCATED")
            siblings = [s for s in samples if s.group_id == sample.group_id]
            assert rank["group_mask_sums"][local] == sum(trainable_tokens(s) for s in siblings)


def check_three_levels_are_accepted() -> None:
    """Traces of a session nested as one trajectory pass Slime's check of their key."""
    groups = nested(converted_groups())
    assert any(len(trajectory) > 1 for group in groups for trajectory in group)
    boxes = manager(arguments(), groups).generate(3)
    assert sum(len(box.inner["partition"]) for box in boxes) == len(flat(converted_groups()))


def check_static_micro_batches_and_more_steps() -> None:
    """Other schedules take the same samples."""
    groups = converted_groups()
    boxes = manager(arguments(global_batch_size=4, balance_data=True), groups, dp=1).generate(3)
    assert boxes[0].inner["global_batch_sizes"] == [4, 4, 4, 4]


def check_the_post_process_is_per_trajectory_in_training() -> None:
    """What reaches the trainer is the contract's arithmetic, not Slime's positional one."""
    groups = converted_groups()
    samples = flat(groups)
    boxes = manager(arguments(), groups, dp=1).generate(3)
    by_session = {}
    for local, position in enumerate(boxes[0].inner["partition"]):
        by_session.setdefault(samples[position].session_id, []).append(boxes[0].inner["rewards"][local])
    assert by_session["b0"] == [-8.0, -6.0]
    assert by_session["b1"] == [7.0]
    assert by_session["b2"] == by_session["b3"] == [0.0]
    assert by_session["c0"] == by_session["c1"] == [0.0]


def check_remove_sample_is_applied() -> None:
    """Slime zeroes the mask of placeholders; it was zero already."""
    boxes = manager(arguments(), converted_groups(), dp=1).generate(3)
    samples = flat(converted_groups())
    for local, position in enumerate(boxes[0].inner["partition"]):
        if samples[position].remove_sample:
            assert boxes[0].inner["loss_masks"][local] == [0]


def check_debug_dump_goes_round() -> None:
    """Slime's dump of our samples loads safely, feeds a replay, and gives the same train data."""
    with tempfile.TemporaryDirectory() as folder:
        template = f"{folder}/rollout_data/{{rollout_id}}.pt"
        groups = converted_groups()
        first = manager(arguments(save_debug_rollout_data=template), groups, dp=1).generate(7)
        path = Path(folder) / "rollout_data" / "7.pt"
        dump = torch.load(path, weights_only=True)
        assert dump["rollout_id"] == 7
        assert [s["session_id"] for s in dump["samples"]] == [s.session_id for s in flat(groups)]
        replay = manager(arguments(load_debug_rollout_data=template), [], dp=1).generate(7)
        assert replay[0].inner == first[0].inner


def check_eval_dump() -> None:
    """Evaluation samples are dumped and logged like training ones."""
    import slime.ray.rollout as slime_rollout

    from slime_bridge._slime import rollout_output_classes

    _, eval_output = rollout_output_classes()
    samples = flat(converted_groups())
    rewards = [reward_value(s, "score") for s in samples][:GROUP_SIZE]
    data = {"set": {"rewards": rewards, "truncated": [False] * len(rewards), "samples": samples}}
    with tempfile.TemporaryDirectory() as folder:
        real = manager(arguments(save_debug_rollout_data=f"{folder}/{{rollout_id}}.pt"), [])
        real.eval_generate_rollout = lambda *_, evaluation: eval_output(
            data=data, metrics={"polar/eval/x": 1.0}
        )
        real.eval(4)
        assert len(torch.load(f"{folder}/eval_4.pt", weights_only=True)["samples"]) == len(samples)
    log = slime_rollout._log_eval_rollout_data(4, arguments(log_passrate=True), data, {"polar/eval/x": 1.0})
    assert log["eval/set"] == sum(rewards) / len(rewards)
    assert log["polar/eval/x"] == 1.0
    assert {"eval/set-pass@1", "eval/set-pass@2", "eval/set-pass@4"} <= set(log)


def check_metrics_of_a_rollout() -> None:
    """Slime's own metrics over our samples, with the key set."""
    import slime.ray.rollout as slime_rollout

    samples = flat(converted_groups())
    metrics = slime_rollout.compute_metrics_from_samples(arguments(), samples)
    lengths = [trainable_tokens(s) for s in samples]
    assert metrics["response_len/max"] == max(lengths)
    assert metrics["response_len/mean"] == sum(lengths) / len(lengths)
    assert metrics["truncated_ratio"] == sum(s.status.name == "TRUNCATED" for s in samples) / len(samples)
    # The group with only the captured session and placeholders has no reward anywhere.
    assert metrics["zero_std/count_0.0"] == 1
    perf = slime_rollout.compute_perf_metrics_from_samples(arguments(), samples, 2.0)
    assert perf["longest_sample_tokens_per_sec"] == max(s.response_length for s in samples) / 2.0


def check_metrics_with_a_wrong_key_fail_as_the_bridge_says() -> None:
    """Unset or misspelt, Slime's metric dies; the bridge's hook names the key first."""
    import slime.ray.rollout as slime_rollout

    from slime_bridge.errors import ConfigError

    samples = flat(converted_groups())
    for key, expected in ((None, TypeError), ("scroe", KeyError)):
        with pytest.raises(expected):
            slime_rollout.compute_metrics_from_samples(arguments(reward_key=key), samples)
    with pytest.raises(ConfigError, match="scroe"):
        post_process_rewards(arguments(reward_key="scroe"), samples)


def check_pass_rate() -> None:
    """Slime's pass rate over one reward per session."""
    from slime.utils.metric_utils import compute_pass_rate

    sessions: dict[Any, float] = {}
    for sample in flat(converted_groups()):
        sessions.setdefault(trajectory_of(sample), reward_value(sample, "score"))
    rates = compute_pass_rate(list(sessions.values()), GROUP_SIZE)
    assert set(rates) == {"pass@1", "pass@2", "pass@4"}
    assert rates["pass@1"] == sum(value == 1 for value in sessions.values()) / TRAJECTORIES


def check_dotted_paths_load() -> None:
    """Every path that a launch script names, through Slime's own loader."""
    import importlib.util

    from slime.utils.misc import load_function

    paths = [
        "slime_bridge.reward.reward_func",
        "slime_bridge.reward_post_process.post_process_rewards",
        "slime_bridge.rollout.generate_rollout_polar_async",
        "slime_bridge.data_source.CeilEpochRolloutDataSourceWithBuffer",
    ]
    for path in paths:
        if importlib.util.find_spec(path.rpartition(".")[0]) is not None:
            assert callable(load_function(path)), path


def check_reward_hook_through_slime() -> None:
    """Slime awaits the hook for one sample and for a list of them."""
    import asyncio

    from slime.rollout.rm_hub import async_rm, batched_async_rm

    args = SimpleNamespace(custom_rm_path="slime_bridge.reward.reward_func", reward_key="score")
    samples = flat(converted_groups())[:3]
    for sample in samples:
        assert asyncio.run(async_rm(args, sample)) == sample.reward
    assert asyncio.run(batched_async_rm(args, samples)) == [s.reward for s in samples]
