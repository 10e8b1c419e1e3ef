"""Trajectory builders: from the captured model calls of one session to traces, as Polar's two builders do it.

``per_request`` makes one trace per call. ``prefix_merging`` groups calls whose prompts grow append-only
into chains and merges each chain into one trace; sampled tokens are kept as sampled, what the server put
between two answers is masked.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from analysis.errors import LabError
from analysis.lab.polar_server.extraction import Turn, extract
from analysis.lab.polar_server.models import CompletionSession, Trajectory
from analysis.lab.polar_server.results import lifted

_CLOSED_BY_TOKEN = frozenset({"stop", "tool_calls", "stop_sequence"})


class BuilderError(LabError, ValueError):
    """Raised when a builder is unknown, misconfigured, or gets data it cannot use."""


class Builder(Protocol):
    """Turns the captured calls of one session into a trajectory in wire form."""

    def build(self, session: CompletionSession, task_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trajectory."""


def make_builder(strategy: str, config: Mapping[str, Any]) -> Builder:
    """Return the builder of a registered name, or of ``module:Class`` constructed with `config`.

    Raises
    ------
    BuilderError
        When the name is unknown, the class cannot be imported, or it refuses its configuration.
    """
    factories: dict[str, Any] = {"per_request": PerRequestBuilder, "prefix_merging": PrefixMergingBuilder}
    factory = factories.get(strategy)
    try:
        if factory is None and ":" in strategy:
            factory = load_object(strategy)
        if factory is None:
            raise BuilderError(f"unknown trajectory builder {strategy!r}; known: {', '.join(factories)}")
        builder: Builder = factory(**config)
    except (TypeError, ImportError, AttributeError) as error:
        raise BuilderError(f"trajectory builder {strategy!r} cannot be constructed: {error}") from error
    return builder


def load_object(path: str) -> Any:
    """Import ``module:Name``; raises `ImportError` or `AttributeError`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class PerRequestBuilder:
    """One trace per model call, in answer order; any configuration is accepted and ignored."""

    name = "per_request"

    def __init__(self, **_: Any) -> None:
        pass

    def build(self, session: CompletionSession, task_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trajectory: COMPLETED if there was at least one call."""
        turns = [extract(record.model_dump()) for record in session.completions]
        if not turns:
            return _no_completions(self.name, session, task_metadata)
        traces = [_single(turn) for turn in turns]
        metadata = _metadata(self.name, session, task_metadata, trace_count=len(traces))
        return _checked(metadata, traces)


@dataclass
class Chain:
    """Calls whose prompts each start with the prompt before; `tip` is the latest prompt."""

    turns: list[Turn] = field(default_factory=list)
    tip: list[Any] = field(default_factory=list)


def group_chains(turns: Sequence[Turn]) -> list[Chain]:
    """Put each call into the chain with the longest non-empty tip that begins its prompt, else a new one."""
    chains: list[Chain] = []
    for turn in turns:
        prompt = turn.prompt_ids
        fitting = [chain for chain in chains if chain.tip and prompt[: len(chain.tip)] == chain.tip]
        chain = max(fitting, key=lambda candidate: len(candidate.tip), default=None)
        if chain is None:
            chain = Chain()
            chains.append(chain)
        chain.turns.append(turn)
        chain.tip = prompt
    return chains


def end_of_turn(chain: Sequence[Turn], configured: int | None) -> int | None:
    """Return the token id that closes an answer: configured, or the last of the first natural end."""
    if configured is not None:
        return configured
    for turn in chain:
        if turn.finish_reason in _CLOSED_BY_TOKEN and turn.response_ids:
            return turn.response_ids[-1]
    return None


@dataclass
class _Merge:
    """Growing arrays of one merged trace; `logprobs` holds None where a sampled token has no logprob."""

    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    seen_messages: int = 0
    has_logprobs: bool = False

    def interstitial(self, ids: Sequence[int], messages: Sequence[dict[str, Any]]) -> None:
        self.response_ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.messages += messages

    def sampled(self, turn: Turn) -> None:
        self.response_ids += turn.response_ids
        self.mask += [1] * len(turn.response_ids)
        if turn.logprobs is None:
            self.logprobs += [None] * len(turn.response_ids)
        else:
            self.has_logprobs = self.has_logprobs or bool(turn.logprobs)
            self.logprobs += turn.logprobs
        if turn.message is not None:
            self.messages.append(turn.message)
        self.seen_messages = len(turn.prompt_messages) + (turn.message is not None)


