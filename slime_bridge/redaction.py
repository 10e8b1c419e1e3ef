"""Removes credentials from text that goes into logs and error messages.

Works by shape, so that secrets nobody told us about (keys in a task's environment that a server echoes,
proxies that quote a header) go too, and by value for the ones we know. It may remove too much; it is for
messages, never for data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["excerpt", "redact"]

_MASK = "***"
_SECRET_NAME = (
    r"(?:token(?!s|_ids?|izer)|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|authorization|credential|signature|session[_-]?key|cookie|callback_url)"
)
# Word characters around a secret name are bounded, so that long words cannot make the search quadratic.
_PATTERNS = (
    (re.compile(r"(?<=://)[^/\s@\"']+@"), f"{_MASK}@"),
    (re.compile(r"(?i)\b(bearer|basic|digest|negotiate)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {_MASK}"),
    (
        re.compile(
            rf"(?i)([\"']?[\w.-]{{0,40}}{_SECRET_NAME}[\w.-]{{0,40}}[\"']?\s*[:=]\s*)"
            r"(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s,;&}\])\"']+)"
        ),
        rf"\1{_MASK}",
    ),
    (re.compile(r"\bsk-(?!polar-)[A-Za-z0-9_-]{8,}"), _MASK),
    (re.compile(r"\b(?:hf|ghp|gho|ghs|glpat|xox[abp])[_-][A-Za-z0-9_-]{8,}"), _MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), _MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), _MASK),
)


def redact(text: str, *, secrets: Iterable[str] = ()) -> str:
    """Return `text` without credentials.

    Parameters
    ----------
    text
        Any text; its length should be bounded by the caller.
    secrets
        Values to remove wherever they stand.

    Returns
    -------
    str
        The text with each secret replaced by ``***``: URL user info, bearer and basic credentials, values
        behind names such as ``api_key``, ``token`` or ``password``, well-known key shapes, JSON web tokens,
        and the given values.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, _MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def excerpt(text: str, *, limit: int = 300, secrets: Iterable[str] = ()) -> str:
    """Return the start of `text` on one line, printable and without credentials.

    Parameters
    ----------
    text
        Untrusted text.
    limit
        Most characters to return.
    secrets
        As in `redact`.
    """
    # Secrets go before the cut, which could otherwise leave half of one behind.
    clean = redact(text[: 16 * limit], secrets=secrets)
    line = " ".join("".join(char if char.isprintable() else " " for char in clean).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
