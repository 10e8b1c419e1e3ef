"""One group taken apart: rewards, baselines, spread, advantages, what carries the weight, who is missing."""

from __future__ import annotations

from typing import Any

import ipywidgets as W
import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import StatsError
from analysis.explorers.advantages import advantages_note, autopsy_of
from analysis.explorers.base import Explorer
from analysis.explorers.estimators import estimator_switch
from analysis.explorers.table import Table
from analysis.explorers.table_rows import Column, short_id
from analysis.html import escaped, facts, table, template
from analysis.html.prompts import prompt_text
from analysis.stats.autopsy import Autopsy
from analysis.stats.columns import flags, floats
from slime_bridge.errors import AdvantageError

__all__ = ["AutopsyExplorer", "absent_html", "heading_html", "trace_rows", "trajectory_rows", "weight_text"]

_HEADING = template(
    """
<div class="wb-autopsy-head"><span class="wb-title">{{ title }}</span>
<span class="wb-badge{{ ' wb-' + severity if severity }}">{{ fate }}</span>
{%- if reason %} <span class="wb-muted">{{ reason }}</span>{% endif %}</div>
{% if prompt %}<p class="wb-prompt" dir="auto">{{ prompt }}</p>{% endif %}
{{ numbers }}
"""
)
_PULL = "share of the sum of |advantage| over the group's tokens, each trajectory's mean counted once"
_SEVERITIES = {"delivered": "good", "rejected": "serious"}


class AutopsyExplorer(Explorer):
    """The arithmetic of the selected group; picking a session or a trace in it selects that.

    ``selection`` is one row per trajectory, as in `analysis.stats.autopsy.Autopsy.trajectories`.
    """

    kind = "autopsy"

    def _build(self, *, group: Any = None, switch: bool = False) -> W.DOMWidget:
        self.autopsy: Autopsy | None = None
        self.heading = W.HTML()
        self.sessions = Table(pd.DataFrame(), caption="Trajectories", rows_in_sight=16)
        self.weight = W.HTML()
        self.traces = Table(pd.DataFrame(), caption="Traces", rows_in_sight=8)
        self.absent = W.HTML()
        self.body = W.VBox([self.sessions, self.weight, self.traces, self.absent])
        if group is not None:
            self.state.group = group
        self.refresh()
        self.observe(self.state, self._changed, ["group", "estimator"])
        self.observe(self.state, self._show_session, ["session_id", "trace_index"])
        self.observe(self.sessions, self._session_picked, "selected")
        self.observe(self.traces, self._trace_picked, "selected")
        bar = [estimator_switch(self)] if switch else []
        return W.VBox([*bar, self.heading, self.body])

    @property
    def selection(self) -> pd.DataFrame:
        """The trajectories of the group; without rows where none is taken apart."""
        return pd.DataFrame() if self.autopsy is None else self.autopsy.trajectories.copy()

    def refresh(self) -> None:
        """Take the selected group apart again."""
        key = self.state.group
        self.autopsy = None
        self.body.layout.display = "none"
        if key is None:
            self.heading.value = '<p class="wb-note">Pick a group to take it apart.</p>'
            return
        try:
            found = autopsy_of(self.state, key)
        except (AdvantageError, StatsError) as exc:
            what = advantages_note(self.state, str(exc))
            self.heading.value = str(Markup('<div class="wb-title">{}</div>{}').format(key.label(), what))
            return
        self.autopsy = found
        self.heading.value = str(heading_html(found))
        self.sessions.set_frame(*trajectory_rows(found))
        self.traces.set_frame(*trace_rows(found))
        # Where each trajectory has one trace, the table above says it all.
        one_each = found.traces["session_id"].is_unique
        self.traces.layout.display = "none" if one_each else None
        self.weight.value = str(weight_text(found))
        self.absent.value = str(absent_html(found))
        self.body.layout.display = None
        self._show_session(None)

    def _changed(self, change: Any) -> None:
        self.refresh()

    def _session_picked(self, change: Any) -> None:
        if change["new"] and self.autopsy is not None:
            name = self.autopsy.trajectories["session_id"].iloc[change["new"][0]]
            self.state.session_id = None if pd.isna(name) else str(name)

    def _trace_picked(self, change: Any) -> None:
        if change["new"] and self.autopsy is not None:
            row = self.autopsy.traces.iloc[change["new"][0]]
            if not pd.isna(row["session_id"]):
                self.state.select(session_id=str(row["session_id"]), trace_index=int(row["trace_index"]))

    def _show_session(self, change: Any) -> None:
        if self.autopsy is None:
            return
        session, index = self.state.session_id, self.state.trace_index
        for shown, frame in ((self.sessions, self.autopsy.trajectories), (self.traces, self.autopsy.traces)):
            match = (frame["session_id"] == session).fillna(False).to_numpy(dtype=bool)
            if shown is self.traces:
                match &= (frame["trace_index"] == index).fillna(False).to_numpy(dtype=bool)
            wanted = [] if session is None else np.flatnonzero(match)[:1].tolist()
            if wanted != shown.selected:
                shown.pick(wanted)


