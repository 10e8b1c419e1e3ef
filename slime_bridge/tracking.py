"""What goes to Weights & Biases beside the metrics, which leave through the trainer's own logging.

Two things: the step axis of the bridge's metric names, once per run, and the longest session of every fifth
rollout as an artifact. Only a run that somebody else started in this process is used: the module never
imports ``wandb``, and never calls ``init``, ``login`` or ``finish``; no call passes a step. Uploads run in a
daemon thread, the trainer waits for at most a short time, and a failure costs one warning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slime_bridge import sample_view
from slime_bridge._courtesy import Courtesy
from slime_bridge.journal.files import encode_json
from slime_bridge.metrics.catalogue import CATALOGUE
from slime_bridge.session_record import redacted, session_record

__all__ = ["ARTIFACT_INTERVAL", "NullTracker", "Tracker", "WandbTracker", "longest_session", "step_axes"]

ARTIFACT_INTERVAL = 5
"""Every so many rollouts, counted by rollout id, the longest session is uploaded."""


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
        self._interval = interval
        self._uploads = Courtesy("W&B", timeout=timeout)
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
                payload = {"rollout_id": rollout_id, **session_record(longest)}
                work.append(lambda: _log_artifact(wandb, run, rollout_id, payload))
            if work:
                self._uploads.run(work)
        except Exception as error:  # a courtesy: the rollout goes on whatever W&B or a sample does
            self._uploads.warn(
                "W&B cannot be told about rollout %s: %s: %s", rollout_id, type(error).__name__, error
            )

    def wait(self, timeout: float) -> bool:
        """Wait for an upload that goes on in the background; tell whether it has ended."""
        return self._uploads.wait(timeout)

    def _define_axes(self, run: Any) -> None:
        self._run_with_axes = run
        for name, axis in step_axes().items():
            run.define_metric(name, step_metric=axis)


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


def _log_artifact(wandb: Any, run: Any, rollout_id: int, payload: dict[str, Any]) -> None:
    facts = {
        key: payload[key] for key in ("rollout_id", "response_tokens", "policy_version", "policy_staleness")
    }
    artifact = wandb.Artifact(f"longest_trace_r{rollout_id}", type="rollout-trace", metadata=facts)
    with artifact.new_file("trace.json", mode="wb") as file:
        file.write(encode_json(redacted(payload)))
    run.log_artifact(artifact)
