"""What a rollout server can do, and which configured features have no effect with it, said once.

Newer servers add to the baseline: they cancel tasks, stop a group's stragglers, bound an agent's own time,
and so on. A server that lacks one of these accepts the request all the same and ignores the field. Servers
describe themselves under ``/openapi.json``; where one does not, whether it has a feature is not known, and
that is said instead. Nothing here changes what is sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from msgspec import UNSET

from slime_bridge.client import PolarClient
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.errors import BridgeError, TransportError
from slime_bridge.journal.schema import EventLog
from slime_bridge.protocol import TaskRequest
from slime_bridge.redaction import redact

__all__ = [
    "FEATURES",
    "Capabilities",
    "ServerFeatures",
    "configured_features",
    "features_of",
    "read_features",
]

logger = logging.getLogger(__name__)

FEATURES: Mapping[str, str] = {
    "cancel": "it has no route to cancel a task: tasks that are given up run on to their own timeout",
    "early_stop": (
        "polar_early_stop_grace_sessions has no effect: it stops no stragglers, every session runs to its end"
    ),
    "agent_timeout": (
        "polar_train_agent_timeout, polar_eval_agent_timeout and metadata.agent_timeout have no effect: only "
        "the task's timeout_seconds bounds a session"
    ),
    "init_command": "metadata.runtime_init_command (runtime.direct_exec_init_command) has no effect",
    "dispatch_priority": "dispatch_priority has no effect: tasks start in the order of their arrival",
    "sampling_seed": "metadata.eval_sampling_seed_base has no effect: sessions get no seed of their own",
    "control_token": "POLAR_CONTROL_PLANE_TOKEN has no effect: it asks nobody for a token",
}
"""Features that only some servers have, each with what follows where it is missing."""

Answer = TypeVar("Answer")

_ATTEMPTS = 3
_PAUSE_SECONDS = 5.0

_told: set[tuple[str, str]] = set()
_telling = threading.Lock()


@dataclass(frozen=True, slots=True)
class ServerFeatures:
    """What a server says of itself.

    Parameters
    ----------
    available
        Those of `FEATURES` that it has.
    title, version
        Its name for itself.
    """

    available: frozenset[str]
    title: str = ""
    version: str = ""

    def lacks(self, wanted: Iterable[str]) -> list[str]:
        """Return those of the wanted features that it does not have, in the order of `FEATURES`."""
        asked = set(wanted)
        return [name for name in FEATURES if name in asked - self.available]


def read_features(document: Any) -> ServerFeatures | None:
    """Read a server's OpenAPI document; None where it does not describe a rollout server."""
    try:
        paths, schemas = document["paths"], document["components"]["schemas"]
        body = paths["/rollout/task/submit"]["post"]["requestBody"]["content"]["application/json"]
        reference = str(body["schema"].get("$ref", "")).rpartition("/")[2]
        request = (schemas[reference] if reference else body["schema"])["properties"]
        cancels = any(
            "delete" in entry for path, entry in paths.items() if path.startswith("/rollout/task/{")
        )
        runtime = schemas.get("RuntimeSpec", {}).get("properties", {})
        about = document.get("info") or {}
    except (KeyError, TypeError, AttributeError):
        return None
    found = {
        "cancel": cancels,
        "early_stop": "early_stop_min_usable_sessions" in request,
        "dispatch_priority": "dispatch_priority" in request,
        "init_command": "direct_exec_init_command" in runtime,
    }
    # These leave no mark in the description; they came together with the ones above.
    newer = any(found.values())
    found |= dict.fromkeys(("agent_timeout", "sampling_seed", "control_token"), newer)
    available = frozenset(name for name, there in found.items() if there)
    return ServerFeatures(available, str(about.get("title", "")), str(about.get("version", "")))


def configured_features(config: PolarSlimeConfig) -> set[str]:
    """Return the server's features that a configuration relies on, whatever the prompts ask for besides."""
    sessions = 1 if config.scoring_mode == "individual" else config.n_samples_per_prompt
    agent_timeouts = (config.train_agent_timeout, config.eval_agent_timeout)
    template = config.task_template
    found = _in_payload(template.get("metadata"), template.get("runtime"), template.get("dispatch_priority"))
    if config.early_stop_min_usable_sessions(sessions) is not None:
        found.add("early_stop")
    if agent_timeouts != (None, None):
        found.add("agent_timeout")
    if config.control_plane_token is not None:
        found.add("control_token")
    return found


