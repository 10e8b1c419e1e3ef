"""The doctor's checks of this machine: the Slime that is installed, versions, Weights & Biases.

Nothing heavy is imported: versions come from the installed packages' metadata.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from slime_bridge import __version__, _slime
from slime_bridge.doctor.report import Finding, Severity, finding
from slime_bridge.errors import PatchRefusedError
from slime_bridge.patch_slime import PatchState, check_patch

__all__ = ["check_slime", "check_tracking", "check_versions", "installed_versions"]

_SLIME = "slime"
_VERSIONS = "versions"
_TRACKING = "wandb"
_OURS = ("aiohttp", "anyio", "h11", "httpx", "msgspec", "numpy", "pysimdjson", "pyyaml")
_THEIRS = ("slime", "ray", "torch", "sglang", "sglang-router", "megatron-core", "transformers", "wandb")
_KNOWN_SLIME = ("0.3.0", "0.3.1")
_LEAST = {
    "aiohttp": (3, 12),
    "anyio": (4, 4),
    "h11": (0, 14),
    "httpx": (0, 27),
    "msgspec": (0, 19),
    "numpy": (1, 26),
    "pysimdjson": (6, 0),
    "pyyaml": (6, 0),
}
_WANDB_WITHOUT_GENERATE_ID = (0, 31)


def installed_versions() -> dict[str, str | None]:
    """Return the versions of everything that takes part; None for what is not installed here."""
    versions: dict[str, str | None] = {"python": platform.python_version(), "slime-bridge": __version__}
    for name in (*_OURS, *_THEIRS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def check_slime() -> list[Finding]:
    """Tell THUDM's Slime, its namesake and none apart, and the trajectory key that its samples have."""
    info = _slime.slime_info()
    if info.namesake:
        return [
            finding(
                _SLIME,
                Severity.ERROR,
                "the package `slime` that is installed is another project of the same name",
                evidence=f"{info.location}, version {info.version}",
                fix="pip uninstall slime, then install THUDM's Slime from its git tag: "
                "git clone --branch v0.3.0 --depth 1 https://github.com/THUDM/slime.git && "
                "pip install --no-deps -e slime",
            )
        ]
    if not info.present:
        return [
            finding(
                _SLIME,
                Severity.INFO,
                "Slime is not importable here, so stand-ins are used",
                evidence="enough for this check; the trainer's machines need THUDM's Slime v0.3.0",
                fix="on the trainer: install it from its git tag, or put a checkout on PYTHONPATH, also in "
                "the Ray job's runtime_env",
            )
        ]
    where = f"{info.location}, version {info.version or 'unknown (used from a source tree)'}"
    if info.problem is not None:
        return [
            finding(
                _SLIME,
                Severity.ERROR,
                "Slime is there and cannot be imported",
                evidence=f"{where}\n{info.problem}",
                fix="install what the message names, or run the doctor in the trainer's environment",
            )
        ]
    found = [
        finding(
            _SLIME,
            Severity.OK,
            f"THUDM's Slime; trajectories are told apart by Sample.{info.trajectory_key}",
            evidence=where,
        )
    ]
    if info.version is not None and info.version not in _KNOWN_SLIME:
        found.append(
            finding(
                _SLIME,
                Severity.WARNING,
                f"Slime {info.version} is not among the releases that this bridge was tried with",
                evidence=f"tried: {', '.join(_KNOWN_SLIME)}",
                fix="use v0.3.0, or run the tests of this project with SLIME_DIR pointing at your checkout",
            )
        )
    return [*found, *_adapter(info.location)]


