from __future__ import annotations

import logging
import sys
import types
from types import SimpleNamespace

import pytest

from analysis.lab.polar_server.testing import serve_polar
from slime_bridge import megatron_hooks, weight_barrier
from slime_bridge.errors import ConfigError, SlimeNotInstalledError
from slime_bridge.megatron_hooks import install_weight_update_barrier
from tests.contracts.inside_slime import barrier_checks
from tests.contracts.inside_slime.host import checks_of
from tests.contracts.slime_runs import assert_check_passes, needs_slime


class Updater:
    """Pushes weights as often as it is asked to; notes the gates at that moment."""

    def __init__(self, polar=None, error=None):
        self.polar, self.error, self.seen = polar, error, []

    def update_weights(self, *, extra=None):
        """Push."""
        self.seen.append([gateway.paused for gateway in self.polar.gateways.values()] if self.polar else [])
        if self.error is not None:
            raise self.error
        return extra


def new_actor_class():
    class MegatronTrainRayActor:
        def update_weights(self):
            return self.weight_updater.update_weights(extra=7)

    return MegatronTrainRayActor


@pytest.fixture
def actor_class(monkeypatch):
    """An importable package with the shape of Slime's trainer, for processes without Slime."""
    chosen = new_actor_class()
    names = ("slime", "slime.rollout", "slime.utils", "slime.backends", "slime.backends.megatron_utils")
    for name in (*names, "slime.backends.megatron_utils.actor"):
        module = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["slime.backends.megatron_utils.actor"].MegatronTrainRayActor = chosen
    return chosen


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch):
    monkeypatch.setattr(weight_barrier, "_memory", type(weight_barrier._memory)(at_exit=lambda: None))


def args_for(polar, **changes):
    return SimpleNamespace(rank=0, polar_rollout_url=polar.url, **changes)


def test_a_push_happens_once_and_behind_closed_gates(actor_class):
    """The actor's own call comes through with its arguments and result, every gate closed meanwhile."""
    with serve_polar(gateways=2) as polar:
        install_weight_update_barrier(args_for(polar))
        actor = actor_class()
        actor.weight_updater = updater = Updater(polar)
        assert actor.update_weights() == 7
        assert updater.seen == [[True, True]]
        assert not any(gateway.paused for gateway in polar.gateways.values())


def test_installing_twice_and_setting_again_is_one_barrier(actor_class):
    """Neither a second call of the hook nor a second assignment makes a push pause twice."""
    with serve_polar() as polar:
        install_weight_update_barrier(args_for(polar))
        install_weight_update_barrier(args_for(polar))
        actor = actor_class()
        actor.weight_updater = updater = Updater(polar)
        actor.weight_updater = actor.weight_updater
        actor.update_weights()
        assert updater.seen == [[True]]
        assert len(polar.requests_to("/admin/inference/pause")) == 1


def test_an_updater_from_before_the_hook_is_guarded_too(actor_class):
    """The order of the hook and the updater does not matter."""
    with serve_polar() as polar:
        actor = actor_class()
        actor.weight_updater = updater = Updater(polar)
        install_weight_update_barrier(args_for(polar))
        actor.update_weights()
        assert updater.seen == [[True]]


def test_failures_of_the_push_come_through_with_open_gates(actor_class):
    """What the push raises is raised, after one push, and nothing stays closed."""
    with serve_polar(gateways=2) as polar:
        install_weight_update_barrier(args_for(polar))
        actor = actor_class()
        actor.weight_updater = updater = Updater(polar, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            actor.update_weights()
        assert updater.seen == [[True, True]]
        assert not any(gateway.paused for gateway in polar.gateways.values())


def test_a_barrier_that_cannot_be_had_does_not_stop_the_training(actor_class, caplog):
    """A call that does not end in time is logged as an error, and the push goes on with open gates."""
    with serve_polar(gateways=2) as polar:
        polar.gateways["node-2"].add_inflight(1)
        install_weight_update_barrier(args_for(polar, polar_weight_update_pause_timeout=0.3))
        actor = actor_class()
        actor.weight_updater = updater = Updater(polar)
        with caplog.at_level(logging.ERROR):
            actor.update_weights()
        assert updater.seen == [[False, False]]
        assert "without a barrier" in caplog.text


def test_a_bug_in_the_barrier_does_not_stop_the_training(actor_class, caplog, monkeypatch):
    """Even an error that nobody foresaw costs the barrier only."""

    def broken(target):
        raise ZeroDivisionError

    monkeypatch.setattr(megatron_hooks, "pause_for_weight_update", broken)
    with serve_polar() as polar:
        install_weight_update_barrier(args_for(polar))
        actor = actor_class()
        actor.weight_updater = updater = Updater(polar)
        actor.update_weights()
        assert updater.seen == [[False]]
        assert "without a barrier" in caplog.text


@pytest.mark.parametrize("args", [{"rank": 3, "polar_rollout_url": "http://127.0.0.1:1"}, {"rank": 0}])
def test_nothing_is_installed_elsewhere(actor_class, args):
    """Other ranks, and trainings without a rollout server, are left alone."""
    install_weight_update_barrier(SimpleNamespace(**args))
    assert "weight_updater" not in vars(actor_class)


def test_a_missing_updater_looks_missing(actor_class):
    """Code that asks whether the attribute is there yet gets the same answer as without the hook."""
    with serve_polar() as polar:
        install_weight_update_barrier(args_for(polar))
    actor = actor_class()
    assert not hasattr(actor, "weight_updater")
    actor.weight_updater = Updater()
    del actor.weight_updater
    assert not hasattr(actor, "weight_updater")


def test_another_way_to_push_is_an_error_at_the_start(actor_class):
    """A barrier that would silently do nothing is refused when it is installed."""
    actor_class.update_weights = lambda self: self.pusher.push()
    with pytest.raises(ConfigError, match="does not push weights through"):
        install_weight_update_barrier(SimpleNamespace(rank=0, polar_rollout_url="http://127.0.0.1:1"))


def test_no_slime_is_named_as_such():
    """Called where Slime is not installed, the hook says what is missing."""
    with pytest.raises(SlimeNotInstalledError):
        install_weight_update_barrier(SimpleNamespace(rank=0, polar_rollout_url="http://127.0.0.1:1"))


def test_a_pause_longer_than_the_other_ranks_wait_is_warned_about(actor_class, caplog):
    """The other ranks give up after the process group's timeout, which would end the training."""
    args = SimpleNamespace(rank=0, polar_rollout_url="http://127.0.0.1:1", distributed_timeout_minutes=5)
    install_weight_update_barrier(args)
    assert "distributed_timeout_minutes" in caplog.text


@pytest.mark.slime
@needs_slime
@pytest.mark.timeout(200)
@pytest.mark.parametrize("check", list(checks_of(barrier_checks)))
def test_inside_slime(check):
    """Each check's own docstring says what it promises."""
    assert_check_passes("barrier_checks", check)
