"""What runs inside the worker's event loop: groups from the queue through the rollout server to the buffer.

`Pipeline.main` is the loop's coroutine. The other public methods are called in the loop's thread, between
two steps of its coroutines, so neither the state machine nor the books need a lock. The pipeline draws
nothing and hands out nothing by itself; the worker asks for both on behalf of the trainer's call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from slime_bridge._push_log import pushes_were_guarded
from slime_bridge.batch import DeliveredGroup, DrawnGroup, Report, Step
from slime_bridge.callbacks import CallbackListener
from slime_bridge.capabilities import Capabilities, configured_features
from slime_bridge.client import PolarClient, connection_limits
from slime_bridge.collect import CollectEvent, CollectEventKind, Collector
from slime_bridge.config import PolarSlimeConfig, keys_without_effect
from slime_bridge.errors import BridgeError, PolarOutageError, SubmitRejectedError, TransportError
from slime_bridge.filters import TrainerFilters
from slime_bridge.group_flow import GroupFlow, failure_reason
from slime_bridge.group_task import GroupRunner, PromptGroup, TaskBuilder
from slime_bridge.journal import EventLog
from slime_bridge.retry import Fuse

__all__ = ["Pipeline"]

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 0.25
_OUTAGE_LOOK_SECONDS = 1.0
_HEALTH_SECONDS = 5.0
_AWAY_LIMIT = 1
"""Groups in flight while the server is away: enough to notice that it is back."""


class Pipeline:
    """The loop's side of a worker.

    Parameters
    ----------
    config
        The configuration.
    builder
        Makes task requests.
    filters
        The trainer's own; what they need is kept for them.
    journal
        Notes every event.
    startup_timeout
        Seconds within which a server that has never answered must answer.
    on_ready
        Called when the listener is bound and the server has answered.
    on_move
        Called when the trainer's call has something to do.

    Attributes
    ----------
    flow : GroupFlow
        The groups.
    capabilities : Capabilities
        What has no effect, with this server or with any.
    """

    def __init__(
        self,
        config: PolarSlimeConfig,
        builder: TaskBuilder,
        filters: TrainerFilters,
        journal: EventLog,
        *,
        startup_timeout: float,
        on_ready: Callable[[], None],
        on_move: Callable[[], None],
    ) -> None:
        self.flow = GroupFlow(
            config, journal, keep_samples=filters.wants_all_samples, asks_filter=filters.asked_about_groups
        )
        self.capabilities = Capabilities(
            config.rollout_url,
            configured_features(config),
            journal,
            keys_without_effect(builder.args, config),
        )
        self._config = config
        self._builder = builder
        self._journal = journal
        self._startup_timeout = startup_timeout
        self._on_ready = on_ready
        self._on_move = on_move
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._closed = False
        self._polled = 0
        self._outages = 0
        self._away_since = 0.0
        self._away_seconds = 0.0
        self._listener: CallbackListener | None = None
        self._fuse: Fuse | None = None
        self._runner: GroupRunner | None = None
        self._tasks: TaskGroup | None = None
        self._wake: asyncio.Event | None = None

    # Called in the loop's thread on behalf of the trainer's call

    @property
    def away(self) -> bool:
        """Whether the server gives no usable answer at present."""
        return self._fuse is not None and self._fuse.is_open

    @property
    def outage_seconds(self) -> float:
        """How long the server has been away; 0.0 while it is there."""
        return self._fuse.outage_seconds() if self._fuse is not None else 0.0

    def begin(self, rollout_id: int, wanted: int) -> None:
        """Begin a call."""
        self.flow.begin(rollout_id, wanted)
        self._check_outage()

    def step(self) -> Step:
        """Move the call on."""
        step = self.flow.step(away=self.away)
        for group_id in step.stale:
            if (scope := self._scopes.get(group_id)) is not None:
                scope.cancel()
        return step

    def add(self, prompts: Sequence[PromptGroup]) -> None:
        """Take drawn prompts in and submit what fits."""
        self.flow.add(prompts)
        self._look()

    def commit(self, batch: Sequence[DeliveredGroup], processed: int) -> Report:
        """Make the call's batch final; see `GroupFlow.commit`."""
        return self.flow.commit(batch, self._totals(), processed)

    def reserve(self, sessions: int) -> bool:
        """Take session slots for an evaluation."""
        return self.flow.scheduler.reserve(sessions)

    def release(self, sessions: int) -> None:
        """Give them back."""
        self.flow.scheduler.release(sessions)
        self._look()

    def close(self) -> None:
        """Change nothing any more, whatever the loop still does."""
        self._closed = True

    # The loop

    async def main(self) -> None:
        """Bind, find the server, then run groups until cancelled.

        Raises
        ------
        CallbackBindError, ConfigError
            The listener's address cannot be used.
        PolarOutageError
            No server has answered in time.
        """
        config = self._config
        self._wake = asyncio.Event()
        tasks_in_flight = config.max_groups_in_flight
        if config.scoring_mode == "individual":
            tasks_in_flight = config.max_sessions_in_flight
        listener = CallbackListener(
            config.callback_host, bind_host=config.callback_bind_host, port=config.callback_port
        )
        client = PolarClient(
            config.rollout_url,
            timeout=config.request_timeout,
            limits=connection_limits(tasks_in_flight),
            trust_env=config.trust_env,
            control_token=config.control_plane_token,
        )
        async with client, listener:
            await self._first_answer(client)
            self._listener, self._fuse = listener, client.fuse
            client.fuse.on_change = self._fuse_changed
            async with Collector(client, listener=listener) as collector, anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._runner = GroupRunner(
                    config=config,
                    builder=self._builder,
                    collector=collector,
                    journal=self._journal,
                    stamp=self.flow.stamp,
                    on_event=self._on_event,
                    on_request=self.capabilities.note,
                    pushes_were_guarded=partial(pushes_were_guarded, config.rollout_url, config.run_dir),
                )
                self._on_ready()
                tasks.start_soon(self._watch_outages, client, name="outage watch")
                tasks.start_soon(self.capabilities.learn, client, name="capabilities")
                await self._admit_for_ever()

    async def _first_answer(self, client: PolarClient) -> None:
        problem: Exception | None = None
        with anyio.move_on_after(self._startup_timeout):
            while True:
                try:
                    await client.health()
                except TransportError as error:
                    problem = error
                except BridgeError as error:
                    # It answers; if it is no rollout server, the first submit says so better than this.
                    logger.info("%s answers, but not with a health record: %s", client.base_url, error)
                    return
                else:
                    return
                await anyio.sleep(_PROBE_SECONDS)
        raise PolarOutageError(
            f"no rollout server answers at {client.base_url} (tried for {self._startup_timeout:g} s): "
            f"{problem or 'the connection hangs'}; check polar_rollout_url, or start the server first"
        )

    async def _admit_for_ever(self) -> None:
        wake = self._wake
        if wake is None or self._tasks is None:
            raise RuntimeError("the pipeline is not running")
        while True:
            wake.clear()
            for group in self.flow.admit(_AWAY_LIMIT if self.away else None):
                self._tasks.start_soon(self._run, group, name=f"group {group.group_id}")
            pause = self.flow.next_ready_in()
            with anyio.move_on_after(pause if pause < math.inf else None):
                await wake.wait()

    async def _run(self, group: DrawnGroup) -> None:
        if self._runner is None:
            raise RuntimeError("the pipeline is not running")
        with anyio.CancelScope() as scope:
            self._scopes[group.group_id] = scope
            try:
                judged = await self._runner.run(group)
            except SubmitRejectedError as error:
                self._book(self.flow.refused, group, error)
            except BridgeError as error:
                reason = failure_reason(error)
                if reason is None:
                    self._book(self.flow.stop, error)
                else:
                    self._book(self.flow.failed, group, reason, error)
            except Exception as error:  # a surprise with one group costs this attempt, not the run
                logger.exception("Group %d: an unexpected error", group.group_id)
                self._book(self.flow.failed, group, "unexpected", error)
            else:
                self._book(self.flow.judged, group, judged)
            finally:
                del self._scopes[group.group_id]

    def _book(self, step: Callable[..., None], /, *values: Any) -> None:
        """Enter what became of a group, then see what follows for the others and for the call."""
        if self._closed:
            return
        step(*values)
        self._look()

    def _look(self) -> None:
        if self._wake is not None:
            self._wake.set()
        if self.flow.stop_reason is not None or self.flow.moves(away=self.away):
            self._on_move()

    def _on_event(self, group_id: int, event: CollectEvent) -> None:
        if event.kind in (CollectEventKind.SUBMITTED, CollectEventKind.RESUBMITTED):
            self._book(self.flow.server_accepted)
        elif event.kind is CollectEventKind.POLLED:
            self._polled += 1
        elif event.kind is CollectEventKind.RETRY:
            self.flow.last_error = str(event.detail.get("error", ""))
        elif event.kind is CollectEventKind.FORGOTTEN:
            self.flow.last_error = f"the server forgot task {event.task_id}"

    # Outages

    def _fuse_changed(self, fuse: Fuse) -> None:
        now = time.monotonic()
        if fuse.is_open:
            self._outages += 1
            self._away_since = fuse.since if fuse.since is not None else now
            since = time.time() - (now - self._away_since)
            self._journal.record("outage", since=since, error=str(fuse.last_error))
        else:
            self._away_seconds += now - self._away_since
            self._journal.record("outage_over", seconds=now - self._away_since)
        self._look()

    async def _watch_outages(self, client: PolarClient) -> None:
        while True:
            await anyio.sleep(_OUTAGE_LOOK_SECONDS)
            self._check_outage()
            if self.away and not self._scopes:
                # No group asks the server for anything, and none is drawn before it is seen to be back.
                # The fuse hears what comes of it; the outage's end and its limit are decided there.
                with contextlib.suppress(BridgeError), anyio.move_on_after(_HEALTH_SECONDS):
                    await client.health()

    def _check_outage(self) -> None:
        """Stop when the server has been away too long and somebody waits for it."""
        seconds, limit = self.outage_seconds, self._config.outage_timeout
        if self._fuse is None or seconds < limit or not self.flow.calling:
            return
        self._book(
            self.flow.stop,
            PolarOutageError(
                f"the rollout server at {self._config.rollout_url} has been away for {seconds:.0f} s "
                f"(polar_outage_timeout is {limit:g} s), {self._fuse.probe_count} probes were sent; the last "
                f"failure: {self._fuse.last_error}"
            ),
        )

    def _totals(self) -> dict[str, float]:
        callbacks = self._listener.counts if self._listener is not None else {}
        return {
            **{f"callbacks/{kind}": float(count) for kind, count in callbacks.items()},
            "polled_results": float(self._polled),
            "outages": float(self._outages),
            "outage_seconds": self._away_seconds,
        }
