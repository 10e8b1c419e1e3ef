"""Scenarios about the server and the way to it: outages, restarts, answers that never come."""

from __future__ import annotations

from analysis.lab.polar_server.testing import Fault, SessionProfile
from slime_bridge.errors import InfrastructureStreakError, PolarOutageError, WorkerStoppedError
from tests.scenarios.scenario import LONG, Act, Error, Outcome, Scenario

_FOUR = (0, 1, 2, 3)
_EIGHT = (*_FOUR, 4, 5, 6, 7)
_DEAD_PROXY = "http://127.0.0.1:9"

AWAY = (
    Scenario(
        name="refused-five-seconds",
        what="The server refuses connections for 5 s while groups are submitted.",
        faults=[Fault("outage", tasks=[2], seconds=5.0)],
        settings={"polar_fully_async": True},
        rollouts=(0, 1),
        outcome=Outcome(
            delivered=(4, 4),
            returned=None,
            metrics={"polar/ledger/drawn": (12, 12), "polar/outages": (0, 1)},
            log=("requests wait, one probe", "answers again after"),
            within=15,
        ),
        slow=True,
    ),
    Scenario(
        name="refused-after-a-push",
        what="The server refuses connections for 2 s between two calls, with sessions running.",
        profile=SessionProfile(duration=0.5),
        settings={"polar_fully_async": True},
        rollouts=(0, 1, 2),
        acts=[Act(submits=8, does=["refuse"], seconds=2.0)],
        outcome=Outcome(delivered=(4, 4, 4), returned=None, log=("answers again after",), within=15),
        slow=True,
    ),
    Scenario(
        name="restart",
        what="The server restarts when the fourth task comes, and has forgotten the others.",
        # Submits come side by side: the others are accepted meanwhile.
        faults=[Fault("response_slow", on="submit", tasks=[3], seconds=0.5), Fault("restart", tasks=[3])],
        profile=SessionProfile(duration=1.5),
        outcome=Outcome(submits=(5, 8), within=15),
    ),
    Scenario(
        name="restart-with-downtime",
        what="The server restarts with all tasks in flight and is away for 1.5 s.",
        faults=[Fault("restart", tasks=[3], seconds=1.5)],
        profile=SessionProfile(duration=0.3),
        outcome=Outcome(submits=(4, 8), log=("requests wait, one probe",), within=20),
        slow=True,
    ),
    Scenario(
        name="forgets-twice",
        what="The server forgets all tasks, and then all second attempts.",
        profile=LONG,
        acts=[Act(submits=4, does=["forget"]), Act(submits=8, does=["forget", "good server"])],
        outcome=Outcome(submits=(12, 12), within=20),
        slow=True,
    ),
    Scenario(
        name="outage-for-ever",
        what="The server dies with tasks in flight and does not come back within `polar_outage_timeout`.",
        profile=LONG,
        settings={"polar_outage_timeout": 1.0},
        acts=[Act(submits=4, does=["stop server"])],
        outcome=Outcome(
            delivered=(),
            returned=4,
            errors=[Error(kind=PolarOutageError, text=r"polar_outage_timeout is 1 s\), \d probes were sent")],
            within=15,
        ),
        slow=True,
    ),
    Scenario(
        name="no-server",
        what="Nothing listens at `polar_rollout_url`.",
        server="none",
        outcome=Outcome(
            delivered=(),
            errors=[Error(kind=PolarOutageError, text="no rollout server answers at http://127")],
            within=15,
        ),
        slow=True,
    ),
    Scenario(
        name="silent-port",
        what="The port accepts connections and never answers.",
        server="silent",
        outcome=Outcome(
            delivered=(),
            errors=[Error(kind=PolarOutageError, text="no rollout server answers at http://127")],
            within=15,
        ),
        slow=True,
    ),
    Scenario(
        name="proxy-in-the-environment",
        what="HTTP_PROXY, HTTPS_PROXY and ALL_PROXY name a dead proxy.",
        environment=dict.fromkeys(
            ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"), _DEAD_PROXY
        ),
    ),
)

