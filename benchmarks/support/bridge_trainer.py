"""The trainer of one measurement in a process of its own: ``bridge_trainer.py JSON`` prints its numbers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slime_bridge import _slime
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker

TEMPLATE = {"agent": {"harness": "shell", "model_name": "policy"}, "timeout_seconds": 600.0}


class Prompts:
    """An endless data source."""

    def __init__(self, sessions: int) -> None:
        self._sessions = sessions
        self._next = 0

    def get_samples(self, number: int) -> list[list[Any]]:
        """Draw groups."""
        sample_class = _slime.sample_class()
        groups = []
        for group in range(self._next, self._next + number):
            first = group * self._sessions
            groups.append(
                [
                    sample_class(prompt=f"task {group}", index=first + i, group_index=group)
                    for i in range(self._sessions)
                ]
            )
        self._next += number
        return groups

    def add_samples(self, groups: list[list[Any]]) -> None:
        """Take groups back; nobody draws them again here."""


class Ours:
    """The hook, as Slime calls it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._args = SimpleNamespace(
            polar_rollout_url=values["url"],
            polar_task_template=TEMPLATE,
            polar_reward_key="score",
            reward_key="score",
            rollout_batch_size=values["batch"],
            n_samples_per_prompt=values["sessions"],
            update_weights_interval=1,
            polar_max_async_level=values.get("level", 2),
            polar_fully_async=values.get("fully_async", False),
        )
        self._source = Prompts(values["sessions"])

    def call(self, rollout_id: int) -> list[list[Any]]:
        """Return one batch."""
        groups: list[list[Any]] = generate_rollout_polar_async(self._args, rollout_id, self._source).samples
        return groups

    def stop(self) -> None:
        """End the worker."""
        stop_global_worker()


class Plain:
    """The baseline."""

    def __init__(self, values: dict[str, Any]) -> None:
        from support.plain_bridge import PlainBridge

        self._batch = values["batch"]
        self._source = Prompts(values["sessions"])
        self._bridge = PlainBridge(values["url"], TEMPLATE)

    def call(self, rollout_id: int) -> list[list[Any]]:
        """Return one batch."""
        return self._bridge.call(self._source.get_samples(self._batch))

    def stop(self) -> None:
        """End the worker."""
        self._bridge.stop()


def memory_mb(name: str) -> float:
    """Return ``VmRSS`` or ``VmHWM`` of this process in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1000
    raise KeyError(name)


def measure(values: dict[str, Any]) -> dict[str, Any]:
    """Make the calls and return what they took."""
    bridge = Ours(values) if values["bridge"] == "ours" else Plain(values)
    warm_up = values.get("warm_up", 1)
    for rollout_id in range(warm_up):
        bridge.call(rollout_id)
    before, began, cpu = memory_mb("VmRSS"), time.monotonic(), time.process_time()
    returned, lags, tokens = [], [], 0
    for rollout_id in range(warm_up, warm_up + values["calls"]):
        groups = bridge.call(rollout_id)
        returned.append(time.monotonic())
        samples = [sample for group in groups for sample in group]
        tokens += sum(len(sample.tokens) for sample in samples)
        lags += [sample.metadata["polar"].get("policy_staleness", 0) for sample in samples]
        time.sleep(values.get("train_seconds", 0.0))
    result = {
        "cpu": time.process_time() - cpu,
        "wall": time.monotonic() - began,
        "groups": values["calls"] * values["batch"],
        "tokens": tokens,
        "returned": returned,
        "lag": sum(lags) / len(lags),
        "largest_lag": max(lags),
        "memory_before": before,
        "memory_peak": memory_mb("VmHWM"),
    }
    bridge.stop()
    return result


if __name__ == "__main__":
    json.dump(measure(json.loads(sys.argv[1])), sys.stdout)
