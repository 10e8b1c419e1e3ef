"""Records of sessions for people: no credential leaves, and texts have a bound."""

import pytest

from slime_bridge.session_record import MAX_TEXT, redacted, session_hash


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"api_key": "swordfish"}, {"api_key": "***"}),
        ({"args": [{"password": "x"}, "bearer abcdefghijk"]}, {"args": [{"password": "***"}, "bearer ***"]}),
        ({"content": "my word is swordfish"}, {"content": "my word is ***"}),
        ({"tokens": 3, "score": 1.0, "none": None}, {"tokens": 3, "score": 1.0, "none": None}),
        (("a", 1), ["a", 1]),
    ],
)
def test_credentials_go_by_name_shape_and_value(value, shown):
    """Wherever they stand in messages and tool calls."""
    assert redacted(value, secrets=("swordfish",)) == shown


def test_texts_are_bounded():
    """One endless answer must not fill a disk."""
    assert len(redacted("x" * (MAX_TEXT + 10))) == MAX_TEXT


def test_hash_tells_sessions_apart_and_gives_nothing_away():
    """Equal for equal ids, different for others, lone surrogates included."""
    assert session_hash("sk-polar-1") == session_hash("sk-polar-1") != session_hash("sk-polar-2")
    assert "sk" not in session_hash("sk-polar-1")
    assert len(session_hash("\ud800")) == 16
