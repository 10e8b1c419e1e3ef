"""Turns of a trace: where versions and finish reasons are found, and which turns a push may have cut."""

from __future__ import annotations

import pytest

from slime_bridge.conversion.turns import oldest_and_newest, read_turns

FLAGS = bytes([1, 1, 0, 1, 0, 0, 1, 1])
SPANS = ((0, 2), (3, 4), (6, 8))


def calls(*entries):
    return {"completion_metadata": list(entries)}


@pytest.mark.parametrize(
    "entries",
    [
        [{"weight_version": "3"}, {"weight_version": "3"}, {"weight_version": "4"}],
        [{"weight_version": 3}, {"weight_version": 3.0}, {"weight_version": 4}],
        [{"meta_info": {"weight_version": v}} for v in ("3", "3", "4")],
        [{"policy_version": v} for v in (3, 3, 4)],
    ],
)
def test_versions_and_the_jump(entries):
    """Wherever the version is written, the turn before its change is suspect and all turns are located."""
    report = read_turns(calls(*entries), "stop", FLAGS, submitted_version=3)
    assert report.versions == ["3", "3", "4"]
    assert report.before_jump == (1,)
    assert report.aborted == ()
    assert report.spans == SPANS
    assert report.to_list()[2] == {"start": 6, "end": 8, "weight_version": "4", "finish_reason": "stop"}


def test_a_constant_copy_of_the_stamp_says_nothing():
    """Servers copy the task's metadata into every call: an echo is no measurement."""
    report = read_turns(calls(*[{"policy_version": 3}] * 3), "stop", FLAGS, submitted_version=3)
    assert report.versions == []
    assert report.before_jump == ()


def test_a_constant_that_differs_from_the_stamp_is_a_measurement():
    """All turns were served by newer weights than those the task was submitted under."""
    report = read_turns(calls(*[{"policy_version": 5}] * 3), "stop", FLAGS, submitted_version=3)
    assert report.versions == ["5", "5", "5"]
    assert report.before_jump == ()


def test_versions_that_differ_need_no_stamp():
    """Where the task was not stamped, or the stamp got lost, a change from turn to turn still tells."""
    report = read_turns(calls(*[{"policy_version": v} for v in (3, 4, 4)]), "stop", FLAGS)
    assert report.versions == ["3", "4", "4"]
    assert report.before_jump == (0,)


def test_the_engines_version_beats_the_stamp():
    """Trainer steps and engine pushes are counted differently, so the two are never mixed."""
    entries = [{"weight_version": "1", "policy_version": 9}, {"policy_version": 9}, {"weight_version": "2"}]
    report = read_turns(calls(*entries), None, FLAGS, submitted_version=9)
    assert [turn.weight_version for turn in report.turns] == ["1", None, "2"]
    assert report.before_jump == (0, 1)


@pytest.mark.parametrize(
    ("entries", "finish_reason", "aborted"),
    [
        ([{}, {}, {}], "abort", (2,)),
        ([{"finish_reason": "abort"}, {"finish_reason": "stop"}, {}], "stop", (0,)),
        ([{"meta_info": {"finish_reason": {"type": "abort"}}}, {}, {}], None, (0,)),
        ([{}, {}, {"finish_reason": "abort"}], "stop", (2,)),
        ([{}, {}, {}], "stop", ()),
    ],
)
def test_aborts(entries, finish_reason, aborted):
    """A call's own reason counts beside the trace's, which is that of the last call."""
    assert read_turns(calls(*entries), finish_reason, FLAGS).aborted == aborted


def test_a_trace_of_one_call_is_described_by_its_own_metadata():
    """Traces that were not merged have no list of calls."""
    report = read_turns({"weight_version": "7", "finish_reason": "abort"}, "abort", bytes([0, 1, 1]))
    assert report.versions == ["7"]
    assert report.aborted == (0,)
    assert report.spans == ((0, 3),)


