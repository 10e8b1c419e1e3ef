"""Runs the checks of one module inside real Slime: ``python -m tests.contracts.inside_slime.host <module>``.

Prints one JSON object: each check's name, and its traceback or null.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any

MARK = "inside-slime-report:"
# Ray would start a cluster for one `put`; the other two need GPUs. The rest is stubbed only if missing.
ALWAYS_STUBBED = ("megatron", "ray", "sglang")
STUBBED_IF_MISSING = ("pybase64", "pylatexenc", "sglang_router")


class _AnythingMeta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)


def anything(name: str) -> Any:
    """A class that can be subclassed, called, and asked for any attribute."""
    return _AnythingMeta(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _StubModule(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = anything(name)
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers every import below the stubbed packages that are not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(STUB_CONTENT.get(module.__name__, {}))


def _remote(*args: Any, **kwargs: Any) -> Any:
    """`ray.remote` as decorator, with or without options: the class or function itself."""
    return args[0] if args and not kwargs else lambda target: target


class _Mpu:
    """Megatron's parallel state on one process."""

    @staticmethod
    def get_context_parallel_world_size() -> int:
        return 1

    @staticmethod
    def get_context_parallel_rank() -> int:
        return 0

    @staticmethod
    def is_pipeline_last_stage() -> bool:
        return True

    @staticmethod
    def get_data_parallel_group(*args: Any, **kwargs: Any) -> None:
        return None


STUB_CONTENT: dict[str, dict[str, Any]] = {
    "ray": {"remote": _remote, "put": lambda value: value, "get": lambda reference: reference},
    "sglang_router": {"__version__": "0.3.2"},
    "megatron.core": {"mpu": _Mpu},
}


def install_stubs() -> None:
    """Stand in for what cannot or should not be imported; what is installed otherwise stays real."""
    missing = [name for name in STUBBED_IF_MISSING if importlib.util.find_spec(name) is None]
    sys.meta_path.insert(0, StubFinder([*ALWAYS_STUBBED, *missing]))


def checks_of(module: types.ModuleType) -> dict[str, Any]:
    """The module's checks, in the order of the file."""
    found = {
        name: f for name, f in vars(module).items() if name.startswith("check_") and inspect.isfunction(f)
    }
    return dict(sorted(found.items(), key=lambda item: item[1].__code__.co_firstlineno))


def main(module_name: str) -> None:
    """Run all checks of a module and print the report."""
    install_stubs()
    module = importlib.import_module(module_name)
    report: dict[str, str | None] = {}
    for name, check in checks_of(module).items():
        try:
            check()
            report[name] = None
        except Exception:  # a failed check is reported to the test that asked for it
            report[name] = traceback.format_exc()
    sys.stdout.write(f"\n{MARK}{json.dumps(report)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
