"""Columns of the session table: one row per session that was attempted or stood in for."""

from __future__ import annotations

from analysis._columns import Column, booleans, floats, ids, integers, texts, times
from analysis._group_columns import PROVENANCE_COLUMNS

__all__ = ["EXTRA_TIMING_COLUMN", "SESSION_COLUMNS", "TIMING_COUNTS", "TIMING_MAPS", "TIMING_MILLISECONDS"]

_POLAR = "polar journal rollout_dump rejected"
_NO_RESULT = "there is no result of the session"

TIMING_MILLISECONDS: dict[str, str] = {
    "register_to_init_queue_ms": "accepted by the gateway until its sandbox began to start",
    "init_ms": "starting the sandbox and preparing it",
    "run_ms": "setting up the harness and running the agent",
    "postrun_ms": "building, evaluating and tearing down",
    "rollout_dispatch_ms": "finding a node and handing the session over",
    "rollout_result_wait_ms": "waiting for the node's result",
    "rollout_pipeline_e2e_ms": "all of it, as the rollout server saw it",
    "ready_queue_ms": "ready and waiting for a run slot",
    "postrun_queue_ms": "waiting for a post-run slot",
    "container_start_ms": "starting the sandbox",
    "eval_container_start_ms": "starting the evaluation's own sandbox",
    "runtime_validation_ms": "checking the sandbox",
    "eval_runtime_validation_ms": "checking the evaluation's own sandbox",
    "prepare_ms": "the prepare recipe",
    "eval_prepare_ms": "the prepare recipe of the evaluation's own sandbox",
    "agent_setup_ms": "setting up the harness",
    "agent_exec_ms": "the agent at work",
    "agent_postprocess_ms": "the harness tidying up",
    "build_ms": "building the trajectory",
    "eval_ms": "the evaluator at work",
    "postrun_exec_ms": "post-run commands",
    "runtime_stop_ms": "stopping the sandbox",
    "e2e_ms": "all of it, as the gateway saw it",
    "runtime_exec_ms": "commands in the sandbox, added up",
    "mini_swe_command_ms": "commands of the mini-swe harness, added up",
}
"""Times of a session that Polar measures, in milliseconds; the first four come from every server."""

TIMING_COUNTS: dict[str, str] = {
    "runtime_exec_count": "commands in the sandbox",
    "runtime_exec_timeout_count": "of these, ran out of time",
    "runtime_exec_failure_count": "of these, failed",
    "runtime_exec_exception_count": "of these, raised",
    "runtime_exec_cancelled_count": "of these, were cancelled",
    "mini_swe_command_count": "commands of the mini-swe harness",
    "mini_swe_command_timeout_count": "of these, ran out of time",
    "mini_swe_command_failure_count": "of these, failed",
}
"""Counts that newer servers put beside the times."""

TIMING_MAPS: dict[str, str] = {
    "runtime_exec_ms_by_category": "milliseconds of commands in the sandbox, by category",
    "runtime_exec_count_by_category": "commands in the sandbox, by category",
    "mini_swe_command_ms_by_category": "milliseconds of the mini-swe harness's commands, by category",
    "mini_swe_command_count_by_category": "commands of the mini-swe harness, by category",
}
"""Maps that newer servers put beside the times."""

EXTRA_TIMING_COLUMN = "timing_extra"

_ALTERED = "unless=altered"

_IDENTITY = ids(
    "run",
    "rollout_id",
    "evaluation",
    "dataset",
    "worker",
    "group",
    "group_index",
    "task_id",
    "attempt",
    "trajectory",
    "position",
    "session_id",
)

