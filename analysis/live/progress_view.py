"""A snapshot of a run as HTML and as text: pure functions, from what is known to what is shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from analysis.html import escaped, facts, scoped, template
from analysis.live.curves import line_chart
from analysis.live.progress import ENDED, STAGES, Point, Snapshot

__all__ = ["Headline", "duration", "progress_html", "progress_text", "with_style"]

_COLOURS = {
    **dict.fromkeys(STAGES, "sky"),
    "SUBMITTED": "grey",
    "DISPATCHING": "grey",
    "REGISTERED": "grey",
    "RUNNING": "blue",
    "COMPLETED": "green",
    "TIMEOUT": "orange",
    "ERROR": "vermillion",
    "CANCELLED": "purple",
    "LOST": "purple",
}
_WORDS = {"POST_RUN": "finishing", "SUBMITTED": "submitted", "LOST": "no result"}
_TONES = {"running": "info", "done": "good", "stopped": "warning", "failed": "serious"}
_ERROR_CHARACTERS = 600
_SMOOTHED = 32

_VIEW = template(
    """
<div class="wb-live-head"><span class="wb-title">{{ title }}</span>
<span class="wb-badge wb-{{ tone }}">{{ state }}</span>
<span class="wb-muted wb-small">{{ detail }}</span></div>
{% if bar %}<div class="wb-live-bar" role="img" aria-label="{{ bar_label }}">{% for part in bar -%}
<span style="--key:var(--wb-{{ part.colour }});flex:{{ part.count }} 1 0" title="{{ part.text }}"></span>
{%- endfor %}</div>
<div class="wb-live-keys">{% for part in keys %}<span style="--key:var(--wb-{{ part.colour }})">
<b>{{ part.shown }}</b> {{ part.name }}</span>{% endfor %}</div>{% endif %}
<div class="wb-live-facts">{{ facts }}</div>
{% if charts %}<div class="wb-live-charts">{% for chart in charts %}{{ chart }}{% endfor %}</div>{% endif %}
{% if error %}<p class="wb-live-error wb-small">{{ error }}</p>{% endif %}
"""
)


@dataclass(frozen=True)
class Headline:
    """What stands above a run's numbers.

    Attributes
    ----------
    title
        What it is.
    state
        In a word or two.
    tone
        ``running``, ``done``, ``stopped`` (before its end, on purpose) or ``failed``.
    detail
        The rest of the line.
    planned
        Sessions that will be submitted in all; None if nobody knows.
    error
        Why it failed; empty if it did not.
    now
        Unix seconds, for ages.
    """

    title: str
    state: str
    tone: str = "running"
    detail: str = ""
    planned: int | None = None
    error: str = ""
    now: float = math.nan


def with_style(markup: Markup) -> Markup:
    """Return markup that looks right by itself in a notebook cell."""
    return scoped(Markup("<style>{}</style>{}").format(Markup(_css()), markup))


def progress_html(head: Headline, snapshot: Snapshot) -> Markup:
    """Return a run's present state: sessions by stage, rewards, oldest task, rejections, curves."""
    bar, waiting = _parts(head, snapshot)
    keys = [*bar, *([waiting] if waiting else [])]
    error = head.error or (f"Last trouble: {snapshot.last_error}" if snapshot.last_error else "")
    return Markup(
        _VIEW.render(
            title=head.title,
            tone=_TONES[head.tone],
            state=head.state,
            detail=head.detail,
            bar=keys,
            keys=keys,
            bar_label="sessions: " + ", ".join(str(part["text"]) for part in keys),
            facts=facts(
                [(label, escaped(text, _ERROR_CHARACTERS)) for label, text in _facts(head, snapshot)]
            ),
            charts=_charts(snapshot),
            error=error[:_ERROR_CHARACTERS],
        ).strip()
    )