def heading_html(autopsy: Autopsy) -> Markup:
    """Return what the group is, what became of it, and how its advantages are computed."""
    ids, numbers = autopsy.ids, autopsy.facts
    number = ids.get("group") if ids.get("group") is not None else ids.get("group_index")
    fate = str(ids.get("state") or "unfinished")
    pairs: list[tuple[str, str | Markup]] = [
        ("rewards", str(numbers["signal"])),
        ("counted", f"{numbers['counted']} of {numbers['expected']} trajectories"),
    ]
    if numbers["counted"]:
        spread = "" if np.isnan(numbers["deviation"]) else f", sample deviation {numbers['deviation']:.4g}"
        pairs.append(("mean", f"{numbers['mean']:.4g}{spread}"))
    formula = Markup('<code class="wb-code">{}</code><br>{}')
    pairs.append(("advantage", formula.format(escaped(autopsy.estimator), escaped(autopsy.formula))))
    rollout = ids.get("rollout_id")
    return Markup(
        _HEADING.render(
            title=f"Group {'—' if number is None else number}"
            + ("" if rollout is None else f" · rollout {rollout}"),
            fate=fate,
            severity=_SEVERITIES.get(fate, "warning"),
            reason=str(ids.get("reject_reason") or "").replace("_", " "),
            prompt=prompt_text(ids.get("prompt_preview")) or "",
            numbers=facts(pairs),
        )
    )


def trajectory_rows(autopsy: Autopsy) -> tuple[pd.DataFrame, list[Column]]:
    """Return the trajectories as the table shows them: from baseline to reward, and the advantage."""
    frame = autopsy.trajectories
    reward, baseline = floats(frame, "reward"), floats(frame, "baseline")
    pairs = [
        None if np.isnan(r) else [None if np.isnan(b) else float(b), float(r)]
        for r, b in zip(reward, baseline, strict=True)
    ]
    names = [
        "position",
        "session_id",
        "status",
        "reward",
        "baseline",
        "spread",
        "advantage",
        "trainable_tokens",
    ]
    shown = frame[names].assign(
        way=pd.Series(pairs, dtype=object),
        share=_shares(autopsy.traces, frame["session_id"]),
        arithmetic=frame["arithmetic"],
    )
    columns = [
        Column("position", "#", "place of the session in the group"),
        Column("session_id", "session", write=short_id),
        Column("status", "status", badges={"COMPLETED": "good"}, kind="badge"),
        Column("way", "baseline → reward", "the line is the baseline, the dot the reward", "dumbbell"),
        Column("reward", "reward"),
        Column("baseline", "baseline"),
        Column("spread", "spread", "what the difference is divided by"),
        Column("advantage", "advantage", kind="bar"),
        Column("trainable_tokens", "tokens", "tokens with mask 1"),
        Column("share", "pull", _PULL, write=_percent),
        Column("arithmetic", "arithmetic"),
    ]
    silent = {c.name for c in columns if shown[c.name].isna().all()} - {"position"}
    if (floats(frame, "spread")[flags(frame, "counted")] == 1.0).all():
        silent.add("spread")
    if shown.loc[flags(frame, "counted"), "arithmetic"].notna().all() and "arithmetic" not in silent:
        # They stand in the arithmetic, which needs the room.
        silent |= {"baseline", "spread"}
    return shown, [c for c in columns if c.name not in silent]