CONNECTIONS = (
    Scenario(
        name="connections-reset",
        what="Five connections in a row are reset as soon as they are accepted.",
        faults=[Fault("connection_reset", skip=1, times=5)],
        outcome=Outcome(submits=(4, 4)),
    ),
    Scenario(
        name="not-http",
        what="Three connections are answered with bytes that are not HTTP.",
        faults=[Fault("connection_garbage", skip=1, times=3)],
        outcome=Outcome(submits=(4, 4)),
    ),
    Scenario(
        name="half-open",
        what="Two connections are accepted and then never served.",
        faults=[Fault("connection_half_open", skip=1, times=2)],
        settings={"polar_request_timeout": 0.5},
        outcome=Outcome(submits=(4, 4), within=15),
    ),
    Scenario(
        name="every-fourth-request-fails",
        what="Any request to the server fails with 500, with a chance of one in four.",
        faults=[Fault("response_status", status=500, probability=0.25, server="rollout")],
        seed=5,
        rollouts=(0, 1),
        outcome=Outcome(delivered=(_FOUR, (4, 5, 6, 7)), within=20),
    ),
    Scenario(
        name="health-is-broken",
        what="The health route answers 404; everything else works.",
        faults=[Fault("response_status", on="health", status=404)],
    ),
)

SUBMITS = (
    Scenario(
        name="submit-503",
        what="The first six submits are answered 503.",
        faults=[Fault("response_status", on="submit", status=503, times=6)],
        outcome=Outcome(submits=(4, 4), within=15),
    ),
    Scenario(
        name="submit-429",
        what="The first four submits are answered 429: the server is busy, not away.",
        faults=[Fault("response_status", on="submit", status=429, times=4)],
        outcome=Outcome(submits=(4, 4), metrics={"polar/outages": 0}),
    ),
    Scenario(
        name="submit-accepted-without-answer",
        what="Two submits are accepted, but the answer never comes.",
        faults=[Fault("response_hang", on="submit", times=2, processed=True)],
        settings={"polar_request_timeout": 0.5},
        profile=SessionProfile(duration=1.5),
        outcome=Outcome(submits=(4, 4), within=15),
    ),
    Scenario(
        name="submit-swallowed",
        what="Two submits are never answered, and the server has not seen them.",
        faults=[Fault("response_hang", on="submit", times=2)],
        settings={"polar_request_timeout": 0.5},
        outcome=Outcome(submits=(4, 4), within=15),
    ),
    Scenario(
        name="submit-answer-cut",
        what="The answers to two submits break off in the middle, after the server has accepted them.",
        faults=[Fault("response_cut", on="submit", times=2, processed=True)],
        profile=SessionProfile(duration=0.5),
        outcome=Outcome(submits=(4, 4)),
    ),
    Scenario(
        name="submit-reset",
        what="Three submits end in a reset connection.",
        faults=[Fault("response_reset", on="submit", times=3)],
        outcome=Outcome(submits=(4, 4)),
    ),
    Scenario(
        name="submit-garbage",
        what="Two accepted submits are answered 200 with a page that is not JSON.",
        faults=[Fault("response_garbage", on="submit", times=2, processed=True)],
        profile=SessionProfile(duration=0.5),
        outcome=Outcome(submits=(4, 4)),
    ),
    Scenario(
        name="submit-empty-answer",
        what="Two submits are answered 200 with nothing, and the server has not seen them.",
        faults=[Fault("response_empty", on="submit", times=2)],
        outcome=Outcome(submits=(4, 4)),
    ),
    Scenario(
        name="submit-slow",
        what="Every submit is answered after 0.4 s, when its task is over.",
        faults=[Fault("response_slow", on="submit", seconds=0.4)],
        outcome=Outcome(submits=(4, 4)),
    ),
    Scenario(
        name="submit-conflict",
        what="A submit is answered 409 although the task is not there.",
        faults=[Fault("task_conflict", tasks=[0])],
        outcome=Outcome(submits=(4, 4), within=15),
        slow=True,
    ),
    Scenario(
        name="submit-422",
        what="The server refuses every request: the template is wrong.",
        faults=[Fault("response_status", on="submit", status=422, value="agent.harness is unknown")],
        outcome=Outcome(
            delivered=(),
            requeued=None,
            returned=None,
            errors=[Error(kind=InfrastructureStreakError, text="422.*agent.harness is unknown")],
            log=("refused a task request",),
            submits=(0, 0),
        ),
    ),
    Scenario(
        name="submit-422-for-one-prompt",
        what="The server refuses one prompt and takes the others.",
        faults=[
            Fault("response_status", on="submit", instruction="prompt 1$", status=422, value="bad image")
        ],
        outcome=Outcome(
            delivered=((0, 2, 3, 4),),
            given_up={"submit_rejected": 1},
            requeued={"submit_rejected": 1},
            metrics={"polar/given_up_groups": 1},
        ),
    ),
    Scenario(
        name="submit-401-with-secrets",
        what="The server refuses every request and repeats a credential in its answer.",
        faults=[
            Fault(
                "response_status", on="submit", status=401, value="bad token: Bearer sk-verysecret123456789"
            )
        ],
        outcome=Outcome(
            delivered=(),
            requeued=None,
            returned=None,
            errors=[Error(kind=InfrastructureStreakError, text=r"401(?!.*verysecret)")],
            submits=(0, 0),
        ),
    ),
    Scenario(
        name="submit-redirect",
        what="One prompt's submit is redirected; redirects are not followed.",
        faults=[Fault("response_status", on="submit", instruction="prompt 2$", status=307)],
        outcome=Outcome(
            delivered=((0, 1, 3, 4),), given_up={"submit_rejected": 1}, requeued={"submit_rejected": 1}
        ),
    ),
)

