"""``python -m analysis.lab.engine --checkpoint DIR --port P``: serve a checkpoint until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

# One thread: with more, small steps wait for each other on a busy machine. Must be set before torch is
# loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import uvicorn

from analysis.errors import LabError
from analysis.lab.engine import BatchLimits, Engine, create_app


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis.lab.engine", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face folder of a Qwen3 model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", default=None, help="default: the checkpoint's path")
    parser.add_argument("--weight-version", default="default", help="name of the first weights")
    parser.add_argument("--max-running-requests", type=int, default=BatchLimits.max_running)
    parser.add_argument("--max-retained-requests", type=int, default=BatchLimits.max_retained)
    parser.add_argument("--disable-prefix-sharing", action="store_true")
    parser.add_argument("--random-seed", type=int, default=None, help="default: from the system")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it; 0 on an orderly end, 1 when the checkpoint cannot be served."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    torch.set_num_threads(args.threads)
    limits = BatchLimits(
        max_running=args.max_running_requests,
        max_retained=args.max_retained_requests,
        share_prefixes=not args.disable_prefix_sharing,
    )
    try:
        engine = Engine(
            args.checkpoint, limits=limits, weight_version=args.weight_version, seed=args.random_seed
        )
    except (LabError, OSError) as error:
        logging.getLogger(__name__).error("cannot serve %s: %s", args.checkpoint, error)
        return 1
    # The server ends on either signal and raises it again afterwards, with nothing left to interrupt.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    with engine:
        uvicorn.run(
            create_app(engine, model_name=args.served_model_name),
            host=args.host,
            port=args.port,
            log_level=args.log_level,
            access_log=False,
            # Requests that wait for the end of a pause would otherwise keep the process for ever.
            timeout_graceful_shutdown=2,
            # Longer than routers and clients keep idle connections: a request on a closing one would be lost.
            timeout_keep_alive=300,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
