"""Tokens of a whole run are read once; what is kept is never more than the bound, nor a wrong answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import token_cache
from analysis.lab.run_folder import RunFolder
from tests.analysis.test_loading import load, write_session
from tests.analysis.test_tokens import equal


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many traces each reading of files was for."""
    seen: list[int] = []
    real = token_cache.read_tokens

    def spy(traces: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(len(traces))
        return real(traces, *arguments, **options)

    monkeypatch.setattr(token_cache, "read_tokens", spy)
    return seen


def test_the_whole_is_read_once_and_serves_its_parts(embedded: RunFolder, readings: list[int]) -> None:
    """A view of a part, some sessions, one trace: from what is kept, and equal to reading them alone."""
    run, fresh = load(embedded.root), load(embedded.root)
    whole = run.token_arrays()
    assert len(readings) == 1
    names = run.sessions()["session_id"].dropna().tolist()[::-2]
    views = (
        lambda r: r.token_arrays(),
        lambda r: r.filter(accepted=True).token_arrays(),
        lambda r: r.sample(3, seed=1).token_arrays(),
        lambda r: r.token_arrays(names),
        lambda r: r.token_arrays(names, trace_index=0),
        lambda r: r.filter(session=lambda s: s.reward > 1e9).token_arrays(),
    )
    found = [view(run) for view in views]
    assert len(readings) == 1
    assert found[0].ids is whole.ids
    # From the narrowest view on, so that none of these is served from a wider one.
    for view, mine in reversed(list(zip(views, found, strict=True))):
        alone = view(fresh)
        assert equal(mine, alone)
        assert mine.table.equals(alone.table)
        assert mine.rows.tolist() == alone.rows.tolist()
        fresh.store.token_cache.clear()
    assert len(found[-1]) == 0
    assert 0 < len(found[1]) < len(whole)


def test_what_is_kept_cannot_be_changed_by_who_is_handed_it(embedded: RunFolder) -> None:
    """Arrays are read-only, frames are copies."""
    run = load(embedded.root)
    arrays = run.token_arrays()
    with pytest.raises(ValueError, match="read-only"):
        arrays.logprob[:] = 0.0
    frame = run.tokens()
    frame.loc[:, ["logprob", "token"]] = 0
    again = run.tokens()
    assert again["token"].tolist() == arrays.ids.tolist()
    np.testing.assert_array_equal(run.token_arrays().logprob, arrays.logprob)


def test_a_refresh_and_a_changed_file_are_noticed(tmp_path: Path, readings: list[int]) -> None:
    """New sessions are read, a file that changed or went is no longer answered for from memory."""
    write_session(tmp_path, "s1", tokens=3)
    run = load(tmp_path)
    assert len(run.token_arrays()) == 5
    path = write_session(tmp_path, "s2", tokens=4)
    run.refresh()
    assert len(run.token_arrays()) == 11
    assert readings == [1, 2]
    os.utime(path, ns=(1, 1))
    assert "refresh()" in run.token_arrays().problems[0].why
    path.unlink()
    assert run.token_arrays().traces["session_id"].tolist() == ["s1"]
    # What went wrong is tried again each time: it may pass.
    assert readings == [1, 2, 2, 2]


def test_memory_is_bounded(tmp_path: Path, readings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings beyond the bound are not kept, and the oldest makes room for the newest."""
    for name in ("s1", "s2", "s3"):
        write_session(tmp_path, name, tokens=100)
    run = load(tmp_path)
    one = run.filter(session_id="s1").token_arrays()
    size = token_cache._bytes(one)
    monkeypatch.setattr(token_cache, "KEPT_BYTES", int(2.5 * size))
    run.token_arrays()
    run.token_arrays()
    assert readings == [1, 3, 3]
    for name in ("s2", "s2", "s1", "s3", "s3", "s2", "s1"):
        run.filter(session_id=name).token_arrays()
    assert readings[3:] == [1, 1, 1]
    assert sum(token_cache._bytes(kept.arrays) for kept in run.store.token_cache._kept) <= 2.5 * size


def test_a_window_is_read_by_itself(embedded: RunFolder, readings: list[int]) -> None:
    """A look at a part of a trace reads that part, and keeps nothing."""
    run = load(embedded.root)
    run.token_arrays(window=(0, 3))
    run.token_arrays(window=(0, 3))
    assert len(readings) == 2
    assert not run.store.token_cache._kept
