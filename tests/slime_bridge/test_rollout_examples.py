"""Example trajectories: the right ones, without credentials, in private files, never at a rollout's cost."""

import json
import logging
import os
import stat
import sys
import threading
from io import BytesIO
from types import SimpleNamespace

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from slime_bridge.rollout_examples import RolloutExamples, choose_examples, example_path
from tests.slime_bridge.rollouts import Source, make_args


def session(index, reward, tokens, **facts):
    """One session as an outcome and its samples."""
    fields = {"completed": True, "usable": True, "session_id": f"sk-polar-{index}", **facts}
    outcome = SessionOutcome(index, reward=reward, response_tokens=tokens, **fields)
    sample = SimpleNamespace(
        group_index=0,
        index=index,
        group_id=index,
        prompt=[{"role": "user", "content": f"do it, my key is sk-polar-{index}", "api_key": "swordfish-9"}],
        response=f"password=hunter2hunter2 and the token of the plane: plane-secret ({index})",
        response_length=tokens,
        loss_mask=[1] * tokens,
        remove_sample=False,
        reward={"score": reward},
        status=SimpleNamespace(value="completed"),
        metadata={"polar": {"session_id": f"sk-polar-{index}", "trace_index": 0}},
    )
    return outcome, [sample]


def group(*sessions):
    return GroupConversion(
        [sample for _, samples in sessions for sample in samples], [o for o, _ in sessions]
    )


def config(monkeypatch, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(f"POLAR_{name}", str(value))
    return resolve_polar_slime_config(make_args("http://polar"))


class TestChoice:
    def chosen(self, *sessions, count=1):
        return [(e.rank, e.outcome.position) for e in choose_examples([group(*sessions)], count)]

    def test_the_longest_of_the_best_and_of_the_worst(self):
        """Rewards decide; among equals the longer one says more."""
        sessions = [session(0, 1.0, 5), session(1, 1.0, 9), session(2, 0.0, 3), session(3, 0.0, 7)]
        assert self.chosen(*sessions, session(4, 0.5, 99)) == [("best", 1), ("worst", 3)]
        assert self.chosen(*sessions, count=2) == [("best", 1), ("best", 0), ("worst", 3), ("worst", 2)]

    def test_nothing_is_shown_twice(self):
        """A small batch gives as many as it has."""
        sessions = [session(0, 1.0, 5), session(1, 0.0, 9), session(2, 0.5, 2)]
        assert self.chosen(*sessions, count=2) == [("best", 0), ("best", 2), ("worst", 1)]

    def test_equal_rewards_have_no_worst(self):
        """Calling one of them the worst would be a lie."""
        assert self.chosen(session(0, 0.0, 1), session(1, 0.0, 4)) == [("best", 1)]

    def test_failures_and_missing_rewards_are_no_examples(self):
        """Infrastructure is not the worst that a policy can do."""
        sessions = [
            session(0, 1.0, 5),
            session(1, 0.0, 50, usable=False),
            session(2, 0.0, 50, early_stopped=True),
            session(3, float("nan"), 50),
            session(4, 0.5, 6),
        ]
        assert self.chosen(*sessions) == [("best", 0), ("worst", 4)]
        assert self.chosen(sessions[1]) == []

    def test_all_traces_of_a_session_belong_together(self):
        """A session that was split into several traces is one example."""
        outcome, (first,) = session(0, 1.0, 8)
        second = SimpleNamespace(**{**vars(first), "response": "the rest"})
        (example,) = choose_examples([GroupConversion([first, second], [outcome])], 2)
        assert [sample.response for sample in example.samples] == [first.response, "the rest"]


class TestFiles:
    def test_private_atomic_and_without_credentials(self, tmp_path, monkeypatch):
        """Only its owner reads it, nothing half-written is left, secrets go by shape, name and value."""
        folder = tmp_path / "new" / "examples"
        settings = config(
            monkeypatch,
            ROLLOUT_EXAMPLES_DIR=folder,
            CONTROL_PLANE_TOKEN="plane-secret",
            ROLLOUT_EXAMPLE_COUNT=1,
        )
        examples = RolloutExamples()
        examples.rollout_done(settings, 0, [group(session(0, 1.0, 3), session(1, 0.0, 4))])
        assert examples.wait(10)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (file,) = folder.iterdir()
        assert file == example_path(folder, 0)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        text = file.read_text()
        for secret in ("hunter2", "swordfish", "plane-secret"):
            assert secret not in text
        content = json.loads(text)
        assert content["rollout_id"] == 0
        best, worst = content["examples"]
        assert (best["rank"], best["reward"], best["session_id"]) == ("best", 1.0, "sk-polar-0")
        assert (worst["rank"], worst["response_tokens"]) == ("worst", 4)
        assert "do it, my key is" in best["traces"][0]["prompt"][0]["content"]

    def test_a_rollout_that_is_repeated_replaces_its_file(self, tmp_path, monkeypatch):
        """A resumed run writes the same names again."""
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_DIR=tmp_path)
        examples = RolloutExamples()
        for reward in (0.0, 1.0):
            examples.rollout_done(settings, 0, [group(session(0, reward, 3))])
            assert examples.wait(10)
        (file,) = tmp_path.iterdir()
        assert json.loads(file.read_text())["examples"][0]["reward"] == 1.0

    def test_interval(self, tmp_path, monkeypatch):
        """Every so many rollouts, counted by rollout id, so that a resumed run keeps the rhythm."""
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_DIR=tmp_path, ROLLOUT_EXAMPLE_INTERVAL=3)
        examples = RolloutExamples()
        for rollout_id in range(8):
            examples.rollout_done(settings, rollout_id, [group(session(0, 1.0, 3))])
            assert examples.wait(10)
        assert {path.name for path in tmp_path.iterdir()} == {
            f"rollout_examples_r{n}.json" for n in (0, 3, 6)
        }

    @pytest.mark.parametrize("folder", [None, "off"])
    def test_off_by_default(self, monkeypatch, folder):
        """Nobody asked: nothing is chosen, no thread starts."""
        settings = config(monkeypatch, **({} if folder is None else {"ROLLOUT_EXAMPLES_DIR": folder}))
        threads = threading.active_count()
        RolloutExamples().rollout_done(settings, 0, [object()])
        assert threading.active_count() == threads

    def test_a_folder_that_cannot_be_used_costs_one_warning(self, tmp_path, monkeypatch, caplog):
        """A full or read-only disk is no reason to lose a rollout."""
        blocked = tmp_path / "file"
        blocked.write_text("in the way")
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_DIR=blocked, ROLLOUT_EXAMPLE_INTERVAL=1)
        examples = RolloutExamples()
        for rollout_id in range(3):
            examples.rollout_done(settings, rollout_id, [group(session(0, 1.0, 3))])
            assert examples.wait(10)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "FileExistsError" in caplog.text or "NotADirectoryError" in caplog.text

    def test_a_broken_sample_costs_one_warning(self, tmp_path, monkeypatch, caplog):
        """So does a sample that is none."""
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_DIR=tmp_path)
        RolloutExamples().rollout_done(settings, 0, [object()])
        assert len(caplog.records) == 1
        assert list(tmp_path.iterdir()) == []


