"""Sessions without agents: synthetic results after a scripted time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.lab.polar_server.events import EventHub
from analysis.lab.polar_server.faults import Fault, FaultEngine, stable_seed
from analysis.lab.polar_server.state import SessionRecord, TaskRecord, new_session_id
from analysis.lab.polar_server.synthetic import SessionIdentity, synthetic_result


class ScriptedSessions:
    """Session source that plays the profile of the engine's script.

    `weight_version` is the policy version that turns claim to be served by when the task's metadata does
    not say; it may be changed at any time.
    """

    def __init__(self, engine: FaultEngine, hub: EventHub, node_ids: Sequence[str]) -> None:
        self._engine = engine
        self._hub = hub
        self._node_ids = tuple(node_ids) or ("node-1",)
        self.weight_version: int | None = None

    def session_id(self, record: TaskRecord, index: int) -> str:
        """Return an id that depends on the script's seed, the instruction and its attempt, and the index."""
        return new_session_id(self._seed(record, index))

    def _seed(self, record: TaskRecord, index: int) -> int:
        seed = self._engine.script.seed
        return stable_seed(seed, record.request.instruction, record.attempt, record.runs_before, index)

    async def run(
        self, record: TaskRecord, session: SessionRecord, faults: Sequence[Fault]
    ) -> dict[str, Any]:
        """Return the session's synthetic result after its scripted time."""
        profile = self._engine.script.sessions
        seed = self._seed(record, session.index)
        session.node_id = self._node_ids[seed % len(self._node_ids)]
        session.status = "REGISTERED"
        self._hub.publish(
            "session.state_changed",
            task_id=session.task_id,
            session_id=session.session_id,
            status=session.status,
            node_id=session.node_id,
        )
        if any(fault.kind == "split_traces" for fault in faults):
            profile = replace(profile, separate_traces=True, turns=max(2, _least(profile.turns)))
        seconds = profile.seconds(seed)
        if seconds > 0:
            await asyncio.sleep(seconds)
        return synthetic_result(profile, self._identity(record, session), seed)

    def _identity(self, record: TaskRecord, session: SessionRecord) -> SessionIdentity:
        request = record.request
        version = self.weight_version
        if version is None:
            announced = request.metadata.get("policy_version")
            version = announced if isinstance(announced, int) and not isinstance(announced, bool) else 0
        return SessionIdentity(
            session_id=session.session_id,
            task_id=session.task_id,
            index=session.index,
            instruction=request.instruction,
            metadata=request.metadata,
            model_name=request.agent.model_name,
            node_id=session.node_id or self._node_ids[0],
            builder=request.builder.strategy,
            weight_version=version,
        )


def _least(wanted: int | tuple[int, int]) -> int:
    return wanted if isinstance(wanted, int) else wanted[0]
