"""Taking over tasks that another process submitted: waiting for their results without submitting them again.

A second submit of a task that has just ended would run it once more, so nothing is submitted here: the task
is asked for, watched while it runs, and asked for again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from slime_bridge.client import PolarClient
from slime_bridge.collect import CollectedTask
from slime_bridge.errors import InfrastructureError, TaskFailedError, TransportError
from slime_bridge.poller import StatusPoller, is_running
from slime_bridge.protocol import decode_task_payload
from slime_bridge.retry import RetryPolicy, call_with_retry

__all__ = ["Adopted", "Unfinished", "collect_running", "unfinished"]


@dataclass(frozen=True)
class Adopted:
    """A group that an earlier process had under way.

    Attributes
    ----------
    index
        Number of its prompt.
    task_ids
        Its tasks on the server, one per part of the group.
    since
        When the first was submitted (Unix seconds).
    """

    index: int
    task_ids: tuple[str, ...]
    since: float


@dataclass(frozen=True)
class Unfinished:
    """What a journal leaves to be done.

    Attributes
    ----------
    under_way
        Groups that were submitted and have no end.
    not_submitted
        Numbers of prompts that never were, or whose last attempt had failed.
    """

    under_way: tuple[Adopted, ...]
    not_submitted: tuple[int, ...]


def unfinished(records: Sequence[Mapping[str, Any]], prompts: int) -> Unfinished:
    """Read from a submission's journal what has no end yet.

    Parameters
    ----------
    records
        All records, of one process after the other.
    prompts
        How many prompts there are.
    """
    state: dict[int, Adopted | None] = {}
    ended: set[int] = set()
    index_of: dict[int, int] = {}
    for record in records:
        event, group = record.get("event"), record.get("group")
        if event == "journal_opened":
            index_of = {}
        if not isinstance(group, int):
            continue
        if event == "group_drawn" and isinstance(record.get("group_index"), int):
            index_of[group] = record["group_index"]
        index = index_of.get(group)
        if index is None:
            continue
        if event == "task_submitted":
            before = state.get(index)
            tasks = () if before is None else before.task_ids
            task_id = str(record.get("task_id"))
            if task_id not in tasks:
                since = record["ts"] if before is None else before.since
                state[index] = Adopted(index, (*tasks, task_id), since)
        elif event == "group_requeued":
            state[index] = None
        elif event in ("group_delivered", "group_rejected", "group_given_up", "group_abandoned"):
            ended.add(index)
    under_way = [found for index, found in sorted(state.items()) if found is not None and index not in ended]
    taken = ended | {found.index for found in under_way}
    return Unfinished(tuple(under_way), tuple(index for index in range(prompts) if index not in taken))


async def collect_running(
    client: PolarClient, poller: StatusPoller, task_id: str, *, deadline: float
) -> CollectedTask:
    """Wait for the result of a task that is on the server already.

    Parameters
    ----------
    client, poller
        Of the server; the poller runs.
    task_id
        The task.
    deadline
        When to give up, as `anyio.current_time`.

    Raises
    ------
    TaskUnknownError
        The server does not know the task.
    TaskFailedError
        It ended in another status than ``completed``.
    InfrastructureError, ProtocolError
        No usable answer by the deadline.
    """
    retry, rng = RetryPolicy(), random.Random()
    began = anyio.current_time()
    with anyio.CancelScope(deadline=deadline):
        while True:
            watch = poller.watch(task_id)
            try:
                body = await call_with_retry(
                    lambda: client.get_task(task_id), policy=retry, rng=rng, fuse=client.fuse
                )
                status = await anyio.to_thread.run_sync(_status_of, body)
                if status == "completed":
                    now = anyio.current_time()
                    return CollectedTask(task_id, 1, body, "poll", began, now)
                if not is_running(status):
                    text = f"task {task_id} ended with the status {status[:40]!r}"
                    raise TaskFailedError(text, status=status, body=body)
                await watch.wait()
            except TransportError as error:
                raise InfrastructureError(str(error), reason=error.reason) from error
            finally:
                watch.close()
    raise InfrastructureError(f"no result of task {task_id} by the deadline", reason="deadline")


def _status_of(body: bytes) -> str:
    return decode_task_payload(body).status
