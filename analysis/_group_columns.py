"""Columns of the two outer tables: one row per rollout, one row per prompt group."""

from __future__ import annotations

from analysis._columns import Column, booleans, floats, ids, integers, texts, times

__all__ = ["GROUP_COLUMNS", "PROVENANCE_COLUMNS", "ROLLOUT_COLUMNS"]

_NO_JOURNAL = "the run kept no journal, or it did not come so far"

PROVENANCE_COLUMNS: tuple[Column, ...] = (
    *texts(
        "derived",
        "names",
        "never",
        ("sources", "which sources know the row, such as ``polar+journal+rollout_dump``"),
    ),
    *texts(
        "derived",
        "text",
        "the sources agree",
        ("conflicts", "where sources contradict: column, and each source's value"),
    ),
    *texts(
        "polar journal rollout_dump train_dump rejected completion metrics wandb",
        "path",
        "computed from other rows",
        ("path", "file that the row was read from; of joined rows, the best authority's"),
    ),
)
"""Where a row comes from; the last columns of each table."""

ROLLOUT_COLUMNS: tuple[Column, ...] = (
    *ids("run", "rollout_id", "evaluation"),
    *times(
        "journal",
        _NO_JOURNAL,
        ("requested_at", "the trainer asked for the rollout", "combine=min"),
        ("delivered_at", "the rollout was handed over, or the evaluation ended", "combine=max"),
    ),
    *integers(
        "journal",
        "groups",
        _NO_JOURNAL,
        ("wanted_groups", "groups that the trainer asked for", "combine=max"),
    ),
    *integers(
        "rollout_dump",
        "traces",
        "no rollout dump was written or loaded",
        ("dumped_traces", "samples in the rollout dump, placeholders included"),
    ),
    *integers(
        "train_dump",
        "ranks",
        "no train dump was written or loaded",
        ("train_ranks", "ranks whose train dump was loaded", "combine=sum"),
    ),
    *integers(
        "train_dump",
        "traces",
        "no train dump was written or loaded",
        ("trained_traces", "samples in the train dumps; those of several ranks may repeat", "combine=sum"),
        ("optimizer_steps", "optimiser steps taken on the rollout", "unit=steps", "combine=max"),
        ("global_batch_size", "trajectories per optimiser step; the first step's", "unit=trajectories"),
    ),
    *integers(
        "derived",
        "groups",
        "no group of the rollout was loaded",
        ("groups", "prompt groups that count towards it, whatever became of them"),
        ("delivered_groups", "handed to the trainer"),
        ("rejected_groups", "thrown away for their content"),
        ("unfinished_groups", "returned, abandoned, given up or without an end"),
    ),
    *integers(
        "derived",
        "sessions",
        "no session of the rollout was loaded",
        ("sessions", "of these groups"),
        ("completed_sessions", "of these COMPLETED without an error"),
        ("usable_sessions", "of these with a token to train on"),
    ),
    *floats(
        "derived",
        "reward",
        "no usable session has a reward",
        (
            "reward_mean",
            "mean over the usable sessions of the delivered groups, of all groups in an evaluation",
        ),
        ("reward_std", "population standard deviation over the same sessions"),
    ),
    *floats(
        "derived",
        "rollouts",
        "no delivered group says",
        ("staleness_mean", "mean over the delivered groups"),
        ("staleness_max", "largest of these"),
    ),
    *integers(
        "derived",
        "tokens",
        "no trace of the rollout was loaded",
        ("trainable_tokens", "tokens with mask 1 in the delivered groups, in all groups of an evaluation"),
        ("response_tokens", "tokens after the prompts in the same groups"),
    ),
    *PROVENANCE_COLUMNS,
)
"""One row per training rollout and per evaluation."""

