"""Small line charts as SVG: drawn in a millisecond, so that they can follow a run while it goes on.

Colours are those of `analysis.html`, so the charts turn dark with the notebook. For figures to keep, see
`analysis.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from analysis.html import template, visible
from analysis.live.progress import Point

__all__ = ["COLOURS", "axis_ticks", "line_chart"]

COLOURS = ("blue", "vermillion", "green", "purple", "orange", "sky")
"""Names of colours, in the order that lines get them."""

_WIDTH, _HEIGHT = 300, 150
_LEAST_SPAN = 1e-12
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 8, 20

_CHART = template(
    """
<figure class="wb-live-chart"><figcaption>{{ title }}
{%- if legend %}<span class="wb-live-keys">{% for key in legend %}
<span style="--key:var(--wb-{{ key.colour }})">{{ key.name }}</span>{% endfor %}</span>{% endif -%}
</figcaption>
<svg viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="{{ description }}">
{% for tick in rows %}
<line class="grid" x1="{{ left }}" x2="{{ right }}" y1="{{ tick.at }}" y2="{{ tick.at }}"/>
<text x="{{ left - 5 }}" y="{{ tick.at + 3.5 }}" text-anchor="end">{{ tick.label }}</text>
{% endfor %}{% for tick in columns %}
<text x="{{ tick.at }}" y="{{ height - 5 }}" text-anchor="middle">{{ tick.label }}</text>
{% endfor %}{% for line in lines %}
<g style="stroke:var(--wb-{{ line.colour }});fill:var(--wb-{{ line.colour }})">
{% for part in line.parts %}<polyline points="{{ part }}"/>{% endfor %}
{% for dot in line.dots %}<circle cx="{{ dot[0] }}" cy="{{ dot[1] }}" r="2.2"/>{% endfor %}</g>
{% endfor %}</svg></figure>
"""
)


@dataclass(frozen=True)
class _Scale:
    """A straight map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def axis_ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return round numbers that span a range of values.

    Parameters
    ----------
    low, high
        The range; ends that are equal, or differ by less than is worth drawing, are widened.
    most
        Steps at most.
    """
    if high - low < max(_LEAST_SPAN, 1e-9 * max(abs(low), abs(high))):
        pad = abs(low) * 0.1 if abs(low) > _LEAST_SPAN else 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * magnitude >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def line_chart(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str = "rollout",
    colours: Mapping[str, str] | None = None,
    bounds: tuple[float, float] | None = None,
) -> Markup:
    """Return lines over a common x axis.

    Parameters
    ----------
    title
        What is drawn, with its unit.
    series
        Points by name; points without a finite value break the line, and one between two of them is a dot.
    x_label
        What x counts.
    colours
        Colour by name of the line; by default in the order of `COLOURS`.
    bounds
        Values that the y axis spans at least.
    """
    finite = {
        name: [point for point in points if math.isfinite(point.value) and math.isfinite(point.x)]
        for name, points in series.items()
    }
    finite = {name: points for name, points in finite.items() if points}
    if not finite:
        return Markup('<figure class="wb-live-chart"><figcaption>{} <span class="wb-muted">no values yet'
                      "</span></figcaption></figure>").format(visible(title))  # fmt: skip
    flat = [point for points in finite.values() for point in points]
    values = [point.value for point in flat] + list(bounds or ())
    rows = axis_ticks(min(values), max(values))
    low_x, high_x = min(point.x for point in flat), max(point.x for point in flat)
    x_scale = _Scale(low_x, high_x, _LEFT + 4, _WIDTH - _RIGHT - 4)
    y_scale = _Scale(rows[0], rows[-1], _HEIGHT - _BOTTOM, _TOP)
    chosen = colours or {}
    lines = [
        {
            "colour": chosen.get(name, COLOURS[place % len(COLOURS)]),
            **_drawn(series[name], x_scale, y_scale),
            "name": name,
        }
        for place, name in enumerate(finite)
    ]
    last = ", ".join(f"{name} {points[-1].value:.3g}" for name, points in finite.items())
    return Markup(
        _CHART.render(
            title=title,
            legend=[{"name": line["name"], "colour": line["colour"]} for line in lines]
            if len(lines) > 1
            else [],
            description=f"{title} by {x_label}, latest: {last}",
            width=_WIDTH,
            height=_HEIGHT,
            left=_LEFT,
            right=_WIDTH - _RIGHT,
            rows=[{"at": y_scale.at(value), "label": _label(value, rows)} for value in rows],
            columns=[
                {"at": x_scale.at(value), "label": f"{value:g}"} for value in _whole_ticks(low_x, high_x)
            ],
            lines=lines,
        ).strip()
    )


def _drawn(points: Sequence[Point], x_scale: _Scale, y_scale: _Scale) -> dict[str, list[object]]:
    """Split a line where values are missing; a part of one point, and the last point, become dots."""
    parts: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point.value):
            parts[-1].append((x_scale.at(point.x), y_scale.at(point.value)))
        elif parts[-1]:
            parts.append([])
    parts = [part for part in parts if part]
    dots = [part[0] for part in parts if len(part) == 1]
    if parts and parts[-1][-1] not in dots:
        dots.append(parts[-1][-1])
    return {
        "parts": [" ".join(f"{x},{y}" for x, y in part) for part in parts if len(part) > 1],
        "dots": list(dots),
    }


def _whole_ticks(low: float, high: float) -> list[float]:
    """Return round x values inside the range, whole ones where x is whole."""
    if low == high:
        return [low]
    ticks = [tick for tick in axis_ticks(low, high, 5) if low <= tick <= high]
    if float(low).is_integer() and float(high).is_integer():
        ticks = [tick for tick in ticks if float(tick).is_integer()]
    return ticks or [low, high]


def _label(value: float, ticks: Sequence[float]) -> str:
    step = ticks[1] - ticks[0]
    decimals = max(0, min(6, -math.floor(math.log10(step) + 1e-9)))
    if step * 10**decimals % 1 > 1e-6 and decimals < 6:
        decimals += 1
    text = f"{value:,.{decimals}f}" if abs(value) < 1e6 else f"{value:.3g}"
    return str(escape(text))
