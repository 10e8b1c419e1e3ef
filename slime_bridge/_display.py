"""What a notebook shows of the bridge's values: names and values as HTML, escaped, with credentials masked.

The standard library does it: the bridge needs nothing for being looked at.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from slime_bridge.redaction import names_a_secret, redact

__all__ = ["pairs_html"]

_MOST_CHARACTERS = 600


def pairs_html(title: str, state: str, pairs: Iterable[tuple[str, Any]], note: str = "") -> str:
    """Return a titled list of names and values.

    Parameters
    ----------
    title
        What is shown.
    state
        A word beside it, or empty.
    pairs
        Names and values; the value of a name that says so is masked, missing ones are dashes.
    note
        Stands below the title, or empty.
    """
    rows = "".join(
        '<tr><th scope="row" style="text-align:left;font-weight:normal;opacity:.7;padding:1px 14px 1px 0;'
        f'vertical-align:top">{_text(name)}</th><td style="text-align:left;padding:1px 0;'
        f'overflow-wrap:anywhere">{_value(name, value)}</td></tr>'
        for name, value in pairs
    )
    beside = f' <span style="opacity:.7;font-weight:normal">{_text(state)}</span>' if state else ""
    below = f'<div style="opacity:.7">{_text(note)}</div>' if note else ""
    return (
        f'<div style="line-height:1.45"><div style="font-weight:600">{_text(title)}{beside}</div>{below}'
        f'<table style="border:0;margin:4px 0 0;font-size:inherit"><tbody>{rows}</tbody></table></div>'
    )


def _value(name: str, value: Any) -> str:
    if value is None or value == {} or value == ():
        return '<span style="opacity:.6">—</span>'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "<br>".join(f"{_text(key)}: {_value(str(key), item)}" for key, item in value.items())
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    return "***" if names_a_secret(name) else _text(redact(str(value)[: 16 * _MOST_CHARACTERS]))


def _text(value: object) -> str:
    """Return text that hides nothing and acts on nothing; long text ends with an ellipsis."""
    text = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in str(value))
    return html.escape(text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…")
