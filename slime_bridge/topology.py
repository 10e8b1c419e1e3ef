"""Polar's topology file: where the rollout server is, and which engine the gateways call.

The file is read tolerantly, because newer servers add keys and only a few matter here, and written back with
everything it had. Placeholders, as in task templates, may use ``args`` and ``sglang.router_base_url``. Polar
validates its file itself; only what the bridge takes from it is checked here.
"""

from __future__ import annotations

import logging
from typing import Any

import yaml

from slime_bridge import _parsing as parse
from slime_bridge._router_url import RouterAddress, format_host
from slime_bridge.errors import ConfigError
from slime_bridge.templates import render

__all__ = ["load_topology", "render_topology_template", "resolve_rollout_url"]

logger = logging.getLogger(__name__)

_DEFAULT_HOST = "0.0.0.0"
_DEFAULT_PORT = 8080
_DEFAULT_ENGINE_URL = "http://127.0.0.1:8000"


def load_topology(topology_path: str) -> dict[str, Any]:
    """Read a topology file, placeholders left in place.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no YAML, or its sections are no mappings; the message names the path
        and the key.
    """
    try:
        with open(topology_path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except OSError as exc:
        raise ConfigError(
            f"polar_topology_path {topology_path!r} cannot be read: {exc.strerror or exc}"
        ) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        # A ValueError is a byte that is no UTF-8, or a date that does not exist.
        raise ConfigError(f"polar_topology_path {topology_path!r} is not YAML: {_one_line(exc)}") from exc
    if not isinstance(document, dict):
        raise ConfigError(
            f"topology {topology_path!r} holds {_kind(document)}: expected a mapping with `gateway`"
        )
    for name in ("rollout", "gateway"):
        if name in document and not isinstance(document[name], dict):
            raise ConfigError(
                f"topology {topology_path!r}: `{name}` is {_kind(document[name])}: "
                "expected a mapping, or no such key"
            )
    return document


def resolve_rollout_url(topology_path: str, args: Any) -> str:
    """Return the rollout server's base URL: ``rollout.public_url``, else derived from its host and port.

    As Polar does, a wildcard host becomes ``127.0.0.1``; the port is 8080 unless the file says otherwise.

    Raises
    ------
    ConfigError
        If the file or its ``rollout`` section is unusable.
    """
    where = f"topology {topology_path!r}: rollout"
    section = render(load_topology(topology_path).get("rollout", {}), _context(args), where=where)
    if section.get("public_url") is not None:
        return str(_parsed(section["public_url"], parse.url, f"{where}.public_url"))
    host = _parsed(section.get("host", _DEFAULT_HOST), parse.host(wildcard=True), f"{where}.host")
    port = _parsed(
        section.get("port", _DEFAULT_PORT), parse.integer(at_least=1, at_most=65535), f"{where}.port"
    )
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else format_host(host)}:{port}"


def render_topology_template(topology_path: str, args: Any) -> dict[str, Any]:
    """Return the topology with placeholders filled and gateways pointed at the trainer's SGLang router.

    A gateway whose ``inference.base_url`` is absent, or Polar's default that nothing of the trainer's listens
    on, gets the router's base URL. Any other address in the file is kept: it may lead to the router another
    way; a warning says so.

    Parameters
    ----------
    topology_path
        Polar's topology YAML, with or without placeholders.
    args
        Trainer arguments.

    Returns
    -------
    dict
        The document, to be dumped as YAML for Polar. Keys that are not touched are as in the file.

    Raises
    ------
    ConfigError
        If the file is unusable, names no gateway nodes, or the router's address is needed and not known.
    """
    where = f"topology {topology_path!r}"
    document: dict[str, Any] = render(load_topology(topology_path), _context(args), where=where)
    nodes = document.get("gateway", {}).get("nodes")
    if not isinstance(nodes, list) or not nodes or not all(isinstance(node, dict) for node in nodes):
        raise ConfigError(
            f"{where}: `gateway.nodes` is {_kind(nodes)}: expected a list of at least one gateway"
        )
    for index, node in enumerate(nodes):
        _point_at_router(node, args, f"{where}: gateway.nodes[{index}].inference")
    return document


def _point_at_router(node: dict[str, Any], args: Any, where: str) -> None:
    inference = node.get("inference")
    if inference is None:
        inference = {}
    if not isinstance(inference, dict):
        raise ConfigError(f"{where} is {_kind(inference)}: expected a mapping")
    current = inference.get("base_url")
    if current is None or str(current).rstrip("/") == _DEFAULT_ENGINE_URL:
        node["inference"] = {**inference, "base_url": RouterAddress(args).router_base_url}
        return
    base_url = _parsed(current, parse.url, f"{where}.base_url")
    if RouterAddress(args).is_known and base_url != RouterAddress(args).router_base_url:
        logger.warning(
            "%s.base_url is %s, not the trainer's router %s: unless it leads there, rollouts come from other "
            'weights; write "{sglang.router_base_url}" to follow the router',
            where,
            base_url,
            RouterAddress(args).router_base_url,
        )


def _context(args: Any) -> dict[str, Any]:
    return {"args": args, "sglang": RouterAddress(args)}


def _parsed(value: Any, parser: parse.Parser, name: str) -> Any:
    try:
        return parser.convert(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}: expected {parser.allowed}") from None


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())


def _kind(value: Any) -> str:
    return "empty" if value is None else f"a {type(value).__name__}"
