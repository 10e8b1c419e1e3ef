"""Rows from a list of Slime samples: one trace per sample, one session per trajectory, one group per prompt.

Serves rollout dumps and the bridge's file of rejected groups, which hold the same samples. Events of Slime's
sample tracing become rows of the event table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.errors import FileLimitError
from analysis.sources.base import ReadOptions, Sink
from analysis.sources.files import REPEATED
from analysis.sources.sample_cells import own_cells, reward_of, sample_ids, sample_tokens
from analysis.sources.session_cells import (
    is_completed,
    stamp_cells,
    timing_cells,
    trajectory_cells,
    was_early_stopped,
)
from analysis.sources.token_stats import SUMMARY, TraceTokens, summaries
from analysis.sources.values import integer, json_text, mapping, moment, number, text
from slime_bridge.conversion.turns import oldest_and_newest
from slime_bridge.sample_view import polar_metadata

__all__ = ["SampleBatch", "add_samples"]

_SESSION_SUMS = ("prompt_tokens", "response_tokens", "masked_tokens", "turns", "trainable_tokens")
_SPAN_KINDS = frozenset({"span_start", "span_end", "event"})


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Where a list of samples comes from.

    Parameters
    ----------
    source
        Name in `analysis.schema.SOURCES`.
    rollout_id, evaluation
        The rollout that they count towards; None where unknown.
    accepted
        Whether they were handed to the trainer; None for an evaluation.
    group
        Scheduler's number of their group, where the file says it once for all.
    result
        Place of the list in the file, for token places; None where the file holds one list.
    cells
        Further cells of their groups' rows: state, verdict, reasons.
    """

    source: str
    rollout_id: int | None
    evaluation: bool | None
    accepted: bool | None
    group: int | None = None
    result: int | None = None
    cells: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Session:
    """One trajectory while its samples come in."""

    first: Mapping[str, Any]
    ids: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    masked_by_bridge: int | None = None


def add_samples(sink: Sink, options: ReadOptions, samples: Sequence[Any], batch: SampleBatch) -> None:
    """Add the rows of a list of samples.

    Something in the list that is no sample is a problem of its own.

    Parameters
    ----------
    samples
        Mappings as `Sample.to_dict` gives them, in training order.
    batch
        Where they come from.

    Raises
    ------
    FileLimitError
        Their texts, of which a pickle can hold one many times over, would take more memory than allowed.
    """
    known = []
    for position, sample in enumerate(samples):
        if isinstance(sample, Mapping) and ("tokens" in sample or "status" in sample):
            known.append((position, sample))
        else:
            sink.tally("holds something that is no sample", f"item {position} is a {type(sample).__name__}")
    tokens = [sample_tokens(sample) for _, sample in known]
    sessions: dict[Any, _Session] = {}
    left = options.memory_limit() // REPEATED
    for (position, sample), arrays, cells in zip(known, tokens, summaries(tokens), strict=True):
        row = _trace_row(sample, arrays, cells, options, batch, position)
        _note_oddities(sink, sample, arrays, options, position)
        left -= sum([len(cell) for cell in row.values() if type(cell) is str])
        if left < 0:
            raise FileLimitError("repeats long texts too often", f"sample {position}", "damaged, or hostile")
        sink.add("trace", row)
        _add_place(sink, batch, row, position)
        _add_spans(sink, sample, row, options.max_text)
        session = sessions.setdefault(_session_key(row, position), _Session(sample, row))
        session.rows.append(row)
        masked = integer(mapping(polar_metadata(sample).get("aborted_turns")).get("masked_tokens"))
        if masked is not None:
            session.masked_by_bridge = (session.masked_by_bridge or 0) + masked
    for session in sessions.values():
        sink.add("session", _session_row(session, options, batch))
    for row in _group_rows(list(sessions.values()), batch):
        sink.add("group", row)


