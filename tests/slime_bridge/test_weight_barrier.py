from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, ServerSettings, serve_polar
from slime_bridge import weight_barrier
from slime_bridge.config import BarrierSettings
from slime_bridge.errors import ConfigError, WeightBarrierError
from slime_bridge.weight_barrier import (
    open_all,
    open_stray_gates,
    pause_for_weight_update,
    possibly_closed,
    resume_after_weight_update,
)

GENEROUS = 30.0


@pytest.fixture(autouse=True)
def _nothing_left_over(monkeypatch):
    monkeypatch.setattr(weight_barrier, "_UNREACHABLE_SECONDS", 0.5)
    monkeypatch.setattr(weight_barrier, "_memory", type(weight_barrier._memory)(at_exit=lambda: None))


@pytest.fixture
def polar():
    with serve_polar(gateways=3) as handle:
        yield handle


def gates(polar):
    return {name: gateway.paused for name, gateway in polar.gateways.items()}


def register(polar, node_id, url):
    limits = {"max_init_workers": 1, "max_run_workers": 1, "max_postrun_workers": 1}
    body = {"node_id": node_id, "gateway_url": url, "heartbeat_interval_seconds": 1, **limits}
    httpx.post(f"{polar.url}/nodes/register", json=body, trust_env=False).raise_for_status()


def all_open(polar):
    return not any(gates(polar).values())


