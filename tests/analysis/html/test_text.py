"""What hostile text looks like in a page."""

from __future__ import annotations

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from analysis.html import clipped, escaped, template, visible

ANY_TEXT = st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF))  # lone surrogates too


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nlines", "plain\ttext\nlines"),
        ("one\r\ntwo", "one\ntwo"),
        ("a\rb", "a␍b"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("nul\x00", "nul␀"),
        ("\x7f\x85", "␡‹U+0085›"),
        ("user\u202egnp.exe", "user‹U+202E›gnp.exe"),
        ("\ud800", "‹U+D800›"),
        ("\U000e0041", "‹U+E0041›"),
        ("a" + "\u0301" * 6, "a" + "\u0301" * 6),
        ("a" + "\u0301" * 300 + "b", "a" + "\u0301" * 6 + "‹294 more marks›b"),
        ("\u200bword\ufeff", "‹U+200B›word‹U+FEFF›"),
        ("👩\u200d🔬 می\u200cخواهم", "👩\u200d🔬 می\u200cخواهم"),
    ],
)
def test_what_hides_becomes_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(ANY_TEXT)
def test_every_text_can_be_written_and_holds_no_markup(text: str) -> None:
    html = escaped(text)
    html.encode("utf-8")
    assert not set(html) & set("<>\"'\x00\x1b\u202e")
    assert visible(visible(text)) == visible(text)


def test_text_is_escaped_and_our_own_markup_is_not() -> None:
    assert escaped("<b>&") == "&lt;b&gt;&amp;"
    assert escaped(Markup("<b>")) == "<b>"
    assert escaped(3.5) == "3.5"


def test_long_text_loses_its_middle_and_says_so() -> None:
    short = clipped("a" * 600_000 + "b" * 400_000, 90)
    assert short == "a" * 60 + " … 999,910 characters left out … " + "b" * 30
    assert clipped("abc", 3) == "abc"
    assert clipped("abcd", 1) == "a … 3 characters left out … "
    assert escaped("<" * 10, 3) == "&lt;&lt; … 7 characters left out … &lt;"


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit=0"):
        clipped("text", 0)


def test_templates_escape_values_and_refuse_missing_names() -> None:
    page = template('<p title="{{ name }}">{{ body }}</p>')
    assert page.render(name='"><script>', body="\u202e<") == (
        '<p title="&#34;&gt;&lt;script&gt;">‹U+202E›&lt;</p>'
    )
    assert page.render(name=3, body=Markup("<b>x</b>")) == '<p title="3"><b>x</b></p>'
    with pytest.raises(jinja2.UndefinedError, match="body"):
        page.render(name="x")
