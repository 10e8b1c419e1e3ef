"""Two of a kind side by side: numbers against hand-made ones, transcripts from where they part."""

from __future__ import annotations

from pathlib import Path

import pytest
from ipywidgets.widgets.widget import _instances

from analysis.errors import ExplorerError
from analysis.explorers.compare import CompareExplorer
from analysis.explorers.comparison import KINDS, beside_html, compare_frame, first_difference, part_of
from analysis.explorers.state import SelectionState
from analysis.run import Run
from analysis.transcripts.model import Block, Message, Transcript
from tests.analysis.explorers.made_runs import HOSTILE, no_rows, small_run
from tests.analysis.transcripts.made_sessions import load_sessions, session, trace, turn_messages


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_sessions(
        tmp_path,
        session("ses-1"),
        session("ses-2", trace(response=turn_messages("It failed."), reward=0.0)),
        session("ses-3", trace(prompt=(), response=(), reward=None)),
    )


def numbers(frame, quantity: str) -> list[float]:
    row = frame[frame["quantity"] == quantity].iloc[0]
    return [row["first"], row["second"], row["difference"]]


class TestNumbers:
    def test_groups(self) -> None:
        state = SelectionState(small_run(), estimator="loo")
        frame = compare_frame(state, part_of(state, "group", 0), part_of(state, "group", 1))
        assert numbers(frame, "sessions") == [3, 2, -1]
        assert numbers(frame, "reward") == pytest.approx([2 / 3, 0.5, 0.5 - 2 / 3])
        assert numbers(frame, "reward spread") == pytest.approx(
            [(1 / 3) ** 0.5, 0.125**0.5, 0.125**0.5 - (1 / 3) ** 0.5]
        )
        assert numbers(frame, "advantage, largest") == [1.0, 0.5, -0.5]
        assert numbers(frame, "trainable tokens") == [30, 8, -22]

    def test_the_estimator_decides_on_advantages(self) -> None:
        state = SelectionState(small_run(), estimator="dr_grpo")
        parts = part_of(state, "group", 0), part_of(state, "group", 1)
        assert numbers(compare_frame(state, *parts), "advantage, largest")[:2] == pytest.approx([2 / 3, 0.25])

    def test_rollouts_and_their_rejections(self) -> None:
        state = SelectionState(small_run())
        frame = compare_frame(state, part_of(state, "rollout", 0), part_of(state, "rollout", 1))
        assert numbers(frame, "groups rejected") == [0, 0.5, 0.5]
        assert numbers(frame, "sessions") == [5, 5, 0]
        assert "advantage" not in set(frame["quantity"])  # nothing was dumped

    def test_a_reward_that_is_known_of_one_only_has_no_difference(self, run: Run) -> None:
        state = SelectionState(run)
        frame = compare_frame(state, part_of(state, "session", "ses-1"), part_of(state, "session", "ses-3"))
        first, second, difference = numbers(frame, "reward")
        assert first == 1.0
        assert str(second) == str(difference) == "<NA>"

    def test_what_is_not_there(self) -> None:
        state = SelectionState(small_run())
        for kind, key in (("session", "none"), ("group", 99), ("rollout", 99), ("run", "none"), ("token", 1)):
            with pytest.raises(ExplorerError):
                part_of(state, kind, key)


def say(*texts: str) -> Transcript:
    return Transcript(0, response=tuple(Message("assistant", (Block("text", text),)) for text in texts))


class TestTranscripts:
    @pytest.mark.parametrize(
        ("first", "second", "parted"),
        [
            (["a", "b"], ["a", "b"], None),
            (["a", "b"], ["a", "c"], 1),
            (["a"], ["a", "b"], 1),
            ([], ["a"], 0),
            ([], [], None),
        ],
    )
    def test_where_they_part(self, first: list[str], second: list[str], parted: int | None) -> None:
        assert first_difference(say(*first), say(*second)) == parted

    def test_what_they_share_stands_there_once(self) -> None:
        html = beside_html(say("same", "left"), say("same", "right"), ("A", "B"))
        assert html.count("same</pre>") == 1
        assert html.count("wb-msg-marked") == 2
        assert "1 message the same in both" in html

    def test_one_that_merely_goes_on(self) -> None:
        assert "It ends here." in beside_html(say("a"), say("a", "b"), ("A", "B"))

    def test_twice_the_same(self) -> None:
        assert "The same from beginning to end" in beside_html(say("a"), say("a"), ("A", "B"))

    def test_hostile_texts_are_inert(self) -> None:
        html = beside_html(say(HOSTILE, "a"), say(HOSTILE, HOSTILE), (HOSTILE, HOSTILE))
        assert "<script" not in html
        assert "<img" not in html


class TestExplorer:
    def test_sessions_side_by_side(self, run: Run) -> None:
        explorer = CompareExplorer(run, first="ses-1", second="ses-2")
        assert numbers(explorer.selection, "reward") == [1, 0, -1]
        assert "3 messages the same in both" in explorer.texts.value
        assert "It failed." in explorer.texts.value
        explorer.second.value = "ses-3"
        assert "No messages of ses-3 were kept" in explorer.texts.value
        assert explorer.error_text() == ""
        explorer.close()

    def test_the_first_one_follows_the_selection_and_leads_it(self, run: Run) -> None:
        explorer = CompareExplorer(run, second="ses-3")
        explorer.state.session_id = "ses-2"
        assert (explorer.first.value, explorer.second.value) == ("ses-2", "ses-3")
        explorer.first.value = "ses-1"
        assert explorer.state.session_id == "ses-1"
        explorer.swap.click()
        assert (explorer.first.value, explorer.second.value) == ("ses-3", "ses-1")
        assert explorer.state.session_id == "ses-3"
        explorer.close()

    def test_every_kind_and_estimator(self) -> None:
        explorer = CompareExplorer(small_run())
        for kind in KINDS:
            explorer.of.value = kind
            assert len(explorer.selection)
        explorer.of.value = "group"
        explorer.state.estimator = "loo"
        assert numbers(explorer.selection, "advantage, largest")[0] == 1.0
        explorer.first.value, explorer.second.value = (
            explorer.first.options[1][1],
            explorer.first.options[0][1],
        )
        assert numbers(explorer.selection, "advantage, largest")[:2] == [0.5, 1.0]
        assert explorer.state.group.group == 1
        assert explorer.error_text() == ""
        explorer.close()

    def test_nothing_to_compare(self) -> None:
        explorer = CompareExplorer(no_rows())
        for kind in KINDS:
            explorer.of.value = kind
            assert "Nothing to compare" in explorer.numbers.value
        assert explorer.error_text() == ""
        explorer.close()

    def test_only_what_can_be_compared(self) -> None:
        with pytest.raises(ExplorerError, match="'token' cannot be compared"):
            CompareExplorer(small_run(), of="token")

    def test_ten_explorers_leave_nothing(self, run: Run) -> None:
        before = set(_instances)
        for _ in range(10):
            CompareExplorer(run).close()
        assert set(_instances) == before

    def test_a_successor_compares_the_same(self, run: Run) -> None:
        first = CompareExplorer(run, name="cell", first="ses-2", second="ses-3")
        second = CompareExplorer(run, name="cell")
        assert first.closed
        assert second.view() == {"of": "session", "first": "ses-2", "second": "ses-3"}
        second.close()
