"""Tokens as spans of text with one overlay: each token in its place, coloured by level, with its numbers.

Colours come from the style sheet, by class: ``wb-tok`` with ``wb-<scale>-<level>``. They differ in lightness
too, and the mask is told by underlines besides, so that nothing hangs on telling hues apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from analysis.html.text import escaped
from analysis.token_glyphs import Glyph, GlyphKind
from analysis.token_overlays import available_overlays, find_overlay, legend_of, levels_of
from analysis.trace_tokens import TraceTokens

__all__ = ["legend_html", "token_details", "token_spans_html", "turn_edges"]

_KIND_CLASSES = {
    GlyphKind.TEXT: "",
    GlyphKind.SPECIAL: " wb-tok-special",
    GlyphKind.FRAGMENT: " wb-tok-bytes",
    GlyphKind.NUMBER: " wb-tok-number",
}
_MOST_SPANS = 4_000


def token_spans_html(
    tokens: TraceTokens, overlay: str | None = None, *, legend: bool = True, limit: int = _MOST_SPANS
) -> Markup:
    """Return tokens as HTML.

    Parameters
    ----------
    tokens
        Of one trace, or of a window of it.
    overlay
        One of `analysis.token_overlays.OVERLAYS`; by default the first that knows something here.
    legend
        Whether to say above what the colours mean.
    limit
        Tokens that are shown, from the first; a note says how many there are. A page of more than some
        thousand spans is slow: the token view of the explorers shows all.

    Raises
    ------
    ExplorerError
        If there is no such overlay.
    LoadError
        If the tokenizer cannot be loaded.
    """
    name = overlay if overlay is not None else (available_overlays(tokens) or ["mask"])[0]
    scale, levels = find_overlay(name).scale, levels_of(tokens, name)
    shown = min(len(tokens), limit)
    glyphs = tokens.glyphs.glyphs(tokens.ids[:shown])
    edges = turn_edges(tokens)
    spans = [
        _span(tokens, place, glyph, scale, int(levels[place]), edges[place])
        for place, glyph in enumerate(glyphs)
    ]
    notes = []
    if shown < len(tokens):
        notes.append(f"The first {shown:,} of {len(tokens):,} tokens.")
    if not tokens.glyphs.has_text and len(tokens):
        notes.append("Ids only: load the run with tokenizer=<HF folder> for text.")
    if not len(tokens):
        notes.append("No tokens.")
    return Markup('<figure class="wb-tokens">{}<div class="wb-toks" dir="ltr">{}</div>{}</figure>').format(
        legend_html(tokens, name) if legend else "",
        Markup("").join(spans),
        Markup("").join(Markup('<p class="wb-note">{}</p>').format(note) for note in notes),
    )


def legend_html(tokens: TraceTokens, overlay: str) -> Markup:
    """Return what the levels of an overlay mean.

    Parameters
    ----------
    tokens
        Whose levels they are.
    overlay
        One of `analysis.token_overlays.OVERLAYS`.
    """
    found = find_overlay(overlay)
    items = [
        Markup('<li><span class="wb-level wb-{}-{}"></span>{}</li>').format(
            found.scale, level, escaped(label, 60)
        )
        for level, label in legend_of(tokens, overlay)
    ]
    if not levels_of(tokens, overlay).any():
        items = [Markup("<li>{}</li>").format("nothing known of these tokens")]
    return Markup(
        '<figcaption class="wb-legend"><span class="wb-legend-name" title="{}">{}</span>'
        "<ul>{}</ul></figcaption>"
    ).format(found.meaning, found.label, Markup("").join(items))


def token_details(tokens: TraceTokens, place: int) -> list[tuple[str, str]]:
    """Return what is known of one token as pairs of name and text; nothing for what nobody knows.

    Parameters
    ----------
    tokens
        One trace.
    place
        Of the token in these arrays.
    """
    position = int(tokens.position[place])
    pairs = [("token", str(int(tokens.ids[place]))), ("position", f"{position:,} of {tokens.total:,}")]
    if position < tokens.prompt_tokens:
        pairs.append(("part", "prompt"))
    elif tokens.mask[place] == 1:
        trained = int(tokens.trainable[place])
        pairs.append(("part", "sampled, not trained on" if trained == 0 else "sampled"))
        pairs.append(("turn", f"{int(tokens.turn[place])}, token {int(tokens.turn_position[place]):,}"))
    elif tokens.mask[place] == 0:
        pairs.append(("part", "not sampled"))
    logprob = float(tokens.logprob[place])
    if not math.isnan(logprob) and tokens.sampled[place]:
        pairs.append(("logprob", f"{_number(logprob)} (p {math.exp(min(logprob, 0.0)):.3g})"))
    for name, values, counts in (
        ("trainer's", tokens.train_logprob, tokens.sampled),
        ("difference", tokens.difference, tokens.sampled),
        ("advantage", tokens.advantage, tokens.learns),
    ):
        if counts[place] and not math.isnan(value := float(values[place])):
            pairs.append((name, _number(value, plus=name != "trainer's")))
    if tokens.version[place] >= 0:
        pairs.append(("weights", tokens.versions[int(tokens.version[place])]))
    return pairs


def turn_edges(tokens: TraceTokens) -> Sequence[bool]:
    """Tell where a turn begins, or where the weights change inside one."""
    if not len(tokens):
        return []
    begins = tokens.turn_position == 0
    changes = np.r_[False, (tokens.version[1:] != tokens.version[:-1]) & (tokens.mask[1:] == 1)]
    found: list[bool] = (begins | changes).tolist()
    return found


def _span(tokens: TraceTokens, place: int, glyph: Glyph, scale: str, level: int, edge: bool) -> Markup:
    details = "\n".join(f"{name}: {text}" for name, text in token_details(tokens, place))
    classes = f"wb-tok wb-{scale}-{level}{_KIND_CLASSES[glyph.kind]}{' wb-tok-edge' if edge else ''}"
    # Put together by hand: a window has thousands of these, and Markup.format costs ten times as much.
    return Markup(
        f'<span class="{classes}" title="{escaped(details)}">{escape(glyph.text)}</span>'
        + ("<br>" if glyph.breaks else "<wbr>")
    )


def _number(value: float, *, plus: bool = False) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:{'+' if plus else ''}.4g}".replace("-", "−")