def progress_text(head: Headline, snapshot: Snapshot) -> str:
    """Return a run's present state in a few lines of plain text."""
    bar, waiting = _parts(head, snapshot)
    parts = ", ".join(str(part["text"]) for part in [*bar, *([waiting] if waiting else [])]) or "nothing yet"
    lines = [f"{head.title}: {head.state}" + (f", {head.detail}" if head.detail else "")]
    lines.append(f"  sessions: {parts}")
    lines += [f"  {label}: {text}" for label, text in _facts(head, snapshot)]
    if head.error or snapshot.last_error:
        lines.append(f"  {'error' if head.error else 'last trouble'}: {head.error or snapshot.last_error}")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Return a time span as people write it: ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if math.isnan(seconds):
        return "?"
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@cache
def _css() -> str:
    return files("analysis.live").joinpath("live.css").read_text("utf-8")


def _parts(head: Headline, snapshot: Snapshot) -> tuple[list[dict[str, object]], dict[str, object] | None]:
    """Return what the bar is made of: ended sessions first, then those under way, furthest first."""
    order = [*ENDED, *(name for name in snapshot.sessions if name not in (*ENDED, *STAGES)), *STAGES[::-1]]
    parts = [_part(name, snapshot.sessions[name]) for name in order if snapshot.sessions.get(name)]
    left = 0 if head.planned is None else head.planned - snapshot.submitted
    word = "waiting" if head.tone == "running" else "not submitted"
    return parts, _part(word, left, "line") if left > 0 else None


def _part(name: str, count: int, colour: str | None = None) -> dict[str, object]:
    word = _WORDS.get(name, name.lower().replace("_", " "))
    return {
        "name": word,
        "count": count,
        "shown": f"{count:,}",
        "colour": colour or _COLOURS.get(name, "purple"),
        "text": f"{count:,} {word}",
    }


def _facts(head: Headline, snapshot: Snapshot) -> list[tuple[str, str]]:
    pairs = [("groups", _counted(snapshot.groups))] if snapshot.groups else []
    if snapshot.rejections:
        pairs.append(("rejected", _counted(snapshot.rejections)))
    if snapshot.requeues:
        pairs.append(("tried again", _counted(snapshot.requeues)))
    if snapshot.rewarded:
        text = f"{snapshot.reward_mean:.3f} over {snapshot.rewarded:,} sessions"
        pairs.append(("mean reward", text))
    if snapshot.unrewarded:
        pairs.append(("without reward", f"{snapshot.unrewarded:,}"))
    if snapshot.tokens:
        pairs.append(("response tokens", f"{snapshot.tokens:,}"))
    if snapshot.oldest is not None:
        age = duration(head.now - snapshot.oldest.since)
        pairs.append(("oldest task", f"{age} ({snapshot.oldest.task_id})"))
    if snapshot.away:
        pairs.append(("rollout server", "cannot be reached at present"))
    if snapshot.dropped_records:
        pairs.append(("journal", f"{snapshot.dropped_records:,} records were lost"))
    return pairs


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _charts(snapshot: Snapshot) -> list[Markup]:
    curves = snapshot.curves
    charts = []
    rewards = {
        label: curves[name]
        for label, name in (("training", "reward"), ("held-out", "held-out reward"))
        if name in curves
    }
    if rewards:
        charts.append(
            line_chart("mean reward", rewards, colours={"training": "blue", "held-out": "vermillion"})
        )
    elif len(snapshot.rewards) > 1:
        charts.append(
            line_chart(
                f"reward, mean of the last {_SMOOTHED} sessions",
                {"reward": smoothed(snapshot.rewards, _SMOOTHED)},
                x_label="session",
            )
        )
    for name in ("policy lag", "wait (s)"):
        if len(curves.get(name, ())) > 1:
            charts.append(line_chart(name, {name: curves[name]}, bounds=(0.0, 1.0)))
    return charts


def smoothed(values: Sequence[float], window: int) -> list[Point]:
    """Return the mean of each value and those before it, as many as fit the window; at most 300 points."""
    step = max(1, len(values) // 300)
    # Means of the first few values say little and would set the scale.
    least = min(window // 4, len(values))
    ends = [end for end in (*range(step, len(values), step), len(values)) if end >= least]
    return [Point(end, statistics.fmean(values[max(0, end - window) : end])) for end in ends]
