"""The bridge's own waits, twenty times shorter: for tests that play hundreds of schedules in real time.

Only how long it waits between tries changes, not what it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slime_bridge import group_flow, pipeline
from slime_bridge.client import PolarClient
from slime_bridge.collect import Collector
from slime_bridge.poller import PollSchedule
from slime_bridge.retry import Fuse, RetryPolicy

_SCHEDULE = PollSchedule(first=0.1, factor=2.0, max_interval=0.5, min_gap=0.02, max_duty=1.0)
_RETRY = RetryPolicy(initial=0.0125, max_delay=0.5)
_PAUSE = RetryPolicy(initial=0.05, max_delay=0.5)


@contextmanager
def hurried() -> Iterator[None]:
    """Shorten the waits of workers that are started within the block."""

    def client(*args: Any, **values: Any) -> PolarClient:
        return PolarClient(*args, fuse=Fuse(probe_interval=0.025), **values)

    def collector(*args: Any, **values: Any) -> Collector:
        return Collector(
            *args, schedule=_SCHEDULE, retry=_RETRY, callback_grace=0.05, cancel_timeout=0.1, **values
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "PolarClient", client)
        patch.setattr(pipeline, "Collector", collector)
        patch.setattr(group_flow, "_PAUSE", _PAUSE)
        yield
