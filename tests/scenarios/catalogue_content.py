"""Scenarios about content: what sessions hold, the data source, evaluation."""

from __future__ import annotations

from typing import Any

from analysis.lab.polar_server.testing import Fault, SessionProfile
from slime_bridge.errors import (
    CandidatePoolError,
    DataSourceExhaustedError,
    InfrastructureStreakError,
    MissingRewardError,
    NoTrainableTokensError,
)
from tests.scenarios.scenario import Error, Outcome, Scenario

_REPLACED = ((0, 2, 3, 4),)
_TURNS = SessionProfile(duration=0.02, turns=3)


def _one_session(kind: str, reason: str, what: str, **fault: Any) -> Scenario:
    """One session of each group is unusable: a placeholder stands in for it, and the group is delivered."""
    return Scenario(
        name=f"one-session-{kind}".replace("_", "-"),
        what=what,
        faults=[Fault(kind, sessions=[1], **fault)],
        outcome=Outcome(sessions={reason: 4}),
    )


def _one_group(kind: str, reason: str, what: str, **fault: Any) -> Scenario:
    """All sessions of one group are unusable: it is rejected, and a fresh prompt takes its place."""
    return Scenario(
        name=f"group-{kind}".replace("_", "-"),
        what=what,
        faults=[Fault(kind, instruction="prompt 1$", **fault)],
        outcome=Outcome(delivered=_REPLACED, rejected={reason: 1}, submits=(5, 5)),
    )


SESSIONS = (
    _one_session("session_error", "failed", "One session of each group ends as ERROR without traces."),
    _one_session("session_timeout", "timeout", "One session of each group times out."),
    _one_session(
        "session_error_with_traces", "failed", "One session of each group fails with complete traces."
    ),
    _one_session("session_missing", "missing", "One session of each group is not in the results."),
    _one_session("session_malformed", "malformed", "One session of each group is not a session result."),
    _one_session("session_early_stopped", "early_stopped", "One session of a group was stopped as surplus."),
    _one_session("no_traces", "no_traces", "One session of each group is COMPLETED without a trace."),
    _one_session("no_token_ids", "no_token_ids", "One session of each group carries no token ids."),
    _one_session("no_prompt_ids", "no_token_ids", "One session of each group has no prompt ids."),
    _one_session("zero_mask", "zero_trainable", "One session of each group has an all-zero mask."),
    _one_session("empty_mask", "no_loss_mask", "One session of each group has an empty mask."),
    _one_session("misaligned_mask", "logprob_error", "One session's mask is an entry short."),
    _one_session("invalid_mask", "logprob_error", "One session's mask holds a 2."),
    _one_session("negative_token", "invalid_tokens", "One session holds a negative token id."),
    _one_session("fractional_token", "malformed", "One session holds a fractional token id."),
    _one_session("null_logprobs", "logprob_error", "One session has no logprobs."),
    _one_session("short_logprobs", "logprob_error", "One session's logprobs are an entry short."),
    _one_session("nan_logprob", "logprob_error", "One trainable token's logprob is a bare NaN."),
    _one_session("null_logprob", "logprob_error", "One trainable token's logprob is null."),
    _one_session("infinite_logprob", "logprob_error", "One trainable token's logprob is -Infinity."),
    _one_session("sentinel_logprob", "logprob_error", "One trainable token's logprob is -99999."),
    _one_session("training_filter", "timeout", "One session was masked by a newer gateway."),
)

