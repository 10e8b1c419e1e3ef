"""What a run is, in a few lines: as text, and as HTML for a notebook. What comes from files is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from analysis._derive import ROLLOUT_KEY
from analysis._identity import codes
from analysis._tables import Bools, flags, known, one_array, sums_by
from analysis.html import facts, scoped, template
from analysis.schema import to_frame

if TYPE_CHECKING:
    import pandas as pd

    from analysis.run import Run

__all__ = ["coverage_frame", "summary_facts", "summary_html", "summary_text"]

_SHOWN_PROBLEMS = 5
_SHOWN_NAMES = 6

_PAGE = template(
    """
<p class="wb-title">{{ title }}</p>
{{ facts }}
{% if problems %}
<details class="wb-more"><summary>{{ problem_count }} (<code>run.problems</code>)</summary>
<ul class="wb-list">{% for problem in problems %}<li>{{ problem }}</li>{% endfor %}
{%- if more %}<li>and {{ "{:,}".format(more) }} more</li>{% endif %}</ul></details>
{% endif %}
{% if left_out %}<p class="wb-note">{{ left_out }} (<code>run.skipped</code>)</p>{% endif %}
"""
)


def coverage_frame(traces: pa.Table) -> pd.DataFrame:
    """Count, per training rollout, the samples in rollout dumps, in train dumps, and in both."""
    dumped = _said_by(traces, "rollout_dump") & ~flags(traces, "evaluation")
    trained = _said_by(traces, "train_dump")
    key = codes([traces.column(name) for name in ROLLOUT_KEY])
    key = np.where(dumped | trained, key, -1)
    used, first, place = np.unique(key, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    if len(used) and used[0] == -1:
        first, place = first[1:], place - 1
    head = traces.select(["run", "rollout_id"]).take(pa.array(first))
    count = len(first)
    both = sums_by(place, count, where=dumped & trained)
    samples = sums_by(place, count, where=dumped)
    fraction = np.divide(both, samples, out=np.full(count, np.nan), where=samples > 0)
    table = pa.table(
        {
            "run": one_array(head.column("run")),
            "rollout_id": one_array(head.column("rollout_id")),
            "dumped": pa.array(samples.astype(np.int64)),
            "trained": pa.array(sums_by(place, count, where=trained).astype(np.int64)),
            "matched": pa.array(both.astype(np.int64)),
            "fraction": pa.array(fraction, mask=np.isnan(fraction)),
        }
    )
    order = [("run", "ascending"), ("rollout_id", "ascending")]
    return to_frame(table.take(pc.sort_indices(table, sort_keys=order)))


def _said_by(table: pa.Table, source: str) -> Bools:
    """Tell which rows a source knows."""
    names = one_array(table.column("sources")).dictionary_encode()
    says = np.array([source in (name or "").split("+") for name in names.dictionary.to_pylist()], dtype=bool)
    places = np.asarray(pc.fill_null(names.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.where(places >= 0, says[places], False) if len(says) else np.zeros(len(table), dtype=bool)


def summary_facts(run: Run) -> list[tuple[str, str]]:
    """Return what is worth knowing at first sight, as pairs of label and text."""
    rollouts, groups = run.table("rollout"), run.table("group")
    sessions, traces = run.table("session"), run.table("trace")
    evaluation = flags(rollouts, "evaluation")
    ids = one_array(rollouts.column("rollout_id")).filter(
        pa.array(~evaluation & known(rollouts, "rollout_id"))
    )
    span = f", {pc.min(ids).as_py()} to {pc.max(ids).as_py()}" if len(ids) else ""
    asked = flags(groups, "evaluation")
    states = _counts(groups.filter(pa.array(~asked)), "state", "open or unknown")
    states += f"{', ' if states else ''}{int(asked.sum()):,} of evaluations" if asked.any() else ""
    statuses = _counts(sessions, "status", "no result")
    pairs = [
        ("rollouts", f"{int((~evaluation).sum()):,}{span}; evaluations {int(evaluation.sum()):,}"),
        ("groups", f"{len(groups):,}" + (f": {states}" if len(groups) else "")),
        ("sessions", f"{len(sessions):,}" + (f": {statuses}" if len(sessions) else "")),
        ("traces", _trace_text(traces)),
        ("reward", _reward_text(sessions)),
        ("records", _records_text(run)),
        ("train dumps", _coverage_text(run)),
        ("sources", _sources_text(run)),
    ]
    return [(label, text) for label, text in pairs if text]


def _counts(table: pa.Table, name: str, missing: str) -> str:
    counts = pc.value_counts(one_array(table.column(name))).to_pylist()
    ordered = sorted(counts, key=lambda item: (-item["counts"], str(item["values"])))
    parts = [
        f"{item['counts']:,} {missing if item['values'] is None else item['values']}" for item in ordered
    ]
    return ", ".join(parts[:_SHOWN_NAMES]) + (
        f" and {len(parts) - _SHOWN_NAMES} more" if len(parts) > _SHOWN_NAMES else ""
    )


def _trace_text(traces: pa.Table) -> str:
    real = int((~flags(traces, "placeholder")).sum())
    tokens = [pc.sum(traces.column(name)).as_py() or 0 for name in ("prompt_tokens", "response_tokens")]
    return f"{real:,} with {tokens[0]:,} prompt and {tokens[1]:,} response tokens"


def _reward_text(sessions: pa.Table) -> str:
    usable = pa.array(flags(sessions, "usable"))
    rewards = one_array(sessions.column("reward")).filter(usable).drop_null()
    if not len(rewards):
        return ""
    return f"mean {pc.mean(rewards).as_py():.4g} over {len(rewards):,} usable sessions that have one"


def _records_text(run: Run) -> str:
    counts = [(grain, len(run.table(grain))) for grain in ("event", "completion", "metric")]
    return ", ".join(_number(count, grain) for grain, count in counts if count)


def _coverage_text(run: Run) -> str:
    frame = run.coverage
    if not len(frame) or not int(frame["trained"].sum()):
        return ""
    dumped, trained, matched = (int(frame[name].sum()) for name in ("dumped", "trained", "matched"))
    text = f"{matched:,} of {dumped:,} dumped samples matched ({matched / dumped:.1%})" if dumped else ""
    lost = trained - matched
    return text + (f"{'; ' if text else ''}{lost:,} trained samples without a rollout dump" if lost else "")


def _sources_text(run: Run) -> str:
    kinds: dict[str, int] = {}
    for file in run.store.files:
        kinds[file.kind.value] = kinds.get(file.kind.value, 0) + 1
    return ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in sorted(kinds.items()))


def _number(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _left_out(count: int) -> str:
    one = "1 file or folder holds nothing to load"
    return one if count == 1 else f"{count:,} files or folders hold nothing to load"


def _complaints(run: Run) -> tuple[Sequence[Any], int, int]:
    problems, skipped = run.store.problems, run.store.skipped
    return problems[:_SHOWN_PROBLEMS], len(problems), len(skipped)


def _title(run: Run) -> str:
    names = run.names
    shown = ", ".join(names[:_SHOWN_NAMES]) + (
        f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    )
    return (
        f"Run {shown}" if len(names) == 1 else f"{len(names)} runs: {shown}" if names else "Run without data"
    )


def summary_text(run: Run) -> str:
    """Return the summary as lines of text."""
    pairs = summary_facts(run)
    width = max((len(label) for label, _ in pairs), default=0)
    lines = [_title(run), *(f"  {label:<{width}}  {text}" for label, text in pairs)]
    problems, count, skipped = _complaints(run)
    if count:
        lines.append(f"  {_number(count, 'problem')} (run.problems):")
        lines += [f"    {problem}" for problem in problems]
        lines += [f"    and {count - len(problems):,} more"] if count > len(problems) else []
    if skipped:
        lines.append(f"  {_left_out(skipped)} (run.skipped)")
    return "\n".join(lines)


def summary_html(run: Run) -> str:
    """Return the summary as HTML that brings its own style."""
    problems, count, skipped = _complaints(run)
    html = _PAGE.render(
        title=_title(run),
        facts=facts(summary_facts(run)),
        problems=[str(problem) for problem in problems],
        problem_count=_number(count, "problem"),
        more=count - len(problems),
        left_out=_left_out(skipped) if skipped else "",
    )
    return str(scoped(Markup(html)))