def test_turns_that_cannot_be_located():
    """Two calls without a token between them make one run: their border is unknown."""
    report = read_turns(calls({"weight_version": "1"}, {"weight_version": "2"}), "stop", bytes([1, 1, 1]))
    assert report.spans is None
    assert report.to_list()[0]["start"] is None


@pytest.mark.parametrize(
    "metadata",
    [
        {"completion_metadata": []},
        {"completion_metadata": "x"},
        {"completion_metadata": [None, 3]},
        {"meta_info": 1, "finish_reason": 7},
        {"weight_version": None},
        {"weight_version": True},
        {"weight_version": {"a": 1}},
    ],
)
def test_odd_metadata_says_nothing(metadata):
    """Metadata is an open map: anything may be in it."""
    report = read_turns(metadata, None, FLAGS)
    assert report.versions == []
    assert (report.aborted, report.before_jump) == ((), ())


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([], None),
        (["9", "10", "2"], ("2", "10")),
        (["default"], ("default", "default")),
        (["b", "a", "c"], ("b", "c")),
        (["-1", "0"], ("-1", "0")),
    ],
)
def test_oldest_and_newest(versions, expected):
    """Numbers are compared as numbers; names only have an order of appearance."""
    assert oldest_and_newest(versions) == expected


SPANNED = {
    "weight_version": "3",
    "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
}


class TestWeightsThatChangeDuringATurn:
    @pytest.mark.parametrize(
        "first",
        [SPANNED, {"meta_info": SPANNED}, {**SPANNED, "weight_version": "4"}],
        ids=["gateway", "engine", "engine that names the newest"],
    )
    def test_oldest_and_newest_are_the_true_ones(self, first):
        """A push in place leaves one turn of two versions: neither is hidden."""
        report = read_turns(calls(first, {"weight_version": "4"}, {"weight_version": "4"}), "stop", FLAGS)
        assert report.versions == ["3", "4", "4", "4"]
        assert oldest_and_newest(report.versions) == ("3", "4")
        assert report.turns[0].weight_version == "3"

    def test_such_a_turn_is_whole(self):
        """It ended under the version that the next one began with: nothing was cut."""
        report = read_turns(calls(SPANNED, {"weight_version": "4"}, {"weight_version": "5"}), "stop", FLAGS)
        assert report.before_jump == (1,)

    def test_tokens_are_told_apart_in_the_response(self):
        """Positions are the response's, and end where the turn does, whatever the engine counted besides."""
        spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 9}]
        report = read_turns(
            calls({"weight_version": "3"}, {"weight_version": "3"}, {"weight_versions": spans}), "stop", FLAGS
        )
        assert report.to_list()[2]["weight_versions"] == [
            {"version": "3", "start": 6, "end": 7},
            {"version": "4", "start": 7, "end": 8},
        ]
        assert "weight_versions" not in report.to_list()[0]

    def test_spans_of_turns_that_cannot_be_located(self):
        """Then they are counted from the turn's own first token."""
        report = read_turns(calls(SPANNED, {"weight_version": "4"}), "stop", FLAGS)
        assert report.spans is None
        assert report.to_list()[0]["weight_versions"] == SPANNED["weight_versions"]

    @pytest.mark.parametrize(
        "listed",
        [
            "3",
            [],
            [3],
            [{"version": None, "start": 0, "end": 1}],
            [{"version": "5", "start": 2, "end": 1}],
            [{"version": "5", "start": 0}],
        ],
    )
    def test_malformed_spans_say_nothing(self, listed):
        """What cannot be read does not replace what can."""
        report = read_turns({"weight_version": "3", "weight_versions": listed}, "stop", FLAGS)
        assert report.versions == ["3"]
        assert report.turns[0].spans == ()

    def test_one_span_is_one_version(self):
        """A list of one is the ordinary case, written down at length."""
        listed = [{"version": 7, "start": 0, "end": 8}]
        report = read_turns({"weight_versions": listed}, "stop", FLAGS)
        assert report.versions == ["7"]
        assert report.turns[0].spans == ()
