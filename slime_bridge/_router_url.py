"""The address of the trainer's SGLang router, as the trainer's ``args`` give it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime_bridge.errors import ConfigError

__all__ = ["RouterAddress", "format_host", "resolve_sglang_router_base_url"]


def resolve_sglang_router_base_url(args: Any) -> str:
    """Return the base URL of the SGLang router, without a trailing slash.

    Parameters
    ----------
    args
        Trainer arguments: ``sglang_router_ip`` and ``sglang_router_port``, else the ``default`` entry of
        ``sglang_model_routers``.

    Raises
    ------
    ConfigError
        If no router is known: Slime fills these in on the rollout manager once its servers have started.
    """
    ip, port = _address(args)
    if not ip or port is None:
        raise ConfigError(
            f"the SGLang router is not known: sglang_router_ip is {ip!r}, sglang_router_port is {port!r}. "
            "Slime sets both when its servers have started; elsewhere pass --sglang-router-ip and "
            "--sglang-router-port (`slime-bridge topology` takes both as --router HOST:PORT)"
        )
    try:
        number = 0 if isinstance(port, bool) else int(port)
    except (TypeError, ValueError):
        number = 0
    if not 0 < number < 65536:
        raise ConfigError(f"sglang_router_port is {port!r}: expected a port from 1 to 65535")
    return f"http://{format_host(str(ip))}:{number}"


@dataclass(frozen=True)
class RouterAddress:
    """What ``{sglang.…}`` means in a template; looked up only where a template asks for it.

    Parameters
    ----------
    args
        Trainer arguments.
    """

    args: Any

    @property
    def router_base_url(self) -> str:
        """The router's base URL; raises `ConfigError` while it is not known."""
        return resolve_sglang_router_base_url(self.args)

    @property
    def is_known(self) -> bool:
        """Whether ``args`` names a router."""
        ip, port = _address(self.args)
        return bool(ip) and port is not None


def format_host(host: str) -> str:
    """Return a host as it stands in a URL: an IPv6 address in brackets, anything else as it is."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return f"[{bare}]" if ipaddress.ip_address(bare).version == 6 else bare
    except ValueError:
        return host


def _address(args: Any) -> tuple[Any, Any]:
    ip = getattr(args, "sglang_router_ip", None)
    port = getattr(args, "sglang_router_port", None)
    routers = getattr(args, "sglang_model_routers", None)
    if not ip and isinstance(routers, Mapping) and routers.get("default"):
        ip, port = routers["default"]
    return ip, port