_OUTCOME = (
    *booleans(
        "polar journal rollout_dump rejected",
        "no source says",
        ("attempted", "it was submitted to the rollout server", "combine=any"),
        ("finished", "there is a result of it", "combine=any"),
    ),
    *booleans(
        "derived rollout_dump rejected",
        "the group's fate is unknown or still open",
        ("accepted", "its group was handed to the trainer"),
    ),
    *texts(
        _POLAR,
        "name",
        _NO_RESULT,
        ("status", "Polar's session status, such as COMPLETED, ERROR or TIMEOUT, as received"),
        ("error", "error text of the session, else of its trajectory", "unit=text", "missing=no error"),
        ("node_id", "gateway that ran it", "unit=id", "missing=no gateway was assigned"),
    ),
    *booleans(
        "journal polar rollout_dump rejected",
        _NO_RESULT,
        ("completed", "COMPLETED, and neither session nor trajectory holds an error"),
        ("early_stopped", "stopped by the server as surplus: neither a success nor a failure"),
    ),
    *booleans(
        "journal rollout_dump rejected polar",
        _NO_RESULT,
        (
            "usable",
            "it has a token to train on; from Polar's file alone: it completed, has a trace with mask 1 and "
            "the server did not mask it",
            _ALTERED,
        ),
    ),
    *booleans(
        "journal rollout_dump rejected",
        "no journal and no dump",
        (
            "altered",
            "the bridge dropped or clipped traces or masked tokens: less of it is trained on than the server "
            "delivered",
            "combine=any",
        ),
    ),
    *texts(
        "journal rollout_dump rejected",
        "name",
        "there is something to train on, or no journal and no dump",
        ("reason", "why there is nothing to train on"),
        ("detail", "the reason in words", "unit=text"),
    ),
    *texts(
        "derived rollout_dump rejected",
        "name",
        "the group's fate is unknown or still open",
        ("group_state", "how its group ended"),
        ("reject_reason", "why its group was rejected", "missing=not rejected"),
    ),
)

_REWARD = (
    *floats(
        "journal polar rollout_dump rejected",
        "reward",
        "nobody gave one: never 0 for a session without a reward",
        (
            "reward",
            "mean over the trainable traces that have one; without any, that of the last trace that has "
            "one, else the evaluator's outcome",
            _ALTERED,
        ),
    ),
    *floats(
        "polar rollout_dump rejected",
        "reward",
        "no evaluator ran, it failed, or it gave none",
        ("outcome_reward", "what the evaluator reported for the session"),
    ),
    *texts(
        "polar rollout_dump rejected",
        "name",
        "no evaluator ran, or it failed",
        ("evaluator", "strategy of the evaluator"),
        ("evaluation_report", "everything the evaluator reported", "unit=JSON"),
    ),
    *booleans(
        "polar rollout_dump rejected",
        "the evaluator does not say",
        ("resolved", "the evaluator calls the task solved"),
        ("reward_discarded", "the server replaced the evaluator's reward"),
    ),
    *floats(
        "derived",
        "advantage",
        "not in a train dump: rejected, dropped by the trainer, or no dump",
        ("advantage_raw", "post-processed reward that the trainer was handed; mean over its traces"),
        ("advantage", "as trained: mean over its trainable tokens of the final token advantages"),
    ),
    *floats(
        "derived",
        "advantage",
        "its group has no usable session with a reward, or the run's estimator cannot be had (run.problems)",
        ("advantage_recomputed", "what the run's own estimator gives for the rewards in this table"),
    ),
)

_LAG = (
    *integers(
        "journal rollout_dump rejected polar",
        "version",
        "nobody stamped one",
        ("policy_version", "policy that it was submitted under"),
        (
            "rollout_step",
            "rollout that it was submitted for",
            "unit=id",
        ),
    ),
    *texts(
        "journal polar rollout_dump rejected",
        "version",
        "no engine and no gateway reported versions",
        ("weight_version_oldest", "oldest weights that served one of its turns", _ALTERED),
        ("weight_version_newest", "newest weights that served one of its turns", _ALTERED),
    ),
    *integers(
        "journal rollout_dump",
        "rollouts",
        "not delivered, or nobody kept account",
        ("staleness", "rollout that took its group minus its policy version"),
    ),
    *integers(
        "derived",
        "rollouts",
        "not delivered, or no journal",
        ("staleness_in_flight", "the part between submission and result"),
        ("staleness_in_queue", "the part between result and delivery"),
    ),
)

