"""How tokens are written so that each can be seen: blanks, newlines, special tokens, parts of characters.

A token's text as such hides what matters in it: a leading blank, two newlines, a byte that is a third of a
character, an instruction to write from right to left. Knows tokenizers through `analysis.token_text` only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.html.text import visible
from analysis.token_text import TokenText

__all__ = ["Glyph", "GlyphKind", "TokenGlyphs", "cells_of"]

_MOST_CELLS = 60
_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
_SHOWN_BLANKS = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"})


class GlyphKind(IntEnum):
    """What kind of token a glyph stands for."""

    TEXT = 0
    SPECIAL = 1
    """A control token of the chat template or the model."""
    FRAGMENT = 2
    """Bytes that are no whole character by themselves."""
    NUMBER = 3
    """The id alone: there is no tokenizer, or it does not know the id."""


class Glyph(NamedTuple):
    """How one token is written.

    Attributes
    ----------
    text
        What to show, on one line; never empty.
    kind
        What it stands for.
    breaks
        The text goes on in a new line after it.
    cells
        Its width in a font of fixed width.
    """

    text: str
    kind: GlyphKind
    breaks: bool
    cells: int


class TokenGlyphs:
    """Glyphs of token ids, remembered.

    Parameters
    ----------
    text
        Gives ids their text; None where there is no tokenizer.
    """

    def __init__(self, text: TokenText | None) -> None:
        self._text = text
        self._known: dict[int, Glyph] = {}
        self._special: frozenset[int] | None = None

    @property
    def has_text(self) -> bool:
        """Whether there is a tokenizer."""
        return self._text is not None

    def glyphs(self, ids: NDArray[Any]) -> list[Glyph]:
        """Return the glyph of each token.

        Raises
        ------
        LoadError
            If the tokenizer cannot be loaded.
        """
        distinct, inverse = self._distinct(ids)
        return [distinct[place] for place in inverse.tolist()]

    def layout(self, ids: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """Return width in cells, kind, and whether the line breaks after it, of each token, each shape (n,).

        Raises
        ------
        LoadError
            If the tokenizer cannot be loaded.
        """
        distinct, inverse = self._distinct(ids)
        columns = [
            np.array([getattr(glyph, name) for glyph in distinct], dtype=np.uint8)[inverse]
            for name in ("cells", "kind", "breaks")
        ]
        return columns[0], columns[1], columns[2]

    def _distinct(self, ids: NDArray[Any]) -> tuple[list[Glyph], NDArray[np.int64]]:
        values, inverse = np.unique(ids, return_inverse=True)
        unknown = np.array([value for value in values.tolist() if value not in self._known], dtype=np.int64)
        if len(unknown):
            texts = self._text.texts(unknown) if self._text is not None else [""] * len(unknown)
            for token, shown in zip(unknown.tolist(), texts, strict=True):
                self._known[token] = self._make(token, shown)
        return [self._known[value] for value in values.tolist()], inverse.reshape(-1)

    def _make(self, token: int, shown: str) -> Glyph:
        if self._text is None:
            return _glyph(f"{token} ", GlyphKind.NUMBER, False)
        if token in self._specials():
            return _glyph(visible(shown).translate(_SHOWN_BLANKS), GlyphKind.SPECIAL, False)
        if _REPLACEMENT in shown:
            found = _bytes_of(self._text.decoder, token)
            if found is None:
                known = shown.strip(_REPLACEMENT)
                return _glyph(visible(shown), GlyphKind.FRAGMENT, False) if known else _number(token)
            if found.decode("utf-8", "ignore") != _REPLACEMENT:
                return _glyph("‹" + found.hex(" ").upper() + "›", GlyphKind.FRAGMENT, False)
        return _glyph(_without_runs(visible(shown).translate(_SHOWN_BLANKS)), GlyphKind.TEXT, "\n" in shown)

    def _specials(self) -> frozenset[int]:
        if self._special is None:
            assert self._text is not None
            self._special = _special_ids(self._text.decoder)
        return self._special


def cells_of(shown: str) -> int:
    """Return how many cells of a font of fixed width a text fills."""
    if shown.isascii():
        return len(shown)
    return sum(_cells(character) for character in shown)


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _number(token: int) -> Glyph:
    return _glyph(f"‹{token}›", GlyphKind.NUMBER, False)


def _glyph(shown: str, kind: GlyphKind, breaks: bool) -> Glyph:
    if cells_of(shown) > _MOST_CELLS:
        while cells_of(shown) >= _MOST_CELLS:
            shown = shown[:-1]
        shown += "…"
    # A combining mark alone has no width of its own, and could not be pointed at.
    return Glyph(shown or "∅", kind, breaks, max(1, cells_of(shown)))


def _without_runs(shown: str) -> str:
    """Write a long run of one character, as indentation is, as that character and how often."""
    return _RUN.sub(lambda match: f"{match[1]}×{len(match[0])}", shown)


def _special_ids(decoder: Any) -> frozenset[int]:
    added = getattr(decoder, "get_added_tokens_decoder", None)
    if callable(added):
        return frozenset(number for number, token in added().items() if getattr(token, "special", False))
    return frozenset(getattr(decoder, "all_special_ids", None) or ())


def _bytes_of(decoder: Any, token: int) -> bytes | None:
    """Return the bytes that a token stands for, None where the tokenizer does not say."""
    to_token = getattr(decoder, "id_to_token", None) or getattr(decoder, "convert_ids_to_tokens", None)
    if to_token is None:
        return None
    try:
        written = to_token(token)
    except (KeyError, IndexError, OverflowError, TypeError, ValueError):  # ids of another vocabulary
        return None
    if not isinstance(written, str):
        return None
    if match := _BYTE_TOKEN.match(written):
        return bytes([int(match[1], 16)])
    table = _byte_level()
    if not written or any(character not in table for character in written):
        return None
    return bytes(table[character] for character in written)


@cache
def _byte_level() -> Mapping[str, int]:
    """Return the bytes by the characters that byte-level BPE (GPT-2) writes them with.

    Printable bytes stand for themselves, the other ones for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }
