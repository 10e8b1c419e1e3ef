"""Templates: ``{dotted.path}`` placeholders in strings, lists and mappings.

The grammar, exactly:

- ``{path}`` is a placeholder if `path` starts with a name that the context has. It is looked up segment by
  segment: a mapping's key, a list's index, else an attribute. Keys need not be identifiers and may hold dots.
- ``{name}`` or ``{name.more}`` of plain words (letters, digits, ``_``, ``-``) that starts with no such name
  is an error.
- ``${NAME}`` and ``{ NAME }`` without dots belong to a shell and stay, unless the context has that name.
- ``{{`` writes ``{``. ``}}`` writes ``}``, except where it closes single braces that stand as text, so that
  both ``{{"a": {{"b": 1}}}}`` and ``{"a": {"b": 1}}`` give valid JSON.
- Every other brace is text: JSON, ``awk '{print $1}'``, ``{a,b}``, ``${NAME:-default}``.

A string that is one placeholder becomes the value itself, with its type; in a longer string the value is put
in as text: nothing for None, JSON for lists and mappings. Strings are scanned once, so braces inside a value
are never placeholders. The module knows the grammar and lookups; what names a context has is decided
elsewhere.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from slime_bridge.errors import TemplateError

__all__ = ["render", "to_text"]

_PLACEHOLDER = re.compile(r"\{\s*([A-Za-z_]\w*(?:\.[^{}.]+)*)\s*\}")
_PLAIN_WORDS = re.compile(r"\w+(?:\.[\w-]+)*", re.ASCII)
_FORMAT_SPEC = re.compile(r"\{\s*([A-Za-z_]\w*)(?:![rsa])?(?::[^\s{}]*)?\s*\}")
_BRACE = re.compile(r"[{}]")


def render(template: Any, context: Mapping[str, Any], *, where: str = "template") -> Any:
    """Render a template.

    Parameters
    ----------
    template
        A string, or a list or mapping with templates as values at any depth; other values and all keys stay.
    context
        Values by the first name of a path.
    where
        What the template is, for error messages.

    Returns
    -------
    Any
        New lists and mappings, sharing none with `template` or `context`.

    Raises
    ------
    TemplateError
        If a path is unknown; the message names it, where it stands, and similar names.
    """
    if isinstance(template, str):
        return _render_string(template, context, where)
    if isinstance(template, Mapping):
        _check_quoting(template, context, where)
        return {key: render(value, context, where=f"{where}.{key}") for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [render(value, context, where=f"{where}[{index}]") for index, value in enumerate(template)]
    return template


def to_text(value: Any) -> str:
    """Return a value as it is put into a longer string."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _render_string(template: str, context: Mapping[str, Any], where: str) -> Any:
    if "{" not in template and "}" not in template:
        return template
    whole = _PLACEHOLDER.fullmatch(template)
    if whole and not template.startswith("{{"):
        path = whole[1].rstrip()
        if _root(path) in context:
            return _copy(_look_up(path, context, where))
    return "".join(_pieces(template, context, where))


def _pieces(template: str, context: Mapping[str, Any], where: str) -> list[str]:
    pieces: list[str] = []
    position = open_braces = 0
    while brace := _BRACE.search(template, position):
        start = brace.start()
        pieces.append(template[position:start])
        doubled = template.startswith(brace[0] * 2, start)
        if brace[0] == "}":
            closes_text = open_braces > 0
            open_braces -= closes_text
            pieces.append("}")
            position = start + (2 if doubled and not closes_text else 1)
        elif doubled:
            pieces.append("{")
            position = start + 2
        else:
            placeholder = _PLACEHOLDER.match(template, start)
            path = placeholder[1].rstrip() if placeholder else ""
            spelled_apart = template.startswith("$", start - 1) or template.startswith("{ ", start)
            if placeholder and _is_placeholder(path, context, spelled_apart, where):
                pieces.append(to_text(_look_up(path, context, where)))
                position = placeholder.end()
            else:
                _check_format_spec(template, start, context, where)
                pieces.append("{")
                open_braces += 1
                position = start + 1
    pieces.append(template[position:])
    return pieces


def _is_placeholder(path: str, context: Mapping[str, Any], spelled_apart: bool, where: str) -> bool:
    if _root(path) in context:
        return True
    if not _PLAIN_WORDS.fullmatch(path) or (spelled_apart and "." not in path):
        return False
    raise TemplateError(
        f"{where}: {{{path}}} is unknown: there is no {_root(path)!r}{_suggest(_root(path), context)}; "
        f"braces that are text are written {{{{{path}}}}}"
    )


def _check_format_spec(template: str, start: int, context: Mapping[str, Any], where: str) -> None:
    spec = _FORMAT_SPEC.match(template, start)
    if spec and spec[1] in context and not template.startswith("$", start - 1):
        raise TemplateError(f"{where}: {spec[0]} has a format or conversion: write {{{spec[1]}}} without it")


def _root(path: str) -> str:
    return path.partition(".")[0]


def _look_up(path: str, context: Mapping[str, Any], where: str) -> Any:
    value: Any = context
    segments = path.split(".")
    done = 0
    while done < len(segments):
        found, used = _step(value, segments[done:])
        if not used:
            parent = ".".join(segments[:done]) or "the template's context"
            name = segments[done]
            raise TemplateError(
                f"{where}: {{{path}}} is unknown: {parent} ({_kind(value)}) has no {name!r}"
                f"{_suggest(name, value)}"
            )
        value, done = found, done + used
    return value


def _step(value: Any, segments: list[str]) -> tuple[Any, int]:
    """Return what the next segments name, and how many they are: several for a key with dots, 0 for none."""
    for used in range(1, len(segments) + 1 if isinstance(value, Mapping) else 2):
        found = _get(value, ".".join(segments[:used]))
        if found is not _MISSING:
            return found, used
    return None, 0


_MISSING = object()
_SCALARS = (str, bytes, int, float, bool, type(None))


def _get(value: Any, name: str) -> Any:
    """Return the value's entry of that name, or `_MISSING`."""
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        return value.get(int(name), _MISSING) if name.isdecimal() else _MISSING
    if isinstance(value, list | tuple):
        if re.fullmatch(r"-?\d{1,9}", name) and -len(value) <= int(name) < len(value):
            return value[int(name)]
        return _MISSING
    if isinstance(value, _SCALARS) or name.startswith("_"):
        return _MISSING
    found = getattr(value, name, _MISSING)
    return _MISSING if callable(found) else found


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, list | tuple):
        return f"list of {len(value)}"
    return type(value).__name__


def _suggest(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        names = [str(key) for key in value]
    else:
        names = [key for key in getattr(value, "__dict__", ()) if not key.startswith("_")]
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f" (did you mean {' or '.join(repr(key) for key in close)}?)"
    return f" (it has: {', '.join(sorted(names))})" if 0 < len(names) <= 12 else ""


def _check_quoting(template: Mapping[Any, Any], context: Mapping[str, Any], where: str) -> None:
    """Refuse what YAML makes of a placeholder without quotes: a mapping from its path to null."""
    if len(template) == 1:
        [(key, value)] = template.items()
        if value is None and isinstance(key, str) and _root(key) in context:
            raise TemplateError(
                f'{where}: YAML reads {{{key}}} without quotes as a mapping: write "{{{key}}}"'
            )


def _copy(value: Any) -> Any:
    """Copy containers, so that changing the rendered payload never changes a sample or ``args``."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value
