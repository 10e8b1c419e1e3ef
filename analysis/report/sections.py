"""The sections of a report, each from the statistics of a run to HTML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from analysis._summary import summary_facts
from analysis.errors import AnalysisError
from analysis.html import escaped, facts, table, template
from analysis.report.contents import SectionSpec
from analysis.report.figures import by_name, figure_html
from analysis.report.findings import Finding, Findings
from analysis.report.measures import Measures
from analysis.report.redaction import Redactor
from analysis.report.samples import choose_samples, sample_html
from analysis.stats.configuration import configurations

__all__ = ["Section", "data_section", "findings_section", "fingerprint", "plain_section", "samples_section"]

SHOWN_FINDINGS = 10
_SHOWN_SETTINGS = 200

_FINDINGS = template(
    """
{% if found %}
<ol class="rp-findings">
{% for finding in found %}
<li class="rp-finding"><span class="wb-badge wb-{{ finding.severity }}">{{ finding.severity }}</span><div>
<h3>{{ finding.title }}</h3>
<p>{{ finding.advice }}</p>
<div class="rp-links">{% if finding.figure %}<a href="#fig-{{ finding.figure }}">Figure</a>{% endif %}
{% if finding.rows %}
<details class="wb-more"><summary>Evidence</summary>{{ finding.rows }}</details>
{% endif %}</div>
</div></li>
{% endfor %}
</ol>
{% else %}
<p>No rule found anything that needs attention.</p>
{% endif %}
{% if more %}<p class="wb-note">{{ more }}</p>{% endif %}
<details class="wb-more"><summary>What was looked at, and how findings are ranked</summary>
<p>Serious findings spoil what is learnt, warnings cost much or will get worse, infos are worth knowing.
Within a severity, what concerns the larger share of the run comes first.</p>
<p>Found nothing: {{ passed or "none" }}.</p>
{% if unchecked %}<p>Could not look:</p><ul class="wb-list">
{% for name, why in unchecked %}<li>{{ name }}: {{ why }}</li>{% endfor %}
</ul>{% endif %}
</details>
"""
)
_FIGURE = Markup('<div id="fig-{}">{}</div>')


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes
    ----------
    name
        Its anchor.
    title, intro
        Its heading, and a line below it.
    body
        What it holds.
    """

    name: str
    title: str
    intro: str
    body: Markup


def findings_section(findings: Findings, redactor: Redactor, drawn: set[str]) -> Section:
    """Return the findings that matter most, with their evidence.

    Parameters
    ----------
    findings
        What the rules said.
    redactor
        Through which evidence goes.
    drawn
        Names of the figures that are on the page.
    """
    shown = findings.found[:SHOWN_FINDINGS]
    left = len(findings.found) - len(shown)
    body = _FINDINGS.render(
        found=[_shown_finding(finding, redactor, drawn) for finding in shown],
        more=f"{left} more of lower rank: analysis.report.findings has all." if left else "",
        passed=", ".join(findings.passed),
        unchecked=findings.unchecked,
    )
    return Section("findings", "Findings", "", Markup(body))


def _shown_finding(finding: Finding, redactor: Redactor, drawn: set[str]) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "title": finding.title,
        "advice": finding.advice,
        "figure": finding.figure if finding.figure in drawn else "",
        "rows": table(redactor.frame(readable_prompts(finding.rows)), caption=f"Evidence: {finding.rule}")
        if len(finding.rows)
        else "",
    }


def plain_section(
    spec: SectionSpec, measures: Measures, redactor: Redactor, drawn: set[str]
) -> Section | None:
    """Return a section of figures and tables; None where it would be empty.

    Parameters
    ----------
    spec
        What it holds.
    measures
        Statistics of the run.
    redactor
        Through which all text goes.
    drawn
        Gets the names of the figures that are there.
    """
    notes: list[str] = []
    figures = Markup("").join(_figures(spec.figures, measures, redactor, drawn, notes))
    tables = Markup("").join(_tables(spec.tables, measures, redactor, notes))
    said = Markup("").join(Markup('<p class="wb-note">{}</p>').format(escaped(note)) for note in notes)
    if not figures and not tables and not said:
        return None
    body = Markup('<div class="rp-figures">{}</div>').format(figures) if figures else Markup("")
    body += Markup('<div class="rp-tables">{}</div>').format(tables) if tables else Markup("")
    return Section(spec.name, spec.title, spec.intro, body + said)


