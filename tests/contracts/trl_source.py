"""TRL's own arithmetic of advantages, cut out of the installed source and run alone.

TRL computes advantages in the middle of a method that also generates and scores completions. The statements
between the rewards and the advantages are taken from its syntax tree as they stand and executed on tensors of
ours; nothing of TRL is imported, so none of what it depends on but torch has to be installed.
"""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

_METHOD = "_generate_and_score_completions"


def source_folder() -> Path | None:
    """Where TRL's trainers lie; None if TRL is not installed."""
    spec = find_spec("trl")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0]) / "trainer" if places else None
    return folder if folder is not None and (folder / "grpo_trainer.py").is_file() else None


def advantages(trainer: str, rewards: NDArray[np.float64], **settings: Any) -> NDArray[np.float64]:
    """Run TRL's arithmetic.

    Parameters
    ----------
    trainer
        ``"grpo"`` or ``"rloo"``.
    rewards
        Shape (groups, members, reward functions); NaN where a function gives none.
    settings
        Attributes that the trainer reads, such as ``scale_rewards``.

    Returns
    -------
    array
        Shape (groups, members).
    """
    import torch

    groups, members, functions = rewards.shape
    per_function = torch.tensor(rewards.reshape(groups * members, functions))
    owner = SimpleNamespace(
        reward_weights=torch.ones(functions, dtype=torch.float64), reward_funcs=[None] * functions, **settings
    )
    scope: dict[str, Any] = {
        "torch": torch,
        "self": owner,
        "device": "cpu",
        "rewards_per_func": per_function,
        "num_generations": members,
    }
    exec(_nanstd(), scope)
    exec(_arithmetic(trainer), scope)
    found: NDArray[np.float64] = scope["advantages"].numpy()
    return found.reshape(groups, members)


@functools.cache
def _nanstd() -> Any:
    tree = _tree("utils")
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "nanstd"]
    return _compiled([function], "utils")


@functools.cache
def _arithmetic(trainer: str) -> Any:
    """Compile the statements from the first use of the rewards to the last assignment before the slicing."""
    (method,) = [
        node
        for node in ast.walk(_tree(f"{trainer}_trainer"))
        if isinstance(node, ast.FunctionDef) and node.name == _METHOD
    ]
    names = [_assigned(statement) for statement in method.body]
    start, end = names.index("unscorable_mask"), names.index("process_slice")
    return _compiled(method.body[start:end], trainer)


def _assigned(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _tree(name: str) -> ast.Module:
    folder = source_folder()
    assert folder is not None, "TRL is not installed"
    return ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))


def _compiled(statements: list[ast.stmt], name: str) -> Any:
    return compile(ast.Module(statements, type_ignores=[]), f"trl/{name}", "exec")