GROUP_COLUMNS: tuple[Column, ...] = (
    *ids("run", "rollout_id", "evaluation", "dataset", "worker", "group", "group_index"),
    *booleans(
        "journal rejected rollout_dump derived",
        "no source says what became of it",
        ("attempted", "a task was submitted for it", "combine=any"),
        (
            "accepted",
            "handed to the trainer; false for rejected ones",
            "missing=its fate is unknown or still open",
        ),
    ),
    *texts(
        "journal rejected rollout_dump",
        "name",
        "unfinished when the run was read, or nobody kept account",
        ("state", "how it ended: delivered, rejected, returned, abandoned or given_up"),
        ("verdict", "judgement on its content: accepted or rejected"),
        ("reject_reason", "why it was rejected", "missing=not rejected"),
    ),
    *texts(
        "journal rejected",
        "JSON",
        "no verdict, or no journal",
        ("verdict_numbers", "the numbers that decided the verdict, as written"),
    ),
    *integers(
        "journal rejected",
        "sessions",
        "no verdict, or no journal",
        ("expected_sessions", "sessions that the group was to have"),
        ("completed_sessions", "COMPLETED, early-stopped ones left out"),
        ("usable_sessions", "with a token to train on"),
        ("complete_usable_sessions", "both; what the accept fraction counts"),
        ("required_sessions", "how many of these the settings ask for"),
        ("early_stopped_sessions", "stopped by the server as surplus"),
        ("traceless_sessions", "failed without a trace"),
    ),
    *integers(
        "journal",
        "number",
        _NO_JOURNAL,
        ("attempts", "submissions, all flights counted", "combine=sum"),
        ("requeues", "times that it went back after an infrastructure failure", "combine=sum"),
    ),
    *texts(
        "journal",
        "text",
        "no infrastructure failure, or no journal",
        ("requeue_reason", "the last infrastructure failure"),
        ("last_error", "text of the last infrastructure failure"),
    ),
    *texts("journal", "name", _NO_JOURNAL, ("via", "what brought the last result: callback or poll")),
    *floats("journal", "seconds", _NO_JOURNAL, ("result_seconds", "from the last submission to its result")),
    *times(
        "journal",
        _NO_JOURNAL,
        ("drawn_at", "taken from the data source", "combine=min"),
        ("submitted_at", "first submission", "combine=min"),
        ("result_at", "last result", "combine=max"),
        ("judged_at", "verdict on its content", "combine=max"),
        (
            "ended_at",
            "delivered, rejected, returned, abandoned or given up",
            "combine=max",
            "sources=journal rejected",
        ),
    ),
    *integers(
        "journal rollout_dump polar",
        "version",
        "nobody stamped or reported one",
        ("policy_version", "policy that the group was submitted under"),
        ("rollout_step", "rollout that the group was submitted for", "unit=id"),
    ),
    *integers(
        "journal rollout_dump rejected",
        "rollouts",
        "not delivered, or nobody kept account",
        ("staleness", "rollout that took it minus its policy version"),
    ),
    *integers(
        "journal",
        "rollouts",
        "not delivered, or no journal",
        ("staleness_in_flight", "the part between submission and result"),
        ("staleness_in_queue", "the part between result and delivery"),
    ),
    *texts(
        "journal",
        "text",
        _NO_JOURNAL,
        ("prompt_sha256", "digest of the prompt: the same prompt in any epoch has the same one"),
        ("prompt_preview", "its first characters"),
    ),
    *booleans(
        "rejected",
        "not rejected, or its samples were not kept",
        ("samples_kept", "the samples of the rejected group are in rejected.jsonl", "combine=any"),
    ),
    *integers(
        "derived",
        "count",
        "none of its sessions was loaded",
        ("sessions", "rows in the session table", "unit=sessions"),
        ("traces", "rows in the trace table, placeholders left out", "unit=traces"),
        ("trainable_tokens", "tokens with mask 1 over its sessions", "unit=tokens"),
        ("response_tokens", "tokens after the prompts over its sessions", "unit=tokens"),
        ("rated_sessions", "usable sessions with a reward", "unit=sessions"),
    ),
    *floats(
        "derived",
        "reward",
        "no usable session has a reward",
        ("reward_mean", "mean over its usable sessions that have one"),
        ("reward_std", "population standard deviation over the same: 0 means no gradient"),
        ("reward_min", "smallest of these"),
        ("reward_max", "largest of these"),
    ),
    *floats(
        "derived",
        "advantage",
        "not in a train dump",
        ("advantage_abs_max", "largest absolute advantage of its trained traces: 0 means no gradient"),
    ),
    *PROVENANCE_COLUMNS,
)
"""One row per prompt group that was drawn, whatever became of it."""
