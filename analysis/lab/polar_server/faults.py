"""Fault scripts: which faults the Polar-compatible server plays, when, and how often; deterministic by seed.

A script is a list of `Fault` rules. Every hook of the server asks the `FaultEngine` which rules fire for a
*subject* (a task, one of its sessions, a request, a connection). A rule fires when all its conditions hold;
`skip`, `times` and `probability` then thin it out. Chance is a hash of the seed, the rule and the subject's
identity, never of time or arrival order: a task is identified by its instruction and by how often that
instruction was submitted before.

Examples
--------
>>> script = FaultScript(
...     seed=7,
...     faults=[
...         Fault("callback_lost", tasks=[0]),
...         Fault("response_status", on="submit", status=503, times=3),
...         Fault("session_error", sessions=[1], instruction="hard", probability=0.5),
...         Fault("outage", tasks=[4], seconds=3.0),
...     ],
... )
>>> [fault.kind for fault in script.faults]
['callback_lost', 'response_status', 'session_error', 'outage']
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from analysis.lab.polar_server.fault_kinds import KINDS
from analysis.lab.polar_server.synthetic import SessionProfile

ROUTES: dict[str, tuple[str, str]] = {
    "submit": ("POST", r"/rollout/task/submit\Z"),
    "task": ("GET", r"/rollout/task/[^/]+\Z"),
    "cancel": ("DELETE", r"/rollout/task/[^/]+\Z"),
    "status": ("GET", r"/rollout/status\Z"),
    "tasks": ("GET", r"/tasks\Z"),
    "task_sessions": ("GET", r"/tasks/[^/]+/sessions\Z"),
    "nodes": ("GET", r"/nodes\Z"),
    "events": ("GET", r"/events\Z"),
    "health": ("GET", r"/health\Z"),
    "session_callback": ("POST", r"/callbacks/session_result\Z"),
    "poll": ("GET", r"(/rollout/task/[^/]+|/rollout/status|/tasks(/[^/]+/sessions)?)\Z"),
    "gate": ("*", r"/admin/inference/(status|pause|resume)\Z"),
    "pause": ("POST", r"/admin/inference/pause\Z"),
    "resume": ("POST", r"/admin/inference/resume\Z"),
    "chat": ("POST", r".*/v1/chat/completions\Z"),
}
"""Names for `Fault.on`: method and path of the routes that clients use."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a hook asks about: only the fields that it knows are set.

    `ordinal` counts task ids in the order in which submits first named them, `attempt` the earlier submits
    of the same instruction under other task ids, `event` the earlier requests of this method about the same
    task (else to the same server) or the earlier connections.
    """

    server: str = "rollout"
    ordinal: int | None = None
    attempt: int | None = None
    task_id: str | None = None
    instruction: str | None = None
    session: int | None = None
    method: str | None = None
    path: str | None = None
    event: int | None = None

    @property
    def identity(self) -> str:
        """Text that names the subject independent of time and task ids, as far as it can be named so."""
        if self.instruction is not None:
            return f"task:{self.instruction}:{self.attempt}:{self.session}:{self.method}:{self.event}"
        return f"event:{self.server}:{self.method}:{self.event}"


@dataclass(frozen=True)
class Fault:
    """One rule of a script.

    Parameters
    ----------
    kind
        A name from `analysis.lab.polar_server.fault_kinds.KINDS`.
    tasks, attempts, sessions
        Ordinals of tasks (order of first submit, from 0), of submits of the same instruction, and of
        sessions.
    instruction, task_id, path
        Regular expressions that are searched in the subject's text.
    on, method, server
        A name from `ROUTES`; an HTTP method; ``rollout`` or a node's id (default: any).
    since, until
        Seconds after the script was set, inclusive and exclusive.
    skip, times
        Let so many matching subjects pass first; fire at most so often (default: always).
    probability
        Chance per subject.
    processed
        For request faults: let the server act on the request before the fault hides the answer.
    seconds, count, status, value
        Parameters of the kind.
    """

    kind: str
    tasks: Collection[int] | None = field(default=None, kw_only=True)
    attempts: Collection[int] | None = field(default=None, kw_only=True)
    sessions: Collection[int] | None = field(default=None, kw_only=True)
    instruction: str | None = field(default=None, kw_only=True)
    task_id: str | None = field(default=None, kw_only=True)
    path: str | None = field(default=None, kw_only=True)
    on: str | None = field(default=None, kw_only=True)
    method: str | None = field(default=None, kw_only=True)
    server: str | None = field(default=None, kw_only=True)
    since: float = field(default=0.0, kw_only=True)
    until: float | None = field(default=None, kw_only=True)
    skip: int = field(default=0, kw_only=True)
    times: int | None = field(default=None, kw_only=True)
    probability: float = field(default=1.0, kw_only=True)
    processed: bool = field(default=False, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    count: int = field(default=1, kw_only=True)
    status: int = field(default=503, kw_only=True)
    value: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault kind {self.kind!r}; known kinds: {', '.join(sorted(KINDS))}")
        if self.on is not None and self.on not in ROUTES:
            raise ValueError(f"unknown route name {self.on!r}; known names: {', '.join(ROUTES)}")
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"probability must be between 0 and 1, not {self.probability!r}")

    def matches(self, subject: Subject, age: float) -> bool:
        """Say whether the rule's conditions hold for `subject`, `age` seconds after the script was set."""
        if age < self.since or (self.until is not None and age >= self.until):
            return False
        method, path = ROUTES[self.on] if self.on is not None else (None, None)
        return (
            _among(subject.ordinal, self.tasks)
            and _among(subject.attempt, self.attempts)
            and _among(subject.session, self.sessions)
            and _found(self.instruction, subject.instruction)
            and _found(self.task_id, subject.task_id)
            and _found(self.path, subject.path)
            and (path is None or (subject.path is not None and re.match(path, subject.path) is not None))
            and (method in (None, "*") or method == subject.method)
            and (self.method is None or self.method == subject.method)
            and (self.server is None or self.server == subject.server)
        )

    @property
    def timed(self) -> bool:
        """Whether this outage or restart happens at its time, rather than when a request comes."""
        conditions = (self.on, self.path, self.method)
        return (
            KINDS[self.kind].scope == "server"
            and self.since > 0
            and not self.needs_task
            and all(condition is None for condition in conditions)
        )

    @property
    def needs_task(self) -> bool:
        """Whether a request has to be traced to its task to decide about this rule."""
        conditions = (self.tasks, self.attempts, self.instruction, self.task_id)
        return any(condition is not None for condition in conditions)


