"""Slices of a sequence that a trainer split over ranks fit together again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.context_parallel import Layout, assemble, find_layout, slice_places


def slime_slice(
    values: np.ndarray, total: int, rank: int, ranks: int, padded: int | None = None
) -> np.ndarray:
    """What Slime's slicer keeps of per-response-token values, spelled out position by position."""
    response = len(values)
    prompt = total - response
    chunk = ((padded or total) + 2 * ranks - 1) // (2 * ranks)
    kept = []
    for part in (rank, 2 * ranks - 1 - rank):
        for position in range(part * chunk, (part + 1) * chunk):
            if prompt - 1 <= position <= total - 2:  # it predicts a response token
                kept.append(values[position + 1 - prompt])
    return np.array(kept, dtype=np.float32)


shapes = st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(2, 8), st.integers(0, 9))


@given(shapes)
def test_places_are_those_of_slimes_slicer(shape: tuple[int, int, int, int]) -> None:
    """Every response token is on exactly one rank, at the place where the dump has it; padded or packed."""
    prompt, response, ranks, padding = shape
    padded = prompt + response + padding if padding else None
    values = np.arange(response, dtype=np.float32)
    seen = []
    for rank in range(ranks):
        places = slice_places(rank, ranks, prompt, response, padded)
        np.testing.assert_array_equal(
            values[places], slime_slice(values, prompt + response, rank, ranks, padded)
        )
        seen += places.tolist()
    assert sorted(seen) == list(range(response))


@given(shapes, st.integers(1, 4), st.integers(0, 3))
def test_all_ranks_give_the_whole(shape: tuple[int, int, int, int], copies: int, block: int) -> None:
    """Whatever the number of ranks and of tensor-parallel copies, and wherever the ranks begin."""
    prompt, response, ranks, padding = shape
    padded = prompt + response + padding if padding else None
    values = np.random.default_rng(0).normal(size=response).astype(np.float32)
    first = block * ranks * copies
    files = []
    for number in range(ranks * copies):
        piece = slime_slice(values, prompt + response, number // copies, ranks, padded)
        files.append((first + number, {"advantages": piece, "log_probs": -piece}))
    layout = find_layout(files, prompt, response, padded)
    assert layout is not None
    for name, sign in (("advantages", 1), ("log_probs", -1)):
        whole = assemble(layout, [known[name] for _, known in files], prompt, response, padded)
        np.testing.assert_array_equal(whole, sign * values)


def test_equal_values_everywhere_do_not_hide_a_rank() -> None:
    """GRPO gives every token the same advantage: equal slices of different ranks are no copies."""
    ones = np.ones(40, dtype=np.float32)
    files = [(rank, {"advantages": slime_slice(ones, 50, rank, 2)}) for rank in range(2)]
    layout = find_layout(files, 10, 40)
    assert layout == Layout(2, (0, 1))
    assert (
        assemble(layout, [files[0][1]["advantages"], files[1][1]["advantages"]], 10, 40).tolist()
        == [1.0] * 40
    )


def test_a_missing_rank_leaves_its_tokens_missing() -> None:
    """Two of three ranks: what they have is at its place, the rest is NaN."""
    values = np.arange(60, dtype=np.float32)
    files = [(rank, {"log_probs": slime_slice(values, 70, rank, 3)}) for rank in (0, 2)]
    layout = find_layout(files, 10, 60)
    assert layout is not None
    assert not layout.complete
    whole = assemble(layout, [known["log_probs"] for _, known in files], 10, 60)
    known = ~np.isnan(whole)
    np.testing.assert_array_equal(whole[known], values[known])
    assert 30 <= known.sum() < 60


def test_one_rank_needs_no_layout_and_nonsense_has_none() -> None:
    """Whole lists are taken as they are; lengths that fit no number of ranks give nothing."""
    values = np.arange(5, dtype=np.float32)
    layout = find_layout([(3, {"x": values}), (4, {"x": values})], 2, 5)
    assert layout == Layout(1, (0, 0))
    assert assemble(layout, [values, None], 2, 5).tolist() == values.tolist()
    assert find_layout([(0, {"x": values[:4]}), (1, {"x": values[:4]})], 2, 5) is None
    assert find_layout([(0, {})], 2, 5) == Layout(1, (0,))


@pytest.mark.slime
def test_slices_are_those_of_real_slime() -> None:
    """The installed slicer of Slime, with its parallel state replaced, cuts the same places."""
    import importlib.util
    import os
    import sys
    import types
    from pathlib import Path

    folder = os.environ.get("SLIME_DIR")
    if not folder:
        pytest.skip("SLIME_DIR names no checkout of Slime")
    state = types.SimpleNamespace(rank=0, size=2)
    mpu = types.SimpleNamespace(
        get_context_parallel_rank=lambda: state.rank, get_context_parallel_world_size=lambda: state.size
    )
    stubs = {"megatron": types.ModuleType("megatron"), "megatron.core": types.ModuleType("megatron.core")}
    stubs["megatron.core"].mpu = mpu  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stubs.items():
            patch.setitem(sys.modules, name, module)
        path = Path(folder) / "slime" / "backends" / "megatron_utils" / "cp_utils.py"
        spec = importlib.util.spec_from_file_location("slime_cp_utils", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    for _ in range(200):
        prompt, response, state.size = (int(n) for n in rng.integers((1, 1, 2), (30, 60, 6)))
        values = list(range(response))
        for rank in range(state.size):
            state.rank = rank
            cut = module.slice_log_prob_with_cp(values, prompt + response, response)
            assert list(cut) == slice_places(rank, state.size, prompt, response).tolist()