class TestPause:
    def test_closes_every_gate_and_opens_it_again(self, polar):
        """Between pause and resume every gate is closed and quiet; afterwards all are open."""
        report = pause_for_weight_update(polar.url, GENEROUS)
        assert gates(polar) == {"node-1": True, "node-2": True, "node-3": True}
        assert report.complete
        assert [(g.node_id, g.paused, g.inflight) for g in report.gates] == [
            ("node-1", True, 0),
            ("node-2", True, 0),
            ("node-3", True, 0),
        ]
        assert sorted(possibly_closed()) == sorted(g.url for g in polar.gateways.values())
        resumed = resume_after_weight_update(polar.url)
        assert (len(resumed.opened), resumed.failed) == (3, ())
        assert all_open(polar)
        assert possibly_closed() == []

    def test_waits_for_calls_in_flight(self, polar):
        """It returns only when the last model call has ended; later calls are held back at once."""
        busy = polar.gateways["node-2"]
        busy.add_inflight(2)
        done = []
        thread = threading.Thread(target=lambda: done.append(pause_for_weight_update(polar.url, GENEROUS)))
        thread.start()
        polar.wait_until(lambda: not all_open(polar) and all(gates(polar).values()))
        busy.add_inflight(-1)
        assert not done
        busy.add_inflight(-1)
        thread.join(GENEROUS)
        assert done[0].complete
        resume_after_weight_update(polar.url)
        assert all_open(polar)

    def test_a_gate_that_never_drains_is_rolled_back(self, polar):
        """A call that does not end in time costs the barrier: all gates are opened, the error says why."""
        polar.gateways["node-3"].add_inflight(1)
        with pytest.raises(WeightBarrierError, match="node-3.*1 model calls in flight") as raised:
            pause_for_weight_update(polar.url, 1.5)
        assert all_open(polar)
        assert possibly_closed() == []
        report = raised.value.report
        assert not report.complete
        assert {g.node_id: g.quiet for g in report.gates} == {"node-1": True, "node-2": True, "node-3": False}

    def test_a_gateway_that_cannot_be_reached_is_rolled_back(self, polar):
        """A gateway that counts as healthy and does not answer may hold calls in flight."""
        polar.gateways["node-2"].stop()
        with pytest.raises(WeightBarrierError, match="node-2.*refused"):
            pause_for_weight_update(polar.url, GENEROUS)
        assert not polar.gateways["node-1"].paused
        assert not polar.gateways["node-3"].paused

    def test_one_failure_ends_the_waiting_of_the_others(self, polar):
        """With one gateway gone, a busy one is not waited for until the timeout."""
        polar.gateways["node-1"].add_inflight(1)
        polar.gateways["node-2"].stop()
        with pytest.raises(WeightBarrierError):
            pause_for_weight_update(polar.url, 600.0)
        assert not polar.gateways["node-1"].paused

    def test_a_dead_gateway_that_the_server_has_given_up_does_not_count(self, polar):
        """Nobody listens there and its heartbeats have stopped: nothing of it can be in flight."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            register(polar, "dead", f"http://127.0.0.1:{unused.getsockname()[1]}")
        polar.run(
            lambda: setattr(
                polar.server.nodes.get("dead"), "last_heartbeat", datetime(2026, 1, 1, tzinfo=UTC)
            )
        )
        report = pause_for_weight_update(polar.url, GENEROUS)
        assert {g.node_id: g.gone for g in report.gates} == {
            "dead": True,
            "node-1": False,
            "node-2": False,
            "node-3": False,
        }
        assert len(resume_after_weight_update().opened) == 3

    def test_a_gateway_missing_from_the_list_is_paused_too(self, polar):
        """A restarted rollout server knows its gateways again only after their next heartbeat."""
        pause_for_weight_update(polar.url, GENEROUS)
        resume_after_weight_update(polar.url)
        polar.run(lambda: polar.server.nodes.drain("node-2"))
        assert len(pause_for_weight_update(polar.url, GENEROUS).gates) == 3
        assert all(gates(polar).values())
        resume_after_weight_update(polar.url)
        assert all_open(polar)

    def test_a_gateway_that_comes_while_others_are_waited_for_is_closed_too(self, polar):
        """The barrier holds for the gateways there are when it returns, not when it began."""
        polar.gateways["node-1"].add_inflight(1)
        with serve_polar() as other:
            newcomer = other.gateways["node-1"]
            done = []
            thread = threading.Thread(
                target=lambda: done.append(pause_for_weight_update(polar.url, GENEROUS))
            )
            thread.start()
            polar.wait_until(lambda: all(gates(polar).values()))
            register(polar, "newcomer", newcomer.url)
            polar.gateways["node-1"].add_inflight(-1)
            thread.join(GENEROUS)
            assert newcomer.paused
            assert [g.node_id for g in done[0].gates] == ["node-1", "node-2", "node-3", "newcomer"]
            resume_after_weight_update()
            assert not newcomer.paused

    def test_a_silent_rollout_server_falls_back_to_the_gateways_seen_before(self, polar, monkeypatch):
        """Its gateways go on generating without it, so they are the ones to close."""
        pause_for_weight_update(polar.url, GENEROUS)
        monkeypatch.setattr(weight_barrier, "_LIST_SECONDS", 0.5)
        resume_after_weight_update(polar.url)
        polar.stop()
        assert pause_for_weight_update(polar.url, GENEROUS).complete
        assert all(gates(polar).values())
        resume_after_weight_update(polar.url)
        assert all_open(polar)

    def test_an_unknown_rollout_server_is_an_error(self, polar, monkeypatch):
        """Without any list of gateways nothing can be said to be quiet."""
        monkeypatch.setattr(weight_barrier, "_LIST_SECONDS", 0.5)
        polar.stop()
        with pytest.raises(WeightBarrierError, match="gateways are not known"):
            pause_for_weight_update(polar.url, 5.0)

    def test_a_server_without_gates_is_an_error_at_once(self):
        """A gateway that answers 404 has no gate; waiting would not give it one."""
        script = FaultScript(faults=[Fault("response_status", on="pause", server="node-1", status=404)])
        with serve_polar(script=script) as polar:
            with pytest.raises(WeightBarrierError, match="no generation gate"):
                pause_for_weight_update(polar.url, 600.0)

    def test_passing_trouble_is_waited_out(self):
        """A 503 and a cut connection are tried again within the time that there is."""
        script = FaultScript(
            faults=[Fault("response_status", on="pause", server="node-2", status=503, times=2)]
        )
        with serve_polar(script=script, gateways=2) as polar:
            assert pause_for_weight_update(polar.url, GENEROUS).complete
            resume_after_weight_update()
            assert all_open(polar)

    def test_no_gateways_is_quiet(self):
        """A server without gateways generates nothing."""
        with serve_polar(settings=ServerSettings(nodes=())) as polar:
            assert pause_for_weight_update(polar.url, GENEROUS).gates == ()

    def test_takes_what_a_trainer_has(self, polar):
        """A configuration, barrier settings, the trainer's arguments and a URL all name the server."""
        args = SimpleNamespace(polar_rollout_url=polar.url + "/", polar_weight_update_pause_timeout="20")
        for target in (args, BarrierSettings(rollout_url=polar.url)):
            assert pause_for_weight_update(target).complete
            assert len(resume_after_weight_update(target).opened) == 3
        with pytest.raises(ConfigError, match="polar_rollout_url"):
            pause_for_weight_update(SimpleNamespace())

    def test_an_interrupt_leaves_no_gate_closed(self, polar):
        """A KeyboardInterrupt while waiting opens what is closed and comes through."""
        polar.gateways["node-1"].add_inflight(1)

        def interrupt():
            polar.wait_until(lambda: all(gates(polar).values()))
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            pause_for_weight_update(polar.url, GENEROUS)
        thread.join()
        polar.wait_until(lambda: all_open(polar))


