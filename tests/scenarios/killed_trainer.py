"""A trainer that may be killed at any moment and started again.

Its loop is Slime's: rollouts, training steps, a checkpoint after some of them. In the order of
``train_async.py`` the next rollout is generated before the present one is trained on. Everything that
outlives it is in the folder: the log of what was trained on, the checkpoints of model and data, the journal.

``python -m tests.scenarios.killed_trainer`` imports everything once and then starts one trainer process per
line of JSON on its input; it writes the process's id, and its exit code when it has ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slime_bridge.data_source import CeilEpochRolloutDataSourceWithBuffer
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.slime_bridge.rollouts import make_args

MODEL = "latest_model.txt"
TRAINED = "trained.jsonl"


class Trainer:
    """One life of the trainer.

    Parameters
    ----------
    values
        ``url``, ``folder``, ``prompts``, ``rollouts``, ``batch``, ``save_interval``, ``ahead`` (whether the
        next rollout is generated before training), ``life`` and ``settings``.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._folder = Path(values["folder"])
        rows = [{"input": f"prompt {number}"} for number in range(values["prompts"])]
        args = make_args(
            values["url"],
            prompt_data=rows,
            save=str(self._folder),
            load=str(self._folder),
            rollout_batch_size=values["batch"],
            **values["settings"],
        )
        self._args: SimpleNamespace = args
        self._source = CeilEpochRolloutDataSourceWithBuffer(args)

    def run(self) -> None:
        """Resume from the latest checkpoint and train to the end."""
        model = self._folder / MODEL
        start = int(model.read_text()) + 1 if model.exists() else 0
        self._source.load(start - 1)
        self._note({"resumed": start})
        last = self._values["rollouts"]
        if not self._values["ahead"]:
            for rollout_id in range(start, last):
                self._step(rollout_id, self._generate(rollout_id))
        else:
            coming = self._generate(start) if start < last else []
            for rollout_id in range(start, last):
                groups = coming
                coming = self._generate(rollout_id + 1) if rollout_id + 1 < last else []
                self._step(rollout_id, groups)
        stop_global_worker()

    def _generate(self, rollout_id: int) -> list[list[Any]]:
        groups: list[list[Any]] = generate_rollout_polar_async(self._args, rollout_id, self._source).samples
        return groups

    def _step(self, rollout_id: int, groups: list[list[Any]]) -> None:
        """Train, and save where it is time: first the model, then the data, as Slime does."""
        self._note({"rollout": rollout_id, "groups": [group[0].group_index for group in groups]})
        done = rollout_id + 1
        if done % self._values["save_interval"] and done != self._values["rollouts"]:
            return
        partial = self._folder / f"{MODEL}.part"
        partial.write_text(str(rollout_id))
        partial.replace(self._folder / MODEL)
        self._source.save(rollout_id)

    def _note(self, entry: dict[str, Any]) -> None:
        line = json.dumps({"life": self._values["life"], **entry}).encode() + b"\n"
        log = os.open(self._folder / TRAINED, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(log, line)
        finally:
            os.close(log)


def main() -> None:
    """Start trainers, one after the other; nothing but imports has happened in the process they come from."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                Trainer(json.loads(line)).run()
                code = 0
            except BaseException:  # the parent of a forked process must see what was wrong with it
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)  # noqa: T201 - the parent reads it
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
