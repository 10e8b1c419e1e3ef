"""Which sessions are in scope of a selection, and their advantages under the estimator that is chosen."""

from __future__ import annotations

import numpy as np

from analysis.explorers.advantages import advantages_of_traces
from analysis.explorers.state import SelectionState
from analysis.explorers.table_rows import Column
from analysis.stats.columns import Floats, Ints

__all__ = ["SESSION_COLUMNS", "TRACE_COLUMNS", "session_advantages", "sessions_in_scope", "trace_advantage"]

_STATUS_BADGES = {"COMPLETED": "good", "ERROR": "serious", "TIMEOUT": "warning"}
SESSION_COLUMNS = (
    Column("session_id", "session", kind="id", width=24),
    Column("rollout_id", "rollout"),
    Column("status", kind="badge", badges=_STATUS_BADGES, width=13),
    Column("reward", kind="bar"),
    Column("advantage", kind="bar", title="Under the estimator that is chosen"),
    Column("turns"),
    Column("trainable_tokens", "trainable", title="Tokens that the trainer learns from"),
    Column("reason", "why unusable"),
)
"""How a table of sessions looks; `advantage` is added to the run's own columns."""

TRACE_COLUMNS = (
    Column("trace_index", "trace"),
    Column("reward"),
    Column("advantage", title="Under the estimator that is chosen"),
    Column("prompt_tokens", "prompt", title="Prompt tokens"),
    Column("response_tokens", "response", title="Response tokens, sampled or not"),
    Column("trainable_tokens", "trainable", title="Tokens that the trainer learns from"),
    Column("turns"),
    Column("finish_reason", "end", title="Finish reason of the last call"),
    Column("weight_version_oldest", "oldest", title="Oldest weights that served one of its turns"),
    Column("weight_version_newest", "newest", title="Newest weights that served one of its turns"),
    Column("logprob_mean", "logprob", title="Mean over the sampled tokens"),
    Column("train_logprob_abs_diff", "|train − rollout|", title="Mean absolute difference of logprobs"),
    Column("filter_reason", "filtered", title="Why the server's filter touched it"),
)
"""How a table of a session's traces looks."""


def sessions_in_scope(state: SelectionState) -> Ints:
    """Return the rows of the sessions that the group, else the brush leaves, whatever session is chosen.

    A group that nobody numbered is no group: sessions that were loaded alone are each in one of their own.
    """
    if state.group is None or (state.group.group, state.group.group_index) == (None, None):
        return state.tables.rows_in_rollouts("session", state.rollouts)
    row = state.tables.group_row(state.group)
    return np.flatnonzero(state.tables.group_of_session == (-2 if row is None else row))


def session_advantages(state: SelectionState) -> Floats:
    """Return each session's advantage, the mean over its traces that have one: shape (n,), NaN for none."""
    values, _ = advantages_of_traces(state)
    owner = state.tables.session_of_trace
    known = (owner >= 0) & np.isfinite(values)
    size = len(state.tables.sessions)
    count = np.bincount(owner[known], minlength=size)
    total = np.bincount(owner[known], weights=values[known], minlength=size)
    means: Floats = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return means


def trace_advantage(state: SelectionState, session: int, trace_index: int) -> float:
    """Return the advantage of one trace; NaN if there is none.

    Parameters
    ----------
    state
        With the estimator.
    session
        Row of its session.
    trace_index
        Its number there.
    """
    values, _ = advantages_of_traces(state)
    numbers = state.tables.traces["trace_index"].to_numpy(dtype=np.int64, na_value=-1)
    own = np.flatnonzero((state.tables.session_of_trace == session) & (numbers == trace_index))
    return float(values[own[0]]) if len(own) else float("nan")