WHOLE_SESSIONS = (
    Scenario(
        name="nan-at-masked-tokens",
        what="NaN logprobs at tokens that the policy did not sample.",
        faults=[Fault("nan_logprob", value="masked")],
        profile=_TURNS,
        outcome=Outcome(statuses={"COMPLETED": 8}),
    ),
    Scenario(
        name="session-duplicated",
        what="A session is listed twice.",
        faults=[Fault("session_duplicate", sessions=[0])],
        outcome=Outcome(statuses={"COMPLETED": 8}),
    ),
    Scenario(
        name="sessions-nobody-asked-for",
        what="The server runs two sessions more than asked.",
        faults=[Fault("session_extra", count=2)],
        outcome=Outcome(statuses={"COMPLETED": 8}),
    ),
    Scenario(
        name="lone-surrogates",
        what="Messages hold escapes of lone surrogates.",
        faults=[Fault("session_lone_surrogate")],
        outcome=Outcome(statuses={"COMPLETED": 8}),
    ),
    Scenario(
        name="huge-sessions",
        what="Two groups hold sessions with 4 MB of text.",
        faults=[Fault("session_huge", instruction="prompt [01]$", count=4_000_000)],
        outcome=Outcome(statuses={"COMPLETED": 8}),
    ),
    Scenario(
        name="several-traces-per-session",
        what="Each turn of a session is a trace of its own.",
        faults=[Fault("split_traces")],
        profile=_TURNS,
        outcome=Outcome(statuses={"COMPLETED": 24}),
    ),
    Scenario(
        name="answer-cut-by-length",
        what="The last answer of every session hit its length limit.",
        faults=[Fault("length_finish")],
        outcome=Outcome(statuses={"TRUNCATED": 8}),
    ),
    Scenario(
        name="answer-cut-by-a-weight-push",
        what="The last answer of one session in each group ended with `abort`.",
        faults=[Fault("abort_finish", sessions=[0])],
        profile=_TURNS,
        outcome=Outcome(masked=True, metrics={"polar/completed_groups": 4}),
    ),
    Scenario(
        name="weights-change-between-turns",
        what="The last turn of one session in each group was sampled under newer weights.",
        faults=[Fault("weight_version_jump", sessions=[0])],
        profile=_TURNS,
        outcome=Outcome(masked=True),
    ),
    Scenario(
        name="aborted-turns-dropped",
        what="As before, with `polar_aborted_turns: drop`.",
        faults=[Fault("abort_finish", sessions=[0])],
        settings={"polar_aborted_turns": "drop"},
        outcome=Outcome(sessions={"aborted_turns": 4}),
    ),
    Scenario(
        name="overlong-dropped",
        what="One session in each group has a trace above the token cap.",
        faults=[Fault("overlong", sessions=[0], count=2000)],
        settings={"max_tokens_per_gpu": 1000, "context_parallel_size": 1},
        outcome=Outcome(sessions={"overlong": 4}, log=("were left out",)),
    ),
    Scenario(
        name="overlong-clipped",
        what="As before, with `polar_overlong_traces: clip`.",
        faults=[Fault("overlong", sessions=[0], count=2000)],
        settings={
            "max_tokens_per_gpu": 1000,
            "context_parallel_size": 1,
            "polar_overlong_traces": "clip",
        },
        outcome=Outcome(statuses={"TRUNCATED": 4, "COMPLETED": 4}),
    ),
    Scenario(
        name="logprobs-missing-in-a-tenth",
        what="A tenth of the sessions have no logprobs.",
        faults=[Fault("null_logprobs", probability=0.1)],
        settings={"n_samples_per_prompt": 8},
        seed=3,
        outcome=Outcome(sessions=None, metrics={"polar/dropped_groups": 0}),
    ),
)

REWARDS = (
    Scenario(
        name="reward-null",
        what="Half of the rewards are null; the default makes them 0.0 and counts them.",
        faults=[Fault("null_reward", sessions=[0])],
        outcome=Outcome(statuses={"COMPLETED": 8}),
    ),
    Scenario(
        name="reward-null-rejected",
        what="All rewards of one group are null, with `polar_missing_reward: reject`.",
        faults=[Fault("null_reward", instruction="prompt 1$")],
        settings={"polar_missing_reward": "reject"},
        outcome=Outcome(delivered=_REPLACED, rejected={"missing_reward": 1}),
    ),
    Scenario(
        name="reward-null-is-an-error",
        what="A reward is null, with `polar_missing_reward: error`.",
        faults=[Fault("null_reward")],
        settings={"polar_missing_reward": "error"},
        outcome=Outcome(
            delivered=(), returned=None, errors=[Error(kind=MissingRewardError, text="polar_missing_reward")]
        ),
    ),
    Scenario(
        name="reward-nan",
        what="Half of the rewards are a bare NaN.",
        faults=[Fault("nan_reward", sessions=[0])],
        outcome=Outcome(statuses={"COMPLETED": 8}),
    ),
    Scenario(
        name="reward-text",
        what="One session's reward is text.",
        faults=[Fault("text_reward", sessions=[1])],
        outcome=Outcome(sessions={"malformed": 4}),
    ),
)

