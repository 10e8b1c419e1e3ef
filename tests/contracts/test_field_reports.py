"""What went wrong for others does not go wrong here: public reports, each with the tests that cover it.

A report is a symptom that users of trainers and rollout servers described in public, by its address. A test
named here that is renamed or removed fails the table.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

WORKER, COLLECT = "slime_bridge/test_worker.py", "slime_bridge/test_collect.py"
ADAPTER, ADVANTAGES = "slime_bridge/test_adapter.py", "slime_bridge/test_advantages.py"
EVALUATION, TRACKING = "slime_bridge/test_evaluation.py", "slime_bridge/test_tracking.py"
LOADING, DOCTOR = "analysis/test_loading.py", "slime_bridge/test_doctor.py"
SIZE = "analysis/test_load_at_size.py"
PROCESSES, SLIME = "scenarios/test_process_reports.py", "contracts/inside_slime/manager_checks.py"

REPORTS: dict[str, tuple[tuple[str, str], ...]] = {
    "THUDM/slime#2176": ((WORKER, "test_surplus_straggler_is_never_awaited"),),
    "THUDM/slime#1615": ((WORKER, "test_stop_does_not_wait_for_a_sick_server"),),
    "radixark/miles#1012": ((WORKER, "test_stuck_task_frees_its_slot_at_the_deadline"),),
    "areal-project/AReaL#588": ((WORKER, "test_rejected_groups_are_replaced"),),
    "PrimeIntellect-ai/prime-rl#2459": ((WORKER, "test_one_prompt_that_always_fails_is_given_up"),),
    "THUDM/slime#2168": ((WORKER, "test_refused_connections_are_ridden_out"),),
    "verl-project/verl#5815": (
        (WORKER, "test_progress_line_tells_what_is_waited_for"),
        ("slime_bridge/test_metrics.py", "test_scheduler_counts_reach_the_metrics_under_the_kept_names"),
    ),
    "THUDM/slime#2238": ((WORKER, "test_fully_async_keeps_the_window_full_and_delivers_each_group_once"),),
    "THUDM/slime#1558": ((WORKER, "test_odd_rollout_ids_are_served_and_named"),),
    "vllm-project/vime#324": (
        (
            "slime_bridge/test_data_source.py",
            "test_a_checkpoint_brings_back_what_is_in_flight_buffered_and_delivered_later",
        ),
    ),
    "OpenRLHF/OpenRLHF#1322": ((WORKER, "test_stop_between_calls_returns_what_is_buffered_and_in_flight"),),
    "NVIDIA-NeMo/labs-molt#85": (
        ("slime_bridge/test_data_source.py", "test_one_epoch_sees_every_prompt_and_only_the_overhang_twice"),
    ),
    "THUDM/slime#1474": (
        (WORKER, "test_unusable_prompts_are_named_before_anything_is_submitted"),
        (WORKER, "test_empty_source_is_an_error_at_once"),
    ),
    "NVIDIA-NeMo/ProRL-Agent-Server#52": (
        (WORKER, "test_run_without_token_ids_stops_and_says_why"),
        (DOCTOR, "test_the_real_router_is_named_as_what_drops_the_ids"),
    ),
    "huggingface/trl#6166": (
        (ADAPTER, "test_masks_and_logprobs"),
        ("slime_bridge/test_trace_tokens.py", "test_the_number_of_unusable_values_is_told"),
    ),
    "MHGanainy/gsj-harness-rollout-server: attempt5": (
        (ADAPTER, "test_real_sessions"),
        (LOADING, "test_the_captures_load"),
    ),
    "MHGanainy/gsj-harness-rollout-server: CP-02": (
        (ADVANTAGES, "test_side_calls_do_not_weigh"),
        (SIZE, "test_side_calls_can_be_listed_and_left_out"),
    ),
    "THUDM/slime#1861": ((ADAPTER, "test_the_limit_itself_fits"),),
    "THUDM/slime#1982": (
        (ADAPTER, "test_a_session_of_only_too_long_traces"),
        ("slime_bridge/test_rollout.py", "test_left_out_traces_are_mentioned_once_per_rollout"),
    ),
    "PrimeIntellect-ai/prime-rl#1334": ((ADAPTER, "test_traces_share_the_trajectory"),),
    "verl-project/verl#3960": ((ADAPTER, "test_tokens_masks_and_logprobs_are_the_servers"),),
    "NovaSky-AI/SkyRL#758": (("slime_bridge/test_trace_tokens.py", "test_ids_are_exactly_the_servers"),),
    "NVIDIA-NeMo/RL#1518": (
        (ADVANTAGES, "test_one_success_among_four"),
        (ADVANTAGES, "test_one_success_among_27"),
    ),
    "THUDM/slime#1414": ((ADVANTAGES, "test_constant_group_beside_others"),),
    "verl-project/verl#7581": (
        ("slime_bridge/test_advantages_conformance.py", "test_lone_members"),
        ("slime_bridge/test_reward_post_process.py", "test_counts"),
    ),
    "areal-project/AReaL#1559": ((ADVANTAGES, "test_failed_sessions_with_stray_rewards_take_no_part"),),
    "NVIDIA/Megatron-LM#6475": (
        ("slime_bridge/test_metrics.py", "test_failures_stay_out_of_the_reward_and_are_rates"),
    ),
    "NVIDIA-NeMo/RL#4013": (
        (
            "slime_bridge/test_group_conversion.py",
            "test_sessions_of_one_task_are_one_group_whatever_their_prompts",
        ),
    ),
    "THUDM/slime#2157": (
        (SLIME, "check_metrics_with_a_wrong_key_fail_as_the_bridge_says"),
        ("slime_bridge/test_rollout.py", "test_bad_reward_key_is_a_start_up_error"),
    ),
    "PrimeIntellect-ai/prime-rl#1902": (("slime_bridge/test_scheduler.py", "test_bound_is_exact"),),
    "PrimeIntellect-ai/prime-rl#3050": (
        ("slime_bridge/test_scheduler.py", "test_stamp_is_the_latest_call_at_submission_and_stays"),
        ("slime_bridge/test_group_task.py", "test_request_carries_version_and_a_name_of_its_own"),
    ),
    "verl-project/uni-agent#103": (
        (ADAPTER, "test_the_stamped_version_is_found_wherever_the_server_echoes_it"),
    ),
    "radixark/miles#2524": (
        ("slime_bridge/test_config.py", "test_limits_are_logged_once"),
        ("slime_bridge/test_config.py", "test_values_that_work_against_each_other"),
    ),
    "radixark/miles#2296": ((WORKER, "test_late_results_are_rejected_exactly_at_the_bound"),),
    "THUDM/slime#686": (("analysis/test_safe_pickle.py", "test_classes_need_trust_and_the_error_says_so"),),
    "rllm-org/rllm#879": (
        (COLLECT, "test_not_a_number_in_the_record_is_accepted"),
        ("analysis/sources/test_polar_sessions.py", "test_lone_surrogates"),
    ),
    "hiyouga/LlamaFactory#10715": (
        ("analysis/sources/test_polar_sessions.py", "test_torn_files_beside_good_ones"),
        (LOADING, "test_a_torn_file_is_picked_up_when_it_is_whole"),
    ),
    "MHGanainy/gsj-harness-rollout-server: docs/polar": (
        ("analysis/test_discovery.py", "test_a_messy_folder_loads"),
        (LOADING, "test_a_session_that_is_seen_twice_is_one_row"),
    ),
    "pandas-dev/pandas#36245": (
        (LOADING, "test_sessions_without_traces_keep_their_row"),
        ("analysis/plots/test_figures.py", "test_no_data_is_said_and_axes_keep_their_title"),
    ),
    "pandas-dev/pandas#15621": ((SIZE, "test_the_work_grows_with_the_sessions_and_no_faster"),),
    "THUDM/slime#1922": (
        ("analysis/sources/test_dump_names.py", "test_names"),
        ("analysis/test_discovery.py", "test_dumps_are_told_apart"),
    ),
    "THUDM/slime#1519": (
        ("analysis/sources/test_train_dumps.py", "test_tokens_join_with_the_rollout_dump"),
        ("analysis/sources/test_train_dumps.py", "test_context_parallel_slices_are_marked"),
    ),
    "THUDM/slime#2242": (
        ("slime_bridge/test_eval_data.py", "test_a_setting_comes_from_dataset_then_defaults_then_arguments"),
        ("slime_bridge/test_eval_data.py", "test_unknown_and_useless_keys_are_warned_about"),
    ),
    "rllm-org/rllm#382": ((EVALUATION, "test_failed_sessions_count_as_zero_and_have_rates"),),
    "THUDM/slime#1836": ((EVALUATION, "test_fan_out_keeps_one_reward_per_session"),),
    "PrimeIntellect-ai/prime-rl#2311": ((EVALUATION, "test_the_limit_is_shared_with_training"),),
    "PrimeIntellect-ai/prime-rl#2725": (
        (EVALUATION, "test_weights_that_change_during_the_evaluation_are_flagged"),
    ),
    "THUDM/slime#1785": (("slime_bridge/test_rollout.py", "test_evaluation_alone_leaves_no_worker"),),
    "wandb/wandb#10628": ((TRACKING, "test_the_run_is_never_owned_and_no_step_is_passed"),),
    "THUDM/slime#1592": ((TRACKING, "test_a_real_offline_run_keeps_its_last_step"),),
    "OliBomby/Mapperatorinator#98": (
        (TRACKING, "test_a_run_that_raises_costs_one_warning"),
        (TRACKING, "test_a_run_that_blocks_delays_once_and_briefly"),
    ),
    "wandb/wandb#10349": ((TRACKING, "test_without_a_run_nothing_happens"),),
    "NVIDIA-NeMo/labs-molt#114": (
        (
            "slime_bridge/test_worker_properties.py",
            "test_any_schedule_of_faults_conserves_every_prompt",
        ),
        ("slime_bridge/test_metrics.py", "test_rejections_by_reason_add_up"),
    ),
    "THUDM/slime#1714": (("slime_bridge/test_transport.py", "test_proxy_variables_are_ignored"),),
    "encode/httpx#1171": (("slime_bridge/test_client.py", "test_three_hundred_requests_run_at_once"),),
    "sgl-project/sglang#19008": (
        (PROCESSES, "test_a_process_whose_listener_cannot_bind_ends_with_the_error"),
    ),
    "ioBroker/ioBroker.hm-rpc#766": (
        ("slime_bridge/test_callbacks.py", "test_bind_and_advertised_host_are_apart"),
        (PROCESSES, "test_the_first_missed_callback_is_one_hint"),
    ),
    "THUDM/slime#759": (
        (COLLECT, "test_refusal_is_final"),
        ("slime_bridge/test_client.py", "test_no_secret_in_any_message"),
    ),
    "NVIDIA-NeMo/Gym#1349": ((WORKER, "test_no_slot_is_held_beyond_the_deadline_by_slow_phases"),),
    "sgl-project/sglang#4478": ((PROCESSES, "test_asyncio_is_left_as_it_was_and_any_policy_will_do"),),
    "jupyter-widgets/ipywidgets#1919": (
        ("analysis/explorers/test_base.py", "test_ten_runs_of_a_cell_leave_as_much_as_one"),
    ),
    "matplotlib/matplotlib#20067": (
        ("analysis/plots/test_figures.py", "test_thirty_figures_leave_none_open"),
    ),
    "RussTedrake/underactuated#236": (
        (WORKER, "test_progress_line_tells_what_is_waited_for"),
        ("slime_bridge/test_transport.py", "test_requests_leave_no_line"),
    ),
    "cranmer/sbi-tutorial#3": (
        ("notebooks/test_executed.py", "test_a_notebook_runs_from_top_to_bottom"),
        ("notebooks/test_sources.py", "test_a_committed_notebook_is_clean"),
    ),
    "sgl-project/sglang#18378": (
        (DOCTOR, "test_a_chat_endpoint_without_ids_beside_a_native_one_with"),
        ("analysis/live/test_connect.py", "test_preflight_is_the_doctors"),
    ),
    "THUDM/slime#683": (("analysis/lab/test_router.py", "test_requests_pass_exactly_and_the_process_ends"),),
    "THUDM/slime#1751": (
        (DOCTOR, "test_a_slow_router_is_not_called_dead"),
        ("slime_bridge/test_retry.py", "test_opens_after_consecutive_failures_only"),
    ),
    "NVIDIA-NeMo/RL#3613": (
        (PROCESSES, "test_a_generation_is_never_sent_a_second_time"),
        ("analysis/lab/test_router.py", "test_a_failing_worker_is_asked_once"),
    ),
    "MHGanainy/gsj-harness-rollout-server-examples: F-03": (
        ("contracts/test_packaging.py", "test_no_requirement_names_the_unrelated_slime_package"),
    ),
    "MHGanainy/gsj-harness-rollout-server-examples: F-16": (
        ("contracts/test_packaging.py", "test_make_checks_before_it_downloads"),
    ),
    "THUDM/slime#222": (("contracts/test_packaging.py", "test_what_trainers_pin_is_admitted"),),
    "MHGanainy/gsj-harness-rollout-server-examples: F-20": (
        ("slime_bridge/test_cli.py", "test_the_first_lines_come_at_once_through_a_pipe"),
        ("scenarios/test_lab_interrupts.py", "test_ctrl_c_before_anything_is_loaded"),
    ),
    "MHGanainy/gsj-harness-rollout-server-examples: F-25": (
        ("slime_bridge/test_config.py", "test_refused_by_name_value_and_allowed_form"),
        ("slime_bridge/test_config_problems.py", "test_every_wrong_key_is_named_in_one_error"),
        ("slime_bridge/test_config.py", "test_misspelt_keys"),
    ),
}


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("report", REPORTS)
def test_the_tests_of_a_report_are_there(report: str) -> None:
    """Each is a function of the file that it is said to stand in."""
    assert REPORTS[report]
    for path, name in REPORTS[report]:
        assert name in _functions(path), f"{path} has no {name}"


def test_every_report_is_in_the_table() -> None:
    """Seventy-three of them."""
    assert len(REPORTS) == 73
