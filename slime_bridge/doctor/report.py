"""Findings of the doctor, and the report that holds them.

A finding says what was looked at, what was seen, and what to do. Knows nothing of the checks themselves.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slime_bridge.redaction import redact

__all__ = ["Finding", "Report", "Severity", "counted", "finding"]


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """Checked, and as it should be."""
    INFO = "info"
    """Worth knowing."""
    SKIPPED = "skipped"
    """Could not be checked, and why."""
    WARNING = "warning"
    """Training may start, and something will not be as intended."""
    ERROR = "error"
    """Training would fail, or train on nothing."""


_ORDER = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Parameters
    ----------
    check
        Which check.
    severity
        How much it matters.
    summary
        One sentence.
    evidence
        What was seen; may have several lines.
    fix
        What to do; empty where nothing is to be done.
    """

    check: str
    severity: Severity
    summary: str
    evidence: str = ""
    fix: str = ""

    def render(self) -> str:
        """Return the finding as text: a line, evidence and fix indented below it."""
        lines = [f"{self.severity.upper():<8} {self.check}: {self.summary}"]
        for label, text in (("", self.evidence), ("fix: ", self.fix)):
            for line in text.splitlines():
                lines += textwrap.wrap(
                    f"{label}{line}",
                    width=118,
                    initial_indent=" " * 9,
                    subsequent_indent=" " * 11,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                label = ""
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the doctor found, in the order of the checks.

    Parameters
    ----------
    findings
        At least one per check.
    seconds
        Time that it took.
    """

    findings: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    @property
    def worst(self) -> Severity:
        """The severity that matters most."""
        return max((f.severity for f in self.findings), key=_ORDER.index, default=Severity.OK)

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings by severity."""
        counted = Counter(finding.severity for finding in self.findings)
        return {severity.value: counted[severity] for severity in Severity}

    def of(self, check: str) -> list[Finding]:
        """Return one check's findings."""
        return [finding for finding in self.findings if finding.check == check]

    def to_rows(self) -> list[dict[str, str]]:
        """Return one flat row per finding: ``check``, ``severity``, ``summary``, ``evidence``, ``fix``."""
        return [{k: str(v) for k, v in dataclasses.asdict(finding).items()} for finding in self.findings]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON builtins."""
        return {
            "ok": self.ok,
            "worst": self.worst.value,
            "counts": self.counts,
            "seconds": round(self.seconds, 3),
            "findings": self.to_rows(),
        }

    def summary(self) -> str:
        """Return the outcome in one line."""
        counts = ", ".join(
            counted(number, name) if name in (Severity.WARNING, Severity.ERROR) else f"{number} {name}"
            for name, number in self.counts.items()
            if number
        )
        outcome = "ready to train" if self.ok else "not ready to train"
        return f"{outcome}: {counts} in {self.seconds:.1f} s"

    def render(self) -> str:
        """Return all findings and the outcome as text."""
        return "\n".join([*(finding.render() for finding in self.findings), self.summary()])


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 engine``, ``2 engines``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def finding(check: str, severity: Severity, summary: str, *, evidence: str = "", fix: str = "") -> Finding:
    """Make a finding with credentials removed from all of its texts."""
    return Finding(check, severity, redact(summary), redact(evidence), redact(fix))
