"""From a prompt group to task requests, and from task results to a verdict."""

import threading

import anyio
import anyio.lowlevel
import msgspec
import pytest

from slime_bridge.acceptance import Accepted, Rejected
from slime_bridge.collect import CollectedTask
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.errors import ProtocolError, TemplateError
from slime_bridge.group_task import GroupRunner, TaskBuilder, _gather
from slime_bridge.groups import Group
from slime_bridge.journal.schema import EventLog
from tests.slime_bridge.rollouts import Source, make_args


class Notes(EventLog):
    """A journal in memory."""

    path = "memory"

    def __init__(self):
        self.records = []

    def record(self, event, /, **fields):
        self.records.append((event, fields))


def builder(**settings):
    args = make_args("http://polar", **settings)
    return TaskBuilder(resolve_polar_slime_config(args), args)


def request(build, part, unique="7-1.1"):
    return build.request(part, rollout_id=3, position=2, policy_version=4, unique=unique)


def group(prompt, group_id=7):
    return Group(group_id, prompt, len(prompt), 0, 0.0, 0.0, admissions=1)


def session(number, reward=1.0):
    trace = {
        "prompt_ids": [1, 2], "response_ids": [3, 4], "loss_mask": [1, 1], "response_logprobs": [-0.1, -0.2],
        "reward": reward, "finish_reason": "stop",
    }  # fmt: skip
    return {
        "session_id": f"s{number}",
        "task_id": "t",
        "status": "COMPLETED",
        "trajectory": {"status": "COMPLETED", "traces": [trace]},
    }


def collected(*sessions, body=None):
    encoded = msgspec.json.encode({"task_id": "t", "status": "completed", "results": list(sessions)})
    return CollectedTask("t", 1, encoded if body is None else body, "callback", 1.0, 3.5)


def runner(notes=None, **settings):
    args = make_args("http://polar", **settings)
    config = resolve_polar_slime_config(args)
    return GroupRunner(
        config=config,
        builder=TaskBuilder(config, args),
        collector=None,
        journal=notes or Notes(),
        stamp=lambda group_id: 0,
        on_event=lambda group_id, event: None,
        limiter=None,
    )


class TestRequests:
    def test_request_carries_version_and_a_name_of_its_own(self):
        """The metadata says which policy, the id tells attempts apart and is safe as a path."""
        sent = request(builder(), Source().make(5))
        assert sent.num_samples == 2
        assert sent.instruction == "prompt 5"
        assert (
            sent.metadata["policy_version"],
            sent.metadata["rollout_step"],
            sent.metadata["group_id"],
        ) == (4, 3, 5)
        assert sent.task_id.startswith("polar-slime-3-5-")
        assert sent.task_id.endswith("-7-1.1")

    def test_two_processes_never_use_the_same_id(self):
        """A restarted trainer begins at the same rollout and prompt."""
        prompt = Source().make(0)
        assert request(builder(), prompt).task_id != request(builder(), prompt).task_id

    def test_templates_see_rollout_and_position(self):
        """Where the task stands within its call."""
        template = {"agent": {"harness": "lab"}, "metadata": {"where": "{rollout_id}.{task_position}"}}
        assert request(builder(polar_task_template=template), Source().make(0)).metadata["where"] == "3.2"

    def test_individual_scoring_makes_one_part_per_sample(self):
        """Group scoring keeps the samples together."""
        prompt = Source(n=3).make(0)
        assert builder().parts(prompt) == [prompt]
        assert builder(polar_scoring_mode="individual").parts(prompt) == [[sample] for sample in prompt]

    def test_check_finds_what_cannot_be_submitted(self):
        """A blank prompt is named before anything is sent."""
        prompt = Source(prompt=" ").make(3)
        with pytest.raises(TemplateError, match="of group 3 has a blank instruction"):
            builder().check(prompt, rollout_id=0, position=0)
        builder().check(Source().make(0), rollout_id=0, position=0)


