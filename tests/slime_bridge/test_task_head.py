from __future__ import annotations

import pytest

from slime_bridge._task_head import TaskHead, leading_task_id, read_task_head, starts_like_object
from slime_bridge.errors import ProtocolError


@pytest.mark.parametrize(
    "body",
    [
        b'{"task_id":"t","status":"completed","results":[{"x":[1,2]}]}',
        b'{"results":[{"task_id":"other"}],"status":"completed","extra":null,"task_id":"t"}',
        b'{"task_id":"t","status":"completed","x":NaN,"y":-Infinity}',
        b'{"task_id":"t","status":"completed","x":"\\ud800"}',
        b'\xef\xbb\xbf{"task_id":"t","status":"completed"}',
    ],
)
def test_id_and_status_are_read(body: bytes) -> None:
    """Order, further fields and what Python's writers emit do not matter."""
    assert read_task_head(body) == TaskHead("t", "completed")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"task_id":"t"}',
        b'{"task_id":null,"status":"completed"}',
        b'{"task_id":"t","status":1}',
        b'{"task_id":"t","status":"completed","results":[{"x":[1,2]}',
        b'{"task_id":"t","status":"completed"} trailing',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_refused_wherever_it_breaks(body: bytes) -> None:
    """Syntax is checked to the last byte, and the message never repeats the body."""
    with pytest.raises(ProtocolError) as caught:
        read_task_head(body)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"task_id":"t-1","status":"x"}', "t-1"),
        (b'\xef\xbb\xbf \n{ "task_id" : "a\\u0062\\"c" ,', 'ab"c'),
        (b'{"status":"x","task_id":"t-1"}', None),
        (b'{"task_id":null}', None),
        (b'{"task_id":"\\q"}', None),
        (b'{"task_id":"' + b"x" * 10_000, None),
        (b"", None),
    ],
)
def test_leading_id_is_read_where_it_stands_first(body: bytes, expected: str | None) -> None:
    """The cheap look at the start knows the id or nothing."""
    assert leading_task_id(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b" {", True), (b"\xef\xbb\xbf{", True), (b"", False), (b"[", False), (b"x{", False)],
)
def test_objects_are_told_by_their_start(body: bytes, expected: bool) -> None:
    """Garbage is refused without a parser."""
    assert starts_like_object(body) is expected
