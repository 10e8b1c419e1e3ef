"""The rules of the house, checked on the sources: sizes, exceptions, import cost, drawings."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("slime_bridge", "analysis")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_module_is_small_enough_to_read(path: Path) -> None:
    """A module of more than 400 lines has more than one duty."""
    assert len(path.read_text().splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_functions_are_short_and_state_is_local(path: Path) -> None:
    """Functions stay under 60 lines of code, and no function rebinds a module global."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            if len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                body = body[1:]
            length = (node.end_lineno or node.lineno) - body[0].lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"
        assert not isinstance(node, ast.Global), f"line {getattr(node, 'lineno', '?')} uses global"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_broad_excepts_give_their_reason(path: Path) -> None:
    """No bare except; `except Exception` says why it is broad, unless it cleans up and re-raises."""
    lines = path.read_text().splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"line {node.lineno}: bare except"
        if isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None:
            continue
        caught = ast.unparse(node.type)
        if "Exception" in re.split(r"\W+", caught) or "BaseException" in re.split(r"\W+", caught):
            head = lines[node.lineno - 1 : node.body[0].lineno]
            assert any("#" in line for line in head), f"line {node.lineno}: no reason"


def _module_names(package: str) -> list[str]:
    root = importlib.import_module(package)
    names = [module.name for module in pkgutil.walk_packages(root.__path__, f"{package}.")]
    return [package, *(name for name in names if not name.endswith("__main__"))]


def test_importing_the_bridge_is_cheap_and_starts_nothing() -> None:
    """Importing every bridge module loads no heavy library, starts no thread and registers no exit hook."""
    heavy = [
        "pandas",
        "matplotlib",
        "torch",
        "transformers",
        "slime",
        "ray",
        "uvicorn",
        "fastapi",
        "wandb",
        "IPython",
    ]
    code = (
        "import atexit, importlib, sys, threading\n"
        "hooks = atexit._ncallbacks()\n"
        f"names = {_module_names('slime_bridge')!r}\n"
        "import logging, concurrent.futures\n"
        "for name in names: importlib.import_module(name)\n"
        f"loaded = sorted(set({heavy!r}) & set(sys.modules))\n"
        "assert not loaded, f'loaded {loaded}'\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "ours = atexit._ncallbacks() - hooks\n"
        "print(ours)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists(package: str) -> None:
    """Each name in a module's `__all__` can be imported, and none is listed twice."""
    for name in _module_names(package):
        module = importlib.import_module(name)
        exported = list(getattr(module, "__all__", ()))
        assert len(exported) == len(set(exported)), name
        for item in exported:
            assert hasattr(module, item), f"{name}.{item}"


@pytest.mark.parametrize("module_name", ["slime_bridge.errors", "analysis.errors"])
def test_drawn_error_tree_is_the_real_one(module_name: str) -> None:
    """The tree in the module docstring names exactly the classes that exist, under the right parents."""
    module = importlib.import_module(module_name)
    stack: list[tuple[int, str]] = []
    drawn: dict[str, str | None] = {}
    for line in (module.__doc__ or "").splitlines():
        match = re.match(r"^\s*([│├└─\s]*?)([A-Z]\w+Error)\b", line)
        if not match:
            continue
        column = line.index(match.group(2))
        while stack and stack[-1][0] >= column:
            stack.pop()
        drawn[match.group(2)] = stack[-1][1] if stack else None
        stack.append((column, match.group(2)))
    defined = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module_name
    }
    assert set(drawn) == set(defined)
    assert set(module.__all__) == set(defined)
    for name, parent in drawn.items():
        if parent is not None:
            assert parent in [base.__name__ for base in defined[name].__bases__], name
