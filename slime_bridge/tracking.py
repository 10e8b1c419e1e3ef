"""What goes to Weights & Biases beside the metrics, which leave through the trainer's own logging.

Two things: the step axis of the bridge's metric names, once per run, and the longest session of every fifth
rollout as an artifact. Only a run that somebody else started in this process is used: the module never
imports ``wandb``, and never calls ``init``, ``login`` or ``finish``; no call passes a step. Uploads run in a
daemon thread, the trainer waits for at most a short time, and a failure costs one warning.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slime_bridge import sample_view
from slime_bridge.journal_files import encode_json
from slime_bridge.metric_catalogue import CATALOGUE
from slime_bridge.redaction import redact

__all__ = ["ARTIFACT_INTERVAL", "NullTracker", "Tracker", "WandbTracker", "longest_session", "step_axes"]

logger = logging.getLogger(__name__)

ARTIFACT_INTERVAL = 5
"""Every so many rollouts, counted by rollout id, the longest session is uploaded."""

_MAX_TEXT = 1_000_000


class Tracker:
    """What the bridge tells an experiment tracker. This base class tells nothing."""

    def rollout_done(self, rollout_id: int, samples: Sequence[Any]) -> None:
        """Note a finished rollout. Returns within a bounded time and never raises.

        Parameters
        ----------
        rollout_id
            The trainer's rollout.
        samples
            All its samples, flat.
        """


class NullTracker(Tracker):
    """The tracker of a run that wants none."""


class WandbTracker(Tracker):
    """Tells the W&B run that is active in this process; without one it does nothing.

    Parameters
    ----------
    timeout
        How long (seconds) a call may wait for W&B. Whatever takes longer goes on in the background; while it
        does, later rollouts upload nothing.
    interval
        Upload the longest session of every so many rollouts.
    """

    def __init__(self, *, timeout: float = 2.0, interval: int = ARTIFACT_INTERVAL) -> None:
        self._timeout = timeout
        self._interval = interval
        self._upload: threading.Thread | None = None
        self._warned = False
        self._run_with_axes: Any = None

    def rollout_done(self, rollout_id: int, samples: Sequence[Any]) -> None:
        """Note a finished rollout; see `Tracker.rollout_done`."""
        try:
            wandb = sys.modules.get("wandb")
            run = getattr(wandb, "run", None)
            if run is None:
                return
            work: list[Callable[[], None]] = []
            if run is not self._run_with_axes:
                work.append(lambda: self._define_axes(run))
            if rollout_id % self._interval == 0 and (longest := longest_session(samples)):
                payload = _payload(rollout_id, longest)
                work.append(lambda: _log_artifact(wandb, run, rollout_id, payload))
            if work:
                self._start(work)
        except Exception as error:  # a courtesy: the rollout goes on whatever W&B or a sample does
            self._warn("W&B cannot be told about rollout %s: %s: %s", rollout_id, type(error).__name__, error)

    def _start(self, work: list[Callable[[], None]]) -> None:
        if self._upload is not None and self._upload.is_alive():
            self._warn("W&B is still busy with an earlier rollout; nothing is uploaded until it is done")
            return
        self._upload = threading.Thread(target=self._work, args=(work,), name="polar-tracking", daemon=True)
        self._upload.start()
        self._upload.join(self._timeout)
        if self._upload.is_alive():
            self._warn("W&B did not answer within %g s; the upload goes on in the background", self._timeout)

    def _work(self, work: list[Callable[[], None]]) -> None:
        for step in work:
            try:
                step()
            except Exception as error:  # W&B raises whatever it likes; none of it may reach the trainer
                self._warn("W&B refused: %s: %s", type(error).__name__, error)

    def _define_axes(self, run: Any) -> None:
        self._run_with_axes = run
        for name, axis in step_axes().items():
            run.define_metric(name, step_metric=axis)

    def _warn(self, message: str, *values: Any) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(message, *values)


def step_axes() -> dict[str, str]:
    """Map the bridge's metric names, or prefixes ending in ``*``, to the step they are plotted against.

    The trainer gives an axis to names under ``rollout/`` and ``eval/`` only; without this, ``polar/*`` is
    plotted against W&B's internal counter.
    """
    axes: dict[str, str] = {}
    for metric in CATALOGUE:
        parts = metric.name.split("/")
        if parts[0] == "polar":
            stem, brace, _ = metric.name.partition("{")
            name = "/".join([*parts[:2], "*"]) if len(parts) > 2 else stem + "*" * bool(brace)
            axes[name] = "eval/step" if parts[1] == "eval" else "rollout/step"
    return axes


def longest_session(samples: Iterable[Any]) -> list[Any]:
    """Return the samples of the session with the most response tokens, in order; [] where none has any."""
    sessions: dict[Any, list[Any]] = {}
    for sample in samples:
        key = (sample_view.group_of(sample), sample_view.trajectory_of(sample))
        sessions.setdefault(key, []).append(sample)
    lengths = [sum(map(sample_view.response_tokens, session)) for session in sessions.values()]
    if not any(lengths):
        return []
    return list(sessions.values())[lengths.index(max(lengths))]


def _payload(rollout_id: int, samples: Sequence[Any]) -> dict[str, Any]:
    first = sample_view.polar_metadata(samples[0])
    return {
        "rollout_id": rollout_id,
        # A session id doubles as the agent's API key: outside it is only good for telling sessions apart.
        "session": hashlib.sha256(str(first.get("session_id")).encode()).hexdigest()[:16],
        "task_id": first.get("task_id"),
        "group_index": sample_view.group_of(samples[0]),
        "policy_version": sample_view.policy_version(samples[0]),
        "policy_staleness": first.get("policy_staleness"),
        "response_tokens": sum(map(sample_view.response_tokens, samples)),
        "traces": [
            {
                "trace_index": sample_view.polar_metadata(sample).get("trace_index"),
                "status": sample_view.status_name(sample),
                "reward": sample.reward,
                "response_tokens": sample_view.response_tokens(sample),
                "trainable_tokens": sample_view.trainable_tokens(sample),
                "prompt": sample.prompt,
                "response": sample.response,
            }
            for sample in samples
        ],
    }


def _safe(value: Any) -> Any:
    """Return a copy with bounded texts and without credentials."""
    if isinstance(value, str):
        return redact(value[:_MAX_TEXT])
    if isinstance(value, Mapping):
        return {key: _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value


def _log_artifact(wandb: Any, run: Any, rollout_id: int, payload: dict[str, Any]) -> None:
    facts = {
        key: payload[key] for key in ("rollout_id", "response_tokens", "policy_version", "policy_staleness")
    }
    artifact = wandb.Artifact(f"longest_trace_r{rollout_id}", type="rollout-trace", metadata=facts)
    with artifact.new_file("trace.json", mode="wb") as file:
        file.write(encode_json(_safe(payload)))
    run.log_artifact(artifact)
