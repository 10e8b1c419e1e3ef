"""The doctor's checks of the rollout server, what it can do, its gateways, and the way on to the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from slime_bridge.capabilities import FEATURES, ServerFeatures, configured_features, read_features
from slime_bridge.client import PolarClient
from slime_bridge.config import PolarSlimeConfig, resolve_sglang_router_base_url
from slime_bridge.doctor.http import Web
from slime_bridge.doctor.report import Finding, Severity, counted, finding
from slime_bridge.errors import BridgeError, ConfigError, TransportError
from slime_bridge.protocol import NodeInfo

__all__ = ["Gateway", "ServerFacts", "check_gateways", "check_router", "check_server"]

_SERVER = "rollout server"
_GATEWAYS = "gateways"
_ROUTER = "router"
_ENGINES_ASKED = 4


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway, and where it sends model calls: base URL and dialect, empty if it does not say."""

    node: NodeInfo
    base_url: str = ""
    engine: str = "sglang"


@dataclass(slots=True)
class ServerFacts:
    """What the rollout server said.

    Parameters
    ----------
    nodes
        Its gateways.
    features
        Its optional features; None where it does not describe itself.
    """

    nodes: list[NodeInfo] = field(default_factory=list)
    features: ServerFeatures | None = None


async def check_server(
    client: PolarClient, config: PolarSlimeConfig
) -> tuple[list[Finding], ServerFacts | None]:
    """Ask the server whether it is well, what runs, what it can do."""
    started = time.monotonic()
    try:
        await client.health()
        took = time.monotonic() - started
        statuses = await client.list_statuses()
        facts = ServerFacts(await client.nodes())
    except BridgeError as error:
        fix = (
            "start Polar's rollout server, and check polar_rollout_url and the way there (proxy variables "
            f"are {'used' if config.trust_env else 'ignored'}: polar_trust_env)"
        )
        return [finding(_SERVER, Severity.ERROR, "no usable answer", evidence=str(error), fix=fix)], None
    running = sum(status == "running" for status in statuses.values())
    evidence = f"{client.base_url}: {len(statuses)} tasks since its start, {running} of them running"
    found = [finding(_SERVER, Severity.OK, f"answers in {1000 * took:.0f} ms", evidence=evidence)]
    facts.features, version = await _description(client)
    return [*found, *_capabilities(facts.features, config, version)], facts


async def _description(client: PolarClient) -> tuple[ServerFeatures | None, str]:
    """Return the server's optional features and its version, as it describes itself."""
    try:
        document = await client.describe()
        features = read_features(document)
    except BridgeError:
        return None, "of unknown version"
    info = document.get("info")
    info = info if isinstance(info, dict) else {}
    return features, f"{info.get('title', 'server')} {info.get('version', 'of unknown version')}"


def _capabilities(
    features: ServerFeatures | None, config: PolarSlimeConfig, version: str
) -> Iterable[Finding]:
    if features is None:
        yield finding(
            _SERVER,
            Severity.INFO,
            "it does not describe itself (no /openapi.json), so optional features are found out in use",
        )
        return
    wanted = configured_features(config)
    lacking = features.lacks({*wanted, "cancel"})
    has = ", ".join(name.replace("_", " ") for name in FEATURES if name in features.available)
    matters = bool(wanted.intersection(lacking))
    yield finding(
        _SERVER,
        Severity.WARNING if matters else Severity.INFO,
        f"{version}; optional features: {has or 'none, as the baseline server'}",
        evidence="\n".join(f"without {name.replace('_', ' ')}: {FEATURES[name]}" for name in lacking),
        fix="use a newer rollout server, or unset the keys" if matters else "",
    )


async def check_gateways(web: Web, facts: ServerFacts) -> tuple[list[Finding], list[Gateway]]:
    """Check that gateways are there, alive, open, and have an engine behind them."""
    if not facts.nodes:
        fix = "start a Polar gateway for each node of the topology; it must reach the rollout server"
        text = "the server has no gateway: sessions would wait until their timeout"
        return [finding(_GATEWAYS, Severity.ERROR, text, fix=fix)], []
    found: list[Finding] = []
    gateways: list[Gateway] = []
    for node in facts.nodes:
        problems, gateway = await _gateway(web, node)
        found += problems
        gateways.append(gateway)
    usable = sum(node.healthy and not node.draining for node in facts.nodes)
    workers = sum(node.max_run_workers or 0 for node in facts.nodes)
    text = f"{usable} of {len(facts.nodes)} gateways take sessions, with {workers} run workers"
    severity = Severity.OK if usable else Severity.ERROR
    evidence = "\n".join(
        f"{g.node.node_id} at {g.node.gateway_url} → {g.base_url or 'unknown'} ({g.engine})" for g in gateways
    )
    fix = "" if usable else "start gateways, and check that their heartbeats reach the rollout server"
    return [finding(_GATEWAYS, severity, text, evidence=evidence, fix=fix), *found], gateways


