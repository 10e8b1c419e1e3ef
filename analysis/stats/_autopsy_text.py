"""What an autopsy found, and the same as plain text and as HTML; all that came from a run is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from analysis.html import scoped, table, template
from analysis.html.prompts import prompt_text

__all__ = ["Autopsy"]

_SHOWN = ("position", "session_id", "status", "reward", "baseline", "spread", "advantage")
_TRACES = (
    "session_id",
    "trace_index",
    "reward",
    "advantage",
    "trained",
    "trainable_tokens",
    "token_weight",
    "pull",
)
_MAX_TEXT = 200
_PAGE = template(
    """
<p class="wb-title">{{ title }}</p>
{% if prompt %}<p dir="auto">{{ prompt }}</p>{% endif %}
<p>{{ facts }}<br><code>{{ estimator }}</code>: {{ formula }}</p>
{% for table in tables %}
<div class="wb-block">{{ table }}</div>
{% endfor %}
"""
)


@dataclass(frozen=True, eq=False)
class Autopsy:
    """The arithmetic of one group.

    Attributes
    ----------
    ids
        What names the group: run, rollout, worker, numbers, prompt preview.
    estimator, formula
        What gave the advantages, and its formula with the meaning of its symbols.
    facts
        Numbers of the whole group: `expected`, `counted` trajectories, `mean`, `deviation` (sample, over the
        counted trajectories), `signal` (in words).
    trajectories
        One row per expected session: `position`, `trajectory`, `session_id`, `attempt`, `status`, `counted`
        (it entered the statistics), `reward` (mean over its trainable traces), `baseline`, `spread` (what the
        difference is divided by), `advantage` (mean over its traces), `traces`, `trainable_tokens`,
        `arithmetic` (in text), `absent` (why it is not counted).
    traces
        One row per trace: `session_id`, `trace_index`, `reward`, `in_mean`, `baseline`, `spread`,
        `advantage`, `trained` (what the trainer was handed, where known), `difference`, `trainable_tokens`,
        `token_weight` (advantage over the trajectory's trainable tokens: what each of its tokens is
        multiplied by in the loss, up to the number of trajectories), `pull` (their sum).
    tokens
        One row per response token, where token arrays are known: `session_id`, `trace_index`, `position`,
        `token_id`, `mask`, `weight`.
    """

    ids: dict[str, Any]
    estimator: str
    formula: str
    facts: dict[str, Any]
    trajectories: pd.DataFrame
    traces: pd.DataFrame
    tokens: pd.DataFrame

    def text(self) -> str:
        """Return the arithmetic as plain text, for people and logs."""
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


def _text(autopsy: Autopsy) -> str:
    """Return the arithmetic as plain text."""
    lines = [
        _title(autopsy) + (f"; prompt: {_cell(prompt)}" if (prompt := _prompt(autopsy)) else ""),
        f"estimator: {autopsy.estimator}",
        f"formula:   {autopsy.formula}",
        f"group:     {_facts(autopsy)}",
        "",
        "trajectories",
    ]
    for row in autopsy.trajectories.to_dict("records"):
        name = f"  [{_cell(row['position'])}] {_cell(row['session_id'])}"
        if row["counted"] is True:
            lines.append(f"{name}: {_cell(row['arithmetic'])}, over {_cell(row['trainable_tokens'])} tokens")
        else:
            lines.append(f"{name}: not counted: {_cell(row['absent'])}")
    lines += ["", "traces"]
    for row in autopsy.traces.to_dict("records"):
        trained = "" if pd.isna(row["trained"]) else f", trained with {_cell(row['trained'])}"
        lines.append(
            f"  {_cell(row['session_id'])} #{_cell(row['trace_index'])}: reward {_cell(row['reward'])},"
            f" advantage {_cell(row['advantage'])}{trained}: {_cell(row['trainable_tokens'])} tokens"
            f" x {_cell(row['token_weight'])} = {_cell(row['pull'])}"
        )
    return "\n".join(lines)


def _html(autopsy: Autopsy) -> str:
    """Return the arithmetic as HTML that brings its own style."""
    absent = autopsy.trajectories[~autopsy.trajectories["counted"].fillna(False).to_numpy(dtype=bool)]
    counted = autopsy.trajectories.drop(index=absent.index)
    tables = (
        (counted, (*_SHOWN, "arithmetic"), "Trajectories that are compared"),
        (absent, ("position", "session_id", "status", "absent"), "Absent, and why"),
        (autopsy.traces, _TRACES, "Traces"),
    )
    return str(
        scoped(
            Markup(
                _PAGE.render(
                    title=_title(autopsy),
                    prompt=_prompt(autopsy),
                    facts=_facts(autopsy),
                    estimator=autopsy.estimator,
                    formula=autopsy.formula,
                    tables=[
                        table(frame, columns=names, caption=caption)
                        for frame, names, caption in tables
                        if len(frame)
                    ],
                )
            )
        )
    )


def _title(autopsy: Autopsy) -> str:
    ids = autopsy.ids
    fate = str(ids.get("state") or "unfinished")
    if ids.get("reject_reason"):
        fate += f" ({ids['reject_reason']})"
    title = f"Group {_cell(ids.get('group'))} (index {_cell(ids.get('group_index'))})"
    return f"{title}, rollout {_cell(ids.get('rollout_id'))}: {fate}"


def _prompt(autopsy: Autopsy) -> str:
    return prompt_text(autopsy.ids.get("prompt_preview")) or ""


def _facts(autopsy: Autopsy) -> str:
    facts = autopsy.facts
    return (
        f"{facts['counted']} of {facts['expected']} trajectories counted, mean {_cell(facts['mean'])},"
        f" sample deviation {_cell(facts['deviation'])}; signal: {facts['signal']}"
    )


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return "?"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "".join(c if c.isprintable() else "·" for c in str(value))
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
