"""Columns of the trace table: one row per training example, with summaries of its token arrays."""

from __future__ import annotations

from analysis._columns import Column, booleans, floats, ids, integers, texts
from analysis._group_columns import PROVENANCE_COLUMNS

__all__ = ["TRACE_COLUMNS"]

_DUMPS = "rollout_dump rejected"
_NOT_DUMPED = "not in a rollout dump and not among the kept rejected samples"
_NOT_TRAINED = "not in a train dump: rejected, dropped by the trainer, or no dump"

_IDENTITY = (
    *ids(
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
        "trace_index",
        "sample_index",
    ),
    *integers(
        _DUMPS,
        "number",
        _NOT_DUMPED,
        ("sample_position", "place of its sample in the dump, from 0: the order in which training sees it"),
    ),
    *texts(
        "rollout_dump rejected train_dump",
        "hex",
        "not in a dump",
        (
            "tokens_hash",
            "digest of prompt and response ids, equal for equal tokens: joins dumps whose siblings share an "
            "index",
        ),
    ),
)

_OUTCOME = (
    *booleans(
        "rollout_dump rejected derived",
        "its group's fate is unknown or still open",
        ("accepted", "its group was handed to the trainer"),
    ),
    *booleans(_DUMPS, "not in a dump", ("placeholder", "stands for a session that gave nothing to train on")),
    *texts(
        "rollout_dump rejected",
        "name",
        _NOT_DUMPED,
        ("sample_status", "Slime's sample status: completed, truncated, aborted, failed or pending"),
        ("placeholder_reason", "why a placeholder stands here", "missing=no placeholder, or not in a dump"),
        ("label", "the prompt's label", "unit=text"),
    ),
    *texts(
        "polar rollout_dump rejected",
        "name",
        "nobody said",
        ("finish_reason", "of its last model call, such as stop, length, tool_calls or abort"),
    ),
    *booleans(
        _DUMPS,
        _NOT_DUMPED,
        ("removed", "the sample is to be trained on as if its mask were 0 (`remove_sample`)"),
        ("clipped", "its response was cut to fit"),
        (
            "altered",
            "the bridge clipped it or masked what the server had not: what it counts in the dump is less",
        ),
    ),
    *booleans(
        "polar rollout_dump rejected",
        "the server did not filter",
        ("masked_by_server", "the server marked it as unusable"),
        ("trainable_by_server", "the server marked it as trainable in spite of its session's failure"),
    ),
    *texts(
        "polar rollout_dump rejected",
        "name",
        "the server did not filter",
        ("filter_reason", "why the server's filter touched it"),
        ("filter_detail", "more of the same", "unit=text"),
    ),
)

_REWARD = (
    *floats(
        "polar rollout_dump rejected",
        "reward",
        "nobody gave one; a placeholder's 0 does not count either",
        ("reward", "reward of the trace, before any post-processing"),
        (
            "original_reward",
            "before the server's filter set it to 0",
            "missing=the server's filter did not touch it",
        ),
    ),
    *texts(
        _DUMPS,
        "JSON",
        "the reward is a plain number or missing",
        ("reward_components", "all entries of a reward that is a mapping"),
    ),
    *floats(
        "train_dump",
        "advantage",
        _NOT_TRAINED,
        ("advantage_raw", "post-processed reward that the trainer was handed"),
        ("advantage", "as trained: mean over its trainable tokens of the final token advantages"),
        ("advantage_min", "smallest of these", "missing=not in the train dump of a last pipeline stage"),
        ("advantage_max", "largest of these", "missing=not in the train dump of a last pipeline stage"),
        ("return_mean", "mean over its trainable tokens", "unit=return"),
        ("value_mean", "mean over its trainable tokens", "unit=value", "missing=no critic, or not trained"),
    ),
    *floats(
        "derived",
        "advantage",
        "its group has no usable session with a reward, or the run's estimator cannot be had (run.problems)",
        ("advantage_recomputed", "what the run's own estimator gives for the rewards in these tables"),
    ),
)

_ALTERED = "unless=altered"

