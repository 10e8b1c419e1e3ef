"""Checks of the weight-update barrier with real Slime's trainer actor: who pushes, when, and how often."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.lab.polar_server.testing import serve_polar
from slime_bridge import megatron_hooks, weight_barrier
from slime_bridge.megatron_hooks import install_weight_update_barrier
from tests.contracts.inside_slime.host import StubFinder

# Slime's actor needs these at import; none of them has a part in a push.
_MISSING = ("torch_memory_saver", "ring_flash_attn", "mbridge", "transformer_engine", "pynvml")

ARGS: dict[str, Any] = {
    "debug_train_only": False,
    "debug_rollout_only": False,
    "use_fault_tolerance": False,
    "offload_train": False,
    "use_critic": False,
    "colocate": False,
    "ci_test": False,
    "keep_old_actor": False,
}


def _stub_missing() -> None:
    missing = [name for name in _MISSING if importlib.util.find_spec(name) is None]
    if missing:
        sys.meta_path.insert(0, StubFinder(missing))
    # Conversion of tensors needs GPU kernels, and no tensor is sent here.
    conversion = types.ModuleType("slime.backends.megatron_utils.megatron_to_hf")
    conversion.convert_to_hf = None  # type: ignore[attr-defined]
    sys.modules.setdefault(conversion.__name__, conversion)


def _actor_class() -> Any:
    _stub_missing()
    from slime.backends.megatron_utils import actor

    # Without GPUs there is no memory to report.
    actor.print_memory = lambda *args, **kwargs: None
    return actor.MegatronTrainRayActor


def _updater_class() -> Any:
    from slime.backends.megatron_utils.update_weight.update_weight_from_distributed import (
        UpdateWeightFromDistributed,
    )

    return UpdateWeightFromDistributed


class Engine:
    """Stands for one SGLang engine's Ray handle; notes the gates at each step of a push."""

    def __init__(self, polar: Any) -> None:
        self.polar = polar
        self.steps: list[tuple[str, list[bool]]] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> None:
            self.steps.append((name, [gateway.paused for gateway in self.polar.gateways.values()]))

        return SimpleNamespace(remote=remote)


def _actor(args: Any, polar: Any, send: Any) -> tuple[Any, Engine]:
    """A real actor object with a real updater, whose tensors go nowhere."""
    engine = Engine(polar)

    class Updater(_updater_class()):  # type: ignore[misc]
        def _send_weights(self, pbar: Any) -> None:
            engine.steps.append(("send", [gateway.paused for gateway in polar.gateways.values()]))
            send()

    updater = Updater(args, [], lambda: {}, model_name="tiny", quantization_config=None)
    updater.rollout_engines, updater._is_pp_src_rank = [engine], False
    actor = object.__new__(_actor_class())
    actor.args = args
    answer = ([engine], None, 0, [1], [0])
    actor.rollout_manager = SimpleNamespace(
        get_updatable_engines_and_lock=SimpleNamespace(remote=lambda: answer)
    )
    actor.weight_updater = updater
    return actor, engine


def _one_process_group() -> None:
    import slime.utils.distributed_utils as distributed
    import torch.distributed as dist

    if not dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        distributed.init_gloo_group()


def _arguments(polar: Any, rank: int) -> SimpleNamespace:
    return SimpleNamespace(
        **ARGS, rank=rank, polar_rollout_url=polar.url, polar_weight_update_pause_timeout=20.0
    )


def _fresh() -> None:
    """Take the barrier off again: each check installs its own."""
    if "weight_updater" in vars(_actor_class()):
        del _actor_class().weight_updater


def check_pushes_happen_behind_closed_gates() -> None:
    """During the whole push of the first rank every gate is closed; before and after, all are open."""
    _fresh()
    _one_process_group()
    with serve_polar(gateways=2) as polar:
        args = _arguments(polar, 0)
        install_weight_update_barrier(args)
        install_weight_update_barrier(args)
        pushes: list[int] = []
        actor, engine = _actor(args, polar, lambda: pushes.append(1))
        for count in (1, 2):
            actor.update_weights()
            assert len(pushes) == count, "one call of the actor is one push"
        assert [name for name, _ in engine.steps] == [
            "pause_generation",
            "flush_cache",
            "send",
            "continue_generation",
        ] * 2
        assert all(gates == [True, True] for _, gates in engine.steps), engine.steps
        assert not any(gateway.paused for gateway in polar.gateways.values())
        assert weight_barrier.possibly_closed() == []
        assert [len(polar.requests_to("/admin/inference/pause")), len(polar.requests_to("/nodes"))] == [4, 4]


def check_a_push_that_fails_opens_the_gates() -> None:
    """The push's own exception comes through as it is, once, and the gates are open."""
    _fresh()
    _one_process_group()
    with serve_polar(gateways=2) as polar:
        args = _arguments(polar, 0)
        install_weight_update_barrier(args)

        def fail() -> None:
            raise RuntimeError("NCCL is unwell")

        actor, engine = _actor(args, polar, fail)
        with pytest.raises(RuntimeError, match="NCCL is unwell"):
            actor.update_weights()
        assert [name for name, _ in engine.steps].count("send") == 1
        assert not any(gateway.paused for gateway in polar.gateways.values())


def check_a_push_goes_on_without_a_barrier() -> None:
    """Where a call does not end in time the push happens all the same, once, with every gate open."""
    _fresh()
    _one_process_group()
    with serve_polar(gateways=2) as polar:
        polar.gateways["node-2"].add_inflight(1)
        args = _arguments(polar, 0)
        args.polar_weight_update_pause_timeout = 0.5
        install_weight_update_barrier(args)
        actor, engine = _actor(args, polar, lambda: None)
        actor.update_weights()
        assert ("send", [False, False]) in engine.steps


def check_other_ranks_push_as_before() -> None:
    """On every rank but the first nothing is installed; without a rollout server neither."""
    _fresh()
    with serve_polar() as polar:
        install_weight_update_barrier(_arguments(polar, 1))
        assert "weight_updater" not in vars(_actor_class())
        install_weight_update_barrier(SimpleNamespace(**ARGS, rank=0))
        assert "weight_updater" not in vars(_actor_class())
        assert polar.requests == []


def check_slime_calls_the_hook_in_every_rank() -> None:
    """Slime's initialisation loads the path of the launch script and calls it with the arguments."""
    import inspect

    from slime.backends.megatron_utils import initialize
    from slime.utils.misc import load_function

    path = "slime_bridge.megatron_hooks.install_weight_update_barrier"
    assert load_function(path) is megatron_hooks.install_weight_update_barrier
    assert "custom_init(args)" in inspect.getsource(initialize.init)
