"""What tests of the worker and the entry point share: a data source that keeps books, arguments, a worker."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

from slime_bridge import _slime
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.worker import PolarWorker


class Source:
    """A data source over numbered prompts; what comes back is drawn again first.

    `limit` prompts in all (None: endless). `drawn` and `returned` hold group indices in order.
    """

    def __init__(self, n=2, limit=None, prompt="prompt {0}"):
        self.n, self.limit, self.prompt = n, limit, prompt
        self.next = 0
        self.buffer = []
        self.drawn, self.returned, self.delivered, self.given_up = [], [], {}, []
        self.requests = []

    def get_samples(self, number):
        self.requests.append(number)
        groups = []
        while len(groups) < number:
            if self.buffer:
                groups.append(self.buffer.pop(0))
            elif self.limit is None or self.next < self.limit:
                groups.append(self.make(self.next))
                self.next += 1
            else:
                break
        self.drawn += [group[0].group_index for group in groups]
        return groups

    def make(self, number):
        sample = _slime.sample_class()
        prompt = self.prompt.format(number)
        return [
            sample(prompt=prompt, index=number * self.n + i, group_index=number, metadata={"row": number})
            for i in range(self.n)
        ]

    def add_samples(self, groups):
        self.buffer += groups
        self.returned += [group[0].group_index for group in groups]

    def mark_delivered(self, indices, rollout_id):
        self.delivered[rollout_id] = list(indices)

    def mark_given_up(self, indices):
        self.given_up += indices

    def unaccounted(self):
        """Prompts that are neither waiting, delivered nor given up."""
        waiting = {group[0].group_index for group in self.buffer}
        delivered = {index for indices in self.delivered.values() for index in indices}
        return set(range(self.next)) - waiting - delivered - set(self.given_up)


def make_args(url, **settings):
    defaults = {
        "polar_rollout_url": url,
        "polar_task_template": {"agent": {"harness": "lab"}, "timeout_seconds": 30.0},
        "polar_reward_key": "score",
        "reward_key": "score",
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 2,
        "update_weights_interval": 1,
    }
    return SimpleNamespace(**{**defaults, **settings})


def make_worker(url, source, *, journal=None, startup_timeout=10.0, progress_interval=10.0, **settings):
    args = make_args(url, **settings)
    return PolarWorker(
        resolve_polar_slime_config(args),
        args,
        source,
        journal=journal,
        startup_timeout=startup_timeout,
        progress_interval=progress_interval,
    )


@contextmanager
def running(polar, source, **settings):
    """A worker that is stopped at the end, with its books checked."""
    worker = make_worker(getattr(polar, "url", polar), source, **settings)
    try:
        yield worker
    finally:
        worker.stop()
    books = worker.ledger()
    assert books.live == 0
    assert books.unaccounted == 0


def group_indices(batch):
    return [delivery.group.prompt[0].group_index for delivery in batch.deliveries]