async def _gateway(web: Web, node: NodeInfo) -> tuple[list[Finding], Gateway]:
    found = []
    name, url = node.node_id, node.gateway_url.rstrip("/")
    if not node.healthy:
        text = f"{name}: the server gets no heartbeats of it"
        fix = "start the gateway, or take it out of the topology"
        found.append(finding(_GATEWAYS, Severity.WARNING, text, evidence=str(node.last_heartbeat), fix=fix))
    if node.draining:
        found.append(finding(_GATEWAYS, Severity.INFO, f"{name} is draining: it gets no new sessions"))
    try:
        health = await web.get(f"{url}/health")
        gate = await web.get(f"{url}/admin/inference/status")
    except BridgeError as error:
        text = f"{name} cannot be reached from here, which the weight-update barrier needs"
        fix = f"make {url} reachable from the trainer, or set the gateway's public address in the topology"
        found.append(finding(_GATEWAYS, Severity.WARNING, text, evidence=str(error), fix=fix))
        return found, Gateway(node)
    gate = gate if isinstance(gate, dict) else {}
    if gate.get("paused"):
        text = f"{name} holds generation back: its gate is closed, and no agent gets an answer"
        fix = f"unless a weight push is under way: curl -X POST {url}/admin/inference/resume"
        found.append(finding(_GATEWAYS, Severity.ERROR, text, fix=fix))
    base_url = str(gate.get("base_url") or "").rstrip("/")
    inference = health.get("inference") if isinstance(health, dict) else None
    if isinstance(inference, dict) and inference.get("status") == "error":
        text = f"{name} does not reach its engine at {base_url or 'no address'}"
        fix = "start the engine or router there, or correct inference.base_url (slime-bridge topology)"
        evidence = str(inference.get("error"))
        found.append(finding(_GATEWAYS, Severity.ERROR, text, evidence=evidence, fix=fix))
    return found, Gateway(node, base_url, str(gate.get("engine") or "sglang"))


async def check_router(web: Web, args: Any, gateways: Iterable[Gateway]) -> tuple[list[Finding], list[str]]:
    """Check the trainer's SGLang router, and that the gateways call it.

    Returns
    -------
    findings : list of Finding
        What was found.
    workers : list of str
        Base URLs of its healthy engines; empty if the router is not known or does not say.
    """
    try:
        router = resolve_sglang_router_base_url(args)
    except ConfigError:
        bases = sorted({gateway.base_url for gateway in gateways if gateway.base_url})
        if len(bases) != 1:
            text = (
                "the trainer's SGLang router is not known here; Slime sets it when its servers have started"
            )
            fix = "to check it: --set sglang_router_ip=… --set sglang_router_port=…"
            return [finding(_ROUTER, Severity.SKIPPED, text, fix=fix)], []
        [router] = bases
    found = [
        finding(
            _ROUTER,
            Severity.WARNING,
            f"{gateway.node.node_id} calls {gateway.base_url}, not the trainer's router {router}: unless it "
            "leads there, rollouts come from other weights",
            fix='write "{sglang.router_base_url}" into the topology and render it with slime-bridge topology',
        )
        for gateway in gateways
        if gateway.base_url and gateway.base_url != router
    ]
    workers = await _workers(web, router)
    if isinstance(workers, BridgeError):
        answered = await web.seconds(f"{router}/health")
        if isinstance(answered, TransportError) and answered.reason == "timeout":
            text = f"{router} is slow to answer: under load that does not mean that it is dead"
            fix = "look again when less is going on, or at the engines' queues"
            return [*found, finding(_ROUTER, Severity.WARNING, text, evidence=str(answered), fix=fix)], []
        if isinstance(answered, BridgeError):
            fix = "start the trainer's servers first; the router belongs to Slime"
            return [
                *found,
                finding(_ROUTER, Severity.ERROR, f"no answer at {router}", evidence=str(answered), fix=fix),
            ], []
        text = f"{router} answers and lists no workers: an engine, or a router of an unknown release"
        return [*found, finding(_ROUTER, Severity.INFO, text)], []
    healthy = [url for url, well in workers if well is not False]
    severity = Severity.OK if healthy else Severity.ERROR
    versions = [
        await _engine_version(web, url) if url in healthy[:_ENGINES_ASKED] else "" for url, _ in workers
    ]
    evidence = "\n".join(
        f"{url}{version if well is not False else ' (not healthy)'}"
        for (url, well), version in zip(workers, versions, strict=True)
    )
    fix = "" if healthy else "start the engines; a router answers /health even without any"
    text = f"{router} has {counted(len(healthy), 'engine')}"
    return [*found, finding(_ROUTER, severity, text, evidence=evidence, fix=fix)], healthy


async def _engine_version(web: Web, url: str) -> str:
    """Return an engine's version and weights as text; empty if it does not say."""
    for path in ("/server_info", "/get_server_info"):
        try:
            info = await web.get(f"{url}{path}")
        except BridgeError:
            continue
        if isinstance(info, dict):
            named = [f"{name} {info[name]}" for name in ("version", "weight_version") if info.get(name)]
            return f" ({', '.join(named)})" if named else ""
    return ""


async def _workers(web: Web, router: str) -> list[tuple[str, bool | None]] | BridgeError:
    """List a router's engines, as newer routers (``/workers``) or older ones (``/list_workers``) do."""
    error: BridgeError | None = None
    for path, key in (("/workers", "workers"), ("/list_workers", "urls")):
        try:
            document = await web.get(f"{router}{path}")
        except BridgeError as exc:
            error = exc
            continue
        entries = document.get(key) if isinstance(document, dict) else None
        if isinstance(entries, list):
            return [
                (str(entry["url"]), entry.get("is_healthy"))
                if isinstance(entry, dict) and "url" in entry
                else (str(entry), None)
                for entry in entries
            ]
    return error or ConfigError(f"{router} lists no workers")
