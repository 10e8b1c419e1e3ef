"""What an estimator is: a small frozen dataclass of hyper-parameters that maps rewards to advantages.

Calling one is a pure function. Besides the numbers, each class states its formula, its source, where it
departs from that source, and how it behaves when rewards are shifted or scaled and for a trajectory without
siblings; one suite of tests holds every registered class to these statements.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from slime_bridge.advantages.batch import Floats, RewardBatch
from slime_bridge.errors import AdvantageError

__all__ = [
    "AdvantageEstimator",
    "FromFunction",
    "Level",
    "Lone",
    "Scaling",
    "checked_advantages",
    "estimator_name",
    "explained_formula",
    "from_function",
]

Level = Literal["trace", "token"]
Scaling = Literal["equivariant", "invariant", "other"]
Lone = Literal["zero", "raw", "other"]


@dataclass(frozen=True)
class AdvantageEstimator(ABC):
    """Base of all estimators.

    Class attributes of a concrete estimator, for documentation and tests:

    formula
        The advantage in plain text. ``r`` is a trace's reward, ``m_j`` the mean reward of trajectory j, ``n``
        the number of valid trajectories of the group, ``W`` a standard deviation that is replaced by 1 where
        it is below 1e-6.
    source
        Where the estimator comes from.
    differences
        In what this implementation departs from the source.
    shift_invariant
        Adding one number to all rewards changes nothing, except for lone trajectories where `lone` is
        ``raw``.
    lone
        What the only valid trajectory of a group gets: ``zero``, its own ``raw`` reward, or ``other``.
    """

    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    differences: ClassVar[tuple[str, ...]] = ()
    shift_invariant: ClassVar[bool] = True
    lone: ClassVar[Lone] = "zero"

    @property
    def level(self) -> Level:
        """Whether a call returns one number per ``trace`` or per ``token``."""
        return "trace"

    @property
    def scaling(self) -> Scaling:
        """What multiplying all rewards by a positive number does: scale advantages alike, nothing, other."""
        return "equivariant"

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the further rewards that the estimator reads."""
        return ()

    @abstractmethod
    def __call__(self, batch: RewardBatch) -> Floats:
        """Return the advantages, float64.

        Shape (n,) in the order of the batch's traces; for a token-level estimator shape (N,) in the order of
        its tokens. Traces that failed, have no reward, or belong to a trajectory with nothing to train on get
        0.

        Raises
        ------
        AdvantageError
            If the batch lacks what the estimator needs.
        """

    def _require_finite(
        self, name: str, *, above: float | None = None, at_least: float | None = None
    ) -> None:
        """Check a numeric hyper-parameter."""
        value = getattr(self, name)
        allowed = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if (
            not allowed
            or (above is not None and value <= above)
            or (at_least is not None and value < at_least)
        ):
            bound = (
                f" above {above}"
                if above is not None
                else f" of at least {at_least}"
                if at_least is not None
                else ""
            )
            raise AdvantageError(
                f"{type(self).__name__}: {name} must be a finite number{bound}, got {value!r}"
            )


_SYMBOLS = (
    (re.compile(r"\br\b"), "r: the trace's reward"),
    (re.compile(r"\bm_j\b|\bm\b(?! over)"), "m_j: mean reward of trajectory j"),
    (
        re.compile(r"\bW\b(?! the )(?!.*\bW the )"),
        "W: sample deviation of the group's m_j, 1 where it is below 1e-6",
    ),
    (re.compile(r"\bkl_[tu]\b"), "kl: divergence from the reference policy at a token"),
    (re.compile(r"\bV_"), "V: the critic's value"),
)


def explained_formula(formula: str) -> str:
    """Return a formula with the meaning of the symbols that it does not define itself."""
    said = [words for symbol, words in _SYMBOLS if symbol.search(formula)]
    return f"{formula} ({'; '.join(said)})" if said else formula


