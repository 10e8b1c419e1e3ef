"""One generation request: what was asked, what was sampled so far, and how it ended.

Holds state and the rules that need nothing but this state (why a request ends, which weights sampled which
token). Knows nothing about batches, threads or HTTP.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from analysis.lab.engine.sampling import SamplingParams

__all__ = ["Finish", "GenerationRequest", "Progress", "TopLogprobs", "VersionSpan"]

TopLogprobs = list[tuple[float, int]]


@dataclass(frozen=True)
class Finish:
    """Why a request ended.

    Parameters
    ----------
    kind
        ``stop``, ``length`` or ``abort``.
    matched
        For ``stop``: the token id or the string that ended it.
    message
        For ``abort``: the reason.
    failed
        For ``abort``: the engine could not go on (HTTP 500), as opposed to somebody asking for the end (HTTP
        200).
    """

    kind: str
    matched: int | str | None = None
    message: str = ""
    failed: bool = False


@dataclass
class VersionSpan:
    """Output tokens `start` to `end` (exclusive) were sampled by weights `version`."""

    version: str
    start: int
    end: int


@dataclass(eq=False)
class GenerationRequest:
    """A prompt on its way to an answer. Compared by identity: clients may use one `rid` twice.

    Parameters
    ----------
    prompt_ids
        Token ids, at least one.
    params
        Sampling parameters; `n` is resolved before, one request per answer.
    rid
        The client's name for it; a random one when empty.
    answer
        Number of the answer among those of one prompt; part of the seeded draw.
    logprob_start_len
        First prompt position whose log-probability is wanted, -1 for none.
    top_logprobs
        Alternatives wanted per output token.
    on_event
        Called from the engine's thread as ``on_event(request)`` when it ends, and, with `stream`, after each
        token. Must return quickly and not raise.
    stream
        Whether `on_event` is wanted after each token.

    Attributes
    ----------
    output_ids, output_logprobs
        Sampled tokens and their log-probabilities; the token that ended it is included.
    output_top
        Per output token the most likely alternatives, best first.
    input_logprobs
        For prompt positions from `logprob_start_len` on, at temperature 1; the very first position of a
        prompt has none (None).
    cached_tokens
        Prompt tokens whose keys and values were reused.
    finish
        None while it runs.
    """

    prompt_ids: list[int]
    params: SamplingParams
    rid: str = ""
    answer: int = 0
    logprob_start_len: int = -1
    top_logprobs: int = 0
    on_event: Callable[[GenerationRequest], None] | None = None
    stream: bool = False
    max_output: int = 0
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[TopLogprobs] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    cached_tokens: int = 0
    finish: Finish | None = None
    weight_version: str = ""
    created: float = field(default_factory=time.monotonic)
    first_token_at: float = math.nan
    finished_at: float = math.nan

    def __post_init__(self) -> None:
        if not self.rid:
            self.rid = uuid.uuid4().hex

    @property
    def tokens(self) -> list[int]:
        """Prompt and output so far."""
        return self.prompt_ids + self.output_ids

    @property
    def length(self) -> int:
        """Number of tokens, prompt and output so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def wants_input_logprobs(self) -> bool:
        """Whether prompt log-probabilities are asked for and not yet computed."""
        return self.logprob_start_len >= 0 and not self.input_logprobs

    def append(self, token: int, logprob: float, version: str, top: TopLogprobs | None = None) -> None:
        """Take a sampled token."""
        position = len(self.output_ids)
        if position == 0:
            self.first_token_at = time.monotonic()
        self.output_ids.append(token)
        self.output_logprobs.append(logprob)
        if top is not None:
            self.output_top.append(top)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1].end = position + 1
        else:
            self.spans.append(VersionSpan(version, position, position + 1))

    def end_after_last_token(
        self, eos_ids: frozenset[int], decode: Callable[[list[int]], str]
    ) -> Finish | None:
        """Decide whether the last token ends the request; a stop wins over the length when both apply."""
        token = self.output_ids[-1]
        if not self.params.ignore_eos and (token in eos_ids or token in self.params.stop_token_ids):
            return Finish("stop", matched=token)
        if self.params.stop:
            text = decode(self.output_ids)
            for stop in self.params.stop:
                if stop in text:
                    return Finish("stop", matched=stop)
        if len(self.output_ids) >= self.max_output:
            return Finish("length")
        return None

    def close(self, finish: Finish, version: str) -> None:
        """Record the end; the version is that of the weights at this moment."""
        self.finish = finish
        self.weight_version = version
        self.finished_at = time.monotonic()

    def progress(self) -> Progress:
        """Take a look that stays consistent while the request goes on; for the engine's thread."""
        return Progress(self, len(self.output_ids), self.finish)


@dataclass(frozen=True)
class Progress:
    """A request as it was at one moment: its first `count` output tokens, and its end if it had one."""

    request: GenerationRequest
    count: int
    finish: Finish | None

    def finish_reason(self) -> dict[str, Any] | None:
        """Give SGLang's ``finish_reason`` object, None while it runs."""
        if self.finish is None:
            return None
        if self.finish.kind == "stop":
            return {"type": "stop", "matched": self.finish.matched}
        if self.finish.kind == "length":
            return {"type": "length", "length": self.request.max_output}
        return {"type": "abort", "message": self.finish.message}
