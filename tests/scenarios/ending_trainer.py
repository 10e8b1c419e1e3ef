"""A trainer whose script ends with work in flight: ``python -m tests.scenarios.ending_trainer JSON``."""

from __future__ import annotations

import json
import sys
import threading

from slime_bridge.rollout import generate_rollout_polar_async
from tests.slime_bridge.rollouts import Source, make_args


def main() -> None:
    """Make the calls, say ``ready``, and end as asked."""
    values = json.loads(sys.argv[1])
    args = make_args(values["url"], polar_run_dir=values["folder"], **values["settings"])
    source = Source()
    for rollout_id in values["rollouts"]:
        generate_rollout_polar_async(args, rollout_id, source)
    print("ready", flush=True)  # noqa: T201 - the parent waits for this line
    if values["ends_by"] == "exception":
        raise RuntimeError("the training step fails")
    if values["ends_by"] == "sigterm":
        threading.Event().wait()


if __name__ == "__main__":
    main()
