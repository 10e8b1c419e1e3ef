"""Text from models and files, made fit to be looked at: nothing hides in it, nothing moves what is around it.

Escaping alone keeps markup from acting; characters that no font draws still act: they reverse the line,
vanish, or make a file unwritable. Here they become visible.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import jinja2
from markupsafe import Markup, escape

__all__ = ["clipped", "escaped", "template", "visible"]

# Controls but tab and newline, invisible and bidirectional format characters, tags, lone surrogates,
# noncharacters. The joiners U+200C and U+200D stay: words and emoji are spelled with them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef"
    "\ufeff\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Return text in which every character can be seen, as plain text: nothing is escaped.

    Carriage returns before newlines go; other control characters become their pictures (``␛``), characters
    without one, lone surrogates among them, become ``‹U+202E›``. Tab, newline and what has a shape stay.

    Parameters
    ----------
    text
        Anything that Python can hold in a string.
    """
    return _HIDDEN.sub(_picture, text.replace("\r\n", "\n"))


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"‹U+{code:04X}›"


def clipped(text: str, limit: int) -> str:
    """Return text of at most `limit` characters and a note on how many were left out of its middle.

    Parameters
    ----------
    text
        Of any length.
    limit
        Characters that are kept, two thirds of them from the beginning; at least 1.

    Raises
    ------
    ValueError
        If `limit` is less than 1.
    """
    if limit < 1:
        raise ValueError(f"at least one character has to be kept, got limit={limit}")
    if len(text) <= limit:
        return text
    tail = limit // 3
    head = limit - tail
    note = f" … {len(text) - limit:,} characters left out … "
    # Marks that combine with what was cut before them would sit on the note.
    end = text[len(text) - tail :] if tail else ""
    while end and unicodedata.combining(end[0]):
        end = end[1:]
    return text[:head] + note + end


def escaped(text: Any, limit: int | None = None) -> Markup:
    """Return text as HTML that shows exactly it.

    Parameters
    ----------
    text
        Markup of this package stays as it is; anything else is taken as text.
    limit
        Characters that are kept, all by default; see `clipped`.
    """
    if hasattr(text, "__html__"):
        return Markup(text)
    plain = str(text)
    return escape(visible(plain if limit is None else clipped(plain, limit)))


def _finalize(value: Any) -> Any:
    return value if hasattr(value, "__html__") else visible(str(value))


_ENVIRONMENT = jinja2.Environment(
    autoescape=True,
    finalize=_finalize,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def template(source: str) -> jinja2.Template:
    """Return a Jinja template in which every value is made visible and escaped, and no name may be missing.

    Parameters
    ----------
    source
        Jinja's language; ours, never text from a run.
    """
    return _ENVIRONMENT.from_string(source)
