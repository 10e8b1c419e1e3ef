"""``python -m analysis.lab.polar_server``: serve until SIGTERM or SIGINT.

With ``--router-url`` (or ``--config topology.yaml``) sessions run agents whose model calls go to an engine
or a router; with ``--script`` it plays a fault script instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from analysis.lab.polar_server.fault_kinds import fault_table
from analysis.lab.polar_server.faults import FaultScript
from analysis.lab.polar_server.server import PolarServer
from analysis.lab.polar_server.settings import NodeSettings, ServerSettings
from analysis.lab.polar_server.topology import load_topology, settings_from_topology

logger = logging.getLogger("polar_server")

KEPT_REQUESTS = 1000
"""Request records that a long-running process keeps."""

SHUTDOWN_GRACE = 0.3
"""Seconds that running requests get at the end."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis.lab.polar_server", description=__doc__)
    where = parser.add_argument_group("addresses")
    where.add_argument("--config", type=Path, help="a Polar topology.yaml; the options below override it")
    where.add_argument("--host", help="of the rollout server and the gateway (default 127.0.0.1)")
    where.add_argument("--port", type=int, help="of the rollout server (default 8080; 0 takes a free one)")
    where.add_argument("--gateway-port", type=int, help="of the gateway (default: a free one)")
    where.add_argument("--router-url", help="base URL of the engine or router, without /v1")
    where.add_argument("--save-dir", type=Path, help="root of the result tree; default: nothing is written")
    nodes = parser.add_argument_group("gateway")
    nodes.add_argument("--node-id", help="default node-1")
    nodes.add_argument("--engine", choices=["sglang", "vllm"], help="dialect of the engine (default sglang)")
    nodes.add_argument("--model-served", help="model name sent to the engine (default: the agent's)")
    nodes.add_argument("--max-init-workers", type=int)
    nodes.add_argument("--max-run-workers", type=int)
    nodes.add_argument("--max-postrun-workers", type=int)
    nodes.add_argument("--init-seconds", type=float, help="time to prepare a sandbox (default 0)")
    nodes.add_argument("--no-completion-files", action="store_true", help="do not write captured model calls")
    mode = parser.add_argument_group("behaviour")
    mode.add_argument(
        "--script", type=Path, help="play this fault script (YAML or JSON) instead of running agents"
    )
    mode.add_argument("--list-faults", action="store_true", help="print the kinds of faults and end")
    mode.add_argument(
        "--newer", action="store_true", help="behave like newer servers (cancel, early stop, ...)"
    )
    mode.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    return parser


def settings_from(args: argparse.Namespace) -> ServerSettings:
    """Return the settings that the command line asks for.

    Raises
    ------
    ValueError
        When neither a router nor a topology nor a script is given, or the topology is wrong.
    """
    if args.config is not None:
        base = settings_from_topology(load_topology(args.config))
    elif args.router_url or args.script:
        base = ServerSettings(port=8080, scripted=False, nodes=(NodeSettings(),))
    else:
        raise ValueError("name an engine or router with --router-url, a --config, or a --script")
    given = {
        "host": args.host,
        "port": args.gateway_port,
        "node_id": args.node_id,
        "engine": args.engine,
        "model_served": args.model_served,
        "inference_url": args.router_url,
        "max_init_workers": args.max_init_workers,
        "max_run_workers": args.max_run_workers,
        "max_postrun_workers": args.max_postrun_workers,
        "init_seconds": args.init_seconds,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    single = {key for key in changes if key in ("port", "node_id")}
    if single and len(base.nodes) > 1:
        raise ValueError(
            f"the topology has {len(base.nodes)} nodes; {', '.join(sorted(single))} fits only one"
        )
    outer = {"host": args.host, "port": args.port, "save_dir": args.save_dir}
    return replace(
        base,
        nodes=tuple(replace(node, **changes) for node in base.nodes),
        newer=args.newer or base.newer,
        keep_requests=KEPT_REQUESTS,
        scripted=args.script is not None,
        persist_completions=base.persist_completions and not args.no_completion_files,
        control_token=os.environ.get("POLAR_CONTROL_PLANE_TOKEN") or None,
        **{key: value for key, value in outer.items() if value is not None},
    )


def load_script(path: Path) -> FaultScript:
    """Read a fault script from a YAML or JSON file; `ValueError` names what is wrong."""
    text = path.read_text(encoding="utf-8")
    data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if not isinstance(data, dict):
        raise ValueError(f"{path} must hold a mapping with 'faults', 'seed' and 'sessions'")
    return FaultScript.from_dict(data)


async def serve(settings: ServerSettings, script: FaultScript | None) -> None:
    """Serve until SIGTERM or SIGINT, then end within two seconds."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = PolarServer(settings, script=script)
    await server.start()
    try:
        gateways = ", ".join(f"{name} {server.fronts[name].url}" for name in server.gateways)
        sys.stdout.write(f"rollout server {server.url}; gateways {gateways}\n")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await server.close(grace=SHUTDOWN_GRACE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; 0 on an orderly end, 1 when it cannot start, 2 for a wrong command line."""
    args = _parser().parse_args(argv)
    if args.list_faults:
        sys.stdout.write(f"{fault_table()}\n")
        return 0
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = settings_from(args)
        script = load_script(args.script) if args.script is not None else None
    except (OSError, ValueError, yaml.YAMLError) as error:
        logger.error("%s", error)
        return 2
    try:
        asyncio.run(serve(settings, script))
    except OSError as error:
        logger.error("the server cannot start: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