def features_of(request: TaskRequest) -> set[str]:
    """Return the server's features that a task request relies on."""
    priority = 0 if request.dispatch_priority is UNSET else request.dispatch_priority
    found = _in_payload(request.metadata, request.runtime, priority)
    if request.early_stop_min_usable_sessions not in (UNSET, None):
        found.add("early_stop")
    return found


def _in_payload(metadata: Any, runtime: Any, priority: Any) -> set[str]:
    given = metadata if isinstance(metadata, Mapping) else {}
    sandbox = runtime if isinstance(runtime, Mapping) else {}
    asked = {
        "agent_timeout": given.get("agent_timeout") is not None,
        "sampling_seed": given.get("eval_sampling_seed_base") is not None,
        "init_command": bool(sandbox.get("direct_exec_init_command")),
        "dispatch_priority": bool(priority),
    }
    return {name for name, is_asked in asked.items() if is_asked}


class Capabilities:
    """What is known of one server's features, and which of the wanted ones are inactive; for one loop.

    Parameters
    ----------
    rollout_url
        The server.
    wanted
        Features that are relied on from the start.
    journal
        Notes what was found out.
    without_effect
        Keys that have no effect with any server, each with its reason.

    Attributes
    ----------
    server : ServerFeatures or None
        What the server says of itself; None as long as it has not said anything.
    """

    def __init__(
        self,
        rollout_url: str,
        wanted: Iterable[str],
        journal: EventLog,
        without_effect: Mapping[str, str] | None = None,
    ) -> None:
        self.server: ServerFeatures | None = None
        self._url = redact(rollout_url)
        self._journal = journal
        self._wanted = set(wanted)
        self._inactive = dict(without_effect or {})
        self._asked = False

    @property
    def wanted(self) -> set[str]:
        """The server's features that are relied on so far."""
        return set(self._wanted)

    @property
    def inactive(self) -> dict[str, str]:
        """What has no effect, by key or feature, each with its reason."""
        return dict(self._inactive)

    def note(self, request: TaskRequest) -> None:
        """Look at a request; a feature that it is the first to rely on may be inactive."""
        new = features_of(request) - self._wanted
        if new:
            self._wanted |= new
            self._conclude(new)

    async def learn(self, client: PolarClient) -> None:
        """Ask the server what it is, and say what is inactive with it. Never raises for the server's sake.

        Parameters
        ----------
        client
            Is told not to try what the server does not have.
        """
        document, gateways = await _asked(client.describe), await _asked(client.nodes)
        self.server = None if document is None else read_features(document)
        self._asked = True
        if gateways == []:
            logger.warning(
                "The rollout server at %s has no gateway yet: sessions wait for one, at most until their "
                "timeout",
                client.base_url,
            )
        if self.server is not None and self.server.lacks(["cancel"]):
            client.mark_inactive("cancel", FEATURES["cancel"], level=logging.DEBUG)
        self._conclude(self._wanted | {"cancel"}, gateways=None if gateways is None else len(gateways))

    def _conclude(self, features: Iterable[str], **facts: Any) -> None:
        """Say which of these features are inactive, as far as that is known by now."""
        if not self._asked:
            return
        if self.server is None:
            if unknown := self._untold(features):
                logger.info(
                    "The rollout server at %s does not describe itself: it is not known whether it has %s",
                    self._url,
                    ", ".join(unknown),
                )
        else:
            lacking = self.server.lacks(features)
            self._inactive |= {name: FEATURES[name] for name in lacking}
            if untold := self._untold(lacking):
                logger.log(
                    logging.WARNING if self._wanted.intersection(untold) else logging.INFO,
                    "Inactive with the rollout server at %s: %s",
                    self._url,
                    "; ".join(f"{name}: {FEATURES[name]}" for name in untold),
                )
        self._journal.record(
            "capabilities",
            features=None if self.server is None else sorted(self.server.available),
            inactive=self.inactive,
            **facts,
        )

    def _untold(self, features: Iterable[str]) -> list[str]:
        """Return the features that this process has not talked about yet, and remember them.

        Training and evaluation find out the same, and a worker may have a successor.
        """
        with _telling:
            new = [name for name in FEATURES if name in set(features) and (self._url, name) not in _told]
            _told.update((self._url, name) for name in new)
        return new


async def _asked(question: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """Return the server's answer; None where it gives none, or not in time."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            await anyio.sleep(_PAUSE_SECONDS)
        try:
            return await question()
        except TransportError as error:
            logger.debug("The rollout server does not say what it is: %s", error)
        except BridgeError as error:
            logger.debug("The rollout server does not say what it is: %s", error)
            return None
    return None
