"""What the name of a dump says: which rollout, training or evaluation, which rank.

Slime formats its templates with ``rollout_id`` (``7``, or ``eval_7``) and ``rank``; users choose the rest of
the name. Knows names only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DumpName", "parse_dump_name"]

_EVALUATION = re.compile(r"(?:.*[^A-Za-z0-9])?eval_(\d+)")
_TRAIN = re.compile(r"(?:.*[^A-Za-z0-9])?(\d+)_(?:rank_?)?(\d+)")
_ROLLOUT = re.compile(r"(?:.*[^0-9])?(\d+)")


@dataclass(frozen=True, slots=True)
class DumpName:
    """What a name says.

    Parameters
    ----------
    rollout_id
        The last number, or the one before the rank; None without a number.
    evaluation
        The number follows ``eval_``.
    rank
        Second of two numbers joined by an underscore; None with one number. Such a name may also be a rollout
        dump whose template puts a number before the id: the content decides.
    """

    rollout_id: int | None
    evaluation: bool
    rank: int | None


def parse_dump_name(name: str) -> DumpName:
    """Parse a file name.

    Parameters
    ----------
    name
        With or without its extension, without folders.
    """
    stem = name.removesuffix(".pt")
    if (match := _EVALUATION.fullmatch(stem)) is not None:
        return DumpName(_number(match[1]), True, None)
    if (match := _TRAIN.fullmatch(stem)) is not None:
        return DumpName(_number(match[1]), False, _number(match[2]))
    if (match := _ROLLOUT.fullmatch(stem)) is not None:
        return DumpName(_number(match[1]), False, None)
    return DumpName(None, False, None)


def _number(digits: str) -> int | None:
    return int(digits) if len(digits) < 19 else None
