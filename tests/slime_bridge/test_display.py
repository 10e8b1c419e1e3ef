"""What a notebook shows of a verdict and of a configuration: escaped, without credentials."""

from __future__ import annotations

import pytest

from slime_bridge._display import pairs_html
from slime_bridge.acceptance import Accepted, Rejected, RejectReason, too_stale
from slime_bridge.config import PolarSlimeConfig
from tests.hostile import HOSTILE


def test_a_verdict_shows_what_decided_it() -> None:
    """The reason in words, and each number."""
    html = Rejected(
        RejectReason.LOW_COMPLETE_FRACTION, {"complete_usable": 2, "required": 7, "reasons": {"failed": 6}}
    )._repr_html_()
    assert "low_complete_fraction" in html
    assert "Too few sessions completed" in html
    assert "complete usable</th>" in html
    assert "failed: 6" in html
    assert "the group may be trained on" in Accepted({"usable": 8})._repr_html_()
    assert "older than the bound" in too_stale(5, 3)._repr_html_()


@pytest.mark.parametrize("reason", list(RejectReason))
def test_every_reason_has_words(reason: RejectReason) -> None:
    """A new reason needs its sentence."""
    assert Rejected(reason, {})._repr_html_()


def test_a_configuration_shows_what_was_changed_and_no_credential() -> None:
    """Defaults stay out; tokens are masked, wherever they stand."""
    config = PolarSlimeConfig(
        rollout_url="http://me:hunter2@polar:8080",
        task_template={"agent": {"env": {"OPENAI_API_KEY": "sk-abcdefgh1234"}}},
        control_plane_token="tok123456",
        max_async_level=3,
    )
    html = config._repr_html_()
    assert "max_async_level</th>" in html
    assert "early_stop_grace_sessions" not in html
    assert config.fingerprint in html
    for secret in ("hunter2", "sk-abcdefgh1234", "tok123456"):
        assert secret not in html


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_inert_and_bounded(text: str) -> None:
    """In titles, names, values and nested values."""
    html = pairs_html(text, text, [(text, text), ("nested", {text: text})], text)
    html.encode("utf-8")
    assert "<script" not in html
    assert "<img" not in html
    assert not set(html) & {"\x00", "\x1b", "\u202e", "\ud800"}
    assert len(html) < 40_000
    assert html.count("<table") == html.count("</table>") == 1


def test_missing_values_are_dashes() -> None:
    """None, and mappings without entries."""
    assert (
        pairs_html("t", "", [("a", None), ("b", {}), ("c", True), ("d", 12345), ("e", 0.25)]).count("—") == 2
    )
