"""The data source behind the worker: checked draws, nothing lost in between, reports to who wants them."""

from types import SimpleNamespace

import pytest

from slime_bridge.errors import DataSourceError
from slime_bridge.prompt_source import PromptSource
from tests.slime_bridge.rollouts import Source


def accept(groups, taken):
    taken()


def test_drawn_groups_are_checked_and_taken_over():
    """Every group is checked before any is handed over."""
    seen, checked = [], []
    source = PromptSource(Source(), lambda group: checked.append(group[0].group_index))

    def take(groups, taken):
        assert checked == [0, 1, 2]
        seen.extend(group[0].group_index for group in groups)
        taken()

    assert source.draw(3, take) == 3
    assert seen == [0, 1, 2]


def test_failed_check_gives_everything_back():
    """One unusable prompt does not cost its neighbours."""
    plain = Source()

    def check(group):
        if group[0].group_index == 1:
            raise ValueError("blank")

    with pytest.raises(ValueError, match="blank"):
        PromptSource(plain, check).draw(3, accept)
    assert plain.returned == [0, 1, 2]


@pytest.mark.parametrize("claimed", [False, True])
def test_interrupt_during_the_hand_over_neither_loses_nor_doubles(claimed):
    """Taken over or given back, never both, never neither."""
    plain = Source()

    def take(groups, taken):
        if claimed:
            taken()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PromptSource(plain, lambda group: None).draw(2, take)
    assert plain.returned == ([] if claimed else [0, 1])


def test_malformed_neighbours_do_not_cost_good_prompts():
    """What is a group goes back, what is none is named."""
    plain = Source()
    good = plain.make(0)
    plain.get_samples = lambda number: (good, ())
    with pytest.raises(DataSourceError, match="an empty group at position 1"):
        PromptSource(plain, lambda group: None).draw(2, accept)
    assert plain.buffer == [good]


def test_empty_draw_takes_nothing_over():
    """Nothing is no error here; who waits decides."""
    assert PromptSource(Source(limit=0), lambda group: None).draw(2, None) == 0


def test_each_prompt_goes_back_by_itself():
    """A source that refuses one prompt still gets the others."""
    plain = Source()
    groups = [plain.make(number) for number in range(3)]
    add = plain.add_samples

    def picky(groups):
        if groups[0][0].group_index == 1:
            raise AssertionError("wrong size")
        add(groups)

    plain.add_samples = picky
    assert PromptSource(plain, lambda group: None).give_back(groups) == [True, False, True]
    assert plain.returned == [0, 2]


def test_reports_reach_a_source_that_wants_them():
    """Tracking is switched on before the first draw, once."""
    calls = []
    plain = Source()
    plain.track_deliveries = lambda: calls.append("track")
    source = PromptSource(plain, lambda group: None)
    source.draw(1, accept)
    source.draw(1, accept)
    source.delivered([0], 4)
    source.given_up([1])
    source.given_up([])
    assert calls == ["track"]
    assert (plain.delivered, plain.given_up) == ({4: [0]}, [1])


def test_plain_source_needs_no_reports():
    """Anything with get_samples will do."""
    plain = Source()
    source = PromptSource(SimpleNamespace(get_samples=plain.get_samples), lambda group: None)
    assert source.draw(1, accept) == 1
    source.delivered([0], 0)
    source.given_up([0])
    assert source.give_back([plain.make(5)]) == [False]
