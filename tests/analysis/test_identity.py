"""Which rows are about the same thing, when each source knows other ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from analysis._identity import codes, find, occurrences, with_occurrence
from analysis._identity import identify as identify_lazily


def key(*columns: list[Any]) -> Any:
    return codes([pa.array(column) for column in columns])


def identify(keys: list[Any]) -> Any:
    return identify_lazily(len(keys[0]), [lambda made=made: made for made in keys])


def test_codes_number_combinations_and_leave_out_what_is_not_known() -> None:
    """Equal combinations share a number; a missing part makes a key unusable, never equal to another."""
    found = key(["a", "b", "a", None, "a"], [1, 1, 1, 1, None])
    assert found[0] == found[2] != found[1]
    assert found[3] == found[4] == -1
    chunked = pa.chunked_array([["a"], ["b", "a", None, "a"]])
    assert (codes([chunked, pa.array([1, 1, 1, 1, None])]) == found).all()
    assert len(codes([pa.array([], pa.string())])) == 0


def test_codes_do_not_overflow_with_many_parts() -> None:
    """Eight parts with thousands of values each: products of counts exceed 64 bits, numbers must not."""
    rng = np.random.default_rng(0)
    columns = [pa.array(rng.integers(0, 5000, size=20_000)) for _ in range(8)]
    assert len(np.unique(codes(columns))) == 20_000


@given(st.lists(st.integers(0, 4), max_size=30))
def test_occurrences_count_from_zero(values: list[int]) -> None:
    """The n-th time a value comes up it gets n - 1."""
    expected = [values[:place].count(value) for place, value in enumerate(values)]
    assert occurrences(np.array(values, dtype=np.int64)).tolist() == expected


def test_rows_join_by_the_first_key_they_share() -> None:
    """A session seen by Polar, the journal and a dump is one; a placeholder is found by its trajectory."""
    session = key(["s1", "s2", "s1", None, None, None])
    trajectory = key([None, 2, 1, 2, 3, None])
    assert identify([session, trajectory]).tolist() == [0, 1, 0, 1, 2, 3]


def test_a_later_key_never_joins_what_an_earlier_one_tells_apart() -> None:
    """Two sessions of one trajectory number (a requeued group) stay two; who fits both fits none."""
    session = key(["s1", "s2", None])
    trajectory = key([7, 7, 7])
    assert identify([session, trajectory]).tolist() == [0, 1, 2]


def test_rows_without_the_first_key_still_find_each_other() -> None:
    """Without any journal the second key makes the groups, and a third may add to them."""
    first = key([None, None, None, None])
    second = key([1, 1, None, None])
    third = key(["x", None, "x", "y"])
    assert identify([first, second, third]).tolist() == [0, 0, 0, 1]


def test_numbers_follow_the_rows() -> None:
    """Entities are numbered as they come up, whatever the keys' order."""
    assert identify([key(["z", "a", "z", "m"])]).tolist() == [0, 1, 0, 2]
    assert identify([key([None, None])]).tolist() == [0, 1]
    assert identify([np.zeros(0, dtype=np.int64)]).tolist() == []
    assert identify_lazily(2, []).tolist() == [0, 1]


def test_later_keys_are_made_only_where_they_are_needed() -> None:
    """Nearly all tables are settled by their first key; the others cost time."""

    def never() -> Any:
        raise AssertionError("made a key that nobody needs")

    assert identify_lazily(2, [lambda: key(["a", "b"]), never]).tolist() == [0, 1]


def test_equal_samples_of_one_file_stay_apart_and_meet_their_copies() -> None:
    """Two equal samples in a dump are two; the same two in another rank's file are the same two."""
    tokens = key(["x", "x", "y", "x", "x", None])
    file = key(["a", "a", "a", "b", "b", "b"])
    found = with_occurrence(tokens, file)
    assert found[0] == found[3] != found[1] == found[4]
    assert found[5] == -1
    assert (with_occurrence(tokens[:1], file[:1]) == tokens[:1]).all()


@given(st.lists(st.tuples(*[st.none() | st.integers(0, 3)] * 3), min_size=1, max_size=25))
def test_identity_is_a_partition_that_respects_the_first_key(rows: list[tuple[int | None, ...]]) -> None:
    """Equal first keys are together, different ones apart, numbers are dense; later keys only add."""
    keys = [key([row[place] for row in rows]) for place in range(3)]
    entity = identify(keys)
    assert sorted(set(entity.tolist())) == list(range(int(entity.max()) + 1))
    first = [row[0] for row in rows]
    for a in range(len(rows)):
        for b in range(len(rows)):
            if first[a] is not None and first[b] is not None:
                assert (entity[a] == entity[b]) == (first[a] == first[b])
            if entity[a] == entity[b] and a != b:
                assert any(x is not None for x in rows[a])


def test_find_wants_exactly_one_counterpart() -> None:
    """A row finds its group by the first key that names just one; ambiguity is no answer."""
    both = key(["g1", None, None, "g9", "g1", "g2", "g3"])
    third = key([None, 5, 6, None, 4, 5, 5])
    mine, theirs = [both[:4], third[:4]], [both[4:], third[4:]]
    assert find(mine, theirs).tolist() == [0, -1, -1, -1]
    assert find([np.array([-1])], [np.zeros(0, dtype=np.int64)]).tolist() == [-1]
