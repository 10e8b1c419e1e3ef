"""The input of every estimator: one rollout's rewards as arrays, and who belongs to whom.

The unit of exchange is the trajectory: all traces of one session. It is valid if one of its traces is valid,
has a trainable token and a reward; its reward is the mean over such traces. A missing reward is NaN and never
a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slime_bridge.errors import AdvantageError

__all__ = ["Floats", "Grouping", "RewardBatch", "TokenArrays"]

Floats = NDArray[np.float64]


def _column(values: ArrayLike, name: str, length: int, dtype: Any) -> NDArray[Any]:
    try:
        column = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as exc:
        raise AdvantageError(f"{name} cannot be read as {np.dtype(dtype).name}: {exc}") from exc
    if column.shape != (length,):
        raise AdvantageError(f"{name} has shape {column.shape}, expected ({length},)")
    return column


@dataclass(frozen=True, eq=False)
class TokenArrays:
    """Per-token arrays of all traces, one after another.

    Parameters
    ----------
    offsets
        Shape (n + 1,): trace i owns the tokens ``offsets[i]`` to ``offsets[i + 1]``, end excluded.
    mask
        Shape (N,): whether the policy sampled the token.
    kl
        Shape (N,): divergence from the reference policy per token, in nats; None if unknown.
    values
        Shape (N,): a critic's value before each token; None without a critic.
    """

    offsets: NDArray[np.int64]
    mask: NDArray[np.bool_]
    kl: Floats | None = None
    values: Floats | None = None

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets, dtype=np.int64)
        if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise AdvantageError("token offsets must start at 0 and never decrease")
        total = int(offsets[-1])
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "mask", _column(self.mask, "token mask", total, np.bool_))
        for name in ("kl", "values"):
            if getattr(self, name) is not None:
                column = _column(getattr(self, name), f"token {name}", total, np.float64)
                object.__setattr__(self, name, column)

    @classmethod
    def from_lists(
        cls,
        masks: Sequence[Sequence[int]],
        *,
        kl: Sequence[Sequence[float]] | None = None,
        values: Sequence[Sequence[float]] | None = None,
    ) -> TokenArrays:
        """Build from one list per trace."""
        offsets = np.concatenate([[0], np.cumsum([len(mask) for mask in masks], dtype=np.int64)])
        flat = [None if lists is None else np.concatenate([[], *lists]) for lists in (masks, kl, values)]
        return cls(offsets, *flat)  # type: ignore[arg-type]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens per trace, shape (n,)."""
        return np.diff(self.offsets)

    @cached_property
    def trace_of(self) -> NDArray[np.int64]:
        """Trace of each token, shape (N,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.lengths)


@dataclass(frozen=True, eq=False)
class RewardBatch:
    """One rollout's rewards, one entry per trace, in any order.

    Parameters
    ----------
    reward
        Shape (n,), float64; NaN where missing. Infinite counts as missing.
    group
        Shape (n,): which prompt group each trace belongs to; any integers or strings.
    trajectory
        Shape (n,): which trajectory of the group.
    trace
        Shape (n,): position within the trajectory; by default in the given order.
    valid
        Shape (n,): false where the trace failed or was aborted or removed; by default all true.
    trainable_tokens, response_tokens
        Shape (n,): tokens the trainer learns from, and all tokens after the prompt; by default 1 each.
    staleness
        Shape (n,): rollouts between submission and delivery; NaN where unknown, the default.
    components
        Further rewards by name, each of shape (n,), NaN where missing.
    tokens
        Per-token arrays, for estimators that need them.

    Raises
    ------
    AdvantageError
        If an array has another length or holds something else.
    """

    reward: Floats
    group: NDArray[Any]
    trajectory: NDArray[Any]
    trace: NDArray[np.int64] | None = None
    valid: NDArray[np.bool_] | None = None
    trainable_tokens: NDArray[np.int64] | None = None
    response_tokens: NDArray[np.int64] | None = None
    staleness: Floats | None = None
    components: Mapping[str, Floats] = field(default_factory=dict)
    tokens: TokenArrays | None = None

    def __post_init__(self) -> None:
        reward = np.asarray(self.reward)
        if reward.ndim != 1:
            raise AdvantageError(f"reward has shape {reward.shape}, expected one entry per trace")
        n = len(reward)
        columns: dict[str, NDArray[Any]] = {"reward": _column(reward, "reward", n, np.float64)}
        for name in ("group", "trajectory"):
            column = np.asarray(getattr(self, name))
            columns[name] = _column(column, name, n, column.dtype)
        for name, default, dtype in (
            ("trace", np.arange(n), np.int64),
            ("valid", np.ones(n), np.bool_),
            ("trainable_tokens", np.ones(n), np.int64),
            ("response_tokens", np.ones(n), np.int64),
            ("staleness", np.full(n, np.nan), np.float64),
        ):
            given = getattr(self, name)
            columns[name] = _column(default if given is None else given, name, n, dtype)
        components = {k: _column(v, f"component {k!r}", n, np.float64) for k, v in self.components.items()}
        for name, column in columns.items():
            object.__setattr__(self, name, column)
        object.__setattr__(self, "components", components)
        if self.tokens is not None and len(self.tokens.offsets) != n + 1:
            raise AdvantageError(f"tokens hold {len(self.tokens.offsets) - 1} traces, expected {n}")

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def grouping(self) -> Grouping:
        """Who belongs to whom, judged by `reward`."""
        return Grouping.of(self, np.isfinite(self.reward))

    def component(self, name: str) -> Floats:
        """Return a further reward by name.

        Raises
        ------
        AdvantageError
            If there is none of that name.
        """
        if name not in self.components:
            raise AdvantageError(f"no reward component {name!r}; this batch has {sorted(self.components)}")
        return self.components[name]


def _codes_by_appearance(keys: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys as numbers in order of first appearance, and where each one appears first."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse.reshape(-1)], first[order].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Grouping:
    """Traces, trajectories and groups of a batch, numbered in order of first appearance.

    Parameters
    ----------
    trajectory
        Shape (n,): trajectory of each trace, 0 to T - 1.
    group
        Shape (T,): group of each trajectory, 0 to G - 1.
    counted
        Shape (n,): traces that enter their trajectory's mean: valid, trainable, with a reward.
    valid
        Shape (T,): trajectories with at least one counted trace.
    eligible
        Shape (n,): traces that get an advantage: valid, with a reward, of a valid trajectory.
    n_groups
        G.
    """

    trajectory: NDArray[np.int64]
    group: NDArray[np.int64]
    counted: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    eligible: NDArray[np.bool_]
    n_groups: int

    @classmethod
    def of(cls, batch: RewardBatch, known: NDArray[np.bool_]) -> Grouping:
        """Build the grouping of a batch.

        Parameters
        ----------
        known
            Shape (n,): whether the reward in question is there and finite.
        """
        groups, _ = _codes_by_appearance(batch.group)
        members, _ = _codes_by_appearance(batch.trajectory)
        # A trajectory's number may come back in another group: there it is another trajectory.
        trajectory, first = _codes_by_appearance(groups * (len(batch) + 1) + members)
        assert batch.valid is not None
        assert batch.trainable_tokens is not None
        counted = batch.valid & (batch.trainable_tokens > 0) & known
        valid = np.bincount(trajectory[counted], minlength=len(first)) > 0
        return cls(
            trajectory=trajectory,
            group=groups[first],
            counted=counted,
            valid=valid,
            eligible=batch.valid & known & valid[trajectory],
            n_groups=int(groups.max(initial=-1)) + 1,
        )

    @property
    def group_of_trace(self) -> NDArray[np.int64]:
        """Group of each trace, shape (n,)."""
        return self.group[self.trajectory]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Valid trajectories per group, shape (G,)."""
        return np.bincount(self.group[self.valid], minlength=self.n_groups)

    def trajectory_means(self, values: Floats) -> Floats:
        """Return each trajectory's mean over its counted traces, shape (T,); NaN where there are none."""
        traces = self.trajectory[self.counted]
        sums = np.bincount(traces, weights=values[self.counted], minlength=len(self.group))
        counts = np.bincount(traces, minlength=len(self.group))
        means: Floats = np.divide(sums, counts, out=np.full(len(self.group), np.nan), where=counts > 0)
        return means