STOPS = (
    Scenario(
        name="stop-with-work-in-flight",
        what="The worker is stopped from another thread while a call waits.",
        profile=LONG,
        newer=True,
        acts=[Act(submits=4, does=["stop worker"])],
        outcome=Outcome(
            delivered=(), returned=4, errors=[Error(kind=WorkerStoppedError, text="was stopped")], within=6
        ),
    ),
    Scenario(
        name="stop-with-a-hanging-server",
        what="The server stops answering, then the worker is stopped.",
        profile=LONG,
        newer=True,
        acts=[Act(submits=4, does=["hang server", "stop worker"])],
        outcome=Outcome(delivered=(), returned=4, errors=[Error(kind=WorkerStoppedError)], within=6),
    ),
    Scenario(
        name="stop-after-the-server",
        what="The server is gone when the worker is stopped.",
        profile=LONG,
        newer=True,
        acts=[Act(submits=4, does=["stop server", "stop worker"])],
        outcome=Outcome(delivered=(), returned=4, errors=[Error(kind=WorkerStoppedError)], within=6),
    ),
    Scenario(
        name="interrupt",
        what="Ctrl-C while a call waits; the next call goes on with the same groups.",
        profile=SessionProfile(duration=2.5),
        rollouts=(0, 0),
        acts=[Act(submits=4, does=["interrupt"])],
        outcome=Outcome(errors=[Error(kind=KeyboardInterrupt)], submits=(4, 4)),
    ),
    Scenario(
        name="interrupt-in-a-notebook-then-stop",
        what="Ctrl-C while a call waits, and then the end.",
        profile=LONG,
        acts=[Act(submits=4, does=["interrupt"])],
        outcome=Outcome(delivered=(), returned=4, errors=[Error(kind=KeyboardInterrupt)], within=6),
    ),
    Scenario(
        name="process-ends-with-work-in-flight",
        what="The trainer's script ends with four groups in flight.",
        profile=SessionProfile(duration=0.02),
        faults=[Fault("task_endless", instruction="prompt [4-7]$")],
        newer=True,
        settings={"polar_fully_async": True},
        ends_by="end of script",
        outcome=Outcome(abandoned=4, sessions=None, within=6),
    ),
    Scenario(
        name="process-fails-with-work-in-flight",
        what="The training step raises with four groups in flight.",
        faults=[Fault("task_endless", instruction="prompt [4-7]$")],
        newer=True,
        settings={"polar_fully_async": True},
        ends_by="exception",
        outcome=Outcome(abandoned=4, sessions=None, within=6),
    ),
    Scenario(
        name="sigterm-with-work-in-flight",
        what="The trainer gets SIGTERM with four groups in flight.",
        faults=[Fault("task_endless", instruction="prompt [4-7]$")],
        newer=True,
        settings={"polar_fully_async": True},
        ends_by="sigterm",
        outcome=Outcome(abandoned=4, sessions=None, within=6),
    ),
)
