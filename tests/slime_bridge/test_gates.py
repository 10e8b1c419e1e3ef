"""The gates' HTTP client, below what the weight barrier does with it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import httpx
import pytest

from slime_bridge._gates import GateClient
from slime_bridge.errors import ConfigError


@dataclass
class _Owner:
    rollout_url: str = "http://polar"
    control_plane_token: str | None = None
    trust_env: bool = False
    weight_update_pause_timeout: float = 1.0
    run_dir: str | None = None


@pytest.mark.parametrize(
    ("url", "trust_env", "verified"),
    [("http://g:1", False, False), ("https://g:1", False, True), ("http://g:1", True, True)],
)
def test_certificates_are_verified_wherever_there_can_be_some(
    url: str, trust_env: bool, verified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain addresses save the time to load them; a proxy of the environment may be reached by TLS."""
    made: list[ssl.SSLContext] = []
    original = httpx.HTTPTransport.__init__

    def record(self: httpx.HTTPTransport, *args: object, **values: object) -> None:
        original(self, *args, **values)  # type: ignore[arg-type]
        made.append(self._pool._ssl_context)

    monkeypatch.setattr(httpx.HTTPTransport, "__init__", record)
    with GateClient(_Owner(trust_env=trust_env)) as client:
        first = client._client(url)
        assert client._client(url) is first
        assert client._client("https://other:1") is client._client("https://another:2")
    assert made[0].verify_mode is (ssl.CERT_REQUIRED if verified else ssl.CERT_NONE)
    assert made[-1].verify_mode is ssl.CERT_REQUIRED
    assert len(made) == (1 if verified else 2)
    assert first.is_closed


def test_certificates_that_cannot_be_loaded_are_an_error_of_the_bridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever opens gates goes on with the others; an error of another kind would end a weight push."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with GateClient(_Owner(trust_env=True)) as client, pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        client.nodes(timeout=1.0)
