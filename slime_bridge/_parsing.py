"""Parsers for configuration values, given as YAML types or as the strings of a command line.

A parser is a conversion and the words for what it accepts, so that one declaration serves validation, error
messages and documentation. Conversions raise `ValueError`; the caller, who knows the key, makes the message.
Booleans are never numbers, and NaN and the infinities are never values.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import yaml

__all__ = [
    "Parser",
    "boolean",
    "choice",
    "directory",
    "host",
    "integer",
    "mapping",
    "names",
    "number",
    "path",
    "text",
    "url",
]

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Parser:
    """A conversion and what it accepts.

    Parameters
    ----------
    convert
        Value to value; raises `ValueError` on anything it does not accept.
    allowed
        What it accepts, as a noun phrase.
    """

    convert: Callable[[Any], Any]
    allowed: str


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and (word := value.strip().lower()) in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError


boolean = Parser(_boolean, "true or false (also 0/1, yes/no, on/off)")


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        result = float(value)
    except OverflowError as exc:
        raise ValueError from exc
    if not math.isfinite(result):
        raise ValueError
    return result


def number(
    *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> Parser:
    """Accept a finite number within bounds."""

    def convert(value: Any) -> float:
        result = _finite(value)
        _check_bounds(result, above, at_least, at_most)
        return result

    return Parser(convert, "a number" + _bounds(above, at_least, at_most))


def integer(*, at_least: int | None = None, at_most: int | None = None) -> Parser:
    """Accept an integer within bounds; so are ``2.0`` and ``1e3``, which YAML reads as a string."""

    def convert(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            result = value
        elif isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
            result = int(value)
        else:
            as_float = _finite(value)
            if not as_float.is_integer():
                raise ValueError
            result = int(as_float)
        _check_bounds(result, None, at_least, at_most)
        return result

    return Parser(convert, "an integer" + _bounds(None, at_least, at_most))


def _check_bounds(value: float, above: float | None, at_least: float | None, at_most: float | None) -> None:
    if above is not None and value <= above:
        raise ValueError
    if at_least is not None and value < at_least:
        raise ValueError
    if at_most is not None and value > at_most:
        raise ValueError


def _bounds(above: float | None, at_least: float | None, at_most: float | None) -> str:
    if at_least is not None and at_most is not None:
        return f" from {at_least:g} to {at_most:g}"
    if above is not None:
        return f" above {above:g}"
    return f" of at least {at_least:g}" if at_least is not None else ""


def _text(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError


text = Parser(_text, "a string that is not blank")


def choice(*words: str) -> Parser:
    """Accept one of some words."""

    def convert(value: Any) -> str:
        if isinstance(value, str) and value.strip().lower() in words:
            return value.strip().lower()
        raise ValueError

    return Parser(convert, "one of " + ", ".join(f"`{word}`" for word in words))


def _mapping(value: Any) -> dict[str, Any]:
    value = _from_text(value)
    if not isinstance(value, Mapping):
        raise ValueError
    return _plain(value)  # type: ignore[no-any-return]


mapping = Parser(_mapping, "a mapping (from a command line, its JSON or YAML text)")


def names(count: int) -> Parser:
    """Accept a list of so many different names."""

    def convert(value: Any) -> tuple[str, ...]:
        if isinstance(value, str) and not value.strip().startswith("["):
            value = value.split(",")
        value = _from_text(value)
        if not isinstance(value, Sequence) or not all(
            isinstance(name, str) and name.strip() for name in value
        ):
            raise ValueError
        result = tuple(name.strip() for name in value)
        if len(result) != count or len(set(result)) != count:
            raise ValueError
        return result

    return Parser(convert, f"a list of {count} different names")


def _from_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as exc:
        raise ValueError from exc


def _plain(value: Any) -> Any:
    """Copy containers, so that nobody's later change of them reaches the configuration."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _path(value: Any) -> str:
    if isinstance(value, str | os.PathLike) and (result := os.fspath(value)) and isinstance(result, str):
        return os.path.expanduser(_text(result))
    raise ValueError


path = Parser(_path, "a path")


def _directory(value: Any) -> str | None:
    if value is False or (isinstance(value, str) and value.strip().lower() in ("", "off", "none", "false")):
        return None
    return _path(value)


directory = Parser(_directory, "a directory, or `off`")


def _url(value: Any) -> str:
    result = _text(value).strip().rstrip("/")
    parts = urlsplit(result)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    if parts.port == 0 or re.search(r"[\s${}<>\"]", result):
        raise ValueError
    return result


url = Parser(_url, "a base URL such as `http://10.0.0.5:8080`")


def host(*, wildcard: bool) -> Parser:
    """Accept a host name or address without scheme and port; brackets around IPv6 are dropped."""

    def convert(value: Any) -> str:
        name = _text(value).strip().removeprefix("[").removesuffix("]")
        try:
            unspecified = ipaddress.ip_address(name).is_unspecified
        except ValueError:
            if not _HOST_NAME.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):
                raise ValueError from None
            return name
        if unspecified and not wildcard:
            raise ValueError
        return name

    if wildcard:
        return Parser(convert, "a host name or address of this machine, `0.0.0.0` and `::` included")
    return Parser(
        convert, "a host name or address that Polar can reach, no wildcard such as `0.0.0.0` or `::`"
    )