class TestJudging:
    def test_results_become_samples_and_a_verdict(self):
        """Position i of the results is sample i of the group; the journal gets one record per task."""
        notes = Notes()
        run = runner(notes)
        prompt = Source().make(7)
        judged = run._judge(group(prompt), [prompt], [collected(session(0), session(1, reward=0.0))])
        assert isinstance(judged.verdict, Accepted)
        assert [sample.index for sample in judged.conversion.samples] == [14, 15]
        assert judged.seconds == 2.5
        ((event, fields),) = notes.records
        assert event == "task_result"
        assert [s["session_id"] for s in fields["sessions"]] == ["s0", "s1"]

    def test_missing_sessions_are_placeholders(self):
        """A task that returns too little does not shift its siblings."""
        prompt = Source().make(0)
        judged = runner()._judge(group(prompt), [prompt], [collected(session(0))])
        assert [s.reason for s in judged.conversion.sessions] == [None, "missing"]

    def test_each_part_gives_its_own_sample(self):
        """With one task per sample a surplus session of one task does not take another's place."""
        notes = Notes()
        prompt = Source().make(0)
        tasks = [collected(session(0), session(9)), collected(session(1, reward=0.25))]
        judged = runner(notes)._judge(group(prompt), [[sample] for sample in prompt], tasks)
        assert [s.session_id for s in judged.conversion.sessions] == ["s0", "s1"]
        assert [len(fields["sessions"]) for _, fields in notes.records] == [1, 1]

    @pytest.mark.parametrize("empty", [0, 1, 2])
    def test_a_part_without_a_session_keeps_its_place(self, empty):
        """With one task per sample, the sessions of later tasks stay where they belong."""
        prompt = Source(n=3).make(0)
        tasks = [collected(*([] if i == empty else [session(i)])) for i in range(3)]
        judged = runner()._judge(group(prompt), [[sample] for sample in prompt], tasks)
        sessions = judged.conversion.sessions
        assert [s.session_id for s in sessions] == [None if i == empty else f"s{i}" for i in range(3)]
        assert [s.reason for s in sessions] == ["missing" if i == empty else None for i in range(3)]
        assert [sample.index for sample in judged.conversion.samples] == [0, 1, 2]

    def test_group_without_traces_is_rejected(self):
        """The verdict comes with the result."""
        prompt = Source().make(0)
        judged = runner()._judge(group(prompt), [prompt], [collected()])
        assert isinstance(judged.verdict, Rejected)

    def test_undecodable_result_is_a_typed_error(self):
        """What is no task record is not taken for an empty one."""
        prompt = Source().make(0)
        with pytest.raises(ProtocolError):
            runner()._judge(group(prompt), [prompt], [collected(body=b"[1, 2]")])

    @pytest.mark.parametrize(("size", "keeps"), [(1_000, False), (1_000, True), (2_000_000, False)])
    def test_only_what_is_small_and_private_is_judged_on_the_loop(self, size, keeps, monkeypatch):
        """The way to a thread costs more than a small group; heavy ones and hooks must not hold the loop."""
        threads, kept = [], []
        run = runner()
        if keeps:
            run.on_collected = kept.append
        judge = run._judge

        def watched(*args):
            threads.append(threading.current_thread())
            return judge(*args)

        monkeypatch.setattr(run, "_judge", watched)
        prompt = Source().make(0)
        task = collected(session(0), session(1) | {"padding": "x" * size})
        judged = anyio.run(lambda: run.judge(group(prompt), [task]))
        assert isinstance(judged.verdict, Accepted)
        assert (threads == [threading.main_thread()]) is (size < 10_000 and not keeps)
        assert kept == ([task] if keeps else [])


def test_first_failure_of_several_tasks_stops_the_others():
    """The error comes out as it is, and nothing of the group goes on."""
    stopped = []

    async def waits():
        try:
            await anyio.sleep(30)
        except anyio.get_cancelled_exc_class():
            stopped.append(True)
            raise

    async def fails():
        await anyio.lowlevel.checkpoint()
        raise ProtocolError("first")

    with pytest.raises(ProtocolError, match="first"):
        anyio.run(_gather, [waits, fails])
    assert stopped == [True]