def _trace_row(
    sample: Mapping[str, Any],
    tokens: TraceTokens,
    cells: tuple[Any, ...],
    options: ReadOptions,
    batch: SampleBatch,
    position: int,
) -> dict[str, Any]:
    row = {
        **dict(zip(SUMMARY, cells, strict=True)),
        **sample_ids(sample),
        **own_cells(sample, tokens, options.reward_key, options.max_text),
        "rollout_id": batch.rollout_id,
        "evaluation": batch.evaluation,
        "accepted": batch.accepted,
        "sample_position": position,
    }
    if row["group"] is None:
        row["group"] = batch.group
    row["dataset"] = _dataset(sample)
    if tokens.response is not None and not tokens.has_mask:
        row["sampled_tokens"] = tokens.response
    if tokens.response is None:
        row["has_mask"] = row["has_logprobs"] = None
    return row


def _dataset(sample: Mapping[str, Any]) -> str | None:
    about = mapping(polar_metadata(sample).get("result_metadata"))
    return text(about.get("eval_dataset"))


def _note_oddities(
    sink: Sink, sample: Mapping[str, Any], tokens: TraceTokens, options: ReadOptions, position: int
) -> None:
    if (wrong := tokens.mismatch()) is not None:
        sink.tally("token arrays do not fit", f"{wrong}, sample {position}")
    if not reward_of(sample, options.reward_key)[1]:
        entries = ", ".join(map(str, list(sample["reward"])[:8]))
        sink.tally(
            "the reward is not clear", f"sample {position} has {entries}", "name one of these as `reward_key`"
        )


def _add_place(sink: Sink, batch: SampleBatch, row: Mapping[str, Any], position: int) -> None:
    if row["response_tokens"] is None:
        return
    sink.add_tokens(
        batch.source,
        row["session_id"],
        row["trace_index"],
        batch.rollout_id,
        batch.evaluation,
        row["sample_index"],
        row["tokens_hash"],
        position,
        batch.result,
    )


def _add_spans(sink: Sink, sample: Mapping[str, Any], row: Mapping[str, Any], limit: int) -> None:
    events = mapping(sample.get("trace")).get("events")
    for seq, event in enumerate(events if isinstance(events, list) else ()):
        if not isinstance(event, Mapping) or event.get("type") not in _SPAN_KINDS:
            continue
        names = ("rollout_id", "evaluation", "group", "group_index", "task_id", "trajectory", "session_id")
        sink.add(
            "event",
            {
                **{name: row[name] for name in (*names, "sample_index")},
                "attempt": integer(event.get("attempt")),
                "seq": seq,
                "at": moment(event.get("ts")),
                "kind": str(event["type"]),
                "event": text(event.get("name")) or "",
                "span_id": text(event.get("span_id")),
                "parent_span_id": text(event.get("parent_span_id")),
                "data": json_text(event.get("attrs"), limit),
            },
        )


def _session_key(row: Mapping[str, Any], position: int) -> Any:
    """Return what the samples of one session share; a sample without any of it stands alone."""
    if row["session_id"] is not None:
        return row["session_id"]
    if row["trajectory"] is not None:
        return (row["group_index"], row["trajectory"])
    return (position,)


def _session_row(session: _Session, options: ReadOptions, batch: SampleBatch) -> dict[str, Any]:
    polar, rows, limit = polar_metadata(session.first), session.rows, options.max_text
    real = [row for row in rows if not row["placeholder"]]
    names = ("group", "group_index", "task_id", "trajectory", "session_id", "dataset")
    row: dict[str, Any] = {
        "group_state": batch.cells.get("state"),
        "reject_reason": batch.cells.get("reject_reason"),
        **{name: session.ids[name] for name in names},
        "rollout_id": batch.rollout_id,
        "evaluation": batch.evaluation,
        "attempted": True,
        "accepted": batch.accepted,
        "usable": any(trace["trainable_tokens"] for trace in rows),
        "reason": next((trace["placeholder_reason"] for trace in rows if trace["placeholder_reason"]), None),
        "reward": _mean_reward(real),
        "kept_traces": len(real),
        "clipped_traces": sum(bool(trace["clipped"]) for trace in real) if polar else None,
        "aborted_masked_tokens": session.masked_by_bridge,
        "altered": _altered(polar, rows, real) if polar else None,
        **{name: _sum(real, name) for name in _SESSION_SUMS},
        "non_generation_seconds": _sum(real, "non_generation_seconds"),
        **_versions(real),
    }
    if polar:
        row.update(_polar_cells(polar, limit))
        if row["reward"] is None and row["usable"] is False:
            row["reward"] = row.get("outcome_reward")
    return row


