"""Example trajectories to read: at every n-th rollout the best and the worst, the longest ones of each.

Asked for by environment variables: ``POLAR_ROLLOUT_EXAMPLES_DIR`` and ``POLAR_ROLLOUT_EXAMPLES_WANDB`` say
where to, ``POLAR_ROLLOUT_EXAMPLE_INTERVAL`` and ``POLAR_ROLLOUT_EXAMPLE_COUNT`` how many. They go to a file
per rollout that only its owner can read, written in one step, and to the W&B run that somebody else started
in this process. Credentials are taken out of both; session ids, which double as an agent's API key, stay in
the files, where they lead to Polar's own results, and are hashed for W&B. Whatever goes wrong costs one
warning and no rollout.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slime_bridge import sample_view
from slime_bridge._courtesy import Courtesy
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.journal.files import encode_json
from slime_bridge.metrics.inputs import is_rated
from slime_bridge.session_record import redacted, session_record

__all__ = ["Example", "RolloutExamples", "choose_examples", "example_path"]

Rank = Literal["best", "worst"]


@dataclass(frozen=True, slots=True)
class Example:
    """A chosen session: why it was chosen, what became of it, and its samples in order."""

    rank: Rank
    outcome: SessionOutcome
    samples: list[Any]


def choose_examples(groups: Iterable[GroupConversion], count: int) -> list[Example]:
    """Choose the sessions to show.

    Only sessions that count in means of quality are eligible: with something to train on and a reward.

    Parameters
    ----------
    groups
        The groups of a batch.
    count
        How many of the best, and how many of the worst.

    Returns
    -------
    list of Example
        The best ones, highest reward first, then the worst ones, lowest reward first; the longer one first
        where rewards are equal. No session is in it twice, and where all rewards are equal there is no worst.
    """
    rated = [
        (outcome, samples)
        for group in groups
        for outcome, samples in zip(group.sessions, _by_session(group.samples), strict=True)
        if is_rated(outcome)
    ]
    best = sorted(rated, key=lambda item: (-item[0].reward, -item[0].response_tokens))[:count]
    lowest = sorted(rated, key=lambda item: (item[0].reward, -item[0].response_tokens))
    shown = {id(samples) for _, samples in best}
    worst = [item for item in lowest if id(item[1]) not in shown and item[0].reward < best[0][0].reward][
        :count
    ]
    return [
        *(Example("best", outcome, samples) for outcome, samples in best),
        *(Example("worst", outcome, samples) for outcome, samples in worst),
    ]


def _by_session(samples: Sequence[Any]) -> list[list[Any]]:
    """Split a group's samples, which stand in the order of its sessions, by session."""
    sessions: dict[Any, list[Any]] = {}
    for sample in samples:
        sessions.setdefault(sample_view.trajectory_of(sample), []).append(sample)
    return list(sessions.values())


def example_path(folder: str | Path, rollout_id: int) -> Path:
    """Return the file of a rollout's examples."""
    return Path(folder) / f"rollout_examples_r{rollout_id}.json"


class RolloutExamples:
    """Saves examples; for one thread.

    Parameters
    ----------
    timeout
        How long (seconds) a rollout may wait for the disk and for W&B.
    """

    def __init__(self, *, timeout: float = 2.0) -> None:
        self._saving = Courtesy("Saving example trajectories", timeout=timeout)

    def rollout_done(
        self, config: PolarSlimeConfig, rollout_id: int, groups: Iterable[GroupConversion]
    ) -> None:
        """Save the examples of a finished rollout where they are due; never raises.

        Parameters
        ----------
        config
            Where to, how many, how often.
        rollout_id
            The trainer's rollout; every ``rollout_example_interval``-th is due, 0 among them.
        groups
            The groups that the trainer gets.
        """
        folder, publish = config.rollout_examples_dir, config.rollout_examples_wandb
        if not (folder or publish) or rollout_id % config.rollout_example_interval:
            return
        try:
            examples = choose_examples(groups, config.rollout_example_count)
            if not examples:
                return
            secrets = tuple(filter(None, (config.control_plane_token,)))
            work: list[Callable[[], None]] = []
            if folder:
                path = example_path(folder, rollout_id)
                work.append(lambda: _write_private(path, _document(rollout_id, examples, secrets)))
            if publish:
                work += self._publication(rollout_id, examples, secrets)
            if work:
                self._saving.run(work)
        except Exception as error:  # a courtesy: the rollout goes on whatever is wrong with a sample
            self._saving.warn(
                "Rollout %s has no example trajectories: %s: %s", rollout_id, type(error).__name__, error
            )

    def wait(self, timeout: float) -> bool:
        """Wait for what goes on in the background; tell whether it has ended."""
        return self._saving.wait(timeout)

    def _publication(
        self, rollout_id: int, examples: Sequence[Example], secrets: tuple[str, ...]
    ) -> list[Callable[[], None]]:
        wandb = sys.modules.get("wandb")
        run = getattr(wandb, "run", None)
        if run is None:
            self._saving.warn(
                "POLAR_ROLLOUT_EXAMPLES_WANDB is set, but no W&B run is active in the process of the rollout "
                "function: example trajectories are not published"
            )
            return []
        hidden = tuple(example.outcome.session_id for example in examples if example.outcome.session_id)
        return [
            lambda: _log_artifact(
                wandb, run, rollout_id, _document(rollout_id, examples, (*secrets, *hidden))
            )
        ]


def _document(rollout_id: int, examples: Sequence[Example], secrets: Sequence[str]) -> bytes:
    """Encode the examples; session ids are in it unless they are among the secrets."""
    records = [
        {
            "rank": example.rank,
            "reward": example.outcome.reward,
            "session_id": example.outcome.session_id,
            "node_id": example.outcome.node_id,
            "weight_versions": example.outcome.weight_versions,
            "trainable_tokens": example.outcome.trainable_tokens,
            **session_record(example.samples),
        }
        for example in examples
    ]
    for record in records:
        if record["session_id"] in secrets:
            del record["session_id"]
    return encode_json({"rollout_id": rollout_id, "examples": redacted(records, secrets=secrets)})


def _write_private(path: Path, content: bytes) -> None:
    """Put a file in place in one step, readable for its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:  # also an interrupt must leave no half-written file
        os.unlink(partial)
        raise


def _log_artifact(wandb: Any, run: Any, rollout_id: int, content: bytes) -> None:
    artifact = wandb.Artifact(f"rollout_examples_r{rollout_id}", type="rollout-examples")
    with artifact.new_file("examples.json", mode="wb") as file:
        file.write(content)
    run.log_artifact(artifact)
