"""Columns of the tables of single records: events, captured model calls, metrics."""

from __future__ import annotations

from analysis._columns import Column, booleans, floats, ids, integers, texts, times
from analysis._group_columns import PROVENANCE_COLUMNS

__all__ = ["COMPLETION_COLUMNS", "EVENT_COLUMNS", "METRIC_COLUMNS"]

EVENT_COLUMNS: tuple[Column, ...] = (
    *ids(
        "run",
        "rollout_id",
        "evaluation",
        "worker",
        "group",
        "group_index",
        "task_id",
        "attempt",
        "trajectory",
        "session_id",
        "sample_index",
    ),
    *integers(
        "journal rollout_dump",
        "number",
        "a weight push",
        ("seq", "number within the worker's journal, or place among the events of the sample"),
    ),
    *times("journal rollout_dump weight_pushes", "the record holds no time", ("at", "when it was recorded")),
    *texts(
        "journal rollout_dump weight_pushes",
        "name",
        "never",
        (
            "kind",
            "journal for a record of the bridge; span_start, span_end or event for Slime's sample tracing; "
            "weight_push for a push of weights",
        ),
        ("event", "what happened: the record's event, or the span's name"),
    ),
    *texts("journal", "name", "the event has none", ("reason", "why, for verdicts, rejections and requeues")),
    *texts(
        "rollout_dump",
        "id",
        "no event of sample tracing, or the event belongs to none",
        ("span_id", "span that starts or ends"),
        ("parent_span_id", "span around it"),
    ),
    *texts(
        "journal rollout_dump weight_pushes",
        "JSON",
        "the record holds nothing else",
        ("data", "all other fields of the record"),
    ),
    *texts(
        "journal rollout_dump weight_pushes", "path", "never", ("path", "file that the row was read from")
    ),
)
"""One row per record of the bridge's journal, event of Slime's sample tracing, and push of weights."""

COMPLETION_COLUMNS: tuple[Column, ...] = (
    *ids("run", "rollout_id", "evaluation", "group_index", "task_id", "session_id"),
    *integers(
        "completion",
        "number",
        "the file's name holds none",
        ("completion_number", "order of the answers within the session, from 1; a gap is a lost record"),
    ),
    *texts("completion", "id", "the record has none", ("completion_id", "Polar's id of the call")),
    *times(
        "completion",
        "the record holds none that can be read",
        ("answered_at", "the engine's answer was stored"),
        ("written_at", "the file was written"),
    ),
    *texts(
        "completion",
        "name",
        "the record does not say",
        ("api_type", "API family that the agent spoke"),
        ("model_requested", "model that the agent asked for"),
        ("model_used", "model that answered"),
        ("completion_role", "policy, or router_policy for the calls of a routing harness"),
        ("finish_reason", "of the first choice"),
    ),
    *integers(
        "completion",
        "tokens",
        "the answer does not say, or its choices were cut away",
        ("prompt_tokens", "as the engine counted"),
        ("completion_tokens", "as the engine counted"),
        ("cached_tokens", "prompt tokens that the engine had in its prefix cache"),
        ("prompt_ids", "prompt token ids in the record"),
        ("response_ids", "response token ids in the record"),
        ("messages", "messages of the request", "unit=messages"),
        ("tools", "tools offered by the request", "unit=tools"),
        ("tool_calls", "structured tool calls in the answer", "unit=calls"),
        ("policy_version", "stamped on the task or on the call", "unit=version"),
    ),
    *texts(
        "completion",
        "version",
        "the engine does not say",
        ("weight_version", "weights that served the call"),
    ),
    *floats(
        "completion",
        "nats",
        "no logprobs in the record",
        ("logprob_mean", "mean over the response tokens"),
        ("logprob_min", "smallest of these"),
        ("logprob_sum", "their sum"),
        ("logprob_zero_share", "fraction of these that is exactly 0", "unit=fraction"),
    ),
    *integers(
        "completion",
        "tokens",
        "no logprobs in the record",
        ("logprob_missing", "response tokens whose logprob is null, NaN or infinite"),
    ),
    *floats(
        "completion",
        "milliseconds",
        "an older server",
        ("e2e_ms", "the call, end to end"),
        ("queue_ms", "waiting in the engine"),
        ("forward_ms", "computing"),
        ("prefill_forward_ms", "computing the prompt"),
        ("decode_ms", "generating"),
    ),
    *floats(
        "completion",
        "number",
        "the request leaves it to the server",
        ("temperature", "sampling temperature of the request"),
        ("top_p", "nucleus of the request"),
    ),
    *booleans(
        "completion",
        "never",
        ("truncated", "a field was cut away when the file was written: not fit for training"),
    ),
    *texts(
        "completion",
        "names",
        "nothing was cut away",
        ("truncated_fields", "fields that were cut, by top-level name"),
    ),
    *texts("completion", "text", "no error", ("error", "error that the answer holds")),
    *PROVENANCE_COLUMNS,
)
"""One row per captured model call."""

METRIC_COLUMNS: tuple[Column, ...] = (
    *ids("run", "rollout_id", "evaluation", "dataset"),
    *texts(
        "metrics journal wandb",
        "name",
        "never",
        ("stream", "what wrote it: metrics, journal, or the W&B run file"),
        ("name", "the metric"),
    ),
    *floats("metrics journal wandb", "", "recorded as missing, or no number", ("value", "its value")),
    *texts("metrics journal wandb", "text", "it is a number", ("text", "a value that is no number")),
    *texts(
        "metrics journal wandb",
        "name",
        "not one of the bridge's own metrics",
        ("unit", "from the metrics catalogue"),
    ),
    *integers(
        "wandb metrics",
        "number",
        "the record has no step of its own",
        ("step", "position on the x axis: W&B's own counter, or the record's number in the file"),
    ),
    *times("metrics journal wandb", "the record holds no time", ("at", "when it was recorded")),
    *texts("metrics journal wandb", "path", "never", ("path", "file that the row was read from")),
)
"""One row per recorded number: rollout or evaluation, metric, value."""
