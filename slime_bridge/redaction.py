"""Removes credentials from text that goes into logs and error messages.

Works by shape, so that secrets nobody told us about (keys in a task's environment that a server echoes,
proxies that quote a header) go too, and by value for the ones we know. It may remove too much; it is for
messages, never for data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["excerpt", "names_a_secret", "redact", "redact_counting"]

_MASK = "***"
_QUOTE = r"(?:\\{0,8}[\"']|&quot;|&\#3[49];)"
_IS = r"(?::=|=>|={1,3}|:|%3[ad])"
_SECRET_NAME = (
    # A number of few digits behind "token" is an id of the vocabulary.
    rf"(?:token(?!s|_ids?|izer|{_QUOTE}?\s*[:=]\s*\d{{1,7}}\b)|secret|passw(?:or)?d|passphrase|api[_ -]?key"
    r"|access[_-]?key|private[_-]?key|authorization|credential|signature|session[_-]?key|cookie|callback_url)"
)
# A quoted value within quoted text ends at a quote that is escaped as its first one is.
_VALUE = (
    r"(?:(?P<quote>\\{1,8}[\"']|&quot;|&\#3[49];)(?:(?!(?<!\\)(?P=quote)).){0,4000}(?:(?P=quote))?"
    r"|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s,;&}\])\"']+)"
)
# Word characters around a secret name are bounded, so that long words cannot make the search quadratic.
_PATTERNS = (
    (
        "private key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----END )[\s\S]){0,20000}"
            r"(?:-----END [A-Z ]+-+)?"
        ),
        _MASK,
    ),
    ("credentials in a URL", re.compile(r"(?<=://)[^/\s@\"']+@"), f"{_MASK}@"),
    (
        "authorization header",
        re.compile(r"(?i)\b(bearer|negotiate)\s+[A-Za-z0-9._~+/=-]{6,}"),
        rf"\1 {_MASK}",
    ),
    (
        # Prose has "basic arithmetic": what follows must look encoded.
        "authorization header",
        re.compile(r"(?i)\b(basic|digest)\s+(?=\S{0,100}(?:[\d=+/]|(?-i:[a-z][A-Z])))[A-Za-z0-9._~+/=-]{6,}"),
        rf"\1 {_MASK}",
    ),
    ("cookies", re.compile(r"(?i)\b((?:set-)?cookie\s*:\s*)[^\r\n\"'\\]{1,4000}"), rf"\1{_MASK}"),
    (
        "value behind a secret's name",
        re.compile(rf"(?i)({_SECRET_NAME}[\w.-]{{0,40}}{_QUOTE}?\s*{_IS}\s*){_VALUE}"),
        rf"\1{_MASK}",
    ),
    (
        # As a command's option, whose value is the next word.
        "value behind a secret's name",
        re.compile(rf"(?i)((?<![\w-])--?[\w-]{{0,40}}{_SECRET_NAME}[\w-]{{0,40}}\s+)(?!-){_VALUE}"),
        rf"\1{_MASK}",
    ),
    (
        # As an entry of a list of environment variables or headers.
        "value behind a secret's name",
        re.compile(
            rf"(?i)({_QUOTE}(?:name|key){_QUOTE}\s*[:=]\s*{_QUOTE}[\w.-]{{0,40}}{_SECRET_NAME}[\w.-]{{0,40}}{_QUOTE}"
            rf"\s*,\s*{_QUOTE}value{_QUOTE}\s*[:=]\s*){_VALUE}"
        ),
        rf"\1{_MASK}",
    ),
    ("API key", re.compile(r"\bsk-(?!polar-)[A-Za-z0-9_-]{8,}"), _MASK),
    (
        "API key",
        re.compile(
            r"\b(?:hf_[A-Za-z0-9]{12,}|(?:(?:gh[pousr]|github_pat|glpat|xox[abp]|wandb_v1|[sr]k_(?:live|test))[_-]"
            r"|AIza|GOCSPX-|npm_(?=\w{30})|pypi-(?=\w{30}))[A-Za-z0-9_-]{8,})"
        ),
        _MASK,
    ),
    ("AWS key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), _MASK),
    ("JSON web token", re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), _MASK),
)
_EMAIL = (
    "e-mail address",
    re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"),
    _MASK,
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
    return redact_counting(text, secrets=secrets)[0]


def redact_counting(
    text: str, *, secrets: Iterable[str] = (), emails: bool = False
) -> tuple[str, dict[str, int]]:
    """Return `text` without credentials, and how many were removed, by kind.

    Parameters
    ----------
    text, secrets
        As in `redact`.
    emails
        Whether to remove e-mail addresses too.

    Returns
    -------
    tuple
        The text, and counts by kind, such as ``{"API key": 1}``; kinds without any are left out.
    """
    counts: dict[str, int] = {}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if found := text.count(secret):
            counts["known secret"] = counts.get("known secret", 0) + found
            text = text.replace(secret, _MASK)
    for kind, pattern, replacement in (*_PATTERNS, _EMAIL) if emails else _PATTERNS:
        text, found = pattern.subn(replacement, text)
        if found:
            counts[kind] = counts.get(kind, 0) + found
    return text, counts


def names_a_secret(name: str) -> bool:
    """Tell whether a value behind this name, as a key of a mapping, is taken for a credential."""
    return redact(f"{name}: value").endswith(_MASK)


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