_TOKENS = (
    *integers(
        "polar rollout_dump rejected",
        "traces",
        _NO_RESULT,
        ("traces", "in the server's result; in a dump alone: those that became samples", _ALTERED),
    ),
    *integers(
        "journal rollout_dump rejected",
        "traces",
        "no journal and no dump",
        ("kept_traces", "that became samples, placeholders left out"),
        ("dropped_traces", "that did not", "sources=journal"),
        ("dropped_tokens", "prompt and response tokens of these", "unit=tokens", "sources=journal"),
        ("clipped_traces", "whose response was cut to fit"),
        (
            "aborted_masked_tokens",
            "sampled tokens masked out because a weight push may have cut their turn",
            "unit=tokens",
        ),
        ("missing_rewards", "trainable traces without a reward", "sources=journal"),
    ),
    *integers(
        "polar rollout_dump rejected",
        "tokens",
        "its traces are not in any file",
        ("prompt_tokens", "before the responses, added up over its traces", _ALTERED),
        ("response_tokens", "after the prompts, sampled or not, added up over its traces", _ALTERED),
        ("masked_tokens", "of these with mask 0: tool output and other text that nobody sampled", _ALTERED),
        (
            "turns",
            "stretches of sampled tokens, added up over its traces",
            "unit=turns",
            "missing=no mask of its traces marks a token, as in sessions that failed",
            _ALTERED,
        ),
    ),
    *integers(
        "journal rollout_dump rejected polar",
        "tokens",
        "its traces are not in any file and no journal knows it",
        ("trainable_tokens", "with mask 1 after conversion; from Polar's file alone: as received", _ALTERED),
    ),
)

_BUILD = (
    *texts(
        "polar rollout_dump rejected completion",
        "name",
        "no builder ran, or it did not say",
        ("builder", "strategy that built the trajectory"),
        ("api_type", "API family that the agent spoke"),
        ("model_requested", "model that the agent asked for"),
        ("model_used", "model that answered"),
    ),
    *integers(
        "polar rollout_dump rejected",
        "completions",
        "no builder ran, or it does not count",
        ("record_count", "model calls that the builder was given"),
        ("completions_total", "model calls that it looked at"),
        ("completions_merged", "model calls that are in a trace; the others were discarded"),
        ("completions_excluded", "model calls that a filter left out"),
        ("chains_total", "append-only runs of model calls", "unit=chains"),
        ("chains_full", "of these merged to the end", "unit=chains"),
        ("chains_truncated", "of these cut, with the loss of later calls", "unit=chains"),
    ),
    *texts(
        "polar rollout_dump rejected",
        "name",
        "an older server, or the agent did not run out of time",
        ("timeout_source", "whose time ran out: agent or session"),
        ("timeout_stage", "in which stage"),
    ),
    *texts(
        "polar rollout_dump rejected",
        "JSON",
        "the task carries no metadata",
        ("task_metadata", "the task's metadata, as submitted"),
    ),
)

_TIMING = (
    *floats(
        "polar journal rollout_dump rejected",
        "milliseconds",
        "there is no result, or the server does not measure it",
        *TIMING_MILLISECONDS.items(),
    ),
    *integers(
        "polar journal rollout_dump rejected",
        "count",
        "there is no result, or the server does not count it",
        *TIMING_COUNTS.items(),
    ),
    *texts(
        "polar journal rollout_dump rejected",
        "JSON",
        "there is no result, or the server does not report it",
        *TIMING_MAPS.items(),
        (EXTRA_TIMING_COLUMN, "every other entry of the timing, as received"),
    ),
    *times(
        "journal",
        "no journal knows it",
        ("submitted_at", "its task was submitted", "combine=min"),
        ("result_at", "its task's result arrived", "combine=max"),
    ),
    *floats(
        "rollout_dump rejected",
        "seconds",
        "not in a dump",
        ("non_generation_seconds", "outside generation, added up over its samples"),
    ),
)

SESSION_COLUMNS: tuple[Column, ...] = (
    *_IDENTITY,
    *_OUTCOME,
    *_REWARD,
    *_LAG,
    *_TOKENS,
    *_TIMING,
    *_BUILD,
    *PROVENANCE_COLUMNS,
)
"""One row per session: attempted, accepted, rejected, failed, lost or unfinished."""
