"""Lax numbers in session results: what pydantic's lax mode reads and a typed decoder refuses.

Works on parsed JSON before it is given its types. Only the number arrays and the reward of traces are
touched; whatever cannot be read as the expected number is left in place, so that the typed conversion names
its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["repair_session"]


def repair_session(session: Any) -> Any:
    """Return `session` with lax numbers in its traces made plain.

    Booleans become 0 and 1, numeric strings and integral floats become numbers; a null among the logprobs
    becomes NaN, because that is what the server made it from.

    Parameters
    ----------
    session
        A parsed session result; anything else is returned as it is. Changed in place.
    """
    trajectory = session.get("trajectory") if isinstance(session, dict) else None
    traces = trajectory.get("traces") if isinstance(trajectory, dict) else None
    for trace in traces if isinstance(traces, list) else ():
        if not isinstance(trace, dict):
            continue
        for name in ("prompt_ids", "response_ids", "loss_mask"):
            _repair_list(trace, name, lax_int)
        _repair_list(trace, "response_logprobs", _logprob)
        if trace.get("reward") is not None:
            trace["reward"] = lax_float(trace["reward"])
    return session


def _repair_list(trace: dict[str, Any], name: str, repair: Callable[[Any], Any]) -> None:
    values = trace.get(name)
    if isinstance(values, list):
        trace[name] = [repair(value) for value in values]


def lax_int(value: Any) -> Any:
    """Return the integer that `value` stands for, else `value`."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return lax_int(number) if isinstance(number := lax_float(value), float) else value
    return value


def lax_float(value: Any) -> Any:
    """Return the float that `value` stands for, else `value`."""
    if isinstance(value, bool | int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return value
    return value


def _logprob(value: Any) -> Any:
    return math.nan if value is None else lax_float(value)
