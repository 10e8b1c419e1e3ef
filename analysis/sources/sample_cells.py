"""Cells of the trace table from one Slime sample, as `Sample.to_dict` gives it and dumps hold it.

Works on samples of any Slime: the trajectory key may be ``group_id`` or ``rollout_id``, and what the bridge
put under ``metadata["polar"]`` may be missing. Knows one sample at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.sources.session_cells import filter_cells
from analysis.sources.token_stats import (
    TraceTokens,
    mask_from_numbers,
    packed,
    tokens_digest,
)
from analysis.sources.values import boolean, integer, json_text, mapping, number, text
from slime_bridge.conversion.turns import oldest_and_newest
from slime_bridge.sample_view import is_placeholder, polar_metadata, trajectory_of

__all__ = ["own_cells", "reward_of", "sample_ids", "sample_tokens", "trainable_count", "version_cells"]

_REWARD_NAMES = ("score", "reward")
_WHOLLY_MASKED = ("aborted", "failed")


def sample_ids(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of a sample: its group, trajectory, session and trace."""
    polar = polar_metadata(sample)
    return {
        "group": integer(polar.get("scheduler_group_id")),
        "group_index": integer(sample.get("group_index")),
        "task_id": text(polar.get("task_id")),
        "trajectory": integer(trajectory_of(sample)),
        "session_id": text(polar.get("session_id")),
        "trace_index": integer(polar.get("trace_index")),
        "sample_index": integer(sample.get("index")),
    }


def sample_tokens(sample: Mapping[str, Any]) -> TraceTokens:
    """Return what is known of a sample's tokens; a placeholder has none."""
    if is_placeholder(sample):
        return TraceTokens()
    ids: Any = sample.get("tokens")
    total = len(ids) if isinstance(ids, list | tuple | np.ndarray) and np.ndim(ids[:1]) == 1 else None
    response = integer(sample.get("response_length"))
    if total is None or response is None or not 0 <= response <= total or not total:
        return TraceTokens()
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    return TraceTokens(
        prompt=total - response,
        response=response,
        flags=None if mask is None else mask_from_numbers(mask),
        has_mask=mask is not None,
        logprobs=None if logprobs is None else packed(logprobs),
    )


def trainable_count(sample: Mapping[str, Any], tokens: TraceTokens) -> int | None:
    """Return how many tokens the trainer learns from: none of a removed sample, all without a mask."""
    if sample.get("remove_sample") or is_placeholder(sample):
        return 0
    if tokens.has_mask:
        return None if tokens.flags is None else tokens.flags.count(1)
    return tokens.response


def reward_of(sample: Mapping[str, Any], key: str | None) -> tuple[float | None, bool]:
    """Return a sample's reward, and whether it is certain.

    A mapping of several entries is reduced by `key`, else by ``score``, else by ``reward``. The bridge writes
    0 where nobody gave a reward: a 0 counts only where the evaluator's report confirms it.

    Returns
    -------
    tuple
        The reward, None where it is missing; False where the mapping has no such entry.
    """
    reward = sample.get("reward")
    if isinstance(reward, Mapping):
        names = (key,) if key is not None else (*_REWARD_NAMES, *(reward if len(reward) == 1 else ()))
        chosen = next((name for name in names if name in reward), None)
        if chosen is None:
            return None, not reward
        reward = reward[chosen]
    value = number(reward)
    if is_placeholder(sample) or (value == 0.0 and not _confirmed(sample)):
        return None, True
    return value, True


def _confirmed(sample: Mapping[str, Any]) -> bool:
    """Tell whether a reward of 0 is one: it is unless Polar's evaluator says that there is none."""
    polar = polar_metadata(sample)
    about = polar.get("trajectory_metadata")
    if not isinstance(about, Mapping):
        return True
    if mapping(mapping(polar.get("trace_metadata")).get("training_filter")):
        return True
    evaluation = mapping(about.get("evaluation"))
    place, rewards = polar.get("trace_index"), evaluation.get("trace_rewards")
    if isinstance(rewards, list) and isinstance(place, int) and 0 <= place < len(rewards):
        return number(rewards[place]) is not None
    return number(evaluation.get("outcome_reward")) is not None


def version_cells(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the oldest and newest weights that served a sample."""
    versions = sample.get("weight_versions")
    known = (
        [str(version) for version in versions if version is not None] if isinstance(versions, list) else []
    )
    found = oldest_and_newest(known)
    if found is None:
        return {}
    return {"weight_version_oldest": text(found[0]), "weight_version_newest": text(found[1])}


def own_cells(sample: Mapping[str, Any], tokens: TraceTokens, key: str | None, limit: int) -> dict[str, Any]:
    """Return the cells that a sample fills, ids and token summaries left out."""
    polar = polar_metadata(sample)
    about = mapping(polar.get("trace_metadata"))
    calls, reward = about.get("completion_metadata"), sample.get("reward")
    cells: dict[str, Any] = {
        "tokens_hash": tokens_digest(sample.get("tokens")),
        "placeholder": is_placeholder(sample),
        "sample_status": text(sample.get("status")),
        "placeholder_reason": text(polar.get("placeholder_reason")),
        "label": text(sample.get("label"), limit),
        "finish_reason": text(mapping(polar.get("trace_debug")).get("finish_reason")),
        "removed": boolean(sample.get("remove_sample")),
        "clipped": "clipped" in polar if polar else None,
        "altered": _altered(sample, polar) if polar else None,
        "reward": reward_of(sample, key)[0],
        "reward_components": json_text(reward, limit) if isinstance(reward, Mapping) else None,
        "trainable_tokens": trainable_count(sample, tokens),
        "calls": len(calls) if isinstance(calls, list) and calls else (1 if about else None),
        "aborted_turns": _length(mapping(polar.get("aborted_turns")).get("turns")),
        "non_generation_seconds": _measured(sample.get("non_generation_time")),
        **_engine_cells(sample),
        **version_cells(sample),
    }
    if about.get("training_filter"):
        cells.update(filter_cells(about["training_filter"], limit))
    return cells


def _altered(sample: Mapping[str, Any], polar: Mapping[str, Any]) -> bool:
    """Tell whether the bridge clipped a sample or masked tokens: those of suspect turns, or all of it."""
    masked = integer(mapping(polar.get("aborted_turns")).get("masked_tokens"))
    return "clipped" in polar or bool(masked) or sample.get("status") in _WHOLLY_MASKED


def _engine_cells(sample: Mapping[str, Any]) -> dict[str, Any]:
    cache, draft = mapping(sample.get("prefix_cache_info")), mapping(sample.get("spec_info"))
    cells: dict[str, Any] = {}
    if cache.get("total_prompt_tokens"):
        cells["cached_tokens"] = integer(cache.get("cached_tokens"))
        cells["engine_prompt_tokens"] = integer(cache.get("total_prompt_tokens"))
    if draft.get("spec_draft_token_num"):
        cells["spec_accepted_tokens"] = integer(draft.get("spec_accept_token_num"))
        cells["spec_draft_tokens"] = integer(draft.get("spec_draft_token_num"))
    return cells


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _measured(value: Any) -> float | None:
    """Return seconds; Slime's default of 0 says that nobody measured."""
    seconds = number(value)
    return seconds if seconds and math.isfinite(seconds) else None
