"""Text from models and files, made fit to be looked at: nothing hides in it, nothing moves what is around it.

Escaping alone keeps markup from acting; characters that no font draws still act: they reverse the line,
vanish, or make a file unwritable. Here they become visible.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import jinja2
from markupsafe import Markup, escape

__all__ = ["TextPattern", "clipped", "escaped", "passing", "template", "visible"]

_MARGIN = 4096
_through: ContextVar[Callable[[str], str] | None] = ContextVar("analysis_html_text_through", default=None)

# Controls but tab and newline, invisible and bidirectional format characters, tags, lone surrogates,
# noncharacters. The joiners U+200C and U+200D stay: words and emoji are spelled with them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef"
    "\ufeff\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)

# Marks that sit above and below a letter; a tower of them would cover the lines around it.
_MARK = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_TOWER = re.compile(f"({_MARK}{{6}})({_MARK}+)")


class TextPattern(Protocol):
    """What finds places in texts: a compiled expression, or something that searches like one."""

    def finditer(self, text: str, /) -> Iterator[Any]:
        """Yield the matches in a text."""

    def search(self, text: str, /) -> Any | None:
        """Return the first match in a text, or None."""


def visible(text: str) -> str:
    """Return text in which every character can be seen, as plain text: nothing is escaped.

    Carriage returns before newlines go; other control characters become their pictures (``␛``), characters
    without one, lone surrogates among them, become ``‹U+202E›``, and of marks on one letter more than six
    become their number. Tab, newline and what has a shape stay.

    Parameters
    ----------
    text
        Anything that Python can hold in a string.
    """
    shown = _HIDDEN.sub(_picture, text.replace("\r\n", "\n"))
    return _TOWER.sub(lambda found: f"{found[1]}‹{len(found[2])} more marks›", shown)


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
    return _joined(text[: limit - tail], text[len(text) - tail :], len(text) - limit)


def _joined(start: str, end: str, left_out: int) -> str:
    # Marks that combine with what was cut before them would sit on the note.
    while end and unicodedata.combining(end[0]):
        end = end[1:]
    return f"{start} … {left_out:,} characters left out … {end}"


@contextmanager
def passing(through: Callable[[str], str]) -> Iterator[None]:
    """Send all text that becomes HTML through a function while the block runs, such as one that redacts.

    Parameters
    ----------
    through
        From text to text, both unescaped. Of long texts that will be clipped it gets a beginning and an end
        that reach 4,096 characters beyond what is shown.
    """
    token = _through.set(through)
    try:
        yield
    finally:
        _through.reset(token)


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
    plain, through = str(text), _through.get()
    if limit is None or len(plain) <= limit or through is None:
        passed = plain if through is None else through(plain)
        return escape(visible(passed if limit is None else clipped(passed, limit)))
    tail = limit // 3
    start = through(plain[: limit - tail + _MARGIN])[: limit - tail]
    end = through(plain[-(tail + _MARGIN) :])[-tail:] if tail else ""
    return escape(visible(_joined(start, end, len(plain) - limit)))


def _finalize(value: Any) -> Any:
    if hasattr(value, "__html__"):
        return value
    through = _through.get()
    return visible(str(value) if through is None else through(str(value)))


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
