"""Where a connection leads, and that no credential of an address is ever shown."""

from __future__ import annotations

import pytest

from analysis.errors import ConnectError
from analysis.live.addresses import Addresses, is_loopback, resolve_addresses, shown_url

ENVIRONMENT = {"POLAR_ROLLOUT_URL": "http://env:1", "SGLANG_ROUTER_URL": "http://env:2"}


def test_arguments_come_before_the_environment() -> None:
    """Each falls back on its own variable."""
    assert resolve_addresses("http://a:1", "http://b:2", ENVIRONMENT) == Addresses("http://a:1", "http://b:2")
    assert resolve_addresses(None, None, ENVIRONMENT) == Addresses("http://env:1", "http://env:2")
    assert resolve_addresses("http://a:1", None, {}) == Addresses("http://a:1", None)


def test_nothing_named_is_the_embedded_stack() -> None:
    """Empty variables name nothing; a router alone in the environment decides nothing."""
    assert resolve_addresses(None, None, {}) is None
    assert resolve_addresses(None, None, {"POLAR_ROLLOUT_URL": "", "SGLANG_ROUTER_URL": "http://r:1"}) is None


def test_a_router_alone_is_a_mistake() -> None:
    """Sessions go through a rollout server."""
    with pytest.raises(ConnectError, match="POLAR_ROLLOUT_URL"):
        resolve_addresses(None, "http://r:1", {})


@pytest.mark.parametrize(
    "url",
    ["host:8080", "ftp://user:secret@host", "http://", "//user:secret@host", "http://user:secret@host:x"],
)
def test_unusable_urls_are_refused_without_being_quoted(url: str) -> None:
    """What is wrong may be the password."""
    with pytest.raises(ConnectError, match="polar_url is not usable") as caught:
        resolve_addresses(url, None, {})
    assert "secret" not in str(caught.value)


def test_credentials_are_not_shown() -> None:
    """Neither user info nor query nor fragment."""
    url = "https://user:secret@polar.internal:8443/prefix/?token=secret#secret"
    assert shown_url(url) == "https://polar.internal:8443/prefix"
    assert "secret" not in repr(Addresses(url, url))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost", True),
        ("http://127.0.0.1.example.com", False),
        ("http://10.0.0.1", False),
        ("http://polar", False),
    ],
)
def test_loopback_by_name_or_address(url: str, expected: bool) -> None:
    """Where results can be posted to 127.0.0.1."""
    assert is_loopback(url) is expected
