"""Each token can be seen: blanks, newlines, special tokens, parts of characters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import LoadError
from analysis.token_glyphs import GlyphKind, TokenGlyphs, cells_of
from analysis.token_text import TokenText
from tests.analysis.transcripts.made_sessions import Words


def glyphs(*ids: int) -> list:
    return TokenGlyphs(TokenText(Words())).glyphs(np.array(ids))


@pytest.mark.parametrize(
    ("token", "text", "kind", "breaks"),
    [
        (0, "<|im_end|>", GlyphKind.SPECIAL, False),
        (1, "how", GlyphKind.TEXT, False),
        (2, "·many", GlyphKind.TEXT, False),
        (3, "↵↵", GlyphKind.TEXT, True),
        (4, "‹U+202E›", GlyphKind.TEXT, False),
        (5, "‹E2›", GlyphKind.FRAGMENT, False),
        (6, "·×8", GlyphKind.TEXT, False),
        (7, "<b>", GlyphKind.TEXT, False),
        (99, "‹99›", GlyphKind.NUMBER, False),
        (-1, "‹-1›", GlyphKind.NUMBER, False),
    ],
)
def test_what_is_shown(token: int, text: str, kind: GlyphKind, breaks: bool) -> None:
    (glyph,) = glyphs(token)
    assert (glyph.text, glyph.kind, glyph.breaks) == (text, kind, breaks)


def test_wide_characters_take_two_cells() -> None:
    assert [glyph.cells for glyph in glyphs(1, 8)] == [3, 4]
    assert cells_of("e\u0301") == 1
    assert cells_of("") == 0


def test_without_a_tokenizer_ids_are_shown() -> None:
    found = TokenGlyphs(None)
    assert not found.has_text
    assert [glyph.text for glyph in found.glyphs(np.array([7, 7, 151_643]))] == ["7 ", "7 ", "151643 "]


def test_a_layout_is_that_of_the_glyphs() -> None:
    ids = np.array([3, 1, 0, 5, 8, 1])
    shown = glyphs(*ids.tolist())
    cells, kinds, breaks = TokenGlyphs(TokenText(Words())).layout(ids)
    assert cells.tolist() == [glyph.cells for glyph in shown]
    assert kinds.tolist() == [int(glyph.kind) for glyph in shown]
    assert breaks.tolist() == [int(glyph.breaks) for glyph in shown]


def test_no_tokens() -> None:
    assert [array.tolist() for array in TokenGlyphs(TokenText(Words())).layout(np.zeros(0, int))] == [
        [],
        [],
        [],
    ]


def test_a_tokenizer_that_is_not_there_is_told(tmp_path) -> None:
    with pytest.raises(LoadError, match="no tokenizer"):
        TokenGlyphs(TokenText(tmp_path)).glyphs(np.array([1]))


@given(
    st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF, exclude_categories=["Cs"]), max_size=200)
)
def test_any_text_is_one_visible_line(text: str) -> None:
    class One:
        def decode(self, ids, **options) -> str:
            return text * len(ids)

    (glyph,) = TokenGlyphs(TokenText(One())).glyphs(np.array([1]))
    assert glyph.text
    assert "\n" not in glyph.text
    assert 1 <= glyph.cells <= 255


def test_bytes_of_byte_level_tokens() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {character: place for place, character in enumerate(sorted(byte_level))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = np.array(tokenizer.encode("a\u00e9").ids)
    assert [glyph.text for glyph in TokenGlyphs(TokenText(tokenizer)).glyphs(ids)] == ["a", "‹C3›", "‹A9›"]
