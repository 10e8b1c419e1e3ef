"""Scenarios about results: callbacks that get lost or lie, polling, tasks that fail or never end."""

from __future__ import annotations

from analysis.lab.polar_server.testing import Fault, SessionProfile
from slime_bridge.errors import InfrastructureStreakError
from tests.scenarios.scenario import Error, Outcome, Scenario

_POLLED = 12.0
"""Seconds for what needs a poll: the first is sent after two."""

CALLBACKS = (
    Scenario(
        name="callback-lost",
        what="The callbacks of two tasks get lost.",
        faults=[Fault("callback_lost", tasks=[0, 2])],
        outcome=Outcome(metrics={"polar/polled_results": (2, 2)}, submits=(4, 4), within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="all-callbacks-lost",
        what="No callback arrives at all: the advertised address is wrong.",
        faults=[Fault("callback_lost")],
        rollouts=(0, 1),
        outcome=Outcome(
            delivered=((0, 1, 2, 3), (4, 5, 6, 7)),
            log=("polar_callback_host",),
            submits=(8, 8),
            within=2 * _POLLED,
        ),
        slow=True,
    ),
    Scenario(
        name="callback-lost-then-503",
        what="A callback gets lost and the first two polls are answered 503.",
        faults=[
            Fault("callback_lost", tasks=[1]),
            Fault("response_status", on="status", status=503, times=1),
            Fault("response_status", on="task", status=503, times=1),
        ],
        outcome=Outcome(submits=(4, 4), within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="callback-late",
        what="A callback arrives after its task was polled.",
        faults=[Fault("callback_late", tasks=[1], seconds=4.0)],
        rollouts=(0, 1),
        outcome=Outcome(delivered=((0, 1, 2, 3), (4, 5, 6, 7)), submits=(8, 8), within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="callback-late-is-counted",
        what="A callback arrives after its task was polled, while the next call waits.",
        faults=[
            Fault("callback_late", tasks=[1], seconds=3.5),
            Fault("session_slow", instruction="prompt 4$", seconds=2.0),
        ],
        rollouts=(0, 1),
        outcome=Outcome(
            delivered=((0, 1, 2, 3), (4, 5, 6, 7)),
            metrics={"polar/callbacks/late": 1, "polar/callbacks/accepted": 4},
            within=_POLLED,
        ),
        slow=True,
    ),
    Scenario(
        name="callback-duplicate",
        what="Every callback is sent three times.",
        faults=[
            Fault("callback_duplicate", count=2),
            Fault("session_slow", instruction="prompt 3$", seconds=0.3),
        ],
        rollouts=(0, 1),
        outcome=Outcome(
            delivered=((0, 1, 2, 3), (4, 5, 6, 7)),
            metrics={"polar/callbacks/accepted": 4, "polar/callbacks/duplicate": (1, 12)},
            submits=(8, 8),
        ),
    ),
    Scenario(
        name="callback-before-the-receipt",
        what="Callbacks arrive before the submit is answered.",
        faults=[Fault("callback_early")],
        outcome=Outcome(submits=(4, 4), metrics={"polar/polled_results": 0}),
    ),
    Scenario(
        name="callback-malformed",
        what="Six callbacks hold text, half a body, a list, nothing, null and bytes that are not UTF-8.",
        faults=[
            Fault("callback_malformed", tasks=[number], value=form)
            for number, form in enumerate(("text", "truncated", "list", "empty", "null", "not_utf8"))
        ],
        settings={"rollout_batch_size": 6},
        outcome=Outcome(
            delivered=((0, 1, 2, 3, 4, 5),),
            metrics={"polar/callbacks/malformed": 6, "polar/polled_results": 6},
            within=_POLLED,
        ),
        slow=True,
    ),
    Scenario(
        name="callback-forged",
        what="Somebody posts results with reward 999 to a guessed path.",
        faults=[Fault("callback_forged")],
        outcome=Outcome(metrics={"polar/callbacks/forged": 4, "polar/reward_mean": (0.0, 1.0)}),
    ),
    Scenario(
        name="callback-of-another-task",
        what="Another task's result is posted to a task's address before its own.",
        faults=[Fault("callback_foreign", tasks=[0, 1])],
        outcome=Outcome(metrics={"polar/callbacks/foreign": 2, "polar/polled_results": 0}),
    ),
    Scenario(
        name="callback-of-another-task-only",
        what="Another task's result is posted to a task's address, and its own never comes.",
        faults=[Fault("callback_foreign_only", tasks=[2])],
        outcome=Outcome(metrics={"polar/callbacks/foreign": 1, "polar/polled_results": 1}, within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="callback-says-running",
        what="A callback holds a status that still says `running`.",
        faults=[Fault("callback_running", tasks=[0])],
        outcome=Outcome(metrics={"polar/polled_results": 1}, within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="callback-in-status-shape",
        what="Callbacks have the shape of a task status.",
        faults=[Fault("callback_status_shape")],
        outcome=Outcome(metrics={"polar/polled_results": 0}),
    ),
    Scenario(
        name="callback-huge",
        what="Two callbacks are padded to 8 MB.",
        faults=[Fault("callback_huge", tasks=[0, 1], count=8_000_000)],
        outcome=Outcome(metrics={"polar/polled_results": 0}),
    ),
    Scenario(
        name="callback-cut",
        what="The connection breaks in the middle of a callback.",
        faults=[Fault("callback_cut", tasks=[1])],
        outcome=Outcome(metrics={"polar/callbacks/cut": 1, "polar/polled_results": 1}, within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="callback-slow",
        what="One callback's body arrives over 0.8 s; the others are not held up.",
        faults=[Fault("callback_slow", tasks=[0], seconds=0.8)],
        outcome=Outcome(metrics={"polar/polled_results": 0, "polar/callbacks/accepted": 4}),
    ),
)

POLLS = (
    Scenario(
        name="poll-without-status-list",
        what="No callbacks, and the server cannot list its tasks (404).",
        faults=[Fault("callback_lost"), Fault("response_status", on="status", status=404)],
        outcome=Outcome(log=("Feature 'status list' is inactive",), within=20),
        slow=True,
    ),
    Scenario(
        name="poll-garbage",
        what="No callbacks; one status list and two task records are not JSON.",
        faults=[
            Fault("callback_lost"),
            Fault("response_garbage", on="status", times=1),
            Fault("response_garbage", on="task", times=2),
        ],
        outcome=Outcome(within=20),
        slow=True,
    ),
    Scenario(
        name="poll-cut",
        what="No callbacks; the first download of each task breaks off in the middle.",
        faults=[Fault("callback_lost"), Fault("response_cut", on="task", times=4)],
        outcome=Outcome(within=20),
        slow=True,
    ),
    Scenario(
        name="poll-hangs",
        what="No callbacks; two downloads never begin.",
        faults=[Fault("callback_lost"), Fault("response_hang", on="task", times=2)],
        settings={"polar_request_timeout": 0.7},
        outcome=Outcome(within=20),
        slow=True,
    ),
    Scenario(
        name="poll-drips",
        what="No callbacks; the downloads arrive over a second.",
        faults=[Fault("callback_lost"), Fault("response_drip", on="task", seconds=1.0, count=5)],
        settings={"polar_request_timeout": 0.7},
        outcome=Outcome(within=20),
        slow=True,
    ),
)

TASKS = (
    Scenario(
        name="task-failed-once",
        what="A task ends as `failed`, without results and without a callback; its second attempt works.",
        faults=[Fault("task_failed", instruction="prompt 1$", attempts=[0])],
        outcome=Outcome(requeued={"task_failed": 1}, submits=(5, 5), within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="task-always-fails",
        what="One prompt's task fails every time.",
        faults=[Fault("task_failed", instruction="prompt 1$"), Fault("callback_lost")],
        settings={"polar_max_prompt_attempts": 2},
        outcome=Outcome(
            delivered=((0, 2, 3, 4),),
            requeued={"task_failed": 1},
            given_up={"task_failed": 1},
            metrics={"polar/given_up_groups": 1},
            within=25,
        ),
        slow=True,
    ),
    Scenario(
        name="every-task-fails",
        what="All tasks fail for infrastructure reasons, again and again.",
        faults=[Fault("task_failed")],
        settings={"polar_max_prompt_attempts": 1, "polar_max_consecutive_infrastructure_failures": 4},
        outcome=Outcome(
            delivered=(),
            given_up={"task_failed": (4, 7)},
            returned=None,
            errors=[Error(kind=InfrastructureStreakError, text="given up after repeated failures")],
            within=_POLLED,
        ),
        slow=True,
    ),
    Scenario(
        name="task-never-ends",
        what="Three tasks of four stay `running` for ever.",
        faults=[Fault("task_endless", instruction="prompt [0-2]$", attempts=[0])],
        settings={"polar_group_timeout": 2.5},
        outcome=Outcome(requeued={"deadline": 3}, submits=(7, 7), within=15),
        slow=True,
    ),
    Scenario(
        name="session-never-ends",
        what="One session of a group hangs; the server cancels the task when asked.",
        faults=[Fault("session_endless", instruction="prompt 2$", sessions=[1], times=1)],
        settings={"polar_group_timeout": 2.5},
        newer=True,
        outcome=Outcome(requeued={"deadline": 1}, within=15),
        slow=True,
    ),
    Scenario(
        name="straggler",
        what="One group of a full window never ends; the call has enough others.",
        faults=[Fault("task_endless", instruction="prompt 2$")],
        settings={"polar_fully_async": True},
        outcome=Outcome(delivered=(4,), returned=None, within=5),
    ),
    Scenario(
        name="submit-eats-the-deadline",
        what="Submits take 0.8 s and the tasks never end: both share one deadline of 2.5 s.",
        faults=[
            Fault("response_slow", on="submit", seconds=0.8, times=1),
            Fault("task_endless", attempts=[0], times=1),
        ],
        settings={"polar_group_timeout": 2.5, "rollout_batch_size": 1},
        outcome=Outcome(delivered=((0,),), requeued={"deadline": 1}, within=15),
        slow=True,
    ),
    Scenario(
        name="task-forgotten",
        what="The server forgets one task and goes on with the others.",
        faults=[Fault("task_forgotten", instruction="prompt 1$", attempts=[0], seconds=0.1)],
        profile=SessionProfile(duration=0.5),
        outcome=Outcome(submits=(5, 5), within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="task-cancelled",
        what="Somebody cancels a task on the server.",
        faults=[Fault("task_status", instruction="prompt 0$", attempts=[0], value="cancelled")],
        outcome=Outcome(requeued={"task_failed": 1}, submits=(5, 5), within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="task-with-another-id",
        what="A task's record and callback name another task.",
        faults=[Fault("task_foreign_id", instruction="prompt 3$", attempts=[0])],
        settings={"polar_group_timeout": 4.0},
        outcome=Outcome(
            requeued={"deadline": 1}, metrics={"polar/callbacks/foreign": 1}, submits=(5, 5), within=15
        ),
        slow=True,
    ),
    Scenario(
        name="newer-server-fields",
        what="Bodies, sessions and timings carry fields that nobody knows.",
        faults=[Fault("task_unknown_fields"), Fault("session_unknown_fields")],
        newer=True,
    ),
    Scenario(
        name="three-hundred-tasks",
        what="300 tasks at once, and the server takes a second to answer each submit.",
        faults=[Fault("response_slow", on="submit", seconds=1.0)],
        settings={"rollout_batch_size": 300, "n_samples_per_prompt": 1, "polar_max_async_level": 1},
        outcome=Outcome(delivered=(300,), submits=(300, 300), within=20),
        slow=True,
    ),
    Scenario(
        name="one-task-per-sample",
        what="With one task per sample, one task of a group loses its callback and one its session.",
        faults=[Fault("callback_lost", tasks=[1]), Fault("session_error", tasks=[2])],
        settings={"polar_scoring_mode": "individual", "n_samples_per_prompt": 3},
        outcome=Outcome(sessions={"failed": 1}, submits=(12, 12), within=_POLLED),
        slow=True,
    ),
    Scenario(
        name="rollout-ids-jump",
        what="The first rollout is 7, then 7 again, then 3.",
        rollouts=(7, 7, 3),
        outcome=Outcome(
            delivered=((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)),
            log=("Rollout id 7 is asked for again", "Rollout id 3 is lower than the one before"),
        ),
    ),
    Scenario(
        name="configuration-changes",
        what="A key changes between two calls, with groups in flight.",
        settings={"polar_fully_async": True},
        changes={1: {"polar_max_prompt_attempts": 3}},
        faults=[Fault("task_endless", instruction="prompt [4-7]$", attempts=[0])],
        rollouts=(0, 1),
        outcome=Outcome(
            delivered=((0, 1, 2, 3), 4),
            returned=None,
            log=("The configuration has changed",),
        ),
    ),
)
