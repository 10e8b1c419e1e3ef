"""What a journal leaves to be done, checked on small histories."""

from __future__ import annotations

from typing import Any

from analysis.live.adoption import Adopted, unfinished


def history(*records: tuple[Any, ...]) -> list[dict[str, Any]]:
    named = []
    for at, (event, group, *rest) in enumerate(records):
        fields: dict[str, Any] = {"event": event, "ts": float(at)}
        if group is not None:
            fields["group"] = group
        if event == "group_drawn":
            fields["group_index"] = rest[0]
        if event == "task_submitted":
            fields["task_id"] = rest[0]
        named.append(fields)
    return named


def test_no_journal_leaves_everything() -> None:
    """Nothing was submitted."""
    left = unfinished([], 2)
    assert left.under_way == ()
    assert left.not_submitted == (0, 1)


def test_what_has_an_end_is_done() -> None:
    """Delivered, rejected, given up, abandoned on purpose."""
    records = history(
        ("group_drawn", 0, 0), ("task_submitted", 0, "a"), ("group_delivered", 0),
        ("group_drawn", 1, 1), ("task_submitted", 1, "b"), ("group_rejected", 1),
        ("group_drawn", 2, 2), ("task_submitted", 2, "c"), ("group_given_up", 2),
        ("group_drawn", 3, 3), ("task_submitted", 3, "d"), ("group_abandoned", 3),
    )  # fmt: skip
    left = unfinished(records, 5)
    assert left.under_way == ()
    assert left.not_submitted == (4,)


def test_submitted_without_an_end_is_under_way() -> None:
    """With all tasks of a group that is scored one by one; a result without a verdict is no end."""
    records = history(
        ("group_drawn", 0, 7), ("task_submitted", 0, "a"), ("task_submitted", 0, "b"), ("task_result", 0)
    )
    assert unfinished(records, 8).under_way == (Adopted(7, ("a", "b"), 1.0),)


def test_a_failed_attempt_is_not_taken_up() -> None:
    """Its task is gone; the next one counts if there was one."""
    records = history(("group_drawn", 0, 0), ("task_submitted", 0, "a"), ("group_requeued", 0))
    assert unfinished(records, 1).not_submitted == (0,)
    records += history(("task_submitted", 0, "a2"))
    assert [adopted.task_ids for adopted in unfinished(records, 1).under_way] == [("a2",)]


def test_numbers_of_groups_start_again_with_each_process() -> None:
    """The second process took prompt 1 up as its group 0, and finished it; prompt 0 was finished before."""
    records = history(
        ("group_drawn", 0, 0), ("task_submitted", 0, "a"), ("group_drawn", 1, 1), ("task_submitted", 1, "b"),
        ("group_delivered", 0), ("journal_opened", None), ("group_drawn", 0, 1), ("task_submitted", 0, "b"),
        ("group_delivered", 0),
    )  # fmt: skip
    left = unfinished(records, 2)
    assert left.under_way == ()
    assert left.not_submitted == ()