GROUPS = (
    _one_group("session_error", "failed_task", "Every session of one group fails without a trace."),
    _one_group("no_token_ids", "no_token_ids", "No session of one group carries token ids."),
    _one_group("zero_mask", "zero_trainable", "No session of one group has a token to train on."),
    _one_group("nan_logprob", "logprob_error", "Every session of one group has a NaN logprob."),
    Scenario(
        name="every-second-group-useless",
        what="Every second group has no token to train on.",
        faults=[Fault("zero_mask", instruction="prompt [0-9]*[13579]$")],
        outcome=Outcome(delivered=((0, 2, 4, 6),), rejected={"zero_trainable": 3}, submits=(7, 7)),
    ),
    Scenario(
        name="too-few-completed",
        what="Half of one group fails, with `polar_min_complete_accept_fraction: 0.75`.",
        faults=[Fault("session_error", instruction="prompt 1$", sessions=[0, 1])],
        settings={"polar_min_complete_accept_fraction": 0.75, "n_samples_per_prompt": 4},
        outcome=Outcome(delivered=_REPLACED, rejected={"low_complete_fraction": 1}),
    ),
    Scenario(
        name="router-strips-token-ids",
        what="No session ever carries token ids: the router between gateway and engine drops them.",
        faults=[Fault("no_token_ids")],
        settings={"polar_max_consecutive_infrastructure_failures": 6},
        outcome=Outcome(
            delivered=(),
            rejected={"no_token_ids": (6, 9)},
            returned=None,
            errors=[Error(kind=NoTrainableTokensError, text="gives no token ids")],
            log=("complete without token ids",),
        ),
    ),
    Scenario(
        name="every-session-fails",
        what="Every session of every group fails without a trace.",
        faults=[Fault("session_error")],
        settings={"polar_max_consecutive_infrastructure_failures": 3},
        outcome=Outcome(
            delivered=(),
            rejected={"failed_task": (3, 6)},
            returned=None,
            errors=[Error(kind=InfrastructureStreakError, text="failed without a trace")],
        ),
    ),
    Scenario(
        name="candidate-pool",
        what="Before the first step fewer sessions complete than the health gate asks for.",
        faults=[Fault("session_timeout", sessions=[0, 1, 2])],
        settings={
            "n_samples_per_prompt": 4,
            "polar_min_complete_accept_fraction": 0.5,
            "polar_candidate_pool_health_gate_enabled": True,
            "polar_candidate_pool_health_gate_min_completion_fraction": 0.5,
        },
        outcome=Outcome(
            delivered=(),
            rejected={"low_complete_fraction": (4, 7)},
            returned=None,
            errors=[Error(kind=CandidatePoolError, text="before the first training step")],
        ),
    ),
    Scenario(
        name="too-stale",
        what="Two groups take three rollouts, which is one more than the bound allows.",
        faults=[Fault("task_endless", instruction="prompt [67]$")],
        settings={"polar_fully_async": True, "rollout_batch_size": 4, "polar_max_async_level": 2},
        rollouts=(0, 1, 2, 3, 4),
        outcome=Outcome(delivered=(4, 4, 4, 4, 4), rejected={"too_stale": 2}, returned=None),
    ),
)

SOURCES = (
    Scenario(
        name="source-runs-dry",
        what="The data source has three prompts and the call wants four groups.",
        prompts=3,
        outcome=Outcome(
            delivered=(),
            returned=3,
            errors=[Error(kind=DataSourceExhaustedError, text="3 of 4 groups are accepted")],
        ),
    ),
    Scenario(
        name="source-is-empty",
        what="The data source has nothing to give.",
        prompts=0,
        outcome=Outcome(
            delivered=(), errors=[Error(kind=DataSourceExhaustedError, text="0 of 4")], submits=(0, 0)
        ),
    ),
    Scenario(
        name="source-too-small-for-bad-groups",
        what="Five prompts, of which two have nothing to train on.",
        prompts=5,
        faults=[Fault("zero_mask", instruction="prompt [13]$")],
        outcome=Outcome(
            delivered=(),
            rejected={"zero_trainable": 2},
            returned=3,
            errors=[Error(kind=DataSourceExhaustedError, text="3 of 4 groups are accepted")],
        ),
    ),
)

_SHELF = "polar/eval/shelf/"
_GOOD = SessionProfile(duration=0.02, reward=1.0)

EVALUATIONS = (
    Scenario(
        name="evaluation-with-failures",
        what="Three of six evaluated prompts fail; all others succeed.",
        faults=[Fault("session_error", instruction="prompt [135]$")],
        profile=_GOOD,
        evaluation=6,
        outcome=Outcome(
            delivered=(6,), metrics={f"{_SHELF}reward_mean": 0.5, f"{_SHELF}reward_mean_completed": 1.0}
        ),
    ),
    Scenario(
        name="evaluation-meets-503",
        what="Every third request of an evaluation is answered 503, and callbacks get lost.",
        faults=[
            Fault("response_status", status=503, probability=0.3, server="rollout"),
            Fault("callback_lost", instruction="prompt 2$"),
        ],
        seed=2,
        profile=_GOOD,
        evaluation=6,
        outcome=Outcome(delivered=(6,), metrics={f"{_SHELF}reward_mean": 1.0}, within=25),
        slow=True,
    ),
    Scenario(
        name="evaluation-meets-a-restart",
        what="The server forgets half of an evaluation.",
        faults=[Fault("restart", tasks=[3])],
        profile=SessionProfile(duration=0.3, reward=1.0),
        evaluation=6,
        outcome=Outcome(delivered=(6,), metrics={f"{_SHELF}reward_mean": 1.0}, within=15),
    ),
    Scenario(
        name="evaluation-of-a-stuck-task",
        what="One evaluated task never ends.",
        faults=[Fault("task_endless", instruction="prompt 0$")],
        profile=_GOOD,
        settings={"polar_group_timeout": 2.5},
        evaluation=4,
        outcome=Outcome(delivered=(4,), metrics={f"{_SHELF}reward_mean": 0.75}),
    ),
    Scenario(
        name="evaluation-without-a-server",
        what="The server is gone for the whole evaluation.",
        server="none",
        settings={"polar_outage_timeout": 1.0},
        evaluation=4,
        outcome=Outcome(delivered=(4,), metrics={f"{_SHELF}reward_mean": 0.0}),
        slow=True,
    ),
)