def _among(value: int | None, wanted: Collection[int] | None) -> bool:
    return wanted is None or (value is not None and value in wanted)


def _found(pattern: str | None, text: str | None) -> bool:
    return pattern is None or (text is not None and re.search(pattern, text) is not None)


@dataclass(frozen=True)
class FaultScript:
    """Everything that makes a scripted server's behaviour: the ordinary sessions, and the faults among them.

    Parameters
    ----------
    faults
        Rules; several may fire for one subject, in this order.
    seed
        Decides about token ids, logprobs, rewards, durations and every chance.
    sessions
        How ordinary synthetic sessions look.
    """

    faults: Sequence[Fault] = ()
    seed: int = 0
    sessions: SessionProfile = field(default_factory=SessionProfile)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FaultScript:
        """Build a script from plain data, as a JSON or YAML file holds it.

        Raises
        ------
        ValueError
            When a key or a fault kind is unknown.
        """
        unknown = set(data) - {"faults", "seed", "sessions"}
        if unknown:
            raise ValueError(f"unknown keys in the fault script: {sorted(unknown)}")
        known = {item.name for item in fields(Fault)}
        faults = []
        for position, rule in enumerate(data.get("faults") or ()):
            extra = set(rule) - known
            if extra or "kind" not in rule:
                raise ValueError(f"fault {position}: unknown keys {sorted(extra)}, or no 'kind'")
            faults.append(Fault(**rule))
        profile = SessionProfile.from_dict(data.get("sessions") or {})
        return cls(faults=tuple(faults), seed=int(data.get("seed", 0)), sessions=profile)


