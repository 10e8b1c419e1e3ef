"""Packaging promises: nothing from PyPI's `slime`, no torch pin, an environment file in step."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from slime_bridge.doctor import environment as doctor_environment

ROOT = Path(__file__).resolve().parents[2]


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~@;]", requirement.strip(), maxsplit=1)[0].lower()


def _requirements(*extras: str) -> list[str]:
    """Return the core's requirements and those of the named extras."""
    project = _project()
    return [
        *project["dependencies"],
        *(r for extra in extras for r in project["optional-dependencies"][extra]),
    ]


def _conda_pip() -> list[str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    return pip


def test_no_requirement_names_the_unrelated_slime_package() -> None:
    """PyPI's `slime` is another project: neither the core nor an extra may pull it."""
    project = _project()
    assert "slime" not in {
        _name(requirement) for requirement in _requirements(*project["optional-dependencies"])
    }


def test_core_stays_light_and_pins_nothing_the_trainer_owns() -> None:
    """The core needs no torch; nothing pins torch, numpy, httpx or pydantic to one version."""
    project = _project()
    assert "torch" not in {_name(requirement) for requirement in project["dependencies"]}
    every = _requirements(*project["optional-dependencies"])
    shared = {"torch", "numpy", "httpx", "pydantic", "transformers", "ray", "pandas"}
    assert not [r for r in every if _name(r) in shared and ("==" in r or "<" in r)]


def test_environment_file_is_in_step_with_the_package() -> None:
    """Each core, train and wandb requirement stands in environment.yml with the same lower bound."""
    wanted = _requirements("train", "wandb")
    listed = {_name(requirement): requirement for requirement in _conda_pip()}
    for requirement in wanted:
        assert _name(requirement) in listed, requirement
        bound = re.search(r">=[\w.]+", requirement)
        assert bound is None or bound.group() in listed[_name(requirement)], requirement
    for package in ("torch", "sglang", "sglang-router", "megatron-core", "ray", "wandb"):
        assert package in listed
    assert re.fullmatch(r"slime @ git\+https://\S+/THUDM/slime\.git@v\d+\.\d+\.\d+", listed["slime"])


def test_doctor_knows_the_requirements() -> None:
    """`slime-bridge doctor` looks for every requirement of the core, from its lower bound on."""
    bounds = {
        _name(requirement): tuple(map(int, requirement.split(">=")[1].split(".")))
        for requirement in _project()["dependencies"]
    }
    assert bounds == doctor_environment._LEAST
    assert set(bounds) == set(doctor_environment._OURS)


def test_constraints_pin_every_direct_requirement() -> None:
    """What `make` installs is pinned: each direct requirement of its extras has one exact version."""
    direct = _requirements("analysis", "lab", "notebooks", "wandb", "ray", "dev")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and line[0] != "#")
    names = {name.lower().replace("_", "-") for name in pins}
    assert {_name(r).replace("_", "-") for r in direct} - {"slime-bridge"} <= names
    assert pins["torch"] == "2.13.0"


def test_readme_shows_both_commands_on_the_first_screen() -> None:
    """A newcomer finds `make lab` and `make test` within the first forty lines."""
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "make lab" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("httpx", ("0.27.0", "0.28.1")),
        ("pydantic", ("2.7.0", "2.12.0")),
        ("numpy", ("1.26.4", "2.3.0")),
        ("torch", ("2.4.0", "2.9.0")),
    ],
)
def test_what_trainers_pin_is_admitted(name: str, versions: tuple[str, ...]) -> None:
    """Old and new releases of the libraries that a trainer's environment pins are both in range."""
    found = [Requirement(text) for text in _requirements("analysis", "lab", "notebooks", "wandb", "ray")]
    ranges = [requirement.specifier for requirement in found if requirement.name == name]
    assert ranges
    for specifier in ranges:
        assert all(specifier.contains(version) for version in versions), (name, str(specifier))


@pytest.mark.parametrize(
    ("python", "said"),
    [("exit 1", "is older than Python 3.11"), (None, "cannot be run; name another with PYTHON=")],
)
def test_make_checks_before_it_downloads(tmp_path: Path, python: str | None, said: str) -> None:
    """An interpreter that will not do is refused before anything is installed, and make fails."""
    fake, asked = tmp_path / "python", tmp_path / "asked"
    if python is not None:
        fake.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n{python}\n')
        fake.chmod(0o755)
    done = subprocess.run(
        ["make", "lab", f"PYTHON={fake}", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert not (tmp_path / "venv").exists()
    # Neither a virtual environment nor an installation was tried.
    assert not asked.exists() or "pip" not in asked.read_text()
