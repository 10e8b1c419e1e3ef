"""The library's advice in the words of the command line: who reads a terminal has options, not arguments."""

from __future__ import annotations

__all__ = ["AS_OPTIONS", "in_options"]

AS_OPTIONS = (
    ("`trusted=True`", "--trusted"),
    ("trusted=True", "--trusted"),
    ("strict=False loads the rest", "without --strict the rest is loaded"),
    ("index=False turns it off", "--no-index turns it off"),
    ('engine="ray"', "--engine ray"),
    ('engine="processes"', "--engine processes"),
    ("address=", "--address "),
    ("run.problems", "--show problems"),
    ("run.skipped", "--show skipped"),
    ("run.coverage", "--show coverage"),
)
"""Phrases of the library's messages, each with what a terminal user types instead."""


def in_options(text: str) -> str:
    """Return a message of the library with its Python replaced by options."""
    for python, option in AS_OPTIONS:
        text = text.replace(python, option)
    return text