class FaultEngine:
    """Decides which rules of a script fire; outlives restarts of the server that it drives.

    Used from the server's event loop only; `set_script` is called there as well.
    """

    def __init__(
        self, script: FaultScript | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._ordinals: dict[str, int] = {}
        self._attempts: dict[str, tuple[str, int]] = {}
        self._instructions: dict[str, int] = defaultdict(int)
        self.set_script(script or FaultScript())

    def set_script(self, script: FaultScript) -> None:
        """Play `script` from now on; counters and its clock start again, task ordinals go on."""
        self.script = script
        self.started = self._clock()
        self.fired: dict[int, int] = defaultdict(int)
        self._seen: dict[int, int] = defaultdict(int)
        self._by_kind: dict[str, list[int]] = defaultdict(list)
        for position, fault in enumerate(script.faults):
            self._by_kind[fault.kind].append(position)

    @property
    def age(self) -> float:
        """Seconds since the script was set."""
        return self._clock() - self.started

    def has(self, kinds: Iterable[str]) -> bool:
        """Say whether the script holds a rule of one of `kinds`."""
        return any(kind in self._by_kind for kind in kinds)

    def needs_task(self, kinds: Iterable[str]) -> bool:
        """Say whether a rule of one of `kinds` asks which task a request is about."""
        return any(
            self.script.faults[index].needs_task for kind in kinds for index in self._by_kind.get(kind, ())
        )

    def task_subject(self, task_id: str, instruction: str, **extra: Any) -> Subject:
        """Return the subject for a task, giving it an ordinal and an attempt number at first sight."""
        ordinal = self._ordinals.setdefault(task_id, len(self._ordinals))
        known = self._attempts.get(task_id)
        if known is None or known[0] != instruction:
            self._attempts[task_id] = (instruction, self._instructions[instruction])
            self._instructions[instruction] += 1
        attempt = self._attempts[task_id][1]
        return Subject(ordinal=ordinal, attempt=attempt, task_id=task_id, instruction=instruction, **extra)

    def known_task(self, task_id: str, **extra: Any) -> Subject:
        """Return the subject for a task id that may or may not have been submitted before."""
        if task_id in self._ordinals:
            return self.task_subject(task_id, self._attempts[task_id][0], **extra)
        return Subject(task_id=task_id, **extra)

    def fire(self, kinds: Iterable[str], subject: Subject, *, first: bool = False) -> list[Fault]:
        """Return the rules of `kinds` that fire for `subject`, in the script's order, and count them.

        With `first` only the first one is tried to its end: at most one fires, and later rules see nothing of
        the subject.
        """
        positions = sorted(index for kind in set(kinds) for index in self._by_kind.get(kind, ()))
        age = self.age
        fired = []
        for index in positions:
            if self._fires(index, subject, age):
                fired.append(self.script.faults[index])
                if first:
                    break
        return fired

    def _fires(self, position: int, subject: Subject, age: float) -> bool:
        fault = self.script.faults[position]
        if fault.timed or not fault.matches(subject, age):
            return False
        self._seen[position] += 1
        if self._seen[position] <= fault.skip:
            return False
        if fault.times is not None and self.fired[position] >= fault.times:
            return False
        if fault.probability < 1.0 and self.chance(f"rule:{position}", subject) >= fault.probability:
            return False
        self.fired[position] += 1
        return True

    def count(self, fault: Fault) -> None:
        """Count a rule that fired by itself, at its time."""
        for position, candidate in enumerate(self.script.faults):
            if candidate is fault:
                self.fired[position] += 1

    def chance(self, purpose: str, subject: Subject) -> float:
        """Return a number in [0, 1) that depends on the seed, `purpose` and the subject's identity alone."""
        return stable_seed(self.script.seed, purpose, subject.identity) / 2**64

    def counts(self) -> dict[str, int]:
        """Return how often each kind fired since the script was set."""
        totals: dict[str, int] = defaultdict(int)
        for position, count in self.fired.items():
            totals[self.script.faults[position].kind] += count
        return dict(totals)


def stable_seed(*parts: object) -> int:
    """Return a 64-bit number that depends on the parts' texts alone, equal in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )
