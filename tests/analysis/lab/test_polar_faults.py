"""Fault scripts without a server: which rule fires for what, how often, and the same way every time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.lab.polar_server.fault_kinds import KINDS, fault_table, kinds_of
from analysis.lab.polar_server.faults import ROUTES, Fault, FaultEngine, FaultScript, Subject, stable_seed
from analysis.lab.polar_server.synthetic import Lognormal, SessionProfile


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _engine(*faults: Fault, seed: int = 0, clock: _Clock | None = None) -> FaultEngine:
    return FaultEngine(FaultScript(faults=faults, seed=seed), clock=clock or _Clock())


def _fired(engine: FaultEngine, subject: Subject) -> list[str]:
    return [fault.kind for fault in engine.fire(KINDS, subject)]


def test_tasks_are_counted_by_first_sight_and_instructions_by_attempt():
    """A repeated submit keeps its ordinal; another id for the same instruction is its next attempt."""
    engine = _engine()
    seen = [engine.task_subject(*names) for names in (("a", "x"), ("b", "y"), ("a", "x"), ("c", "x"))]
    assert [(s.ordinal, s.attempt) for s in seen] == [(0, 0), (1, 0), (0, 0), (2, 1)]
    assert engine.known_task("b", session=3).session == 3
    assert engine.known_task("never").ordinal is None


@pytest.mark.parametrize(
    ("fault", "hits"),
    [
        (Fault("callback_lost", tasks=[1]), [False, True, False]),
        (Fault("callback_lost", tasks=range(2)), [True, True, False]),
        (Fault("callback_lost", instruction="ha[rt]d"), [False, True, False]),
        (Fault("callback_lost", task_id="^c$"), [False, False, True]),
        (Fault("callback_lost", attempts=[1]), [False, False, True]),
        (Fault("callback_lost", skip=1), [False, True, True]),
        (Fault("callback_lost", times=2), [True, True, False]),
        (Fault("callback_lost", skip=1, times=1), [False, True, False]),
        (Fault("callback_lost", probability=0.0), [False, False, False]),
    ],
)
def test_conditions_choose_the_tasks(fault: Fault, hits: list[bool]):
    """Ordinal, instruction, id, attempt, skip, times and chance each narrow a rule down."""
    engine = _engine(fault)
    subjects = [engine.task_subject(*names) for names in (("a", "easy"), ("b", "hard"), ("c", "easy"))]
    assert [bool(_fired(engine, subject)) for subject in subjects] == hits


@pytest.mark.parametrize("on", ROUTES)
def test_route_names_match_their_own_requests(on: str):
    """Each name in `Fault.on` is reachable, and names a method and path that the server has."""
    examples = {
        "submit": "/rollout/task/submit",
        "task": "/rollout/task/t-1",
        "cancel": "/rollout/task/t-1",
        "status": "/rollout/status",
        "tasks": "/tasks",
        "task_sessions": "/tasks/t-1/sessions",
        "nodes": "/nodes",
        "events": "/events",
        "health": "/health",
        "session_callback": "/callbacks/session_result",
        "poll": "/rollout/task/t-1",
        "gate": "/admin/inference/status",
        "pause": "/admin/inference/pause",
        "resume": "/admin/inference/resume",
        "chat": "/v1/chat/completions",
    }
    method = ROUTES[on][0].replace("*", "GET")
    engine = _engine(Fault("response_status", on=on))
    assert _fired(engine, Subject(method=method, path=examples[on])) == ["response_status"]
    assert _fired(engine, Subject(method="PATCH", path="/elsewhere")) == []


def test_time_windows_follow_the_script_clock():
    """`since` is inclusive, `until` is not, and both start again with a new script."""
    clock = _Clock()
    engine = _engine(Fault("response_hang", since=1.0, until=3.0), clock=clock)
    hits = []
    for now in (100.0, 101.0, 102.9, 103.0):
        clock.now = now
        hits.append(bool(_fired(engine, Subject(path="/x"))))
    assert hits == [False, True, True, False]
    engine.set_script(engine.script)
    clock.now = 104.5
    assert _fired(engine, Subject(path="/x")) == ["response_hang"]


def test_a_rule_can_name_the_server_it_is_about():
    """Gateways and the rollout server are told apart."""
    engine = _engine(Fault("response_status", server="node-2"))
    assert not _fired(engine, Subject(server="node-1", path="/x"))
    assert _fired(engine, Subject(server="node-2", path="/x"))


@given(
    st.integers(0, 2**32), st.lists(st.text(max_size=5), min_size=1, max_size=8, unique=True), st.randoms()
)
def test_chance_does_not_depend_on_arrival_order(seed: int, instructions: list[str], random):
    """The same seed gives a task the same luck, in whatever order and under whatever id it arrives."""

    def luck(order: list[str], prefix: str) -> dict[str, list[str]]:
        engine = _engine(
            Fault("callback_lost", probability=0.5), Fault("callback_late", probability=0.3), seed=seed
        )
        return {text: _fired(engine, engine.task_subject(f"{prefix}-{text!r}", text)) for text in order}

    shuffled = list(instructions)
    random.shuffle(shuffled)
    assert luck(instructions, "first") == luck(shuffled, "second")


def test_chance_is_as_often_as_asked():
    """Over many tasks a probability of 0.3 fires for about 30 %."""
    engine = _engine(Fault("session_error", probability=0.3))
    hits = sum(bool(_fired(engine, engine.task_subject(f"t-{i}", f"text {i}"))) for i in range(2000))
    assert 520 <= hits <= 680


def test_only_one_rule_takes_the_answer():
    """With `first`, rules behind the one that fired do not spend their `times` on the same subject."""
    engine = _engine(Fault("response_status", times=1), Fault("response_hang", times=1))
    fired = [[f.kind for f in engine.fire(KINDS, Subject(path="/x"), first=True)] for _ in range(3)]
    assert fired == [["response_status"], ["response_hang"], []]


def test_sessions_of_a_task_have_luck_of_their_own():
    """A probability on a session kind is drawn per session, not per task."""
    engine = _engine(Fault("session_error", probability=0.5), seed=3)
    engine.task_subject("t", "text")
    hits = [bool(_fired(engine, engine.known_task("t", session=index))) for index in range(64)]
    assert 15 < sum(hits) < 49


def test_counts_say_what_was_played():
    """`counts` sums per kind and starts again with a new script."""
    engine = _engine(Fault("callback_lost", times=1), Fault("callback_lost"), Fault("task_failed", tasks=[9]))
    for number in range(3):
        _fired(engine, engine.task_subject(f"t-{number}", "x"))
    assert engine.counts() == {"callback_lost": 4}
    engine.set_script(FaultScript())
    assert engine.counts() == {}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Fault("callback_lots"), "unknown fault kind 'callback_lots'"),
        (lambda: Fault("response_hang", on="submits"), "unknown route name 'submits'"),
        (lambda: Fault("response_hang", probability=1.5), "between 0 and 1"),
        (lambda: FaultScript.from_dict({"fault": []}), r"unknown keys in the fault script: \['fault'\]"),
        (
            lambda: FaultScript.from_dict({"faults": [{"task": [1], "kind": "task_failed"}]}),
            "fault 0: unknown keys",
        ),
        (lambda: FaultScript.from_dict({"faults": [{"tasks": [1]}]}), "no 'kind'"),
        (lambda: FaultScript.from_dict({"sessions": {"turn": 1}}), "unknown keys in the session profile"),
    ],
)
def test_misspelt_scripts_are_errors(make, text: str):
    """A rule that could never fire is refused with the names that exist."""
    with pytest.raises(ValueError, match=text):
        make()


def test_a_script_can_be_plain_data():
    """What a YAML or JSON file holds makes the same script as the constructors."""
    data = {
        "seed": 4,
        "sessions": {
            "turns": [1, 2],
            "duration": {"median": 0.5, "sigma": 1.0, "maximum": 8.0},
            "reward": None,
        },
        "faults": [{"kind": "response_status", "on": "submit", "status": 500, "times": 1}],
    }
    profile = SessionProfile(turns=(1, 2), duration=Lognormal(0.5, 1.0, 8.0), reward=None)
    expected = FaultScript(
        seed=4, sessions=profile, faults=(Fault("response_status", on="submit", status=500, times=1),)
    )
    assert FaultScript.from_dict(data) == expected
    assert FaultScript.from_dict({}) == FaultScript()


def test_kinds_are_sorted_by_where_they_act():
    """Every kind has one scope, and a sentence that says what it does."""
    scopes = ("connection", "request", "server", "task", "callback", "session")
    assert set().union(*(kinds_of(scope) for scope in scopes)) == set(KINDS)
    assert all(kind.effect for kind in KINDS.values())
    assert len(KINDS) >= 60


def test_the_table_of_kinds_is_complete():
    """Each kind stands in the table once, with its scope."""
    lines = fault_table().splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert all(line.split()[1] == KINDS[line.split()[0]].scope for line in lines)


def test_stable_seeds_are_the_same_in_every_process():
    """Seeds do not come from Python's randomised hash."""
    assert stable_seed(1, "a", None) == stable_seed(1, "a", None) != stable_seed(1, "a", 0)
    assert stable_seed(7, "text") == 7325223625362123143
    assert stable_seed("\ud800") >= 0