def merge_chain(chain: Sequence[Turn], configured: int | None) -> tuple[dict[str, Any], int]:
    """Merge one chain into a trace; return it and how many of its calls it holds.

    Merging stops, and the rest of the chain is discarded, at the first call whose prompt does not show
    where the answer before it ended.
    """
    first = chain[0]
    closing = end_of_turn(chain, configured)
    merge = _Merge()
    merge.sampled(first)
    merged = [first]
    for turn in chain[1:]:
        before = merged[-1]
        tail = turn.prompt_ids[len(before.prompt_ids) :]
        if closing is None or closing not in tail:
            break
        cut = tail.index(closing)
        closed = bool(before.response_ids) and before.response_ids[-1] == closing
        merge.interstitial(
            tail[cut + 1 :] if closed else tail[cut:], turn.prompt_messages[merge.seen_messages :]
        )
        merge.sampled(turn)
        merged.append(turn)
    known = [value for value in merge.logprobs if value is not None]
    complete = len(known) == len(merge.logprobs) and merge.has_logprobs
    trace = {
        "prompt_ids": first.prompt_ids,
        "response_ids": merge.response_ids,
        "loss_mask": merge.mask,
        "prompt_messages": first.prompt_messages,
        "response_messages": merge.messages,
        "tools": first.tools,
        "finish_reason": merged[-1].finish_reason,
        "response_logprobs": known if complete else None,
        "reward": None,
        "metadata": {**first.metadata, "completion_metadata": [turn.metadata for turn in merged]},
    }
    return trace, len(merged)


@dataclass(frozen=True)
class PrefixMergingBuilder:
    """Merges append-only runs of model calls.

    Parameters
    ----------
    end_of_turn_token_id
        Token that closes an answer; None learns it from the first answer of a chain that ended naturally.
    """

    end_of_turn_token_id: int | None = None
    name = "prefix_merging"

    def build(self, session: CompletionSession, task_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trajectory: COMPLETED if there was at least one call, whatever was discarded."""
        turns = [extract(record.model_dump()) for record in session.completions]
        if not turns:
            return _no_completions(self.name, session, task_metadata)
        chains = group_chains(turns)
        traces, merged, full = [], 0, 0
        for chain in chains:
            trace, used = merge_chain(chain.turns, self.end_of_turn_token_id)
            traces.append(trace)
            merged += used
            full += used == len(chain.turns)
        stats = {
            "chains_total": len(chains),
            "chains_reconstructed_full": full,
            "chains_reconstructed_truncated": len(chains) - full,
            "completions_total": len(turns),
            "completions_merged": merged,
        }
        metadata = _metadata(
            self.name, session, task_metadata, trace_count=len(chains), reconstruction_stats=stats
        )
        return _checked(metadata, traces)


def _single(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_ids": turn.prompt_ids,
        "response_ids": turn.response_ids,
        "loss_mask": [1] * len(turn.response_ids),
        "prompt_messages": turn.prompt_messages,
        "response_messages": [turn.message] if turn.message is not None else [],
        "tools": turn.tools,
        "finish_reason": turn.finish_reason,
        "response_logprobs": turn.logprobs,
        "reward": None,
        "metadata": turn.metadata,
    }


def _metadata(
    builder: str, session: CompletionSession, task_metadata: Mapping[str, Any], **counts: Any
) -> dict[str, Any]:
    return {
        "builder": builder,
        "session_id": session.session_id,
        "task_id": session.task_id,
        "api_type": session.api_type,
        "model_requested": session.model_requested,
        "model_used": session.model_used,
        "record_count": len(session.completions),
        "task_metadata": {**task_metadata, "session_id": session.session_id, "task_id": session.task_id},
        **counts,
        **lifted(task_metadata),
    }


def _no_completions(
    builder: str, session: CompletionSession, task_metadata: Mapping[str, Any]
) -> dict[str, Any]:
    metadata = {
        "builder": builder,
        "session_id": session.session_id,
        "record_count": 0,
        "task_metadata": dict(task_metadata),
        **lifted(task_metadata),
    }
    return {"status": "ERROR", "metadata": metadata, "traces": [], "error": "no completions"}


def _checked(metadata: dict[str, Any], traces: list[dict[str, Any]]) -> dict[str, Any]:
    """Validate against the wire model, as the gateway does with every builder's result."""
    trajectory = {"status": "COMPLETED", "metadata": metadata, "traces": traces, "error": None}
    try:
        return Trajectory.model_validate(trajectory).model_dump()
    except ValueError as error:
        raise BuilderError(f"invalid token data: {error}") from error
