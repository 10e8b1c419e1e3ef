"""What a live view shows, and that it shows hostile text as text."""

from __future__ import annotations

import pytest

from analysis.live.progress import OldestTask, Point, Snapshot
from analysis.live.progress_view import Headline, duration, progress_html, progress_text, smoothed, with_style

HOSTILE = "<script>alert('x')</script>\x1b[31m\u202ebad"

BUSY = Snapshot(
    sessions={"RUNNING": 3, "COMPLETED": 5, "TIMEOUT": 1},
    groups={"running": 1, "accepted": 1},
    rejections={"zero_trainable": 2},
    requeues={"outage": 1},
    rewards=(0.0, 1.0),
    rewarded=2,
    reward_sum=1.0,
    unrewarded=1,
    tokens=1234,
    submitted=9,
    oldest=OldestTask("task-1", 100.0),
    first=90.0,
    last=150.0,
)


def test_everything_that_matters_is_shown() -> None:
    """Stages, rewards, rejections, the oldest task with its age, what is still to come."""
    head = Headline("run", "running", planned=12, now=160.0)
    for text in (progress_text(head, BUSY), progress_html(head, BUSY)):
        for word in (
            "running",
            "2 zero_trainable",
            "1 outage",
            "0.500 over 2 sessions",
            "1,234",
            "1 min 0 s (task-1)",
            "without reward",
        ):
            assert word in text, word
    assert "3 waiting" in progress_text(head, BUSY)
    assert "3 not submitted" in progress_text(Headline("run", "cancelled", "stopped", planned=12), BUSY)
    assert "5 completed, 1 timeout, 3 running, 3 waiting" in progress_html(head, BUSY)


def test_nothing_yet_is_said_and_no_number_made_up() -> None:
    """An empty run has no zero rewards."""
    text = progress_text(Headline("run", "running"), Snapshot())
    assert text == "run: running\n  sessions: nothing yet"
    assert "reward" not in progress_html(Headline("run", "running"), Snapshot())


def test_hostile_text_is_inert() -> None:
    """Titles, errors, reasons and ids come from models, files and servers."""
    snapshot = Snapshot(
        sessions={HOSTILE: 1},
        rejections={HOSTILE: 1},
        last_error=HOSTILE,
        oldest=OldestTask(HOSTILE, 0.0),
        curves={"reward": (Point(0, 1.0), Point(1, 0.5))},
    )
    html = progress_html(Headline(HOSTILE, "failed", "failed", HOSTILE, error=HOSTILE, now=1.0), snapshot)
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "&lt;script&gt;" in html


def test_long_errors_are_cut() -> None:
    """A server may answer with a page."""
    head = Headline("run", "failed", "failed", error="x" * 10_000)
    assert len(progress_html(head, Snapshot())) < 3000


def test_the_view_brings_its_style() -> None:
    """It looks right in a cell of its own, in light and dark."""
    markup = with_style(progress_html(Headline("run", "running"), BUSY))
    assert ".wb-live-bar" in markup
    assert "data-jp-theme-light" in markup


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (4.24, "4.2 s"),
        (59.2, "59 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (float("nan"), "?"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    """As people write them."""
    assert duration(seconds) == text


def test_smoothing_is_a_trailing_mean() -> None:
    """Each point is the mean of a window that ends there; long series are thinned, the last point stays."""
    assert [point.x for point in smoothed([1.0] * 10, 32)] == [8, 9, 10]
    assert smoothed([1.0, 0.0, 1.0, 1.0], 2) == [Point(1, 1.0), Point(2, 0.5), Point(3, 0.5), Point(4, 1.0)]
    long = smoothed([1.0] * 10_000, 32)
    assert len(long) <= 305
    assert long[-1].x == 10_000
