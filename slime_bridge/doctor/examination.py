"""Checks before a training: configuration, templates, Slime, server, gateways, router, and a probe task.

Each check is a function of its own that returns findings; here they are put into order. The checks that need
a network run in a thread with its own event loop, so that this works in a notebook too. Nothing is changed
anywhere; a probe task that does not end in time is cancelled where the server can.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from slime_bridge._launch import PromptRow, read_prompt_rows, synthetic_row
from slime_bridge.client import PolarClient
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.doctor.configuration import check_configuration, check_templates
from slime_bridge.doctor.environment import check_slime, check_tracking, check_versions
from slime_bridge.doctor.generation import check_generation
from slime_bridge.doctor.http import Web
from slime_bridge.doctor.probe import check_probe
from slime_bridge.doctor.report import Finding, Report, Severity, finding
from slime_bridge.doctor.server import check_gateways, check_router, check_server
from slime_bridge.errors import BridgeError, ConfigError
from slime_bridge.loop_thread import LoopThread, first_cause

__all__ = ["Finding", "Report", "Severity", "run_doctor"]

logger = logging.getLogger(__name__)

_REQUEST_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_END_SECONDS = 3.0


def run_doctor(
    args: Any,
    *,
    prompt_data: str | None = None,
    probe: bool = True,
    timeout: float = 120.0,
    max_rows: int = 1000,
    on_finding: Callable[[Finding], None] | None = None,
) -> Report:
    """Check everything that can be checked before a training, in seconds.

    Parameters
    ----------
    args
        The trainer's arguments: a namespace with the keys of the configuration file.
    prompt_data
        JSONL to render templates over; by default ``args.prompt_data``, and without that a made-up prompt.
    probe
        Also ask for one short generation, and run one task to its end.
    timeout
        Seconds that the probe task may take.
    max_rows
        Rows of the prompt data to render.
    on_finding
        Called in this thread with each finding as it is made.

    Returns
    -------
    Report
        All findings; what is wrong is in them, and nothing is raised for it.
    """
    started = time.monotonic()
    findings: list[Finding] = []

    def note(new: Iterable[Finding]) -> None:
        for item in new:
            findings.append(item)
            if on_finding is not None:
                on_finding(item)

    note(_guarded("versions", check_versions))
    note(_guarded("slime", check_slime))
    note(_guarded("wandb", lambda: check_tracking(args)))
    config: PolarSlimeConfig | None = None

    def configuration() -> list[Finding]:
        nonlocal config
        found, config = check_configuration(args)
        return found

    note(_guarded("configuration", configuration))
    if config is not None:
        sample: Any = None

        def templates() -> list[Finding]:
            nonlocal sample
            assert config is not None
            found, sample = _templates(args, config, prompt_data, max_rows)
            return found

        note(_guarded("templates", templates))
        note(_from_thread(lambda: _network(_Visit(args, config, sample, probe, timeout))))
    return Report(tuple(findings), time.monotonic() - started)


def _templates(
    args: Any, config: PolarSlimeConfig, prompt_data: str | None, max_rows: int
) -> tuple[list[Finding], Any]:
    source = prompt_data or getattr(args, "prompt_data", None)
    source = source if isinstance(source, str) else None
    rows: list[PromptRow] = []
    found: list[Finding] = []
    if source is not None:
        try:
            rows = list(read_prompt_rows(source, args, limit=max_rows))
        except ConfigError as error:
            found.append(
                finding("templates", Severity.ERROR, str(error), fix="name the file with --prompt-data")
            )
        else:
            if not rows:
                text = f"{source} has no rows"
                found.append(finding("templates", Severity.ERROR, text, fix="name the file with the prompts"))
    if not rows:
        source, rows = None, [synthetic_row()]
    rendered, sample = check_templates(args, config, rows, source=source)
    return [*found, *rendered], sample


@dataclass(frozen=True, slots=True)
class _Visit:
    """What the checks over the network need."""

    args: Any
    config: PolarSlimeConfig
    sample: Any
    probe: bool
    timeout: float


async def _network(visit: _Visit) -> AsyncIterator[list[Finding]]:
    """Yield the findings of each check that needs a network."""
    config = visit.config
    client = PolarClient(
        config.rollout_url,
        timeout=min(config.request_timeout or _REQUEST_SECONDS, _REQUEST_SECONDS),
        trust_env=config.trust_env,
        control_token=config.control_plane_token,
    )
    async with client, Web(trust_env=config.trust_env, timeout=_REQUEST_SECONDS) as web:
        found, facts = await check_server(client, config)
        yield found
        if facts is None:
            return
        found, gateways = await check_gateways(web, facts)
        yield found
        found, workers = await check_router(web, visit.args, gateways)
        yield found
        if not visit.probe:
            text = "not asked for: no generation and no task was tried"
            yield [finding("probe task", Severity.SKIPPED, text, fix="leave --no-probe out")]
            return
        model = str(config.task_template["agent"].get("model_name") or "default")
        yield await check_generation(web, gateways, workers, model=model)
        if visit.sample is None:
            text = "no request could be rendered, so none was submitted"
            yield [finding("probe task", Severity.SKIPPED, text)]
        elif not facts.nodes:
            yield [finding("probe task", Severity.SKIPPED, "without a gateway no task can run")]
        else:
            yield await check_probe(client, config, visit.args, visit.sample, timeout=visit.timeout)


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as error:  # one broken check must not hide what the others find
        return [_broken(name, error)]


def _broken(name: str, error: BaseException) -> Finding:
    logger.debug("A check failed", exc_info=error)
    severity = Severity.ERROR if isinstance(error, BridgeError) else Severity.WARNING
    text = "the check itself failed" if severity is Severity.WARNING else "the check could not be finished"
    return finding(name, severity, text, evidence=f"{type(error).__name__}: {error}")


def _from_thread(checks: Callable[[], AsyncIterator[list[Finding]]]) -> Iterable[Finding]:
    """Run checks in a loop of their own, and hand their findings out in the calling thread as they come."""
    results: queue.SimpleQueue[list[Finding] | None] = queue.SimpleQueue()

    async def main() -> None:
        async for found in checks():
            results.put(found)

    def ended(error: BaseException | None) -> None:
        if error is not None:
            results.put([_broken("rollout server", first_cause(error))])
        results.put(None)

    loop = LoopThread(main, name="polar-doctor", on_end=ended)
    try:
        while (found := _next(results)) is not None:
            yield from found
    finally:
        # After an interrupt the checks go on otherwise, and a probe task with them.
        loop.cancel()
        loop.join(_END_SECONDS)


def _next(results: queue.SimpleQueue[list[Finding] | None]) -> list[Finding] | None:
    while True:
        try:
            return results.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            # Waiting in pieces lets an interrupt through on every platform.
            continue
