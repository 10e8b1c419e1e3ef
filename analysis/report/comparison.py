"""Two runs side by side: what differs, how surely, and what their findings have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import AnalysisError
from analysis.html import escaped, table
from analysis.report.figures import by_name, figure_html
from analysis.report.findings import Findings
from analysis.report.measures import Measures
from analysis.report.redaction import Redactor
from analysis.report.rules import RULES
from analysis.report.sections import Section
from analysis.stats.columns import Floats, flags, floats, nullable, only, texts
from analysis.stats.configuration import configurations
from analysis.stats.frames import group_rows
from analysis.stats.paired import Difference, holm, paired_difference
from analysis.stats.sessions import session_seconds

__all__ = ["comparison_frame", "comparison_section", "settings_frame"]

_TYPES: dict[str, Any] = {"quantity": "string", "design": "string"} | {
    name: "Int64" if name in ("clusters", "only_first", "only_second") else "Float64"
    for name in (field.name for field in dataclasses.fields(Difference))
    if name != "design"
}
_COLUMNS = (
    "quantity",
    "first",
    "second",
    "difference",
    "low",
    "high",
    "p_holm",
    "detectable",
    "prompts",
    "design",
)
_ROUNDED = ("first", "second", "difference", "low", "high", "p_holm", "detectable")
_FIGURES = ("reward", "signal", "rejections", "policy_lag")
_LEAST_SESSIONS = 10
_TITLES = {
    "difference": "second minus first, mean over prompts",
    "low": "of the 95 % interval (bootstrap over prompts)",
    "high": "of the 95 % interval (bootstrap over prompts)",
    "p_holm": "two-sided, by flipping the signs of prompts, adjusted for the number of rows (Holm)",
    "detectable": "true difference that this comparison would find in four of five cases",
    "prompts": "that both runs tried; of both runs where they are not paired",
}


def comparison_frame(first: Measures, second: Measures) -> pd.DataFrame:
    """Compare two runs by what their sessions gave.

    Training is compared over the last third of the rollouts that both have, so that runs of different length
    are compared at the same age. Training prompts are matched by their digest, held-out questions by data set
    and number.

    Parameters
    ----------
    first, second
        Statistics of either run.

    Returns
    -------
    DataFrame
        One row per quantity: `quantity`, `first`, `second` (means over prompts), `difference`, `low`, `high`,
        `p_holm`, `detectable`, `prompts`, `design`; see `analysis.stats.paired`.
    """
    rows = []
    for label, mine, theirs in _quantities(first, second):
        if min(int((~np.isnan(side.values)).sum()) for side in (mine, theirs)) < _LEAST_SESSIONS:
            continue
        codes = pd.factorize(np.concatenate([mine.prompts, theirs.prompts]))[0].astype(np.int64)
        found = paired_difference(
            mine.values, codes[: len(mine.values)], theirs.values, codes[len(mine.values) :]
        )
        rows.append({"quantity": label, **dataclasses.asdict(found)})
    frame = pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)
    frame["p_holm"] = nullable({"p_holm": holm(floats(frame, "p_value"))})["p_holm"]
    return frame.rename(columns={"clusters": "prompts"})[list(_COLUMNS)]


@dataclass(frozen=True)
class _Side:
    """One quantity in one run: a value per session, NaN where the session does not count, and its prompt."""

    values: Floats
    prompts: np.ndarray


def _quantities(first: Measures, second: Measures) -> Iterator[tuple[str, _Side, _Side]]:
    """Yield each quantity for either run."""
    yield "held-out reward, last evaluation", _held_out(first), _held_out(second)
    ids = [floats(measures.series, "rollout_id") for measures in (first, second)]
    if not all(len(part) for part in ids):
        return
    last = int(min(part.max() for part in ids))
    start = last - (last + 1) // 3 + 1
    for label in ("training reward", "response tokens", "turns", "seconds", "failed share"):
        sides = [_training(measures, label, start, last) for measures in (first, second)]
        yield f"{label}, rollouts {start} to {last}", sides[0], sides[1]


def _held_out(measures: Measures) -> _Side:
    sessions = measures.frames.sessions
    rollout = np.where(flags(sessions, "evaluation"), floats(sessions, "rollout_id"), -1.0)
    rollout = np.nan_to_num(rollout, nan=-1.0)
    last = (rollout >= 0) & (rollout == rollout.max(initial=-1.0)) & flags(sessions, "usable")
    pairs = zip(texts(sessions, "dataset"), floats(sessions, "group_index"), strict=True)
    prompts = np.array([f"{name}#{number:.0f}" for name, number in pairs], dtype=object)
    return _Side(np.where(last, floats(sessions, "reward"), np.nan), prompts)


def _training(measures: Measures, label: str, start: int, last: int) -> _Side:
    frames = measures.frames
    sessions = frames.sessions
    rollout = floats(sessions, "rollout_id")
    counted = ~flags(sessions, "evaluation") & (rollout >= start) & (rollout <= last)
    attempted = flags(sessions, "attempted", missing=True) & ~flags(sessions, "early_stopped")
    if label == "seconds":
        values, counted = session_seconds(sessions), counted & attempted
    elif label == "failed share":
        status = texts(sessions, "status")
        values, counted = (status != "COMPLETED").astype(np.float64), counted & attempted & pd.notna(status)
    else:
        names = {"training reward": "reward", "response tokens": "response_tokens"}
        values, counted = floats(sessions, names.get(label, label)), counted & flags(sessions, "usable")
    prompts = np.full(len(sessions), None, dtype=object)
    if len(frames.groups):
        rows = group_rows(frames.groups, sessions)
        prompts = only(texts(frames.groups, "prompt_sha256")[rows], rows >= 0)
    return _Side(np.where(counted, values, np.nan), prompts)


def settings_frame(first: Measures, second: Measures, redactor: Redactor) -> pd.DataFrame:
    """Return the settings in which two runs differ, of their last journals: `setting`, `first`, `second`."""
    configs = [list(configurations(measures.frames).values())[-1:] for measures in (first, second)]
    if not all(configs):
        return pd.DataFrame({"setting": [], "first": [], "second": []}, dtype="string")
    mine, theirs = (dict(found[0]) for found in configs)
    rows = [
        (name, *(redactor.setting(name, side[name]) if name in side else None for side in (mine, theirs)))
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]
    return pd.DataFrame(rows, columns=["setting", "first", "second"], dtype="string")


def comparison_section(
    first: Measures,
    second: Measures,
    redactor: Redactor,
    *,
    findings: tuple[Findings, Findings],
    figures: bool = True,
) -> Section:
    """Return a section that sets a second run beside the first.

    Parameters
    ----------
    first, second
        Statistics of either run.
    redactor
        Through which all text goes.
    findings
        What the rules said about either run.
    figures
        Whether to draw.
    """
    names = [measures.run.names[0] for measures in (first, second)]
    labels = {"first": names[0], "second": names[1] if names[1] != names[0] else f"{names[1]} (second)"}
    frame = comparison_frame(first, second)
    parts = [
        table(
            frame,
            caption="What sessions gave, prompt by prompt",
            formats=dict.fromkeys(_ROUNDED, _rounded),
            labels=labels | {"p_holm": "p (Holm)"},
            titles=_TITLES,
        )
    ]
    parts.append(table(_findings_frame(*findings), caption="Findings", labels=labels))
    settings = settings_frame(first, second, redactor)
    if len(settings):
        parts.append(table(settings, caption="Settings that differ", labels=labels))
    tables = Markup('<div class="rp-tables">{}</div>').format(Markup("").join(parts))
    pairs = Markup("").join(_pairs(first, second, labels, redactor)) if figures else Markup("")
    intro = (
        "Differences are second minus first, each prompt counted once. An interval without 0 is a "
        "difference, taken alone; p allows for the number of rows. Where the interval holds 0, what is "
        "smaller than “detectable” may have been missed."
    )
    return Section("comparison", f"Compared with {labels['second']}", intro, tables + pairs)


def _rounded(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _findings_frame(first: Findings, second: Findings) -> pd.DataFrame:
    """Return one row per rule that found something in either run, with what it said."""
    said = [{f.rule: f"{f.severity}: {f.title}" for f in side.found} for side in (first, second)]
    rules = [name for name, _ in RULES if name in said[0] or name in said[1]]
    rows = [(name, said[0].get(name), said[1].get(name)) for name in rules]
    return pd.DataFrame(rows, columns=["rule", "first", "second"], dtype="string")


def _pairs(first: Measures, second: Measures, labels: dict[str, str], redactor: Redactor) -> Iterator[Markup]:
    for name in _FIGURES:
        sides = []
        for side, measures in (("first", first), ("second", second)):
            try:
                figure = figure_html(by_name(name), measures, redactor)
            except AnalysisError:  # one side lacks the data: the other is shown on the page anyway
                figure = None
            if figure is not None:
                sides.append(Markup("<div><h3>{}</h3>{}</div>").format(escaped(labels[side]), figure))
        if len(sides) == 2:
            yield Markup('<div class="rp-figures">{}</div>').format(Markup("").join(sides))
