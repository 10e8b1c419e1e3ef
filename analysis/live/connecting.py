"""`connect`: to servers that somebody else runs, by URL or environment, or to the embedded stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.errors import SubmissionError
from analysis.lab.settings import LabSettings
from analysis.live.addresses import resolve_addresses
from analysis.live.backends import EmbeddedBackend, ExternalBackend, read_keys
from analysis.live.connection import Lab
from analysis.live.registry import runs_folder

__all__ = ["connect"]

_CHECK_SECONDS = 5.0


def connect(
    polar_url: str | None = None,
    router_url: str | None = None,
    *,
    embedded: bool = False,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    callback_host: str | None = None,
    runs_dir: str | os.PathLike[str] | None = None,
    trust_env: bool = False,
    timeout: float = _CHECK_SECONDS,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Lab:
    """Connect to a running Polar rollout server, or start the embedded stack where none is named.

    Parameters
    ----------
    polar_url
        Base URL of the rollout server; by default the variable ``POLAR_ROLLOUT_URL``. User info becomes basic
        authentication, and ``POLAR_CONTROL_PLANE_TOKEN`` is sent along; neither is ever shown or stored.
    router_url
        Base URL of the SGLang router, for `Lab.preflight`; by default the variable ``SGLANG_ROUTER_URL``.
    embedded
        Start the embedded stack whatever the environment says.
    config
        Default keys of submissions: the YAML file of ``--custom-config-path``, or a mapping.
    callback_host
        Name or address under which the rollout server reaches this machine. Without it, results are polled,
        unless the server is on this machine.
    runs_dir
        Folder of live runs; by default the variable ``WORKBENCH_RUNS``, else ``runs``.
    trust_env
        Follow the environment's proxy variables.
    timeout
        Seconds within which each server must answer.
    seed
        Of the embedded stack's policy.
    checkpoint
        Policy that the embedded stack serves, as a training leaves it in ``checkpoint/final``; the warm start
        of the seed if None.
    quiet
        Say nothing while the embedded stack starts.
    **settings
        Further fields of `analysis.lab.settings.LabSettings`, for the embedded stack.

    Returns
    -------
    Lab
        The connection. Use it in a ``with`` block, or `Lab.close` it; it closes itself when the process ends.

    Raises
    ------
    PolarUnreachableError, RouterUnreachableError
        If a server that was named does not answer.
    ConnectError
        If a URL cannot be used, or a router is named without a rollout server.
    LabError
        If a part of the embedded stack does not come up.
    """
    runs = runs_folder(runs_dir)
    addresses = None if embedded else resolve_addresses(polar_url, router_url, os.environ)
    if addresses is not None:
        if settings or checkpoint is not None:
            named = ", ".join([*settings, *(["checkpoint"] if checkpoint is not None else [])])
            raise SubmissionError(f"{named}: settings of the embedded stack, and a rollout server is named")
        external = ExternalBackend(
            addresses, keys=read_keys(config), callback_host=callback_host, trust_env=trust_env
        )
        external.check(timeout)
        return Lab(external, runs)
    try:
        chosen = LabSettings.from_dict({"seed": seed, **settings})
    except (ValueError, TypeError) as error:
        raise SubmissionError(f"settings of the embedded stack: {error}") from error
    backend = EmbeddedBackend(
        chosen,
        keys=read_keys(config),
        checkpoint=None if checkpoint is None else Path(checkpoint).expanduser(),
    )
    backend.start(_silent if quiet else _say)
    try:
        return Lab(backend, runs)
    except BaseException:
        backend.close()
        raise


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _silent(text: str) -> None:
    """Say nothing."""
