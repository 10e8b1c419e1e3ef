"""The certificates that servers are checked against, for whichever library connects."""

from __future__ import annotations

import os
import ssl

import httpx

from slime_bridge.errors import ConfigError

__all__ = ["ssl_context"]


def ssl_context(*, trust_env: bool) -> ssl.SSLContext:
    """Load the certificates; takes tens of milliseconds.

    Parameters
    ----------
    trust_env
        Take those of ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` where the environment names some, else certifi's.

    Raises
    ------
    ConfigError
        If there are none.
    """
    named = os.environ.get("SSL_CERT_FILE") if trust_env else None
    try:
        return httpx.create_ssl_context(trust_env=trust_env)
    except OSError as exc:
        source = f"SSL_CERT_FILE, {named!r}," if named else "the certifi package"
        raise ConfigError(f"no certificates can be loaded from {source} ({exc.strerror or exc})") from exc