def trace_rows(autopsy: Autopsy) -> tuple[pd.DataFrame, list[Column]]:
    """Return the traces as the table shows them, with each one's share of the group's pull."""
    frame = autopsy.traces
    shown = frame.assign(share=_shares(frame))
    columns = [
        Column("session_id", "session", write=short_id),
        Column("trace_index", "trace"),
        Column("reward", "reward"),
        Column("advantage", "advantage", kind="bar"),
        Column("trained", "trained with", "what the trainer was handed"),
        Column("trainable_tokens", "tokens", "tokens with mask 1"),
        Column("token_weight", "per token", "advantage over the trajectory's tokens", write=_signed),
        Column("share", "pull", _PULL, write=_percent),
    ]
    return shown, [c for c in columns if not len(shown) or not shown[c.name].isna().all()]


def _shares(traces: pd.DataFrame, sessions: pd.Series | None = None) -> Any:
    """Return each trace's share of the group's pull, or that of each session's traces."""
    pull = np.abs(np.nan_to_num(floats(traces, "pull")))
    total = pull.sum()
    if sessions is not None:
        sums = pd.Series(pull).groupby(traces["session_id"].to_numpy(dtype=object)).sum()
        pull = sessions.astype(object).map(sums).to_numpy(dtype=np.float64)
    share = pull / total if total > 0 else np.full(len(pull), np.nan)
    return pd.arrays.FloatingArray(np.nan_to_num(share), np.isnan(share))


def _percent(value: float) -> str:
    return f"{value:.0%}"


def weight_text(autopsy: Autopsy) -> Markup:
    """Say in a sentence which tokens carry the weight."""
    frame = autopsy.traces
    pull, tokens = np.abs(floats(frame, "pull")), floats(frame, "trainable_tokens")
    weights = floats(frame, "token_weight")
    total, count = np.nansum(pull), np.nansum(tokens)
    if not len(frame):
        text = "No trace of this group took part: no token carries any weight."
    elif total <= 0:
        text = f"All {len(frame)} advantages are 0: none of the {count:,.0f} trainable tokens is pulled."
    else:
        order = np.argsort(-np.nan_to_num(pull), kind="stable")
        half = int(np.searchsorted(np.cumsum(pull[order]), total / 2)) + 1
        carried = np.nansum(tokens[order[:half]])
        text = (
            f"Half of the pull comes from {half} of {len(frame)} traces:"
            f" {carried:,.0f} of {count:,.0f} trainable tokens ({carried / max(count, 1):.0%})."
            f" A token weighs between {_signed(np.nanmin(weights))} and {_signed(np.nanmax(weights))}."
        )
    return Markup('<p class="wb-note">{}</p>').format(text)


def absent_html(autopsy: Autopsy) -> Markup:
    """Return who is not among those that are compared, and why; empty if nobody is missing."""
    frame = autopsy.trajectories
    absent = frame[~flags(frame, "counted")]
    if absent.empty:
        return Markup("")
    columns = ["position", "session_id", "status", "reward", "absent"]
    shown = [name for name in columns if name == "absent" or not absent[name].isna().all()]
    return table(
        absent, caption="Not compared, and why", columns=shown, labels={"absent": "why", "position": "#"}
    )


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")