def _adapter(location: str | None) -> list[Finding]:
    if location is None:
        return []
    try:
        state = check_patch(Path(location).parent)
    except PatchRefusedError:
        return []
    text = {
        PatchState.PATCHED: "Slime's OpenAI-compatible adapter is patched to return token ids",
        PatchState.ORIGINAL: "Slime's OpenAI-compatible adapter is as released: it returns no token ids",
        PatchState.PARTIAL: "Slime's adapter is half patched",
    }[state]
    severity = Severity.WARNING if state is PatchState.PARTIAL else Severity.INFO
    fix = (
        ""
        if state is PatchState.PATCHED
        else "only where gateways call that adapter: slime-bridge patch-slime DIR"
    )
    return [finding(_SLIME, severity, text, fix=fix)]


def check_versions() -> list[Finding]:
    """List versions, and those that are known not to fit."""
    versions = installed_versions()
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    absent = ", ".join(name for name in _THEIRS if versions[name] is None)
    evidence = shown + (f"\nnot installed here: {absent}" if absent else "")
    found = [finding(_VERSIONS, Severity.OK, "versions of what takes part", evidence=evidence)]
    for name, least in _LEAST.items():
        if _numbers(versions[name]) < least:
            wanted = ".".join(map(str, least))
            found.append(
                finding(
                    _VERSIONS,
                    Severity.ERROR,
                    f"{name} {versions[name] or 'is not installed'}: the bridge needs {wanted} or newer",
                    fix=f"pip install '{name}>={wanted}'",
                )
            )
    if versions["megatron-core"] is not None and _numbers(versions["numpy"]) >= (2,):
        found.append(
            finding(
                _VERSIONS,
                Severity.WARNING,
                f"numpy {versions['numpy']}: Slime v0.3.0 refuses numpy 2 when a trainer process starts",
                fix="pip install 'numpy<2' in the trainer's environment",
            )
        )
    return found


def check_tracking(args: Any) -> list[Finding]:
    """Check what keeps Weights & Biases from working with Slime v0.3.0."""
    version = installed_versions()["wandb"]
    if not getattr(args, "use_wandb", False):
        text = "Weights & Biases is off: use_wandb is not set"
        return [finding(_TRACKING, Severity.INFO, text, evidence=f"wandb {version or 'is not installed'}")]
    if version is None:
        return [
            finding(
                _TRACKING,
                Severity.ERROR,
                "use_wandb is set and wandb is not installed",
                fix="pip install wandb",
            )
        ]
    found = []
    mode = getattr(args, "wandb_mode", None) or os.environ.get("WANDB_MODE") or "online"
    random_suffix = getattr(args, "wandb_random_suffix", True)
    if mode == "disabled":
        text = "wandb_mode disabled does not work with Slime: its shared mode still asks for a key"
        found.append(finding(_TRACKING, Severity.ERROR, text, fix="leave --use-wandb out instead"))
    if random_suffix and getattr(args, "wandb_group", None) is None:
        text = "wandb_group is not set, and Slime puts its random suffix behind it: the driver fails at start"
        found.append(finding(_TRACKING, Severity.ERROR, text, fix="pass --wandb-group NAME"))
    if random_suffix and _numbers(version) >= _WANDB_WITHOUT_GENERATE_ID:
        text = f"wandb {version} has no generate_id any more, which Slime's random suffix needs"
        found.append(finding(_TRACKING, Severity.ERROR, text, fix="pass --disable-wandb-random-suffix"))
    has_key = bool(getattr(args, "wandb_key", None) or os.environ.get("WANDB_API_KEY"))
    if mode == "online" and not has_key:
        text = "neither wandb_key nor WANDB_API_KEY is set, so every machine must be logged in"
        fix = "pass --wandb-key, or put WANDB_API_KEY into the Ray job's runtime_env"
        found.append(finding(_TRACKING, Severity.WARNING, text, fix=fix))
    if not found:
        found.append(
            finding(_TRACKING, Severity.OK, f"Weights & Biases is {mode}", evidence=f"wandb {version}")
        )
    return found


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version; empty for none."""
    numbers = []
    for part in (version or "").split(".")[:3]:
        digits = "".join(char for char in part if char.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
