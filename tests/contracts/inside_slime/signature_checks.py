"""Slime's plug-in contract for rollout functions, as far as one that needs a server can meet it.

Slime also calls the function with ``args=None`` and expects groups of exactly two samples; a bridge to a
server has no server then, and a session that splits into traces gives more. Only the signature is part of
this contract.
"""

from __future__ import annotations

import os
import sys


def _contract_module(name: str):  # type: ignore[no-untyped-def]
    import importlib

    folder = os.path.join(os.environ["SLIME_DIR"], "tests")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(f"plugin_contracts.{name}")


def check_rollout_function_signature() -> None:
    """Parameter names, kinds and defaults are Slime's, by Slime's own assertion."""
    from slime.utils.misc import load_function

    contract = _contract_module("test_plugin_rollout_contracts")
    function = load_function("slime_bridge.rollout.generate_rollout_polar_async")
    contract.assert_rollout_function_signature_matches_default(function)


def check_rollout_function_needs_no_arguments_to_load() -> None:
    """Slime loads the function before anything is configured; loading starts nothing."""
    import threading

    from slime.utils.misc import load_function

    before = threading.active_count()
    assert callable(load_function("slime_bridge.rollout.generate_rollout_polar_async"))
    assert threading.active_count() == before
