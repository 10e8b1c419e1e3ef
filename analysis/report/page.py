"""One self-contained HTML file per run.

The page needs no network and no script: its policy forbids both, and everything from the run is escaped text.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from analysis.errors import ReportError
from analysis.html import css, escaped, passing, template
from analysis.parallel import somebody_watches
from analysis.report.comparison import comparison_section
from analysis.report.contents import SECTIONS
from analysis.report.findings import Findings, find
from analysis.report.measures import Measures
from analysis.report.redaction import Redactor
from analysis.report.rules import RULES
from analysis.report.sections import (
    Section,
    data_section,
    findings_section,
    fingerprint,
    plain_section,
    samples_section,
)
from analysis.stats.columns import floats
from analysis.stats.configuration import configurations

__all__ = ["Written", "write_report"]


@dataclass(frozen=True, eq=False)
class Written:
    """A report that was written.

    Attributes
    ----------
    path
        The file.
    size
        Bytes.
    findings
        What the rules said.
    removed, withheld
        Credentials and texts that are not in it, by kind.
    compared
        What the rules said about the second run; None without one.
    """

    path: Path
    size: int
    findings: Findings
    removed: Mapping[str, int]
    withheld: Mapping[str, int]
    compared: Findings | None = None


def write_report(
    run: Any,
    path: str | os.PathLike[str],
    *,
    compare: Any = None,
    content: bool = True,
    emails: bool = True,
    figures: bool = True,
    progress: bool | None = None,
) -> Written:
    """Write a run as one HTML file.

    Parameters
    ----------
    run
        A loaded run, or a part of one.
    path
        Where to; a file that is there is replaced when the new one is complete.
    compare
        A second run to set beside it.
    content
        Whether texts of users, tasks and models may be in it.
    emails
        Whether e-mail addresses may be in it. Credentials never are.
    figures
        Whether to draw them; a page without is made in a fraction of the time.
    progress
        Whether to show what is being computed; by default where somebody watches.

    Raises
    ------
    ReportError
        If there is nothing in a run, or it holds several, or no file can be at `path`.
    OSError
        If it cannot be written there.
    """
    target = Path(path)
    for one in (run, compare):
        if one is not None:
            _check(one)
    _check_target(target)
    redactor = Redactor(content=content, emails=emails)
    steps = _shown_steps(progress, len(SECTIONS) + 4 + (compare is not None))
    # Sums of rewards without bounds have none either: that is for the page to show, not for warnings.
    with steps as step, passing(redactor), np.errstate(over="ignore", invalid="ignore"):
        measures = Measures(run)
        step("findings")
        found = find(measures, RULES)
        sections, drawn = _sections(measures, redactor, figures, step)
        beside: Findings | None = None
        if compare is not None:
            step("comparison")
            second = Measures(compare)
            beside = find(second, RULES)
            sections.insert(
                0, comparison_section(measures, second, redactor, findings=(found, beside), figures=figures)
            )
        sections.insert(0, findings_section(found, redactor, drawn))
        step("page")
        data = _page(measures, found, sections, redactor).encode("utf-8")
    _replace(target, data)
    return Written(target, len(data), found, dict(redactor.removed), dict(redactor.withheld), beside)


def _check(run: Any) -> None:
    names = getattr(run, "names", None)
    if names is None:
        raise ReportError(
            f"a report is about a loaded run, as analysis.load gives it, got a {type(run).__name__}"
        )
    if not names:
        raise ReportError(
            "there is nothing in this run to report on: no table has a row; run.problems and run.skipped list"
            " what was not read"
        )
    if len(names) > 1:
        shown = ", ".join(names[:5])
        raise ReportError(
            f"a report is about one run, and this holds {len(names)}: {shown}; choose one with "
            f"run.filter(run={names[0]!r})"
        )


def _check_target(target: Path) -> None:
    """Raise before minutes of work if the page could not be put where it is wanted."""
    if target.is_dir():
        raise ReportError(f"{target} is a folder: name the file, such as {target / 'report.html'}")
    if not target.parent.is_dir():
        raise ReportError(f"there is no folder {target.parent} for {target.name}")


def _sections(
    measures: Measures, redactor: Redactor, figures: bool, step: Callable[[str], None]
) -> tuple[list[Section], set[str]]:
    drawn: set[str] = set()
    made: list[Section | None] = []
    for spec in SECTIONS if figures else [replace(spec, figures=()) for spec in SECTIONS]:
        step(spec.title.lower())
        made.append(plain_section(spec, measures, redactor, drawn))
    step("sessions")
    made.append(samples_section(measures, redactor))
    step("data")
    made.append(data_section(measures, redactor))
    return [section for section in made if section is not None], drawn


def _page(measures: Measures, found: Findings, sections: list[Section], redactor: Redactor) -> str:
    style = css() + "\n" + _read("page.css")
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    title, kicker = escaped(measures.run.names[0]), escaped(_kicker(measures))
    return _template().render(
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
        f"form-action 'none'",
        version=_version(),
        title=title,
        kicker=kicker,
        style=Markup(style),
        numbers=_numbers(measures, found),
        sections=sections,
        footer=_footer(redactor),
    )


def _kicker(measures: Measures) -> str:
    parts = ["Report of a rollout run"]
    times = measures.frames.rollouts["delivered_at"].dropna()
    if len(times):
        parts.append(f"{times.min():%Y-%m-%d %H:%M} to {times.max():%Y-%m-%d %H:%M} UTC")
    configs = list(configurations(measures.frames).values())
    if configs:
        parts.append(f"configuration {fingerprint(configs[-1])}")
    return " · ".join(parts)


def _numbers(measures: Measures, found: Findings) -> list[tuple[str, str, str]]:
    frames, series = measures.frames, measures.series
    delivered, rejected = (int(floats(series, name).sum()) for name in ("delivered", "rejected"))
    reward = series["reward"].dropna()
    held_out = frames.rollouts[frames.rollouts["evaluation"].fillna(False)]["reward_mean"].dropna()
    serious = sum(finding.severity == "serious" for finding in found.found)
    numbers = [
        ("training rollouts", f"{len(series):,}", ""),
        ("groups trained on", f"{delivered:,}", f"{rejected:,} rejected" if rejected else ""),
        ("sessions", f"{len(frames.sessions):,}", ""),
    ]
    if len(reward):
        width = max(1, len(reward) // 10)
        numbers.append(
            (
                "training reward, last tenth",
                f"{reward.tail(width).mean():.3g}",
                f"from {reward.head(width).mean():.3g}",
            )
        )
    if len(held_out):
        first = f"from {held_out.iloc[0]:.3g}" if len(held_out) > 1 else ""
        numbers.append(("held-out reward", f"{held_out.iloc[-1]:.3g}", first))
    numbers.append(("findings", f"{len(found.found)}", f"{serious} serious" if serious else ""))
    return numbers


def _footer(redactor: Redactor) -> Markup:
    removed = _listed(redactor.removed)
    said = [
        f"Removed from this page: {removed}."
        if removed
        else "No credential was found in what this page shows."
    ]
    if not redactor.content:
        said.append(f"Made without content; withheld: {_listed(redactor.withheld) or 'nothing'}.")
    elif redactor.withheld:
        said.append(f"Withheld: {_listed(redactor.withheld)}.")
    made = f"Made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by slime-bridge {_version()}."
    return Markup("{} {}").format(" ".join(said), made)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} ({count:,})" for kind, count in sorted(counts.items()))


@cache
def _template() -> jinja2.Template:
    return template(_read("page.html"))


def _read(name: str) -> str:
    return files("analysis.report").joinpath(name).read_text("utf-8")


def _version() -> str:
    try:
        return version("slime-bridge")
    except PackageNotFoundError:  # run from a checkout that nobody installed
        return "from a checkout"


def _replace(target: Path, data: bytes) -> None:
    """Write beside the target and rename, so that no half of a page is ever in its place."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        beside.write_bytes(data)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _shown_steps(progress: bool | None, count: int) -> Iterator[Callable[[str], None]]:
    """Show what is being computed: a function to call before each step."""
    if progress is False or (progress is None and not somebody_watches()):
        yield lambda name: None
        return
    from tqdm.auto import tqdm  # here: it looks for a notebook when it is imported

    with tqdm(total=count, unit="step", leave=False) as bar:

        def step(name: str) -> None:
            bar.set_description(f"report: {name}")
            bar.update()

        yield step
