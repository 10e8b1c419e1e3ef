"""What can be laid over tokens: mask, probability, logprob difference, advantage, weights, place.

An overlay turns values into a few levels with fixed bounds, so that a colour means the same in every trace.
Level 0 is always: nothing is known. What a level looks like is the style sheet's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.errors import ExplorerError
from analysis.trace_tokens import TraceTokens

__all__ = ["OVERLAYS", "Overlay", "available_overlays", "find_overlay", "legend_of", "levels_of"]

Levels = NDArray[np.uint8]


@dataclass(frozen=True)
class Overlay:
    """One way to look at tokens.

    Attributes
    ----------
    name, label
        For programs and for people.
    scale
        How its levels are coloured: ``mask``, ``amount`` (more and more), ``time``, ``signed`` (around 0),
        or ``versions``.
    meaning
        What is shown, in a sentence.
    legend
        Level and what it means, in order; of ``versions`` empty, as they differ from trace to trace.
    levels
        Gives each token its level.
    """

    name: str
    label: str
    scale: str
    meaning: str
    legend: tuple[tuple[int, str], ...]
    levels: Callable[[TraceTokens], Levels]


def find_overlay(name: str) -> Overlay:
    """Return an overlay.

    Raises
    ------
    ExplorerError
        If there is none of that name.
    """
    if name not in OVERLAYS:
        raise ExplorerError(f"no overlay is called {name!r}: there are {', '.join(OVERLAYS)}")
    return OVERLAYS[name]


def levels_of(tokens: TraceTokens, overlay: str) -> Levels:
    """Return the level of each token, uint8, shape (n,).

    Raises
    ------
    ExplorerError
        If there is no such overlay.
    """
    return find_overlay(overlay).levels(tokens)


def legend_of(tokens: TraceTokens, overlay: str) -> tuple[tuple[int, str], ...]:
    """Return the levels that an overlay can give to these tokens, and what they mean."""
    if overlay == "version":
        return tuple((1 + place % _VERSION_LEVELS, name) for place, name in enumerate(tokens.versions))
    return find_overlay(overlay).legend


def available_overlays(tokens: TraceTokens) -> list[str]:
    """Return the names of the overlays that know something about one of these tokens."""
    return [name for name in OVERLAYS if levels_of(tokens, name).any()]


_VERSION_LEVELS = 8
_PROBABILITIES = (0.99, 0.9, 0.5, 0.1, 0.01)
_DIFFERENCES = (0.01, 0.05, 0.2, 1.0)
_ADVANTAGES = (0.0, 0.1, 0.5, 1.0)
_PLACES = (1, 4, 16, 64, 256, 1024)
_MIDDLE = 5
"""Level of 0 on a signed scale, which has four levels on either side."""


def _mask_levels(tokens: TraceTokens) -> Levels:
    levels = np.select(
        [
            tokens.position < tokens.prompt_tokens,
            tokens.mask == 0,
            (tokens.mask == 1) & (tokens.trainable != 0),
            tokens.mask == 1,
        ],
        [1, 2, 3, 4],
        0,
    )
    return np.asarray(levels, dtype=np.uint8)


def _logprob_levels(tokens: TraceTokens) -> Levels:
    bounds = -np.log(np.array(_PROBABILITIES))
    surprise = -tokens.logprob.astype(np.float64)
    return _known(_where(tokens.logprob, tokens.sampled), 1 + np.searchsorted(bounds, surprise, side="left"))


def _signed(values: NDArray[np.float32], bounds: tuple[float, ...]) -> Levels:
    # Bounds as values are stored: a recorded 0.1 is not above 0.1.
    size = np.searchsorted(np.array(bounds, dtype=np.float32), np.abs(values), side="left")
    return _known(values, _MIDDLE + np.sign(np.nan_to_num(values)).astype(np.int64) * size)


def _where(values: NDArray[np.float32], counts: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return values where they count: trainers and servers fill the rest with numbers that mean nothing."""
    return np.where(counts, values, np.float32(np.nan))


def _known(values: NDArray[np.float32], levels: NDArray[Any]) -> Levels:
    return np.where(np.isnan(values), 0, levels).astype(np.uint8)


def _version_levels(tokens: TraceTokens) -> Levels:
    return np.where(tokens.version < 0, 0, 1 + tokens.version % _VERSION_LEVELS).astype(np.uint8)


def _place_levels(tokens: TraceTokens) -> Levels:
    levels = 1 + np.searchsorted(np.array(_PLACES), tokens.turn_position, side="right")
    return np.where(tokens.turn_position < 0, 0, levels).astype(np.uint8)


def _signed_legend(bounds: tuple[float, ...]) -> tuple[tuple[int, str], ...]:
    top = len(bounds)
    negative = [f"< −{bounds[-1]:g}"] + [f"≥ −{bound:g}" for bound in reversed(bounds[1:])]
    middle = "0" if bounds[0] == 0 else f"within ±{bounds[0]:g}"
    positive = [f"≤ {bound:g}" for bound in bounds[1:]] + [f"> {bounds[-1]:g}"]
    return tuple(enumerate([*negative, middle, *positive], _MIDDLE - top))


def _amount_legend() -> tuple[tuple[int, str], ...]:
    labels = [f"p ≥ {bound:g}" for bound in _PROBABILITIES] + [f"p < {_PROBABILITIES[-1]:g}"]
    return tuple(enumerate(labels, 1))


def _place_legend() -> tuple[tuple[int, str], ...]:
    lows = (0, *_PLACES)
    highs = [high - 1 for high in _PLACES]
    labels = [f"{low}" if low == high else f"{low}–{high}" for low, high in zip(lows, highs, strict=False)]
    return tuple(enumerate([*labels, f"from {_PLACES[-1]}"], 1))


_ALL = (
    Overlay(
        "mask",
        "mask",
        "mask",
        "What the policy sampled, and what of it is trained on.",
        ((1, "prompt"), (2, "not sampled"), (3, "trained on"), (4, "sampled, not trained on")),
        _mask_levels,
    ),
    Overlay(
        "logprob",
        "probability",
        "amount",
        "Probability of the token under the policy that sampled it.",
        _amount_legend(),
        _logprob_levels,
    ),
    Overlay(
        "difference",
        "train − rollout",
        "signed",
        "The trainer's logprob minus the sampler's, in nats.",
        _signed_legend(_DIFFERENCES),
        lambda tokens: _signed(tokens.difference, _DIFFERENCES),
    ),
    Overlay(
        "advantage",
        "advantage",
        "signed",
        "Advantage of the token: whether it is pushed up or down.",
        _signed_legend(_ADVANTAGES),
        lambda tokens: _signed(_where(tokens.advantage, tokens.learns), _ADVANTAGES),
    ),
    Overlay(
        "version",
        "weight version",
        "versions",
        "Version of the weights that sampled the token.",
        (),
        _version_levels,
    ),
    Overlay(
        "place",
        "place in turn",
        "time",
        "How many tokens of its turn were sampled before it.",
        _place_legend(),
        _place_levels,
    ),
)
OVERLAYS: Mapping[str, Overlay] = MappingProxyType({overlay.name: overlay for overlay in _ALL})
"""Overlays by name."""
