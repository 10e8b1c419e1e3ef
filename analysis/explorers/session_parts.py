"""What is said of one session, as HTML and frames: facts, stages over time, evaluation; pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.html.tables import MISSING, facts
from analysis.html.text import escaped
from analysis.stats.columns import floats, seconds_since, texts
from analysis.stats.timing import STAGES

__all__ = ["evaluation_html", "session_facts", "stages_html", "stages_of"]

_STAGE_COLOURS: Mapping[str, str] = {
    "dispatch": "purple",
    "queue": "grey",
    "init": "orange",
    "ready": "sky",
    "run": "blue",
    "postrun_wait": "vermillion",
    "postrun": "green",
}
_STAGE_WORDS = {"postrun_wait": "wait for post-run", "postrun": "post-run", "ready": "wait for a slot"}
_STATUS = {"COMPLETED": "good", "ERROR": "serious", "TIMEOUT": "warning"}
_MOST_LANES = 64
_LONG_CELL = 4_000


def session_facts(session: pd.Series, group: str = "", advantage: tuple[float, str] | None = None) -> Markup:
    """Return what a row of the session table says, in a few lines.

    Parameters
    ----------
    session
        A row of ``run.sessions()``.
    group
        Name of its group, for people.
    advantage
        Of the session, and the estimator it is of; NaN for none.
    """
    status = _text(session, "status")
    badge = Markup('<span class="wb-badge wb-{}">{}</span>').format(
        _STATUS.get(status or "", "info"), escaped(status or "no result", 40)
    )
    head = Markup('<p class="wb-title"><span class="wb-code">{}</span> {}</p>').format(
        escaped(_text(session, "session_id") or "no id", 120), badge
    )
    pairs: list[tuple[str, str | Markup]] = [("reward", _number(session, "reward"))]
    if advantage is not None:
        value, estimator = advantage
        number = MISSING if math.isnan(value) else Markup(_signed(value))
        pairs.append(("advantage", number + Markup(" <span class='wb-muted'>{}</span>").format(estimator)))
    pairs.append(("group", escaped(group, 120) if group else MISSING))
    pairs.append(("policy", _policy(session)))
    pairs.append(("size", _size(session)))
    if (seconds := _seconds(session)) is not None:
        node = _text(session, "node_id")
        pairs.append(("time", escaped(f"{seconds:,.3g} s" + (f" on {node}" if node else ""), 120)))
    for name, label in (("error", "error"), ("reason", "why unusable"), ("reject_reason", "group rejected")):
        if found := _text(session, name):
            pairs.append(
                (label, Markup('<span class="wb-text">{}</span>').format(escaped(found, _LONG_CELL)))
            )
    if found := _text(session, "conflicts"):
        pairs.append(("sources disagree", escaped(found, _LONG_CELL)))
    return Markup('<div class="wb-columns">{}</div>').format(head + facts(pairs))


def stages_of(sessions: pd.DataFrame) -> pd.DataFrame:
    """Return when sessions were in which stage.

    Parameters
    ----------
    sessions
        Rows of the session table.

    Returns
    -------
    DataFrame
        One row per session and stage that took time: `place` (of the session in `sessions`), `stage`,
        `start`, `end` in seconds since the first submission among them. A session whose submission nobody
        recorded begins at 0.
    """
    begin = np.nan_to_num(seconds_since(sessions, "submitted_at")) if len(sessions) else np.zeros(0)
    if len(begin):
        known = seconds_since(sessions, "submitted_at")
        first = np.nanmin(known) if np.isfinite(known).any() else 0.0
        begin = np.where(np.isnan(known), 0.0, known - first)
    rows = []
    for name, column in STAGES.items():
        length = np.nan_to_num(floats(sessions, column)) / 1000.0
        end = begin + np.maximum(length, 0.0)
        for place in np.flatnonzero(length > 0):
            rows.append({"place": int(place), "stage": name, "start": begin[place], "end": end[place]})
        begin = end
    types = {"place": "int64", "stage": "string", "start": "float64", "end": "float64"}
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def stages_html(sessions: pd.DataFrame, here: str | None = None) -> Markup:
    """Return the stages of sessions as bars over time.

    Parameters
    ----------
    sessions
        Rows of the session table, such as a group's.
    here
        Id of the session that is looked at.
    """
    stages = stages_of(sessions)
    if stages.empty:
        return Markup('<p class="wb-note">No times of these sessions are known.</p>')
    whole = float(stages["end"].max()) or 1.0
    ids = texts(sessions, "session_id")
    shown = _lanes_shown(ids, here)
    lanes = Markup("").join(_lane(stages, place, ids[place], here, whole) for place in shown)
    ticks = Markup("").join(
        Markup('<span style="left:{:.4g}%">{}</span>').format(100 * tick / whole, _time(tick))
        for tick in _ticks(whole)
    )
    known = set(stages["stage"])
    legend = Markup("").join(
        Markup('<li><span class="wb-gantt-key" style="background:var(--wb-{})"></span>{}</li>').format(
            colour, _STAGE_WORDS.get(name, name)
        )
        for name, colour in _STAGE_COLOURS.items()
        if name in known
    )
    note = "Seconds since the first submission of the group."
    if len(shown) < len(ids):
        note = f"{len(shown)} of {len(ids)} sessions. {note}"
    return Markup(
        '<div class="wb-legend"><span class="wb-legend-name">stage</span><ul>{}</ul></div>'
        '<div class="wb-gantt">{}<span></span><div class="wb-gantt-scale">{}</div><span></span></div>'
        '<p class="wb-note">{}</p>'
    ).format(legend, lanes, ticks, note)


def evaluation_html(session: pd.Series) -> Markup:
    """Return the evaluator's report on a session.

    Parameters
    ----------
    session
        A row of ``run.sessions()``.
    """
    pairs: list[tuple[str, str | Markup]] = [
        ("evaluator", escaped(_text(session, "evaluator"), 120) or MISSING),
        ("outcome reward", _number(session, "outcome_reward")),
        ("reward", _number(session, "reward")),
        ("resolved", _flag(session, "resolved")),
    ]
    report = _text(session, "evaluation_report")
    if not report:
        return facts(pairs) + Markup('<p class="wb-note">No report of an evaluator was kept.</p>')
    try:
        found = json.loads(report)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return facts(pairs) + Markup('<pre class="wb-text">{}</pre>').format(escaped(report, 20_000))
    above = ("strategy", "outcome_reward", "resolved")
    told = [(str(name), value) for name, value in found.items() if name not in above]
    return facts([*pairs, *((escaped(name, 80), _value(value)) for name, value in told)])


def _value(value: Any) -> Markup:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return Markup("yes" if value else "no")
    if isinstance(value, int | float | str):
        text = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
        if "\n" in text or len(text) > 200:
            return Markup('<pre class="wb-text" dir="auto">{}</pre>').format(escaped(text, 20_000))
        return escaped(text)
    return Markup('<pre class="wb-text" dir="auto">{}</pre>').format(
        escaped(json.dumps(value, ensure_ascii=False, indent=1), 20_000)
    )


def _lanes_shown(ids: Any, here: str | None) -> list[int]:
    shown = list(range(min(len(ids), _MOST_LANES)))
    own = next((place for place, name in enumerate(ids) if name is not None and name == here), None)
    return shown if own is None or own in shown else [own, *shown[:-1]]


def _lane(stages: pd.DataFrame, place: int, session_id: Any, here: str | None, whole: float) -> Markup:
    own = stages[stages["place"] == place]
    mark = " wb-gantt-here" if session_id is not None and session_id == here else ""
    bars = Markup("").join(
        Markup(
            '<span class="wb-gantt-bar" style="left:{:.4g}%;width:{:.4g}%;background:var(--wb-{})" '
            'title="{}: {}"></span>'
        ).format(
            100 * start / whole,
            100 * (end - start) / whole,
            _STAGE_COLOURS[stage],
            _STAGE_WORDS.get(stage, stage),
            _time(end - start),
        )
        for stage, start, end in zip(own["stage"], own["start"], own["end"], strict=True)
    )
    took = _time(float(own["end"].max() - own["start"].min())) if len(own) else "—"
    name = escaped(_short(str(session_id)) if session_id is not None else "no id", 40)
    return Markup(
        '<span class="wb-gantt-name{}" title="{}">{}</span><div class="wb-gantt-lane{}">{}</div>'
        '<span class="wb-gantt-time">{}</span>'
    ).format(mark, escaped(str(session_id), 120), name, mark, bars, took)


def _short(session_id: str) -> str:
    """Return the part of an id that tells it from its siblings."""
    rest = session_id.removeprefix("sk-polar-")
    return rest if len(rest) <= 14 else f"{rest[:12]}…"


def _ticks(whole: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10(whole))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if whole / s <= 6)
    return [step * number for number in range(int(whole / step + 1e-9) + 1)]


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 1 else f"{seconds:.3g} s"


def _policy(session: pd.Series) -> Markup:
    version, lag = _plain(session, "policy_version"), _plain(session, "staleness")
    oldest, newest = _text(session, "weight_version_oldest"), _text(session, "weight_version_newest")
    parts = []
    if version is not None:
        parts.append(f"version {version} at submission")
    if oldest is not None:
        parts.append(f"weights {oldest}" if oldest == newest else f"weights {oldest} to {newest}")
    if lag is not None:
        parts.append(f"lag {lag}")
    return escaped(", ".join(parts), 200) if parts else MISSING


def _size(session: pd.Series) -> Markup:
    parts = []
    for name, one, many in (
        ("traces", "trace", "traces"),
        ("turns", "turn", "turns"),
        ("prompt_tokens", "prompt token", "prompt tokens"),
        ("response_tokens", "response token", "response tokens"),
        ("trainable_tokens", "trainable", "trainable"),
    ):
        value = _plain(session, name)
        if value is not None:
            parts.append(f"{int(value):,} {one if value == 1 else many}")
    return escaped(", ".join(parts), 300) if parts else MISSING


def _seconds(session: pd.Series) -> float | None:
    for name in ("e2e_ms", "rollout_pipeline_e2e_ms"):
        if (value := _plain(session, name)) is not None:
            return float(value) / 1000.0
    known = [float(value) for name in STAGES.values() if (value := _plain(session, name)) is not None]
    return sum(known) / 1000.0 if known else None


def _plain(session: pd.Series, name: str) -> Any:
    value = session.get(name)
    if value is None or value is pd.NA or value != value:
        return None
    return value


def _text(session: pd.Series, name: str) -> str | None:
    value = _plain(session, name)
    return None if value is None else str(value)


def _number(session: pd.Series, name: str) -> Markup:
    value = _plain(session, name)
    return MISSING if value is None else Markup(f"{float(value):.4g}".replace("-", "−"))


def _flag(session: pd.Series, name: str) -> Markup:
    value = _plain(session, name)
    return MISSING if value is None else Markup("yes" if value else "no")


def _signed(value: float) -> str:
    return f"{value:+.4g}".replace("-", "−")
