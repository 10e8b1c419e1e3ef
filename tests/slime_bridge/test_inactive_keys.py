"""Keys without effect are named, with the reason; keys with one are not."""

from types import SimpleNamespace

import pytest

from slime_bridge.config import check_polar_slime_config, keys_without_effect
from tests.slime_bridge.rollouts import make_args

TEMPLATE = {"agent": {"harness": "shell", "settings": {}}}
BARRIER = "slime_bridge.megatron_hooks.install_weight_update_barrier"
REWARDS = "slime_bridge.reward_post_process.post_process_rewards"


def found(**settings):
    args = make_args("http://127.0.0.1:1", polar_task_template=TEMPLATE, **settings)
    config, _ = check_polar_slime_config(args)
    return keys_without_effect(args, config)


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"polar_early_stop_grace_sessions": 1}, "polar_early_stop_grace_sessions", "never stopped early"),
        (
            {
                "polar_early_stop_grace_sessions": 1,
                "polar_min_complete_accept_fraction": 0.25,
                "n_samples_per_prompt": 8,
                "polar_scoring_mode": "individual",
            },
            "polar_early_stop_grace_sessions",
            "and 1 sessions in a task",
        ),
        (
            {"polar_candidate_pool_health_gate_min_completion_fraction": 0.5},
            "polar_candidate_pool_health_gate_min_completion_fraction",
            "enabled is off",
        ),
        ({"polar_advantage_estimator_kwargs": {"k": 1}}, "polar_advantage_estimator_kwargs", "no polar_adv"),
        ({"polar_add_generation_prompt": False}, "polar_add_generation_prompt", "no chat template"),
        ({"polar_topology_path": "topology.yaml"}, "polar_topology_path", "polar_rollout_url names"),
        (
            {"polar_eval_dataset_name": "mine", "eval_datasets": [SimpleNamespace(name="d")]},
            "polar_eval_dataset_name",
            "names of their own",
        ),
        (
            {"polar_weight_update_pause_timeout": 5, "custom_megatron_init_path": None},
            "polar_weight_update_pause_timeout",
            "--custom-megatron-init-path does not name",
        ),
        (
            {"gdpo_reward_keys": ["a", "b"], "custom_reward_post_process_path": "my.hook"},
            "gdpo_reward_keys",
            "--custom-reward-post-process-path does not name",
        ),
        ({"over_sampling_batch_size": 8, "polar_fully_async": True}, "over_sampling_batch_size", "anyway"),
        ({"over_sampling_batch_size": 9}, "over_sampling_batch_size", "at most 8 are drawn"),
        (
            {"custom_generate_function_path": "my.generate"},
            "custom_generate_function_path",
            "agents generate",
        ),
        ({"partial_rollout": True}, "partial_rollout", "go on instead of being cut"),
        (
            {"mask_offpolicy_in_partial_rollout": True},
            "mask_offpolicy_in_partial_rollout",
            "no partial answer",
        ),
        ({"rm_type": "math"}, "rm_type", "Polar's evaluator"),
        ({"rm_url": "http://rm"}, "rm_url", "Polar's evaluator"),
        ({"group_rm": True}, "group_rm", "Polar's evaluator"),
        ({"custom_rm_path": "my.reward"}, "custom_rm_path", "Polar's evaluator"),
        ({"rollout_temperature": 0.7}, "rollout_temperature", "trainer divides its logits"),
        ({"rollout_top_p": 0.9}, "rollout_top_p", "{args.rollout_top_p}"),
        ({"rollout_top_k": 40}, "rollout_top_k", "{args.rollout_top_k}"),
        ({"rollout_stop": ["x"]}, "rollout_stop", "{args.rollout_stop}"),
        ({"rollout_max_response_len": 512}, "rollout_max_response_len", "{args.rollout_max_response_len}"),
    ],
)
def test_a_key_that_does_nothing_is_named_with_its_reason(settings, key, reason):
    """Nobody has to find out from the curves."""
    without = found(**settings)
    assert list(without) == [key]
    assert reason in without[key]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "polar_early_stop_grace_sessions": 1,
            "polar_min_complete_accept_fraction": 0.25,
            "n_samples_per_prompt": 8,
        },
        {"polar_add_generation_prompt": True},
        {"polar_weight_update_pause_timeout": 5},
        {"polar_weight_update_pause_timeout": 5, "custom_megatron_init_path": BARRIER},
        {"gdpo_reward_keys": ["a", "b"], "custom_reward_post_process_path": REWARDS},
        {"over_sampling_batch_size": 8},
        {"over_sampling_batch_size": 4, "polar_fully_async": True},
        {"custom_rm_path": "slime_bridge.reward.reward_func"},
        {"partial_rollout": False, "group_rm": False, "rm_type": None},
        {"rollout_temperature": 1.0, "rollout_top_p": 1.0, "rollout_top_k": -1, "rollout_stop": []},
    ],
)
def test_a_key_with_an_effect_is_not_named(settings):
    """A warning that is wrong teaches people to skip warnings."""
    assert found(**settings) == {}


@pytest.mark.parametrize("entry", ["{args.rollout_temperature}", 0.7])
def test_sampling_limits_in_the_template_count(entry):
    """As a placeholder, or as the user's own value."""
    template = {"agent": {"harness": "shell", "settings": {"temperature": entry}}}
    args = make_args("http://127.0.0.1:1", polar_task_template=template, rollout_temperature=0.7)
    config, warnings = check_polar_slime_config(args)
    assert keys_without_effect(args, config) == {}
    assert warnings == []


def test_examples_without_a_place_to_go(monkeypatch):
    """How often and how many, but not where to."""
    monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLE_INTERVAL", "5")
    assert "says where to" in found()["POLAR_ROLLOUT_EXAMPLE_INTERVAL"]
    monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLES_WANDB", "1")
    assert found() == {}


def test_the_configuration_warns_about_them():
    """Once, at the start, where the doctor sees it too."""
    args = make_args("http://127.0.0.1:1", partial_rollout=True)
    _, warnings = check_polar_slime_config(args)
    assert warnings == [
        "partial_rollout has no effect: unfinished groups go on instead of being cut (polar_fully_async)"
    ]
