"""Hook for Slime's ``--custom-megatron-init-path``: weight pushes wait until no model call is in flight.

Slime calls it in every trainer process, at the end of Megatron's initialisation. It knows one thing of Slime:
the actor keeps the object that pushes weights in its attribute ``weight_updater`` and calls that object's
``update_weights``. The actor's own methods cannot be replaced at that moment, because Ray has already taken
the functions that it will run; an attribute is looked up when it is used.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from slime_bridge import _slime
from slime_bridge.config import BarrierSettings, resolve_barrier_settings
from slime_bridge.errors import BridgeError, ConfigError
from slime_bridge.weight_barrier import pause_for_weight_update, resume_after_weight_update

__all__ = ["install_weight_update_barrier"]

logger = logging.getLogger(__name__)

_UPDATER = "weight_updater"
_PUSH = "update_weights"
_GUARDED = "_slime_bridge_barrier"


def install_weight_update_barrier(args: Any) -> None:
    """Hold generation back at every gateway of Polar while the first rank pushes weights.

    Does nothing on other ranks, which wait for the first one inside the push, and nothing where ``args`` name
    no rollout server. Around each push the gates are closed, model calls in flight are waited for, at most
    `polar_weight_update_pause_timeout` seconds, and the gates are opened again, whatever the push does. Where
    that cannot be had in time, the push goes on without it: an error is logged, and the turns that it cuts
    follow `polar_aborted_turns`. Installing twice is installing once.

    Parameters
    ----------
    args
        Slime's arguments in the trainer process: its ``rank``, and the bridge's keys.

    Raises
    ------
    ConfigError
        A key cannot be used, or this release of Slime pushes weights in a way that is not known.
    SlimeNotInstalledError
        Slime's trainer cannot be imported here.
    """
    rank = getattr(args, "rank", 0)
    if rank != 0:
        return
    settings = resolve_barrier_settings(args)
    if settings is None:
        logger.info("No weight-update barrier: neither polar_rollout_url nor polar_topology_path is set")
        return
    _warn_if_others_wait_less(args, settings)
    setattr(_checked_actor_class(), _UPDATER, _GuardedUpdater(settings))
    logger.info(
        "Weight pushes wait for running generations, at most %g s (%s)",
        settings.weight_update_pause_timeout,
        "polar_weight_update_pause_timeout",
    )


class _GuardedUpdater:
    """The actor's ``weight_updater``: an ordinary attribute whose value gets a barrier around its push."""

    def __init__(self, settings: BarrierSettings) -> None:
        self.settings = settings

    def __get__(self, actor: Any, owner: type | None = None) -> Any:
        if actor is None:
            return self
        try:
            updater = vars(actor)[_UPDATER]
        except KeyError:
            raise AttributeError(f"{type(actor).__name__} has no attribute {_UPDATER!r} yet") from None
        return _guard(updater, self.settings)

    def __set__(self, actor: Any, updater: Any) -> None:
        vars(actor)[_UPDATER] = _guard(updater, self.settings)

    def __delete__(self, actor: Any) -> None:
        del vars(actor)[_UPDATER]


def _guard(updater: Any, settings: BarrierSettings) -> Any:
    """Put the barrier around an updater's push, once."""
    push = getattr(updater, _PUSH, None)
    if push is None or getattr(push, _GUARDED, False):
        return updater

    @functools.wraps(push)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _hold_back(settings)
        try:
            return push(*args, **kwargs)
        finally:
            resume_after_weight_update(settings)

    setattr(guarded, _GUARDED, True)
    setattr(updater, _PUSH, guarded)
    return updater


def _hold_back(settings: BarrierSettings) -> None:
    try:
        pause_for_weight_update(settings)
    except BridgeError as error:
        logger.error("Weights are pushed without a barrier, turns in flight may be cut short: %s", error)
    except Exception:  # whatever is wrong with the barrier, a training must not end for it
        logger.exception("Weights are pushed without a barrier, turns in flight may be cut short")


def _checked_actor_class() -> Any:
    """Return Slime's actor class if it pushes weights in the way that this module knows."""
    actor = _slime.megatron_actor_class()
    push = inspect.unwrap(getattr(actor, _PUSH, None) or (lambda: None))
    if not {_UPDATER, _PUSH} <= set(getattr(getattr(push, "__code__", None), "co_names", ())):
        raise ConfigError(
            "custom_megatron_init_path names the weight-update barrier, but Slime's "
            f"{actor.__name__} does not push weights through {_UPDATER}.{_PUSH}() as in v0.3.0: remove it "
            "from the launch script, and set polar_aborted_turns for the turns that pushes cut"
        )
    return actor


def _warn_if_others_wait_less(args: Any, settings: BarrierSettings) -> None:
    minutes = getattr(args, "distributed_timeout_minutes", None)
    if isinstance(minutes, int | float) and settings.weight_update_pause_timeout >= 60 * minutes:
        logger.warning(
            "polar_weight_update_pause_timeout %g s is not below distributed_timeout_minutes %g: the other "
            "ranks may give up waiting for the first one",
            settings.weight_update_pause_timeout,
            minutes,
        )
