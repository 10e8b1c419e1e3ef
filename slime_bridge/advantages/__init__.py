"""Advantage estimators: the same object in a notebook and in production.

An estimator is a frozen dataclass of hyper-parameters. Called with a `RewardBatch` it returns float64
advantages, one per trace or, for some, one per token::

    estimator = get_estimator("grpo", {"epsilon": 1e-4})
    advantages = estimator(batch)

Names are looked up in `ESTIMATORS`; ``package.module:attribute`` names a class of your own, a ready
estimator, or a plain function of (rewards, groups, trajectories), which `from_function` wraps in one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from slime_bridge.advantages.base import (
    AdvantageEstimator,
    FromFunction,
    checked_advantages,
    estimator_name,
    explained_formula,
    from_function,
    parameters_of,
)
from slime_bridge.advantages.batch import Grouping, RewardBatch, TokenArrays
from slime_bridge.advantages.best_of_k import MaxAtK, PassAtK
from slime_bridge.advantages.group_relative import GRPO, GSPO, RLOO, DrGRPO, LeaveOneTrajectoryOut
from slime_bridge.advantages.multi_reward import DVAO, GDPO
from slime_bridge.advantages.statistics import SPREAD_FLOOR, group_spreads
from slime_bridge.advantages.token_level import GAE, ReinforcePlusPlus, ReinforcePlusPlusBaseline
from slime_bridge.errors import AdvantageError

__all__ = [
    "DVAO",
    "ESTIMATORS",
    "GAE",
    "GDPO",
    "GRPO",
    "GSPO",
    "RLOO",
    "SPREAD_FLOOR",
    "AdvantageEstimator",
    "DrGRPO",
    "FromFunction",
    "Grouping",
    "LeaveOneTrajectoryOut",
    "MaxAtK",
    "PassAtK",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RewardBatch",
    "TokenArrays",
    "checked_advantages",
    "estimator_name",
    "explained_formula",
    "from_function",
    "get_estimator",
    "group_spreads",
    "parameters_of",
]

ESTIMATORS: Mapping[str, type[AdvantageEstimator]] = MappingProxyType(
    {
        "loo": LeaveOneTrajectoryOut,
        "grpo": GRPO,
        "dr_grpo": DrGRPO,
        "rloo": RLOO,
        "reinforce_plus_plus": ReinforcePlusPlus,
        "reinforce_plus_plus_baseline": ReinforcePlusPlusBaseline,
        "gspo": GSPO,
        "max_at_k": MaxAtK,
        "pass_at_k": PassAtK,
        "gdpo": GDPO,
        "dvao": DVAO,
        "gae": GAE,
    }
)
"""The estimators that can be asked for by name; ``loo`` is the bridge's default."""


def get_estimator(name: str, kwargs: Mapping[str, Any] | None = None) -> Callable[[RewardBatch], Any]:
    """Return an estimator by name or path.

    Parameters
    ----------
    name
        A key of `ESTIMATORS`, or ``package.module:attribute``. The attribute may be an estimator class, which
        is called with `kwargs`; a plain function of (rewards, groups, trajectories), to which `kwargs` are
        bound; or a ready estimator, which takes no `kwargs`.
    kwargs
        Hyper-parameters.

    Raises
    ------
    AdvantageError
        If the name is unknown, the path cannot be imported, or the hyper-parameters do not fit.
    """
    if not isinstance(kwargs, Mapping | None) or not all(isinstance(key, str) for key in kwargs or ()):
        raise AdvantageError(
            f"hyper-parameters of {name} are {kwargs!r:.200}: expected a mapping of names to values"
        )
    arguments = dict(kwargs or {})
    if ":" not in name:
        if name not in ESTIMATORS:
            near = difflib.get_close_matches(name, ESTIMATORS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise AdvantageError(
                f"unknown advantage estimator {name!r}{hint}; known are {', '.join(ESTIMATORS)},"
                " and package.module:attribute"
            )
        return _construct(name, ESTIMATORS[name], arguments)
    found = _import(name)
    if isinstance(found, type):
        return _construct(name, found, arguments)
    if isinstance(found, AdvantageEstimator) or (hasattr(found, "level") and callable(found)):
        if arguments:
            raise AdvantageError(
                f"{name} is a ready estimator and takes no hyper-parameters, got {sorted(arguments)}"
            )
        estimator: Callable[[RewardBatch], Any] = found
        return estimator
    if not callable(found):
        raise AdvantageError(f"{name} is a {type(found).__name__}: neither an estimator nor a function")
    return from_function(partial(found, **arguments) if arguments else found)


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as exc:  # importing runs the module, which may raise anything
        kind = "" if isinstance(exc, ImportError | AttributeError | ValueError) else f"{type(exc).__name__}: "
        raise AdvantageError(f"cannot import the advantage estimator {path!r}: {kind}{exc}") from exc
    return found


def _construct(name: str, cls: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[RewardBatch], Any]:
    try:
        estimator = cls(**arguments)
    except TypeError as exc:
        known = ""
        if isinstance(cls, type) and issubclass(cls, AdvantageEstimator):
            known = f"; it takes {', '.join(parameters_of(cls)) or 'none'}"
        raise AdvantageError(f"hyper-parameters of {name} do not fit: {exc}{known}") from exc
    except AdvantageError:
        raise
    except (Exception, SystemExit) as exc:  # a class of the user's may raise anything
        raise AdvantageError(f"{name} cannot be made: {type(exc).__name__}: {exc}") from exc
    if not callable(estimator):
        raise AdvantageError(
            f"{name} makes a {type(estimator).__name__}, which cannot be called with a batch"
        )
    return estimator  # type: ignore[no-any-return]