class Artifact:
    def __init__(self, name, type):
        self.name, self.type, self.content = name, type, b""

    def new_file(self, name, mode):
        artifact = self

        class File(BytesIO):
            def close(self):
                artifact.content = self.getvalue()
                super().close()

        return File()


class TestPublication:
    @pytest.fixture
    def uploads(self, monkeypatch):
        found = []
        run = SimpleNamespace(log_artifact=found.append)
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run, Artifact=Artifact))
        return found

    def test_session_ids_are_hashed(self, monkeypatch, uploads):
        """They are the agent's key: gone from every text, while sessions can still be told apart."""
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_WANDB="true", ROLLOUT_EXAMPLE_COUNT=1)
        examples = RolloutExamples()
        examples.rollout_done(settings, 10, [group(session(0, 1.0, 3), session(1, 0.0, 4))])
        assert examples.wait(10)
        (artifact,) = uploads
        assert (artifact.name, artifact.type) == ("rollout_examples_r10", "rollout-examples")
        assert b"sk-polar" not in artifact.content
        assert b"hunter2" not in artifact.content
        records = json.loads(artifact.content)["examples"]
        assert len({record["session"] for record in records}) == 2
        assert not any("session_id" in record for record in records)

    def test_file_and_artifact_together(self, tmp_path, monkeypatch, uploads):
        """One does not take the place of the other."""
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_WANDB=1, ROLLOUT_EXAMPLES_DIR=tmp_path)
        examples = RolloutExamples()
        examples.rollout_done(settings, 0, [group(session(0, 1.0, 3))])
        assert examples.wait(10)
        assert len(uploads) == 1
        assert b"sk-polar-0" in example_path(tmp_path, 0).read_bytes()

    def test_without_a_run_it_is_said_once(self, monkeypatch, caplog):
        """The key has no effect then, and nobody would notice."""
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_WANDB="yes")
        examples = RolloutExamples()
        for rollout_id in (0, 10):
            examples.rollout_done(settings, rollout_id, [group(session(0, 1.0, 3))])
        assert caplog.text.count("no W&B run is active") == 1
        assert "wandb" not in sys.modules

    def test_an_upload_that_blocks_delays_once_and_briefly(self, monkeypatch, caplog):
        """While it hangs, later rollouts neither wait nor pile up threads."""
        release = threading.Event()
        run = SimpleNamespace(log_artifact=lambda artifact: release.wait(30))
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run, Artifact=Artifact))
        settings = config(monkeypatch, ROLLOUT_EXAMPLES_WANDB="on", ROLLOUT_EXAMPLE_INTERVAL=1)
        examples = RolloutExamples(timeout=0.1)
        for rollout_id in range(20):
            examples.rollout_done(settings, rollout_id, [group(session(0, 1.0, 3))])
        assert len(caplog.records) == 1
        release.set()
        assert examples.wait(10)


def test_through_the_entry_point(tmp_path, monkeypatch):
    """Environment in, files out: of the delivered groups, failed sessions left out."""
    monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLES_DIR", str(tmp_path))
    monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLE_COUNT", "1")
    faults = [
        Fault("reward", instruction="prompt 1$", sessions=[1], value=0.25),
        Fault("session_error_with_traces", instruction="prompt 2$", sessions=[0]),
    ]
    script = FaultScript(sessions=SessionProfile(duration=0.02, reward=1.0), faults=faults)
    try:
        with serve_polar(script) as polar:
            output = generate_rollout_polar_async(make_args(polar.url), 0, Source())
    finally:
        stop_global_worker()
    assert len(output.samples) == 4
    best, worst = json.loads(example_path(tmp_path, 0).read_text())["examples"]
    assert best["reward"] == 1.0
    assert (worst["rank"], worst["reward"], worst["group_index"]) == ("worst", 0.25, 1)
    assert worst["session_id"] in {s.session_id for group in output.samples for s in group}
    assert os.listdir(tmp_path) == ["rollout_examples_r0.json"]
