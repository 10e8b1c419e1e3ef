"""The one door to Slime: its types where it is installed, equivalent stand-ins where it is not.

Slime is imported by the first call that needs a type, never at import of the bridge. Types are not
remembered, so a process that makes Slime importable later gets the real types from then on.

Three situations are told apart. No package named ``slime``: stand-ins. THUDM's Slime: the real types, and an
error that names the cause if they cannot be imported. The unrelated package that the Python package index
calls ``slime``: always an error, because a trainer environment that holds it holds the wrong package.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from slime_bridge.errors import SlimeNotInstalledError

__all__ = [
    "SlimeInfo",
    "data_source_base",
    "megatron_actor_class",
    "require_slime",
    "rollout_output_classes",
    "sample_class",
    "slime_info",
    "trajectory_key",
]

_INSTALL = (
    "install THUDM's Slime from its git tag, for example `pip install --no-deps"
    " 'slime @ git+https://github.com/THUDM/slime@v0.3.0'`, or put a checkout on PYTHONPATH"
)
_NAMESAKE = (
    "the installed package `slime` at {location} is not THUDM's trainer but an unrelated package of the same"
    " name (a mixed-effects model) from the Python package index: uninstall it, then " + _INSTALL
)
_TRAJECTORY_KEYS = ("group_id", "rollout_id")


@dataclass(frozen=True)
class SlimeInfo:
    """What is importable under the name ``slime``.

    Parameters
    ----------
    present
        THUDM's Slime is there.
    namesake
        An unrelated package of that name is there instead.
    version
        Version of the installed distribution; None if absent or used from a source tree.
    location
        Folder of the package, None if absent.
    trajectory_key
        Name of the sample field that holds the trajectory; the stand-in's where Slime is absent, None where
        its types cannot be used.
    problem
        Why the types cannot be used, None if they can.
    """

    present: bool
    namesake: bool
    version: str | None
    location: str | None
    trajectory_key: str | None
    problem: str | None


def _find(name: str) -> Any:
    """Find a module's spec; a module that is already in `sys.modules` counts as its own."""
    if name in sys.modules:
        return sys.modules[name]
    try:
        return find_spec(name)
    except ModuleNotFoundError:
        return None


def _location(found: Any) -> str | None:
    places = getattr(found, "submodule_search_locations", None) or getattr(found, "__path__", None)
    return next(iter(places), None) if places else getattr(found, "origin", None)


def _locate() -> tuple[bool, bool, str | None]:
    """Return (present, namesake, location); imports nothing but the empty parent package ``slime``."""
    found = _find("slime")
    if found is None:
        return False, False, None
    present = _find("slime.rollout") is not None or _find("slime.utils") is not None
    # A leftover folder called "slime", say in the working directory, is a namespace package: nobody's Slime.
    anything = present or _find("slime.core") is not None or getattr(found, "origin", None) is not None
    return present, anything and not present, _location(found)


def _real(module: str, name: str) -> Any:
    """Return an attribute of real Slime, or None where no Slime is installed."""
    present, namesake, location = _locate()
    if namesake:
        raise SlimeNotInstalledError(_NAMESAKE.format(location=location))
    if not present:
        return None
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise SlimeNotInstalledError(
            f"Slime at {location} cannot give {module}.{name} ({type(exc).__name__}: {exc}); {_INSTALL}"
        ) from exc


def require_slime() -> None:
    """Make sure that real Slime's sample type can be imported.

    Raises
    ------
    SlimeNotInstalledError
        If there is no Slime, if it cannot be imported, or if the unrelated package of that name is installed.
    """
    if _real("slime.utils.types", "Sample") is None:
        raise SlimeNotInstalledError(f"Slime is not installed: {_INSTALL}")


def sample_class() -> Any:
    """Return Slime's `Sample`, or the stand-in where Slime is not installed.

    Raises
    ------
    SlimeNotInstalledError
        If the unrelated package named ``slime`` is installed, or Slime is broken.
    """
    # Asked for every group: where nothing is found, looking for it takes longer than the rest.
    absent = "slime" not in sys.modules and _absent(tuple(sys.path))
    real = None if absent else _real("slime.utils.types", "Sample")
    if real is None:
        from slime_bridge._stand_in import Sample

        return Sample
    return real


@lru_cache(maxsize=4)
def _absent(path: tuple[str, ...]) -> bool:
    """Tell whether there is nothing named ``slime`` on this path; looked for once in each."""
    return _find("slime") is None


def rollout_output_classes() -> tuple[Any, Any]:
    """Return Slime's `RolloutFnTrainOutput` and `RolloutFnEvalOutput`, or stand-ins where it is absent."""
    names = ("RolloutFnTrainOutput", "RolloutFnEvalOutput")
    train, evaluation = (_real("slime.rollout.base_types", name) for name in names)
    if train is None:
        from slime_bridge._stand_in import RolloutFnEvalOutput, RolloutFnTrainOutput

        return RolloutFnTrainOutput, RolloutFnEvalOutput
    return train, evaluation


def dynamic_filter_output_class() -> Any:
    """Return Slime's `DynamicFilterOutput`, or a stand-in where it is absent."""
    real = _real("slime.rollout.filter_hub.base_types", "DynamicFilterOutput")
    if real is None:
        from slime_bridge._stand_in import DynamicFilterOutput

        return DynamicFilterOutput
    return real


def data_source_base() -> Any:
    """Return Slime's `RolloutDataSourceWithBuffer`, or a stand-in for JSONL prompts where it is absent."""
    real = _real("slime.rollout.data_source", "RolloutDataSourceWithBuffer")
    if real is None:
        from slime_bridge._stand_in_data import RolloutDataSourceWithBuffer

        return RolloutDataSourceWithBuffer
    return real


def megatron_actor_class() -> Any:
    """Return the class of Slime's Megatron trainer actors.

    Raises
    ------
    SlimeNotInstalledError
        If there is no Slime, or it cannot be imported with what it needs to train.
    """
    real = _real("slime.backends.megatron_utils.actor", "MegatronTrainRayActor")
    if real is None:
        raise SlimeNotInstalledError(f"Slime is not installed: {_INSTALL}")
    return real


@lru_cache(maxsize=8)
def trajectory_key(sample_cls: Any) -> str:
    """Return the name of the field that all samples of one trajectory share.

    Slime v0.3.0 calls it ``group_id`` (and has a deprecated write-only ``rollout_id``, which is no field);
    v0.3.1 and later, like releases before v0.3.0, call it ``rollout_id``.

    Raises
    ------
    SlimeNotInstalledError
        If the class has neither field: that release of Slime is not supported.
    """
    names = (
        {f.name for f in dataclasses.fields(sample_cls)} if dataclasses.is_dataclass(sample_cls) else set()
    )
    for key in _TRAJECTORY_KEYS:
        if key in names:
            return key
    raise SlimeNotInstalledError(
        f"{sample_cls.__module__}.{sample_cls.__qualname__} has neither `group_id` nor `rollout_id`:"
        f" this release of Slime is not supported; {_INSTALL}"
    )


def slime_info() -> SlimeInfo:
    """Describe what is installed under the name ``slime``; never raises."""
    present, namesake, location = _locate()
    version = None
    if present or namesake:
        try:
            version = metadata.version("slime")
        except metadata.PackageNotFoundError:
            version = None
    key, problem = None, None
    try:
        key = trajectory_key(sample_class())
    except SlimeNotInstalledError as exc:
        problem = str(exc)
    return SlimeInfo(present, namesake, version, location, key, problem)
