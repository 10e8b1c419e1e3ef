"""The batching rules: who is admitted, one step for all running requests, and what happens to those that end.

A step admits waiting requests (prefill, a few at a time) and then samples one token for every running
request. Requests join and leave between steps. Everything here runs in one thread and starts none; a step is
a plain function call, which is what makes the rules testable. Knows token ids, not text, except through the
`decode` function that stop strings need.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from analysis.lab.engine.kv_rows import KVRows
from analysis.lab.engine.request import Finish, GenerationRequest, TopLogprobs
from analysis.lab.engine.sampling import sample_tokens, seeded_uniform
from analysis.lab.model import Attend, Weights, forward_hidden, grouped_attention

__all__ = ["Batch", "BatchCounters", "BatchLimits"]


@dataclass(frozen=True)
class BatchLimits:
    """Sizes of the batch.

    Parameters
    ----------
    max_running
        Requests that sample together.
    max_retained
        Finished requests whose keys and values are kept for reuse.
    prefill_requests, prefill_tokens
        Bounds of one prefill, the second on the padded number of tokens.
    share_prefixes
        Whether requests reuse what others computed.
    """

    max_running: int = 64
    max_retained: int = 128
    prefill_requests: int = 16
    prefill_tokens: int = 4096
    share_prefixes: bool = True


@dataclass
class BatchCounters:
    """What the batch has done since its start, in requests, tokens and steps."""

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    prefills: int = 0
    retracted: int = 0


@dataclass
class _Admission:
    """A request on its way into the batch: its tokens, and how many of them need no computing."""

    request: GenerationRequest
    tokens: np.ndarray
    source_row: int
    cached: int
    followers: list[GenerationRequest]


class Batch:
    """Waiting and running requests, their keys and values, and the weights that serve them.

    Parameters
    ----------
    weights
        Fused weights.
    version
        Their name, reported with every answer.
    eos_ids
        Tokens that end a turn.
    decode
        Token ids to text, for stop strings.
    limits
        Sizes.
    seed
        Of the draws of requests without a seed of their own; None takes it from the system.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        version: str,
        eos_ids: frozenset[int],
        decode: Callable[[list[int]], str],
        limits: BatchLimits | None = None,
        seed: int | None = None,
    ) -> None:
        self.weights = weights
        self.version = version
        self.limits = limits or BatchLimits()
        self.counters = BatchCounters()
        self.running: list[GenerationRequest] = []
        self.waiting: deque[GenerationRequest] = deque()
        self.kv = KVRows(
            weights.config,
            max_running=self.limits.max_running,
            max_retained=self.limits.max_retained,
            share=self.limits.share_prefixes,
        )
        self._eos_ids = eos_ids
        self._decode = decode
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self.running and not self.waiting

    def add(self, request: GenerationRequest) -> None:
        """Queue a request; it must fit the context."""
        self.counters.requests += 1
        self.waiting.append(request)

    def step(self) -> list[GenerationRequest]:
        """Admit, sample one token for each running request, and let those leave that ended.

        Returns
        -------
        list of GenerationRequest
            Those that got a token or ended in this step.
        """
        touched = self._prefill() if self.waiting else []
        if self.running:
            self._decode_step()
            touched = list(dict.fromkeys([*touched, *self.running]))
            self._remove_ended()
        return touched

    def abort(self, chosen: Callable[[GenerationRequest], bool], message: str) -> list[GenerationRequest]:
        """End the chosen requests with what they have; return them."""
        hit = [request for request in (*self.running, *self.waiting) if chosen(request)]
        for request in hit:
            self._close(request, Finish("abort", message=message))
        self.waiting = deque(request for request in self.waiting if request.finish is None)
        self._remove_ended()
        return hit

    def retract(self) -> None:
        """Send all running requests back to the head of the queue, to be computed anew, output included."""
        self.counters.retracted += len(self.running)
        self.waiting.extendleft(reversed(self.running))
        for row in range(len(self.running)):
            self.kv.clear(row)
        self.running.clear()

    def replace_weights(self, weights: Weights, version: str) -> None:
        """Serve with other weights from the next step on; nothing computed before is shared any more."""
        self.weights = weights
        self.version = version
        self.kv.forget_retained()
        self.kv.make_private(len(self.running))

    def _prefill(self) -> list[GenerationRequest]:
        admissions = self._admit()
        if not admissions:
            return []
        first = len(self.running)
        for number, admission in enumerate(admissions):
            self.kv.ensure_capacity(len(admission.tokens))
            self.kv.copy(admission.source_row, first + number, admission.cached)
        logits = self._forward_new(admissions, first)
        requests = [admission.request for admission in admissions]
        sources = list(range(len(admissions)))
        for number, admission in enumerate(admissions):
            for follower in admission.followers:
                self.kv.copy(first + number, first + len(requests), len(admission.tokens))
                requests.append(follower)
                sources.append(number)
        self.counters.prefills += 1
        self.running.extend(requests)
        self._sample(requests, logits[torch.tensor(sources)] if len(requests) > len(admissions) else logits)
        self._remove_ended()
        return requests

    def _admit(self) -> list[_Admission]:
        """Take requests from the queue, in order, while rows and the prefill's bounds allow."""
        limits = self.limits
        free = limits.max_running - len(self.running)
        admissions: list[_Admission] = []
        leaders: dict[bytes, _Admission] = {}
        longest, taken = 0, 0
        while self.waiting and taken < min(free, limits.prefill_requests):
            request = self.waiting[0]
            tokens = np.array(request.tokens, dtype=np.int32)
            key = tokens.tobytes()
            leader = leaders.get(key) if limits.share_prefixes and not request.wants_input_logprobs else None
            if leader is not None:
                leader.followers.append(request)
                self._count_prompt(request, len(tokens) - 1)
            else:
                row, cached = self.kv.longest_prefix(tokens)
                cached = min(cached, self._reusable(request, len(tokens)))
                longest = max(longest, len(tokens) - cached)
                if admissions and longest * (len(admissions) + 1) > limits.prefill_tokens:
                    break
                admission = _Admission(request, tokens, row, cached, [])
                admissions.append(admission)
                leaders.setdefault(key, admission)
                self._count_prompt(request, cached)
            self.waiting.popleft()
            taken += 1
        return admissions

    @staticmethod
    def _reusable(request: GenerationRequest, length: int) -> int:
        # The last token is always computed, since its logits are needed; so are those that prompt logprobs
        # need.
        if request.wants_input_logprobs:
            return min(length - 1, max(request.logprob_start_len - 1, 0))
        return length - 1

    def _count_prompt(self, request: GenerationRequest, cached: int) -> None:
        if not request.output_ids:
            request.cached_tokens = cached
            self.counters.prompt_tokens += len(request.prompt_ids)
            self.counters.cached_tokens += cached

    def _forward_new(self, admissions: Sequence[_Admission], first: int) -> Tensor:
        """Compute what is not cached; return the logits (len(admissions), V) after each last token."""
        fresh = [admission.tokens[admission.cached :] for admission in admissions]
        lengths = torch.tensor([len(tokens) for tokens in fresh])
        width = int(lengths.max())
        ids = torch.zeros(len(fresh), width, dtype=torch.long)
        for number, tokens in enumerate(fresh):
            ids[number, : len(tokens)] = torch.from_numpy(tokens)
        offsets = torch.arange(width)
        starts = torch.tensor([admission.cached for admission in admissions])
        real = offsets < lengths.unsqueeze(1)
        # Padding repeats the last position: it stays inside the tables and is never written.
        positions = starts.unsqueeze(1) + torch.minimum(offsets, lengths.unsqueeze(1) - 1)
        hidden = forward_hidden(self.weights, ids, positions, self._cached(first, positions, real))
        for number, admission in enumerate(admissions):
            self.kv.record(first + number, admission.cached, fresh[number])
            if admission.request.wants_input_logprobs:
                logits = F.linear(hidden[number, : len(fresh[number])], self.weights.head)
                self._set_input_logprobs(admission, logits)
        last = hidden[torch.arange(len(fresh)), lengths - 1]
        return F.linear(last, self.weights.head)

    @staticmethod
    def _set_input_logprobs(admission: _Admission, logits: Tensor) -> None:
        request, start = admission.request, admission.request.logprob_start_len
        wanted = range(max(start, 1), len(request.prompt_ids))
        values: list[float | None] = [None] if start == 0 else []
        if len(wanted) > 0:
            rows = torch.tensor(wanted) - 1 - admission.cached
            targets = torch.tensor(request.prompt_ids[wanted.start :])
            logprobs = logits[rows].log_softmax(dim=-1).gather(1, targets.unsqueeze(1)).squeeze(1)
            values.extend(logprobs.tolist())
        request.input_logprobs = values

    def _cached(self, first: int, positions: Tensor, real: Tensor | None) -> Attend:
        """Attention over the rows from `first` on, which takes in the new keys and values as it goes.

        `positions` is (B, T); `real` marks what is not padding, None when everything is.
        """
        rows = positions.shape[0]
        reach = int(positions.max()) + 1
        mask = torch.arange(reach) <= positions.unsqueeze(1).unsqueeze(-1)  # (B, 1, T, reach)
        if real is None:
            at_row, at_time = torch.arange(rows), torch.zeros(rows, dtype=torch.long)
        else:
            at_row, at_time = real.nonzero(as_tuple=True)
        at_position = positions[at_row, at_time]
        into_row = at_row + first

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.kv.keys[layer], self.kv.values[layer]
            keys[into_row, :, at_position] = key[at_row, :, at_time]
            values[into_row, :, at_position] = value[at_row, :, at_time]
            here = slice(first, first + rows)
            return grouped_attention(query, keys[here, :, :reach], values[here, :, :reach], mask)

        return attend

    def _decode_step(self) -> None:
        requests = self.running
        lengths = [request.length for request in requests]
        self.kv.ensure_capacity(max(lengths))
        last = [request.output_ids[-1] for request in requests]
        positions = torch.tensor(lengths).unsqueeze(1) - 1
        ids = torch.tensor(last).unsqueeze(1)
        hidden = forward_hidden(self.weights, ids, positions, self._cached(0, positions, None))
        self.kv.tokens[np.arange(len(requests)), np.array(lengths) - 1] = last
        self.counters.decode_steps += 1
        self._sample(requests, F.linear(hidden[:, 0], self.weights.head))

    def _sample(self, requests: Sequence[GenerationRequest], logits: Tensor) -> None:
        """Give each request its next token; mark those that end."""
        uniforms = torch.rand(len(requests), dtype=torch.float64, generator=self._generator)
        for row, request in enumerate(requests):
            if request.params.sampling_seed is not None:
                position = len(request.output_ids)
                uniforms[row] = seeded_uniform(request.params.sampling_seed, request.answer, position)
        sampled = sample_tokens(logits, [request.params for request in requests], uniforms)
        for row, request in enumerate(requests):
            if request.max_output == 0:
                self._close(request, Finish("length"))
                continue
            if not math.isfinite(sampled.logprobs[row]):
                self._close(request, Finish("abort", message="a logit is not a number", failed=True))
                continue
            top = (
                _most_likely(sampled.distribution[row], request.top_logprobs)
                if request.top_logprobs
                else None
            )
            request.append(sampled.ids[row], sampled.logprobs[row], self.version, top)
            self.counters.generated_tokens += 1
            finish = request.end_after_last_token(self._eos_ids, self._decode)
            if finish is not None:
                self._close(request, finish)

    def _close(self, request: GenerationRequest, finish: Finish) -> None:
        request.close(finish, self.version)
        if finish.kind == "abort":
            self.counters.aborted += 1
        else:
            self.counters.finished += 1

    def _remove_ended(self) -> None:
        """Take ended requests out of the running rows, keep their work for reuse, and close the gaps."""
        for row in reversed(range(len(self.running))):
            request = self.running[row]
            if request.finish is None:
                continue
            if request.finish.failed:
                self.kv.clear(row, zero=True)
            else:
                self.kv.retain(row)
            moved = self.running.pop()
            last = len(self.running)
            if last != row:
                # The last token's key and value are not computed before its successor is.
                self.kv.copy(last, row, moved.length - 1)
                self.running[row] = moved
            self.kv.clear(last)


def _most_likely(logprobs: Tensor, count: int) -> TopLogprobs:
    top = logprobs.topk(min(count, logprobs.shape[0]))
    return list(zip(top.values.tolist(), top.indices.tolist(), strict=True))
