"""Tokens as spans: each is visible, coloured by its level, and tells its numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.html import css
from analysis.html.style import TOKENS
from analysis.html.token_colours import LEVEL_COLOURS
from analysis.html.token_spans import legend_html, token_details, token_spans_html, turn_edges
from analysis.token_overlays import OVERLAYS
from analysis.trace_tokens import TraceTokens, read_trace_tokens
from tests.analysis.transcripts.made_sessions import Words, load_sessions, session, trace


@pytest.fixture
def tokens(tmp_path: Path) -> TraceTokens:
    return read_trace_tokens(load_sessions(tmp_path, session("ses-1"), tokenizer=Words()), "ses-1")


def spans(html: str) -> list[tuple[str, str, str]]:
    return re.findall(r'<span class="(wb-tok [^"]*)" title="([^"]*)">([^<]*)</span>', html)


def test_each_token_is_a_span_of_its_level(tokens: TraceTokens) -> None:
    found = spans(token_spans_html(tokens, "mask"))
    assert [text for _, _, text in found] == [
        "how",
        "·many",
        "↵↵",
        "how",
        "·many",
        "·×8",
        "‹E2›",
        "&lt;b&gt;",
        "&lt;|im_end|&gt;",
    ]
    assert [re.search(r"wb-mask-(\d)", classes)[1] for classes, _, _ in found] == list("111332233")
    assert "wb-tok-special" in found[-1][0]
    assert "wb-tok-bytes" in found[6][0]


def test_details_are_those_of_the_token(tokens: TraceTokens) -> None:
    assert token_details(tokens, 0) == [("token", "1"), ("position", "0 of 9"), ("part", "prompt")]
    assert token_details(tokens, 5) == [("token", "6"), ("position", "5 of 9"), ("part", "not sampled")]
    known = replace(
        tokens, train_logprob=tokens.logprob + np.float32(0.5), advantage=np.full(9, -0.25, np.float32)
    )
    assert token_details(known, 4) == [
        ("token", "2"),
        ("position", "4 of 9"),
        ("part", "sampled"),
        ("turn", "0, token 1"),
        ("logprob", "−0.5 (p 0.607)"),
        ("trainer's", "0"),
        ("difference", "+0.5"),
        ("advantage", "−0.25"),
        ("weights", "3"),
    ]


def test_what_the_trainer_does_not_learn_from_has_no_advantage(tokens: TraceTokens) -> None:
    known = replace(tokens, advantage=np.full(9, 1.0, np.float32), trainable=np.zeros(9, np.int8))
    details = dict(token_details(known, 4))
    assert details["part"] == "sampled, not trained on"
    assert "advantage" not in details


def test_edges_are_where_turns_begin_and_weights_change(tokens: TraceTokens) -> None:
    assert np.flatnonzero(turn_edges(tokens)).tolist() == [3, 7]
    changed = replace(tokens, version=np.array([-1, -1, -1, 0, 1, -1, -1, 1, 1], np.int16))
    assert np.flatnonzero(turn_edges(changed)).tolist() == [3, 4, 7]


def test_the_first_overlay_that_knows_something_is_the_default(tokens: TraceTokens) -> None:
    assert "wb-mask-3" in token_spans_html(tokens)


def test_the_legend_names_each_level(tokens: TraceTokens) -> None:
    assert legend_html(tokens, "mask").count("<li>") == 4
    assert "nothing known" in legend_html(tokens, "advantage")


def test_long_traces_are_cut_and_say_so(tokens: TraceTokens) -> None:
    html = token_spans_html(tokens, limit=4)
    assert len(spans(html)) == 4
    assert "The first 4 of 9 tokens" in html


def test_ids_alone(tmp_path: Path) -> None:
    html = token_spans_html(read_trace_tokens(load_sessions(tmp_path, session("ses-1")), "ses-1"))
    assert "Ids only" in html
    assert len(spans(html)) == 9


def test_no_tokens(tmp_path: Path) -> None:
    part = read_trace_tokens(load_sessions(tmp_path, session("ses-1")), "ses-1", window=(9, 9))
    assert "No tokens." in token_spans_html(part)


def test_hostile_versions_and_tokens_are_inert(tmp_path: Path) -> None:
    hostile = '"><script>hit()</script>'
    run = load_sessions(tmp_path, session("ses-1", trace(versions=(hostile, hostile))), tokenizer=Words())
    for name in OVERLAYS:
        html = token_spans_html(read_trace_tokens(run, "ses-1"), name)
        assert "<script>" not in html
        assert "<b>" not in html


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ground", [0, 1], ids=["light", "dark"])
class TestColours:
    def test_text_can_be_read_on_every_level(self, ground: int) -> None:
        ink = luminance(TOKENS["ink"][ground])
        for name, pair in LEVEL_COLOURS.items():
            low, high = sorted((ink, luminance(pair[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, name

    @pytest.mark.parametrize("scale", ["amount", "time"])
    def test_amounts_are_told_by_lightness(self, ground: int, scale: str) -> None:
        shades = [luminance(pair[ground]) for name, pair in LEVEL_COLOURS.items() if name.startswith(scale)]
        assert shades == sorted(shades, reverse=ground == 0)
        assert len(set(shades)) == len(shades)

    def test_either_side_of_zero_gets_stronger_outwards(self, ground: int) -> None:
        shade = {
            level: luminance(LEVEL_COLOURS[f"signed-{level}"][ground]) for level in (1, 2, 3, 4, 6, 7, 8, 9)
        }
        for outwards in ((4, 3, 2, 1), (6, 7, 8, 9)):
            shades = [shade[level] for level in outwards]
            assert shades == sorted(shades, reverse=ground == 0)


def test_every_level_has_a_rule() -> None:
    sheet = css()
    for name in LEVEL_COLOURS:
        assert f".wb-{name} {{ background: var(--wb-{name}); }}" in sheet
