"""Reads the model calls that Polar's gateway captured: one per file.

A file may have been cut when it was written: a field above the writer's limit loses its end, and says so with
a marker, though not always in the field that lost something. Such a call keeps its row and is marked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from analysis.errors import ForeignFileError
from analysis.sources.base import ReadOptions, Sink, SourceFile
from analysis.sources.files import decode_json, read_bytes
from analysis.sources.session_cells import stamp_cells
from analysis.sources.token_stats import logprob_cells
from analysis.sources.values import integer, mapping, moment, number, text

__all__ = ["collect"]

_NUMBER = re.compile(r"(\d+)-")
_MARK = "__truncated"
_CUT = b'"__truncated"'
_LOGPROBS = ("logprob_mean", "logprob_min", "logprob_sum", "logprob_zero_share", "logprob_missing")
_TIMES = ("e2e_ms", "queue_ms", "forward_ms", "prefill_forward_ms", "decode_ms")


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add one captured call to the sink; see `analysis.sources.registry.Reader`."""
    data = read_bytes(file, options)
    record = decode_json(data)
    if not isinstance(record, Mapping) or not {"completion_id", "response"} <= record.keys():
        raise ForeignFileError("holds no captured model call", "no `completion_id` and `response`")
    number_match = _NUMBER.match(os.path.basename(file.path))
    limit = options.max_text
    about, response = mapping(record.get("metadata")), mapping(record.get("response"))
    request = mapping(record.get("transformed_request", record.get("request")))
    stamps = stamp_cells(about)
    cut = _cut_fields(record) if _CUT in data or "…".encode() in data or b"\\u2026" in data else []
    sink.add(
        "completion",
        {
            **{name: stamps[name] for name in ("rollout_id", "evaluation", "group_index", "policy_version")},
            "task_id": text(record.get("task_id", about.get("task_id"))),
            "session_id": text(record.get("session_id", about.get("session_id"))),
            "completion_number": int(number_match[1]) if number_match else None,
            "completion_id": text(record.get("completion_id")),
            "answered_at": moment(record.get("timestamp")),
            "written_at": moment(record.get("__written_at")),
            **{name: text(record.get(name)) for name in ("api_type", "model_requested", "model_used")},
            "completion_role": text(about.get("completion_role")),
            "messages": _count(request.get("messages")),
            "tools": _count(request.get("tools")),
            "temperature": number(request.get("temperature")),
            "top_p": number(request.get("top_p")),
            "truncated": bool(cut),
            "truncated_fields": ", ".join(cut) or None,
            "error": _error(response, limit),
            **_times(about),
            **_answer(response, about),
        },
    )


def _answer(response: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    choices = response.get("choices")
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message, usage = mapping(choice.get("message")), mapping(response.get("usage"))
    meta = mapping(choice.get("meta_info"))
    reason = choice.get("finish_reason")
    prompt_ids = choice.get("prompt_token_ids", response.get("prompt_token_ids"))
    version = about.get("weight_version", meta.get("weight_version", response.get("weight_version")))
    cells: dict[str, Any] = {
        "finish_reason": text(reason.get("type") if isinstance(reason, Mapping) else reason),
        "prompt_tokens": integer(usage.get("prompt_tokens")),
        "completion_tokens": integer(usage.get("completion_tokens")),
        "cached_tokens": integer(mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
        "prompt_ids": _count(prompt_ids) or None,
        "response_ids": _count(choice.get("token_ids", choice.get("output_token_ids"))) or None,
        "tool_calls": (_count(message.get("tool_calls")) or 0) if message else None,
        "weight_version": text(version),
    }
    content = mapping(choice.get("logprobs")).get("content")
    if isinstance(content, list) and content:
        values = [number(item.get("logprob")) if isinstance(item, Mapping) else None for item in content]
        known = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        cells.update(zip(_LOGPROBS, logprob_cells(known, [len(known)])[0], strict=True))
    return cells


def _times(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's times of the call, added up over its requests to the engine."""
    timings = about.get("inference_timings")
    parts = [part for part in (timings if isinstance(timings, list) else ()) if isinstance(part, Mapping)]
    cells = {}
    for name in _TIMES:
        known = [value for part in parts if (value := number(part.get(name))) is not None]
        if known:
            cells[name] = sum(known)
    return cells


def _error(response: Mapping[str, Any], limit: int) -> str | None:
    error = response.get("error")
    return text(error.get("message") if isinstance(error, Mapping) else error, limit)


def _count(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _cut_fields(record: Mapping[str, Any]) -> list[str]:
    """Return the top-level fields that a writer cut, by the marks it leaves."""
    return [str(name)[:80] for name, value in record.items() if name != "metadata" and _is_cut(value)]


def _is_cut(value: Any) -> bool:
    if isinstance(value, str):
        return value.endswith("…") and len(value) > 1000
    return any(mark is True for mark in _marks(value))


def _marks(value: Any) -> Iterator[Any]:
    """Give every mark inside a value; iterative, because a record may be nested deeply."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            if _MARK in item:
                yield item[_MARK]
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
