"""Choosing the next token: sampling parameters as clients send them, one vectorised draw for a batch.

The reported log-probability is SGLang's default: log-softmax of ``logits / temperature``, before any top-k,
top-p or min-p filter; a greedy request reports the log-softmax of the raw logits. Knows nothing about
requests in flight.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from analysis.errors import RequestError

__all__ = ["SampledTokens", "SamplingParams", "sample_tokens", "seeded_uniform"]

_GREEDY_BELOW = 1e-6
_MASK64 = (1 << 64) - 1

# What SGLang knows and this engine does not do: harmless at these values, an error at any other.
_NEUTRAL: dict[str, Any] = {
    "custom_params": None,
    "ebnf": None,
    "frequency_penalty": 0.0,
    "json_schema": None,
    "logit_bias": None,
    "min_new_tokens": 0,
    "presence_penalty": 0.0,
    "regex": None,
    "repetition_penalty": 1.0,
    "stop_regex": None,
    "structural_tag": None,
}
_WITHOUT_EFFECT = frozenset({"spaces_between_special_tokens", "stream_interval"})


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled; names, defaults and meaning as in SGLang.

    Parameters
    ----------
    max_new_tokens
        Bound on sampled tokens; None means what the context leaves.
    temperature
        Divides the logits; below 1e-6 the most likely token is taken.
    top_p, top_k, min_p
        Filters; 1.0, -1 and 0.0 switch them off. Top-p is measured on the unfiltered distribution.
    stop
        Strings that end generation.
    stop_token_ids
        Tokens that end generation, beside the model's own end-of-sequence tokens.
    ignore_eos
        Generate on, whatever token comes.
    skip_special_tokens, no_stop_trim
        How the text is made from the tokens; the tokens themselves are always complete.
    n
        Independent answers per prompt.
    sampling_seed
        Makes the draws a function of seed, answer number and position.
    """

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    n: int = 1
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, low=0.0)
        _number("top_p", self.top_p, low=0.0, high=1.0)
        _number("min_p", self.min_p, low=0.0, high=1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p must be above 0 and at most 1", param="top_p")
        if _integer("top_k", self.top_k) < 1 and self.top_k != -1:
            raise RequestError(f"top_k must be -1 (off) or at least 1, not {self.top_k}", param="top_k")
        if self.max_new_tokens is not None and _integer("max_new_tokens", self.max_new_tokens) < 0:
            raise RequestError("max_new_tokens must be at least 0", param="max_new_tokens")
        if not 1 <= _integer("n", self.n) <= 128:
            raise RequestError(f"n must be 1 to 128, not {self.n}", param="n")
        if self.sampling_seed is not None:
            _integer("sampling_seed", self.sampling_seed)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, at the temperature of the raw logits."""
        return self.temperature < _GREEDY_BELOW

    @property
    def filtered(self) -> bool:
        """Whether any of top-k, top-p, min-p is on."""
        return self.top_k != -1 or self.top_p < 1.0 or self.min_p > 0.0

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> SamplingParams:
        """Read the ``sampling_params`` of a ``/generate`` request.

        Null values count as absent.

        Raises
        ------
        RequestError
            On an unknown key (with the nearest known one), a value of the wrong type or out of range, or a
            feature that this engine lacks.
        """
        known = set(cls.__dataclass_fields__)
        values: dict[str, Any] = {}
        for name, value in raw.items():
            if value is None or name in _WITHOUT_EFFECT:
                continue
            if name in _NEUTRAL:
                refuse_unless_neutral(name, value)
            elif name not in known:
                near = difflib.get_close_matches(name, known | set(_NEUTRAL), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise RequestError(f"unknown sampling parameter {name!r}{hint}", param=name)
            else:
                values[name] = value
        return cls(**_converted(values))


def refuse_unless_neutral(name: str, value: Any) -> None:
    """Raise `RequestError` when a feature that this engine lacks is asked for with effect."""
    if value is not None and value != _NEUTRAL.get(name):
        raise RequestError(f"{name} is not supported by this engine; leave it out", param=name)


def _converted(values: dict[str, Any]) -> dict[str, Any]:
    for name in ("ignore_eos", "skip_special_tokens", "no_stop_trim"):
        if name in values and not isinstance(values[name], bool):
            raise RequestError(f"{name} must be true or false", param=name)
    if "stop" in values:
        stop = values["stop"]
        stop = [stop] if isinstance(stop, str) else stop
        if not isinstance(stop, list | tuple) or not all(isinstance(item, str) for item in stop):
            raise RequestError("stop must be a string or a list of strings", param="stop")
        values["stop"] = tuple(item for item in stop if item)
    if "stop_token_ids" in values:
        ids = values["stop_token_ids"]
        if not isinstance(ids, list | tuple):
            raise RequestError("stop_token_ids must be a list of token ids", param="stop_token_ids")
        values["stop_token_ids"] = frozenset(_integer("stop_token_ids", item) for item in ids)
    return values


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, not {value!r:.60}", param=name)
    return value


def _number(name: str, value: Any, *, low: float, high: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, not {value!r:.60}", param=name)
    if not low <= value <= high:
        raise RequestError(f"{name} must lie between {low:g} and {high:g}, not {value:g}", param=name)


class SampledTokens(NamedTuple):
    """One draw per row: `ids` and `logprobs`, length B, and the `distribution` (B, V) they come from."""

    ids: list[int]
    logprobs: list[float]
    distribution: Tensor


def sample_tokens(logits: Tensor, params: Sequence[SamplingParams], uniforms: Tensor) -> SampledTokens:
    """Draw one token per row.

    Parameters
    ----------
    logits
        (B, V).
    params
        One per row.
    uniforms
        (B,), float64, each in [0, 1): the draw is a pure function of logits, parameters and these.

    Returns
    -------
    SampledTokens
        `distribution` holds log-softmax of ``logits / temperature``. A row with a logit that is not a number
        yields a log-probability that is not finite; what to do about it is the caller's decision.
    """
    temperatures = [1.0 if p.greedy else p.temperature for p in params]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures).unsqueeze(1)
    distribution = logits.log_softmax(dim=-1)
    weights = distribution.exp().double()
    filtered = [row for row, p in enumerate(params) if p.filtered and not p.greedy]
    if filtered:
        rows = torch.tensor(filtered)
        weights[rows] = _filter(weights[rows], [params[row] for row in filtered])
    # Inverse of the cumulative distribution: the first token whose cumulative weight exceeds the draw has
    # weight > 0.
    cumulative = weights.cumsum(dim=-1)
    ids = (cumulative <= (uniforms * cumulative[:, -1]).unsqueeze(1)).sum(dim=-1)
    if any(p.greedy for p in params):
        ids = torch.where(torch.tensor([p.greedy for p in params]), distribution.argmax(dim=-1), ids)
    ids = torch.where(ids < logits.shape[1], ids, distribution.argmax(dim=-1))
    logprobs = distribution.gather(1, ids.unsqueeze(1)).squeeze(1)
    return SampledTokens(ids.tolist(), logprobs.tolist(), distribution)


def _filter(weights: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero what top-k, top-p and min-p exclude; each looks at the unfiltered (B, V) probabilities."""
    vocab = weights.shape[1]
    top_k = torch.tensor([p.top_k if p.top_k != -1 else vocab for p in params]).unsqueeze(1)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64).unsqueeze(1)
    min_p = torch.tensor([p.min_p for p in params], dtype=torch.float64).unsqueeze(1)
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    keep = torch.arange(vocab).unsqueeze(0) < top_k
    keep &= before <= top_p
    keep &= ordered >= min_p * ordered[:, :1]
    keep[:, 0] = True
    return torch.zeros_like(weights).scatter(1, order, ordered * keep)


def seeded_uniform(seed: int, answer: int, position: int) -> float:
    """Give a number in [0, 1) that depends on nothing else: a retracted request goes on as it would have.

    The mixing function is splitmix64's finaliser, applied to each argument in turn.
    """
    state = 0
    for part in (seed, answer, position):
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return (state >> 11) / float(1 << 53)
