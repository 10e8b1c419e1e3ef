"""Advantage estimators as another process can be told of them: a name, or a place to import from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from analysis.errors import SubmissionError
from slime_bridge.advantages import ESTIMATORS, AdvantageEstimator, get_estimator
from slime_bridge.errors import AdvantageError

__all__ = ["EstimatorChoice", "choose_estimator"]


@dataclass(frozen=True)
class EstimatorChoice:
    """An estimator by name, as ``polar_advantage_estimator`` takes it.

    Attributes
    ----------
    name
        A registered name or ``module:attribute``; None for the bridge's default.
    kwargs
        Its hyper-parameters.
    """

    name: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What to call it in legends and file names."""
        if self.name is None:
            return "default"
        settings = ",".join(f"{key}={value}" for key, value in self.kwargs.items())
        return self.name.rpartition(":")[2] + (f"({settings})" if settings else "")


def choose_estimator(
    estimator: str | AdvantageEstimator | type[AdvantageEstimator] | None,
) -> EstimatorChoice:
    """Return how to name an estimator to a training process.

    Parameters
    ----------
    estimator
        A name, ``module:attribute``, an estimator, its class, or None for what the trainer takes by default.

    Raises
    ------
    SubmissionError
        If a training process could not find it, or it cannot be made.
    """
    if estimator is None:
        return EstimatorChoice()
    if isinstance(estimator, str):
        choice = EstimatorChoice(estimator)
    else:
        cls = estimator if isinstance(estimator, type) else type(estimator)
        if not is_dataclass(cls):
            raise SubmissionError(
                f"{estimator!r} is no advantage estimator: pass a name, 'module:attribute', an object of "
                "slime_bridge.advantages or of a class derived from its AdvantageEstimator"
            )
        kwargs = {} if isinstance(estimator, type) else _settings(estimator)
        choice = EstimatorChoice(_name_of(cls), kwargs)
    try:
        get_estimator(choice.name or "", dict(choice.kwargs))
    except AdvantageError as error:
        raise SubmissionError(f"the estimator {choice.name!r} cannot be used: {error}") from error
    return choice


def _name_of(cls: type) -> str:
    for name, known in ESTIMATORS.items():
        if known is cls:
            return name
    if cls.__module__ in ("__main__", "builtins") or "<locals>" in cls.__qualname__:
        raise SubmissionError(
            f"{cls.__name__} is defined in this notebook, where a training process cannot import it: "
            "put it into a file beside the notebook (the cell magic %%writefile my_estimator.py), import it "
            "from there, or pass "
            f"'my_estimator:{cls.__name__}'"
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def _settings(estimator: AdvantageEstimator) -> dict[str, Any]:
    """Return the hyper-parameters that differ from their defaults."""
    values = {item.name: getattr(estimator, item.name) for item in fields(estimator)}
    return {item.name: values[item.name] for item in fields(estimator) if values[item.name] != item.default}
