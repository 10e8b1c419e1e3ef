"""Pushes that waited are told from pushes that may have cut a turn, in this process and in others."""

import json
import subprocess
import sys
import threading
import time

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge._push_log import FILE_NAME, PushLog, pushes_were_guarded
from slime_bridge.config import resolve_barrier_settings, resolve_polar_slime_config
from slime_bridge.errors import WeightBarrierError
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from slime_bridge.weight_barrier import pause_for_weight_update, resume_after_weight_update
from tests.slime_bridge.rollouts import Source, make_args

SERVER = "http://polar:8080"


@pytest.fixture
def log():
    return PushLog()


def before():
    return time.time() - 1


class TestProof:
    def test_no_push_is_no_proof(self, log):
        """A change of weights that nobody announced was not guarded."""
        assert not log.guarded_since(SERVER, None, 0.0)

    def test_guarded_pushes(self, log):
        """Every push since then has to be one."""
        log.note(SERVER, None, guarded=True)
        log.note(SERVER, None, guarded=True)
        assert log.guarded_since(SERVER, None, before())

    def test_one_unguarded_push_spoils_it(self, log):
        """A session that was in flight then may hold a cut turn."""
        log.note(SERVER, None, guarded=True)
        log.note(SERVER, None, guarded=False)
        log.note(SERVER, None, guarded=True)
        assert not log.guarded_since(SERVER, None, before())

    def test_pushes_before_the_session_do_not_count(self, log):
        """Neither for it nor against it."""
        log.note(SERVER, None, guarded=False)
        time.sleep(0.02)
        since = time.time()
        assert not log.guarded_since(SERVER, None, since)
        log.note(SERVER, None, guarded=True)
        assert log.guarded_since(SERVER, None, since)

    def test_servers_are_kept_apart(self, log):
        """Another training's pushes prove nothing."""
        log.note("http://other:1", None, guarded=True)
        assert not log.guarded_since(SERVER, None, before())


class TestFile:
    def test_another_process_reads_it(self, log, tmp_path):
        """The trainer's first rank writes, the rollout function reads, each line as it comes."""
        assert not log.guarded_since(SERVER, str(tmp_path), before())
        script = (
            "import sys; from slime_bridge._push_log import note_push;"
            "note_push(sys.argv[1], sys.argv[2], guarded=sys.argv[3] == 'yes')"
        )
        for guarded, expected in (("yes", True), ("no", False)):
            subprocess.run([sys.executable, "-c", script, SERVER, str(tmp_path), guarded], check=True)
            assert log.guarded_since(SERVER, str(tmp_path), before() - 60) is expected

    def test_torn_and_foreign_lines_say_nothing(self, log, tmp_path):
        """A writer at work, or somebody's notes."""
        now = time.time()
        good = json.dumps({"ts": now, "server": SERVER, "guarded": True})
        (tmp_path / FILE_NAME).write_text(f'hello\n[]\n{{"ts": null}}\n{good}\n{{"ts": 1, "serv')
        assert log.guarded_since(SERVER, str(tmp_path), now - 1)

    def test_a_value_that_is_not_true_is_not_trusted(self, log, tmp_path):
        """Text is no proof."""
        line = json.dumps({"ts": time.time(), "server": SERVER, "guarded": "true"})
        (tmp_path / FILE_NAME).write_text(line)
        assert not log.guarded_since(SERVER, str(tmp_path), before())

    def test_a_folder_that_cannot_be_written_costs_one_warning(self, log, tmp_path, caplog):
        """A push must not fail for it; this process still knows."""
        blocked = tmp_path / "file"
        blocked.write_text("in the way")
        for _ in range(2):
            log.note(SERVER, str(blocked), guarded=True)
        assert len(caplog.records) == 1
        assert log.guarded_since(SERVER, str(blocked), before())


class TestBarrier:
    def test_both_processes_find_the_same_folder(self, tmp_path):
        """From the same arguments, by Slime's `save` too."""
        for settings in (
            {"polar_run_dir": str(tmp_path)},
            {"save": str(tmp_path)},
            {},
            {"polar_run_dir": "off"},
        ):
            args = make_args("http://127.0.0.1:1", **settings)
            assert resolve_barrier_settings(args).run_dir == resolve_polar_slime_config(args).run_dir

    def test_a_pause_that_held_is_noted(self, tmp_path):
        """In memory, and in the run's folder where the target knows it."""
        with serve_polar() as polar:
            args = make_args(polar.url, polar_run_dir=str(tmp_path))
            pause_for_weight_update(args, 20)
            resume_after_weight_update(args)
            assert pushes_were_guarded(polar.url, None, before() - 20)
            (line,) = (tmp_path / FILE_NAME).read_text().splitlines()
            assert json.loads(line)["guarded"] is True

    def test_a_pause_that_failed_is_noted_too(self):
        """The trainer may push all the same."""
        with serve_polar() as polar:
            polar.gateways["node-1"].add_inflight(1)
            with pytest.raises(WeightBarrierError):
                pause_for_weight_update(polar.url, 0.3)
            polar.gateways["node-1"].add_inflight(-1)
            pause_for_weight_update(polar.url, 20)
            resume_after_weight_update(polar.url)
            assert not pushes_were_guarded(polar.url, None, before() - 20)


class TestThroughTheHook:
    @pytest.fixture(autouse=True)
    def _stopped(self):
        yield
        stop_global_worker()

    @pytest.mark.parametrize(
        ("pauses", "masked"),
        [([], True), ([True], False), ([True, False], True)],
        ids=["no barrier", "barrier", "barrier that failed once"],
    )
    def test_a_jump_of_versions_is_a_cut_unless_the_push_waited(self, pauses, masked):
        """The turn before it is masked without the barrier, and kept with it."""
        faults = [Fault("weight_version_jump"), Fault("task_slow", seconds=2.0)]
        profile = SessionProfile(turns=3, duration=0.02)
        with serve_polar(FaultScript(sessions=profile, faults=faults)) as polar:
            args = make_args(polar.url)

            def push():
                polar.wait_until(lambda: polar.submits == 4)
                for held in pauses:
                    polar.gateways["node-1"].add_inflight(0 if held else 1)
                    try:
                        generate_rollout_polar_async.pause_for_weight_update(args, 20 if held else 0.2)
                    except WeightBarrierError:
                        polar.gateways["node-1"].add_inflight(-1)
                    generate_rollout_polar_async.resume_after_weight_update(args)

            trainer = threading.Thread(target=push)
            trainer.start()
            output = generate_rollout_polar_async(args, 0, Source())
            trainer.join(30)
        samples = [sample for group in output.samples for sample in group]
        turns = [sample.metadata["polar"].get("aborted_turns") for sample in samples]
        assert all(note is not None and note["masked_tokens"] > 0 for note in turns) is masked
        assert any(note is not None for note in turns) is masked
