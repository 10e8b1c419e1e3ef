"""``python -m analysis.live.warm_policy FOLDER``: put a seed's warm-started policy into a new folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the policy, or copy the one made before from the same recipe and seed."""
    parser = argparse.ArgumentParser(prog="python -m analysis.live.warm_policy", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--skill", type=float, required=True)
    options = parser.parse_args(argv)
    # After the options, because PyTorch takes seconds to load.
    import torch

    from analysis.lab.warm_start import WarmStartRecipe, copy_checkpoint, warm_start

    torch.set_num_threads(1)
    recipe = WarmStartRecipe(steps=options.steps, p_right=options.skill)
    copy_checkpoint(warm_start(seed=options.seed, recipe=recipe).path, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
