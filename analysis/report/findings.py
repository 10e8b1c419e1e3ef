"""The findings that matter most: what a rule found, with its numbers, rows as evidence, and what to do.

Findings are ranked by severity (``serious`` before ``warning`` before ``info``), then by `impact`, the share
of the run that is concerned, then by the order of the rules. A rule that lacks its data says so; that is not
the same as having found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, StatsError
from analysis.stats.columns import Floats, floats

if TYPE_CHECKING:
    from analysis.report.measures import Measures

__all__ = ["SEVERITIES", "Finding", "Findings", "Rule", "course", "find", "known", "share_text"]

SEVERITIES = ("serious", "warning", "info")
"""Severities, the worst first."""

_COURSE_ROWS = 8


@dataclass(frozen=True, eq=False)
class Finding:
    """One thing that is worth knowing about a run.

    Attributes
    ----------
    rule
        Name of the rule that found it.
    severity
        A word of `SEVERITIES`: ``serious`` spoils what is learnt, ``warning`` costs much or will get worse,
        ``info`` is worth knowing.
    title
        What was found, with its numbers: one sentence.
    advice
        What to do, or where to look.
    impact
        Share of the run that is concerned, 0 to 1.
    rows
        The evidence.
    figure
        Name of the figure that shows it, or empty.
    """

    rule: str
    severity: str
    title: str
    advice: str
    impact: float
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)
    figure: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"no severity {self.severity!r}: there are {', '.join(SEVERITIES)}")


Rule = Callable[["Measures"], Finding | None]
"""Looks at the statistics of a run; None where all is well. Raises `StatsError` where it cannot look."""


@dataclass(frozen=True, eq=False)
class Findings:
    """What all rules said.

    Attributes
    ----------
    found
        Findings in order of rank, all of them.
    passed
        Names of rules that looked and found nothing.
    unchecked
        Names of rules that could not look, and why.
    """

    found: tuple[Finding, ...]
    passed: tuple[str, ...]
    unchecked: tuple[tuple[str, str], ...]


def find(measures: Measures, rules: Sequence[tuple[str, Rule]]) -> Findings:
    """Apply rules to a run.

    Parameters
    ----------
    measures
        Its statistics.
    rules
        Name and function of each.
    """
    found: list[Finding] = []
    passed: list[str] = []
    unchecked: list[tuple[str, str]] = []
    for name, rule in rules:
        try:
            finding = rule(measures)
        except AnalysisError as error:
            unchecked.append((name, str(error)))
            continue
        if finding is None:
            passed.append(name)
        else:
            found.append(finding)
    ranked = sorted(found, key=lambda f: (SEVERITIES.index(f.severity), -f.impact))
    return Findings(tuple(ranked), tuple(passed), tuple(unchecked))


def known(series: pd.DataFrame, name: str, what: str, least: int = 10) -> Floats:
    """Return a column of the rollout series as numbers.

    Parameters
    ----------
    series
        See `analysis.report.series.rollout_series`.
    name
        The column.
    what
        What it holds, for the message.
    least
        Values that a rule needs.

    Raises
    ------
    StatsError
        If fewer values are known.
    """
    values = floats(series, name)
    count = int((~np.isnan(values)).sum())
    if count < least:
        raise StatsError(f"{what} known for {count} of {len(values)} rollouts; at least {least} are needed")
    return values


def course(
    series: pd.DataFrame, names: Sequence[str], first: int = 0, stop: int | None = None
) -> pd.DataFrame:
    """Return some rollouts of the series as evidence, evenly spread, the first and the last included."""
    part = series.iloc[first:stop]
    chosen = np.unique(np.linspace(0, len(part) - 1, min(_COURSE_ROWS, len(part))).round().astype(np.int64))
    return part.iloc[chosen][["rollout_id", *names]].reset_index(drop=True)


def share_text(value: float) -> str:
    """Return a share in percent, with a decimal where it is small."""
    return f"{value:.1%}" if abs(value) < 0.0995 else f"{value:.0%}"
