"""What dump names say, under any template that Slime can format."""

from __future__ import annotations

import pytest

from analysis.sources.dump_names import DumpName, parse_dump_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("7.pt", DumpName(7, False, None)),
        ("eval_7.pt", DumpName(7, True, None)),
        ("run_7.pt", DumpName(7, False, None)),
        ("run_eval_7.pt", DumpName(7, True, None)),
        ("00007.pt", DumpName(7, False, None)),
        ("7_0.pt", DumpName(7, False, 0)),
        ("train_7_12.pt", DumpName(7, False, 12)),
        ("7_rank3.pt", DumpName(7, False, 3)),
        ("7_rank_3.pt", DumpName(7, False, 3)),
        ("exp2-step7.pt", DumpName(7, False, None)),
        ("latest.pt", DumpName(None, False, None)),
        ("evaluation_7.pt", DumpName(7, False, None)),
        ("medieval_7.pt", DumpName(7, False, None)),
        ("9" * 30 + ".pt", DumpName(None, False, None)),
        ("", DumpName(None, False, None)),
    ],
)
def test_names(name: str, expected: DumpName) -> None:
    """Rollout, kind and rank come from the name's numbers; words that merely end in `eval_` do not count."""
    assert parse_dump_name(name) == expected