class TestOpening:
    def test_a_gate_that_cannot_be_opened_is_remembered(self, polar, caplog):
        """A resume that fails is logged with what to do by hand, and done at the next chance."""
        pause_for_weight_update(polar.url, GENEROUS)
        polar.set_script(
            FaultScript(faults=[Fault("response_status", on="resume", server="node-2", status=500)])
        )
        with caplog.at_level(logging.ERROR):
            report = resume_after_weight_update(polar.url, 2.0)
        assert [g.node_id for g in report.failed] == ["node-2"]
        assert "/admin/inference/resume" in caplog.text
        assert gates(polar) == {"node-1": False, "node-2": True, "node-3": False}
        assert possibly_closed() == [polar.gateways["node-2"].url]
        polar.set_script(FaultScript())
        assert len(open_all(GENEROUS).opened) == 1
        assert all_open(polar)
        assert possibly_closed() == []

    def test_a_gateway_that_is_gone_needs_no_opening(self, polar):
        """Where nobody listens there is no closed gate; a new process there starts with an open one."""
        pause_for_weight_update(polar.url, GENEROUS)
        polar.gateways["node-1"].stop()
        report = resume_after_weight_update(polar.url, 5.0)
        assert {g.node_id: g.gone for g in report.opened} == {
            "node-1": True,
            "node-2": False,
            "node-3": False,
        }
        assert possibly_closed() == []

    def test_only_the_named_server_is_resumed(self, polar):
        """Two runs with two servers do not open each other's gates."""
        with serve_polar() as other:
            pause_for_weight_update(polar.url, GENEROUS)
            pause_for_weight_update(other.url, GENEROUS)
            resume_after_weight_update(other.url)
            assert all_open(other)
            assert all(gates(polar).values())
            resume_after_weight_update()
            assert all_open(polar)

    def test_stray_gates_of_a_killed_process_are_opened(self, polar, caplog):
        """A trainer that was killed in a push leaves gates closed that nobody remembers."""
        pause_for_weight_update(polar.url, GENEROUS)
        for gateway in polar.gateways.values():
            weight_barrier._memory.forget(polar.url, gateway.url)
        assert possibly_closed() == []
        with caplog.at_level(logging.WARNING):
            report = open_stray_gates(polar.url, GENEROUS)
        assert len(report.opened) == 3
        assert all_open(polar)
        assert "left closed" in caplog.text

    def test_stray_gates_of_a_silent_server_are_passed_over(self, polar):
        """The check never fails."""
        polar.stop()
        assert open_stray_gates(polar.url, 1.0).opened == ()

    def test_nothing_to_open_is_no_work(self):
        """Without any closed gate, opening asks nobody."""
        assert open_all() == weight_barrier.ResumeReport()
        assert resume_after_weight_update() == weight_barrier.ResumeReport()


EXITING = """
import sys
from slime_bridge.weight_barrier import pause_for_weight_update
pause_for_weight_update(sys.argv[1], 30.0)
print("paused", flush=True)
sys.stdin.readline()
"""


def test_exit_opens_what_is_closed(polar):
    """A process that ends between pause and resume opens its gates on the way out."""
    child = subprocess.Popen(
        [sys.executable, "-c", EXITING, polar.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert child.stdout.readline() == "paused\n"
        assert all(gates(polar).values())
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait(GENEROUS) == 0
        assert all_open(polar)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
