"""What a run shows: plain lines or bars, whole lines only."""

from __future__ import annotations

import io
import logging
import os
import threading

import pytest

from analysis.lab.progress import NoteHandler, Progress, duration, time_left


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3725, "1:02:05"), (-3, "0:00")]
)
def test_duration(seconds: float, text: str) -> None:
    """Durations are rounded to seconds and never negative."""
    assert duration(seconds) == text


def test_time_left_follows_the_pace() -> None:
    """Ten of forty steps in twenty seconds leave sixty; without a step there is no estimate."""
    assert time_left(10, 40, 20.0) == pytest.approx(60.0)
    assert time_left(0, 40, 20.0) is None
    assert time_left(41, 40, 20.0) == 0.0


def test_plain_lines_show_every_wanted_step_with_time_left() -> None:
    """Without a terminal each rollout is one whole line with its numbers and the time left."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock=clock)
    with progress.task("rollout", 3, every_step=True) as task:
        for reward in ("0.25", "0.50", "0.75"):
            clock.now += 2.0
            task.advance(reward=reward)
    assert stream.getvalue().splitlines() == [
        "rollout 1/3  reward 0.25  left 0:04",
        "rollout 2/3  reward 0.50  left 0:02",
        "rollout 3/3  reward 0.75  left 0:00",
    ]


def test_fast_tasks_print_few_plain_lines() -> None:
    """Two hundred quick steps give a line every two seconds and one at the end, not two hundred."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock=clock)
    with progress.task("warm start", 200) as task:
        for _ in range(200):
            clock.now += 0.025
            task.advance()
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= 4
    assert lines[-1].startswith("warm start 200/200")


def test_each_write_is_one_whole_line() -> None:
    """Lines from several threads never mix: a write holds the full line and its end."""
    writes: list[str] = []

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    progress = Progress(Recorder())
    threads = [
        threading.Thread(target=lambda: [progress.note("x" * 50) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writes == ["x" * 50 + "\n"] * 200


def test_bar_on_a_terminal_and_notes_above_it() -> None:
    """On a terminal a bar shows numbers and time left; a note starts on a fresh line; no thread stays."""
    before = set(threading.enumerate())
    clock, stream = Clock(), Terminal()
    progress = Progress(stream, clock=clock)
    assert progress.live
    with progress.task("rollout", 2, every_step=True) as task:
        clock.now += 5.0
        task.advance(reward="0.40", lag="1.0")
        progress.note("hello there")
        clock.now += 5.0
        task.advance(reward="0.60", lag="1.0")
    text = stream.getvalue()
    assert "2/2" in text
    assert "reward 0.60" in text
    assert "hello there\n" in text
    (line,) = [line for line in text.replace("\r", "\n").split("\n") if "hello there" in line]
    assert line.strip() == "hello there"
    assert set(threading.enumerate()) == before


def test_close_takes_down_what_an_interruption_left() -> None:
    """After Ctrl-C inside a task the bar is gone and later lines stand alone."""
    stream = Terminal()
    progress = Progress(stream)

    def interrupted_task() -> None:
        with progress.task("rollout", 2) as task:
            task.advance()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_task()
    progress.close()
    progress.note("stopped")
    assert stream.getvalue().endswith("stopped\n")


def test_log_records_go_through_the_same_voice() -> None:
    """Warnings appear as notes, information does not."""
    stream = io.StringIO()
    handler = NoteHandler(Progress(stream))
    logger = logging.getLogger("tests.progress")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.info("quiet")
        logger.warning("task %s is late", "t-1")
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    assert stream.getvalue() == "WARNING tests.progress: task t-1 is late\n"


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    """With the pipe closed at the other end, notes are dropped quietly, again and again."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        os.close(read_end)
        progress = Progress(stream)
        for _ in range(3):
            progress.note("anyone?")