def _figures(
    names: Iterable[str], measures: Measures, redactor: Redactor, drawn: set[str], notes: list[str]
) -> Iterable[Markup]:
    for name in names:
        try:
            figure = figure_html(by_name(name), measures, redactor)
        except AnalysisError as error:
            notes.append(f"The figure of {name.replace('_', ' ')} is left out: {error}")
            continue
        if figure is not None:
            drawn.add(name)
            yield _FIGURE.format(name, figure)


def _tables(
    specs: Iterable[tuple[str, Callable[[Measures], pd.DataFrame | None]]],
    measures: Measures,
    redactor: Redactor,
    notes: list[str],
) -> Iterable[Markup]:
    for caption, make in specs:
        try:
            frame = make(measures)
        except AnalysisError as error:
            notes.append(f"The table “{caption}” is left out: {error}")
            continue
        if frame is not None and len(frame):
            yield table(redactor.frame(readable_prompts(frame)), caption=caption, limit=12)


def samples_section(measures: Measures, redactor: Redactor) -> Section | None:
    """Return some sessions to read, or how many there would be where content may not be shown."""
    samples = choose_samples(measures)
    title, intro = "Sessions to read", "Some that stand for something; the explorers show all."
    if not redactor.content:
        redactor.withhold("transcript", len(samples))
        return (
            Section("samples", title, "Withheld: this page was made without content.", Markup(""))
            if samples
            else None
        )
    parts: list[Markup] = []
    notes = Markup("")
    for sample in samples:
        try:
            part = sample_html(measures, sample, redactor, opened=not parts)
        except AnalysisError as error:
            notes += Markup('<p class="wb-note">{}</p>').format(escaped(f"{sample.session_id}: {error}"))
            continue
        if part is not None:
            parts.append(part)
    if samples and not parts and not notes:
        intro = "No file kept what was said in the sessions of this run."
    return Section("samples", title, intro, Markup("").join(parts) + notes) if samples else None


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits that stand for a configuration.

    Parameters
    ----------
    config
        As the journal holds it; its own fingerprint is taken where it has one.
    """
    own = config.get("fingerprint")
    if isinstance(own, str) and own:
        return own[:12]
    text = json.dumps(config, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]


def data_section(measures: Measures, redactor: Redactor) -> Section:
    """Return what the page is made from: counts, files, problems, settings, and the checks of the data."""
    parts: list[Markup] = []
    if callable(getattr(measures.run, "filter", None)):
        parts.append(facts(summary_facts(measures.run)))
        problems = measures.run.problems
        if len(problems):
            parts.append(table(redactor.frame(problems), caption="Problems met while loading", limit=20))
    read, whole = measures.token_sample
    if read < whole:
        text = (
            "What needs token arrays (ratios, logprobs, audit) was computed on "
            f"{read} of {whole} rollouts, spread evenly."
        )
        parts.append(Markup('<p class="wb-note">{}</p>').format(text))
    checks = measures.audit.checks
    parts.append(_folded("Checks of the tokens and numbers", table(checks, limit=None)))
    for worker, config in configurations(measures.frames).items():
        rows = [(name, redactor.setting(name, value)) for name, value in sorted(config.items())]
        settings = table(
            pd.DataFrame(rows, columns=["setting", "value"], dtype="string"), limit=_SHOWN_SETTINGS
        )
        parts.append(
            _folded(f"Settings of the bridge, {worker}, fingerprint {fingerprint(config)}", settings)
        )
    return Section(
        "data",
        "What this is made from",
        "",
        Markup('<div class="rp-tables">{}</div>').format(Markup("").join(parts)),
    )


def readable_prompts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame in which previews of prompts hold what their last message says.

    Parameters
    ----------
    frame
        With or without a column `prompt_preview`; one that was cut in the middle stays as it is.
    """
    if "prompt_preview" not in frame:
        return frame
    said = frame["prompt_preview"].map(_said, na_action="ignore").astype("string")
    return frame.assign(prompt_preview=said)


def _said(preview: str) -> str:
    try:
        messages = json.loads(preview)
        content = messages[-1]["content"]
    except (ValueError, TypeError, LookupError):  # a text, or cut: it is shown as it is
        return preview
    return content if isinstance(content, str) else preview


def _folded(title: str, body: Markup) -> Markup:
    return Markup('<details class="wb-more"><summary>{}</summary>{}</details>').format(escaped(title), body)