_TOKENS = (
    *integers(
        "polar rollout_dump rejected train_dump",
        "tokens",
        "its token arrays are not in any file",
        ("prompt_tokens", "before the response"),
        ("response_tokens", "after the prompt, sampled or not", _ALTERED),
    ),
    *integers(
        "polar rollout_dump rejected",
        "tokens",
        "the mask is missing or cannot be read",
        (
            "sampled_tokens",
            "with mask 1 as received from the server; in a dump alone: as in the dump",
            _ALTERED,
        ),
        ("masked_tokens", "with mask 0: tool output and other text that nobody sampled", _ALTERED),
        (
            "turns",
            "stretches of sampled tokens",
            "unit=turns",
            "missing=the mask marks no token, as in sessions that failed, or there is none",
            _ALTERED,
        ),
    ),
    *integers(
        "train_dump rollout_dump rejected",
        "tokens",
        "not in a dump",
        ("trainable_tokens", "that the trainer learns from: mask 1 and not removed"),
    ),
    *integers(
        "polar rollout_dump rejected",
        "count",
        "the server does not list its calls",
        ("calls", "model calls that were merged into it", "unit=calls"),
        ("messages", "messages of the response", "unit=messages", "missing=only a dump is left"),
    ),
    *booleans(
        "polar rollout_dump rejected",
        "its token arrays are not in any file",
        (
            "has_mask",
            "there is a loss mask; without one Slime trains on everything and the bridge on nothing",
        ),
        ("has_logprobs", "there is one logprob per response token"),
    ),
    *floats(
        "polar rollout_dump rejected train_dump",
        "nats",
        "no logprobs, misaligned ones, or no sampled token",
        ("logprob_mean", "mean over the sampled tokens, under the policy that sampled", _ALTERED),
        ("logprob_min", "smallest of these", _ALTERED),
        ("logprob_sum", "their sum", _ALTERED),
        ("logprob_zero_share", "fraction of these that is exactly 0", "unit=fraction", _ALTERED),
    ),
    *integers(
        "polar rollout_dump rejected train_dump",
        "tokens",
        "no logprobs, misaligned ones, or no sampled token",
        (
            "logprob_missing",
            "sampled tokens whose logprob is null, NaN or infinite; left out of the above",
            _ALTERED,
        ),
    ),
    *texts(
        "polar rollout_dump rejected",
        "version",
        "no engine and no gateway reported versions",
        ("weight_version_oldest", "oldest weights that served one of its turns", _ALTERED),
        ("weight_version_newest", "newest weights that served one of its turns", _ALTERED),
    ),
    *integers(
        _DUMPS,
        "turns",
        "no turn was suspect, or not in a dump",
        ("aborted_turns", "turns that a weight push may have cut"),
    ),
)

_ENGINE = (
    *integers(
        _DUMPS,
        "tokens",
        "not in a dump",
        ("cached_tokens", "prompt tokens that the engine had in its prefix cache"),
        ("engine_prompt_tokens", "prompt tokens of all its model calls, as the engine counted"),
        ("spec_accepted_tokens", "draft tokens accepted by speculative decoding"),
        ("spec_draft_tokens", "draft tokens offered"),
    ),
    *floats(_DUMPS, "seconds", "not in a dump", ("non_generation_seconds", "spent outside generation")),
)

_TRAINING = (
    *booleans(
        "train_dump derived", "no train dump of its rollout was loaded", ("trained", "in a train dump")
    ),
    *integers(
        "train_dump",
        "number",
        _NOT_TRAINED,
        ("train_rank", "rank whose dump holds it"),
        ("train_position", "place in that rank's dump"),
        ("train_step", "optimiser step within the rollout, from 0"),
        (
            "train_tokens",
            "per-token values in the dumps: fewer than the response where context-parallel ranks are missing",
            "unit=tokens",
        ),
        (
            "train_weight",
            "of these those that the means here are over: trainable ones",
            "unit=tokens",
        ),
        (
            "train_slices",
            "context-parallel ranks that it was cut for; the means here join those whose dumps are there",
            "missing=not cut, not in a train dump, or its dump does not tell",
        ),
        (
            "train_slice",
            "rank among these that its only dump belongs to, from 0",
            "missing=as `train_slices`, or the slices of several ranks were joined",
        ),
    ),
    *booleans(
        "train_dump",
        _NOT_TRAINED,
        (
            "train_partial",
            "context-parallel slices of it are missing: the means here are over a part of its trainable "
            "tokens; where `train_slices` is missing too, over one rank's slice, masked tokens included",
        ),
    ),
    *floats(
        "train_dump",
        "nats",
        "the trainer made no such pass, or did not dump it",
        ("train_logprob_mean", "mean over its trainable tokens, recomputed by the trainer"),
        (
            "train_logprob_diff",
            "mean over its trainable tokens of the trainer's minus the sampler's logprob",
        ),
        ("train_logprob_abs_diff", "mean over its trainable tokens of the absolute difference"),
        ("train_logprob_max_diff", "largest absolute difference"),
        ("ref_logprob_mean", "mean over its trainable tokens, under the reference model"),
        ("teacher_logprob_mean", "mean over its trainable tokens, under the teacher"),
        ("kl_mean", "mean over its trainable tokens of the dumped `kl`"),
        ("entropy_mean", "mean over its trainable tokens"),
    ),
)

TRACE_COLUMNS: tuple[Column, ...] = (
    *_IDENTITY,
    *_OUTCOME,
    *_REWARD,
    *_TOKENS,
    *_ENGINE,
    *_TRAINING,
    *PROVENANCE_COLUMNS,
)
"""One row per trace, placeholders included; token arrays are read when asked for."""