def _altered(
    polar: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], real: Sequence[Mapping[str, Any]]
) -> bool:
    delivered = integer(mapping(polar.get("trajectory_metadata")).get("trace_count"))
    return any(row["altered"] for row in rows) or (delivered is not None and len(real) < delivered)


def _polar_cells(polar: Mapping[str, Any], limit: int) -> dict[str, Any]:
    about, submitted = mapping(polar.get("trajectory_metadata")), mapping(polar.get("result_metadata"))
    status = text(polar.get("session_status"))
    errors = polar.get("result_error"), polar.get("trajectory_error")
    cells = {
        **timing_cells(polar.get("timing"), limit),
        **trajectory_cells(about, limit),
        **{
            name: value
            for name, value in stamp_cells(submitted, about, polar).items()
            if name in ("policy_version", "rollout_step")
        },
        "finished": status is not None,
        "status": status,
        "error": text(errors[0] or errors[1], limit) or None,
        "node_id": text(polar.get("node_id")),
        "staleness": integer(polar.get("policy_staleness")),
        "task_metadata": json_text(submitted, limit),
    }
    if status is not None:
        trajectory_status = text(polar.get("trajectory_status")) or status
        cells["completed"] = is_completed(status, trajectory_status, *errors)
        cells["early_stopped"] = was_early_stopped(submitted, about)
    if (version := integer(polar.get("policy_version"))) is not None:
        cells["policy_version"] = version
    return cells


def _group_rows(sessions: Sequence[_Session], batch: SampleBatch) -> list[dict[str, Any]]:
    groups: dict[Any, dict[str, Any]] = {}
    for session in sessions:
        ids, polar = session.ids, polar_metadata(session.first)
        if ids["group_index"] is None and ids["group"] is None:
            continue
        row = groups.setdefault(
            (ids["group"], ids["group_index"]),
            {
                **batch.cells,
                **{name: ids[name] for name in ("group", "group_index", "dataset")},
                "rollout_id": batch.rollout_id,
                "evaluation": batch.evaluation,
                "attempted": True,
                "accepted": batch.accepted,
            },
        )
        stamps = stamp_cells(mapping(polar.get("result_metadata")), polar)
        for name, value in (
            ("policy_version", integer(polar.get("policy_version"))),
            ("rollout_step", stamps["rollout_step"]),
            ("staleness", integer(polar.get("policy_staleness"))),
        ):
            if row.get(name) is None:
                row[name] = value
    return list(groups.values())


def _mean_reward(rows: Sequence[Mapping[str, Any]]) -> float | None:
    finite = [row for row in rows if row["reward"] is not None and math.isfinite(row["reward"])]
    rated = [row["reward"] for row in finite if row["trainable_tokens"]]
    if rated:
        return math.fsum(rated) / len(rated)
    return number(finite[-1]["reward"]) if finite else None


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    known = [row[name] for row in rows if row.get(name) is not None]
    return sum(known) if known else None


def _versions(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = [
        row[name]
        for row in rows
        for name in ("weight_version_oldest", "weight_version_newest")
        if row.get(name) is not None
    ]
    found = oldest_and_newest(known)
    return {} if found is None else {"weight_version_oldest": found[0], "weight_version_newest": found[1]}
