"""The advantages that an estimator gives for recorded rewards, and how hard each trace then pulls.

Gradient weight
---------------
Slime's default loss is ``1/G sum over trajectories j of (1/M_j) sum over its trainable tokens of A x``, with
``M_j`` the trajectory's trainable tokens and G the trajectories of an optimiser step. A trace of ``t``
trainable tokens and advantage ``A`` therefore pulls with ``|A| t / M_j`` (``reduction="trajectory"``); with a
loss per token (``calculate_per_token_loss``) it pulls with ``|A| t`` (``reduction="token"``). Shares are of
the sum over the rollout, so that common factors fall out.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats.batches import AnyEstimator, MissingReward, batches, per_trace, resolve
from analysis.stats.columns import Floats, Ints, integers, known, nullable
from analysis.stats.frames import TRACE_IDS, as_frames, ids_of
from analysis.stats.token_tables import TokenTable
from slime_bridge.advantages import checked_advantages

__all__ = ["Reduction", "gradient_weights", "kish_size", "recompute", "trainable_tokens"]

Reduction = Literal["trajectory", "token"]
"""How the trainer's loss weighs tokens: a mean per trajectory first, or all tokens alike."""


def recompute(
    run: Any,
    estimator: AnyEstimator,
    *,
    sessions: pd.DataFrame | None = None,
    tokens: TokenTable | None = None,
    missing_reward: MissingReward = "zero",
) -> pd.DataFrame:
    """Return the advantages that an estimator gives for recorded rewards.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames, or a table of traces alone; rollouts are computed one by one.
    estimator
        A name (``"loo"``, ``"grpo"``, ``"package.module:attribute"``), an estimator, or a plain function of
        (rewards, groups, trajectories).
    sessions
        Table of sessions: which of them failed, where the traces are in no dump; the lag; reward components
        out of the evaluators' reports. By default those of the run.
    tokens
        Token arrays, for estimators that give numbers per token. By default those of the run.
    missing_reward
        A usable trace without a reward counts as 0, which is what the bridge hands over by default, or, with
        ``"exclude"``, takes no part.

    Returns
    -------
    DataFrame
        One row per trace, in the order of the table of traces and with its index: the id columns;
        `advantage` (mean over trainable tokens for a token-level estimator), `advantage_min`,
        `advantage_max`, all ``Float64`` and missing for traces that take no part (evaluations, results
        nobody used); `counted`, whether the trace entered its trajectory's mean.

    Raises
    ------
    AdvantageError
        If the estimator is unknown, lacks something, or returns what cannot be trained on.
    StatsError
        If `run` is none of these, or a table of traces holds no rewards.
    """
    function = resolve(estimator)
    if isinstance(run, pd.DataFrame):
        if "reward" not in run:
            raise StatsError("the table has no column reward: `run.traces()` is the one with a row per trace")
        traces = as_frames({"traces": run}).traces
    else:
        frames = as_frames(run)
        traces = frames.traces
        sessions = frames.sessions if sessions is None else sessions
        if tokens is None and getattr(function, "level", "trace") == "token":
            tokens = frames.tokens
    values = np.full((3, len(traces)), np.nan)
    counted = np.zeros(len(traces), dtype=bool)
    for batch in batches(
        traces,
        sessions=sessions,
        tokens=tokens,
        components=getattr(function, "components", ()),
        missing_reward=missing_reward,
    ):
        answer = checked_advantages(function, batch.rewards)
        values[:, batch.rows] = per_trace(answer, batch.rewards)
        counted[batch.rows] = batch.rewards.grouping.counted
    result = ids_of(traces, TRACE_IDS)
    extra = nullable(
        {
            "advantage": values[0],
            "advantage_min": values[1],
            "advantage_max": values[2],
            "counted": counted,
        },
        index=traces.index,
    )
    return pd.concat([result, extra], axis=1)


def kish_size(weights: Floats, owner: Ints, count: int) -> Floats:
    """Return the effective number of things per owner, ``(sum w)^2 / sum w^2``; NaN where all weights are 0.

    Parameters
    ----------
    weights
        Shape (n,), not negative.
    owner
        Shape (n,): 0 to `count` - 1.
    count
        Number of owners.

    References
    ----------
    Kish 1965, Survey Sampling, section 11.7.
    """
    sums = np.bincount(owner, weights=weights, minlength=count)
    squares = np.bincount(owner, weights=weights * weights, minlength=count)
    sizes: Floats = np.divide(sums * sums, squares, out=np.full(count, np.nan), where=squares > 0)
    return sizes


def gradient_weights(
    advantage: Floats, trainable: Ints, trajectory: Ints, reduction: Reduction = "trajectory"
) -> Floats:
    """Return how hard each trace pulls on the weights, see the module's docstring; shape (n,).

    Parameters
    ----------
    advantage
        Shape (n,); NaN pulls with 0.
    trainable
        Shape (n,): trainable tokens.
    trajectory
        Shape (n,): 0, 1, ...
    reduction
        ``"trajectory"`` or ``"token"``.
    """
    if reduction not in ("trajectory", "token"):
        raise StatsError(f"reduction is 'trajectory' or 'token', got {reduction!r}")
    pull = np.abs(np.nan_to_num(advantage)) * trainable
    if reduction == "token" or not len(pull):
        return np.asarray(pull, dtype=np.float64)
    totals = np.bincount(trajectory, weights=trainable)
    return np.asarray(pull / np.maximum(totals[trajectory], 1.0), dtype=np.float64)


def trainable_tokens(traces: pd.DataFrame) -> Ints:
    """Return each trace's trainable tokens, those of the server's mask where no dump says; shape (n,)."""
    sampled = integers(traces, "sampled_tokens")
    return np.where(known(traces, "trainable_tokens"), integers(traces, "trainable_tokens"), sampled)