def estimator_name(estimator: Any) -> str:
    """Return what to call an estimator in a message: the class, or a plain function's own name."""
    if isinstance(estimator, FromFunction):
        return estimator_name(estimator.function)
    if isinstance(estimator, partial):
        return estimator_name(estimator.func)
    own = getattr(estimator, "__qualname__", None)
    return own if isinstance(own, str) else type(estimator).__name__


def checked_advantages(estimator: Callable[[RewardBatch], Any], batch: RewardBatch) -> Floats:
    """Call an estimator and make sure that its answer can be trained on.

    Parameters
    ----------
    estimator
        Any callable on a batch. One that has no `level` is taken to be on the level of traces.

    Raises
    ------
    AdvantageError
        If the estimator raises or wants to end the process, the answer has the wrong shape, or it holds
        something that is not a finite number. The message names the estimator.
    """
    name = estimator_name(estimator)
    tokens = getattr(estimator, "level", "trace") == "token"
    if tokens and batch.tokens is None:
        raise AdvantageError(f"{name} needs per-token arrays, and this batch has none")
    length = int(batch.tokens.offsets[-1]) if tokens and batch.tokens is not None else len(batch)
    try:
        advantages = np.asarray(estimator(batch), dtype=np.float64)
    except AdvantageError:
        raise
    except (Exception, SystemExit) as exc:  # a user's estimator may raise anything; who failed matters too
        raise AdvantageError(f"{name} failed: {type(exc).__name__}: {exc}") from exc
    if advantages.shape != (length,):
        raise AdvantageError(f"{name} returned shape {advantages.shape}, expected ({length},)")
    wrong = np.flatnonzero(~np.isfinite(advantages))
    if len(wrong):
        where = int(wrong[0])
        raise AdvantageError(
            f"{name} returned {advantages[where]} at {where} (and {len(wrong) - 1} more like it)"
        )
    return advantages


@dataclass(frozen=True)
class FromFunction(AdvantageEstimator):
    """A plain function of rewards and ids as an estimator.

    Parameters
    ----------
    function
        Called as ``function(rewards, groups, trajectories)`` with the arrays of all eligible traces, that is
        without failed ones and without missing rewards; ids are numbered from 0. Returns one number per
        trace. The other traces get 0.
    """

    function: Callable[[Floats, Any, Any], Any]
    formula: ClassVar[str] = "function(rewards, groups, trajectories)"
    source: ClassVar[str] = "the user"
    shift_invariant: ClassVar[bool] = False
    lone: ClassVar[Lone] = "other"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise AdvantageError(
                f"expected a function of rewards, groups and trajectories, got {self.function!r}"
            )

    def __repr__(self) -> str:
        """Give the function's name and its parameters: where it lies in memory tells nobody anything."""
        given = self.function.keywords if isinstance(self.function, partial) else {}
        return f"{estimator_name(self)}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    @property
    def scaling(self) -> Scaling:
        """Unknown."""
        return "other"

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return what the function says."""
        grouping = batch.grouping
        chosen = grouping.eligible
        answer = self.function(
            batch.reward[chosen], grouping.group_of_trace[chosen], grouping.trajectory[chosen]
        )
        values = np.asarray(answer, dtype=np.float64)
        if values.shape != (int(chosen.sum()),):
            raise AdvantageError(
                f"{estimator_name(self)} returned shape {values.shape}, expected ({int(chosen.sum())},):"
                " one number per trace that takes part"
            )
        result = np.zeros(len(batch))
        result[chosen] = values
        return result


def from_function(function: Callable[[Floats, Any, Any], Any]) -> FromFunction:
    """Wrap a plain function of (rewards, groups, trajectories) as an estimator."""
    return FromFunction(function)


def parameters_of(cls: type[AdvantageEstimator]) -> dict[str, Any]:
    """Return an estimator's hyper-parameters and their defaults, in order."""
    return {f.name: f.default for f in fields(cls)}
