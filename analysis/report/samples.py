"""Sessions to read: a few that stand for something, as transcripts and, where tokens are there, as tokens.

Token by token no pattern can see a credential, so that a session whose text has one shows its transcript, in
which credentials are masked, and not its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import AnalysisError
from analysis.html.text import escaped, template
from analysis.html.token_spans import token_spans_html
from analysis.html.transcript import transcript_html
from analysis.report.measures import Measures
from analysis.report.redaction import Redactor
from analysis.stats.columns import Bools, Floats, flags, floats, texts
from analysis.trace_tokens import read_trace_tokens
from analysis.transcripts import SessionTranscript, read_transcript

__all__ = ["Sample", "choose_samples", "sample_html"]

_MOST_MESSAGES = 40
_FEW_MESSAGES = 8
_MOST_BYTES = 150_000
_TOKENS = 600

_SAMPLE = template(
    """
<article class="rp-sample" aria-label="{{ title }}">
<h3>{{ title }}</h3>
<p class="wb-muted">{{ facts }}</p>
<details class="wb-more"{% if opened %} open{% endif %}><summary>Transcript</summary>
{{ transcript }}
{%- if left_out %}<p class="wb-note">{{ left_out }}</p>{% endif %}</details>
{% if tokens %}
<details class="wb-more"{% if opened %} open{% endif %}><summary>{{ tokens_title }}</summary>
{{ tokens }}</details>
{% endif %}
</article>
"""
)


@dataclass(frozen=True)
class Sample:
    """One session to read.

    Attributes
    ----------
    title
        What it stands for.
    session_id
        The session.
    facts
        Its numbers in words.
    """

    title: str
    session_id: str
    facts: str


def choose_samples(measures: Measures) -> list[Sample]:
    """Choose sessions: the largest advantages either way, the longest, a failed and a middling one."""
    table = measures.frames.sessions
    table = table[~flags(table, "evaluation") & table["session_id"].notna().to_numpy(dtype=bool)]
    if table.empty:
        return []
    advantage, tokens = floats(table, "advantage"), floats(table, "response_tokens")
    spoke = tokens > 0
    failed = (texts(table, "status") != "COMPLETED") & spoke
    late = floats(table, "rollout_id")
    wanted = (
        ("The largest advantage", _last_of_largest(advantage, -late, advantage > 0)),
        ("The most negative advantage", _last_of_largest(-advantage, -late, advantage < 0)),
        ("The longest response", _last_of_largest(tokens, late, spoke)),
        ("A session that failed", _last_of_largest(late, tokens, failed)),
        ("A session of middling length, late in training", _middling(tokens, late, spoke)),
    )
    chosen: dict[int, str] = {}
    for title, place in wanted:
        if place is not None and place not in chosen:
            chosen[place] = title
    return [_sample(title, table.iloc[place]) for place, title in chosen.items()]


def sample_html(
    measures: Measures, sample: Sample, redactor: Redactor, *, opened: bool = False
) -> Markup | None:
    """Return a session as HTML; None where nothing was kept of what it said.

    Parameters
    ----------
    measures
        Of its run.
    sample
        The session.
    redactor
        Asked for credentials in what was said.
    opened
        Whether transcript and tokens are open at first.

    Raises
    ------
    AnalysisError
        If its files cannot be read.
    """
    if not callable(getattr(measures.run, "filter", None)):
        return None
    session = read_transcript(measures.run, sample.session_id)
    if not session.traces:
        return None
    written, left_out = _transcript(session)
    tokens, title = _tokens(measures.run, sample.session_id, session, redactor)
    return Markup(
        _SAMPLE.render(
            title=sample.title,
            opened=opened,
            facts=sample.facts,
            transcript=written,
            left_out=left_out,
            tokens=tokens,
            tokens_title=title,
        )
    )


def _last_of_largest(values: Floats, order: Floats, where: Bools) -> int | None:
    """Return the place of the largest value, of equals the one that is last by `order`."""
    places = np.flatnonzero(where & ~np.isnan(values))
    if not len(places):
        return None
    return int(places[np.lexsort((np.nan_to_num(order[places], nan=-np.inf), values[places]))[-1]])


def _middling(tokens: Floats, late: Floats, where: Bools) -> int | None:
    places = np.flatnonzero(where & ~np.isnan(late))
    if not len(places):
        return None
    last = places[late[places] == late[places].max()]
    return int(last[np.argsort(tokens[last], kind="stable")[len(last) // 2]])


def _sample(title: str, row: pd.Series) -> Sample:
    facts = [str(row["session_id"])]
    for name, words in (
        ("rollout_id", "rollout {:.0f}"),
        ("reward", "reward {:.3g}"),
        ("advantage", "advantage {:.3g}"),
        ("turns", "{:.0f} turns"),
        ("response_tokens", "{:,.0f} response tokens"),
    ):
        # No turn is counted where the server masked all that was sampled, as it does with failed sessions.
        if pd.notna(row[name]) and not (name == "turns" and row[name] == 0):
            said = words.format(float(row[name])).replace("-", "−")
            facts.append(said.removesuffix("s") if said in ("1 turns", "1 response tokens") else said)
    if pd.notna(row["status"]):
        facts.append(str(row["status"]))
    return Sample(title, str(row["session_id"]), " · ".join(facts))


def _transcript(session: SessionTranscript) -> tuple[Markup, str]:
    """Return the first trace's messages, fewer of them where they would make the page heavy."""
    trace = session.traces[0]
    count = len(trace.messages)
    for most in (_MOST_MESSAGES, _FEW_MESSAGES, 2):
        written = transcript_html(trace, messages=slice(0, most), tools=False)
        if len(written) <= _MOST_BYTES:
            break
    else:
        written = Markup('<pre class="wb-text">{}</pre>').format(
            escaped("\n\n".join(message.text for message in trace.messages[:2]), _MOST_BYTES // 8)
        )
    said = [f"The first {most} of {count} messages."] if count > most else []
    said += [f"The first of {len(session.traces)} traces."] if len(session.traces) > 1 else []
    return written, " ".join(said)


def _tokens(
    run: Any, session_id: str, session: SessionTranscript, redactor: Redactor
) -> tuple[Markup | None, str]:
    said = "\n".join(message.text for trace in session.traces for message in trace.messages)
    if redactor.finds(said):
        redactor.withhold("tokens of a session with a credential")
        return None, ""
    try:
        tokens = read_trace_tokens(run, session_id, session.traces[0].trace_index, window=(0, _TOKENS))
    except (AnalysisError, KeyError):  # no token arrays were kept: the transcript stands alone
        return None, ""
    if not len(tokens):
        return None, ""
    first = f"first {len(tokens):,} of {tokens.total:,} tokens" if tokens.total > len(tokens) else ""
    title = f"Tokens{f', the {first}' if first else ''}"
    return token_spans_html(tokens, limit=_TOKENS), title
