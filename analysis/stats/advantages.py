"""Advantages: recomputed with any estimator, compared side by side, taken apart, doubted, and simulated.

The estimators are the bridge's own (`slime_bridge.advantages`): what is computed here is what production
would hand to the trainer. One module per question, gathered here:

- `recompute`: the advantages of recorded rewards, and the gradient weight that follows from them;
- `compare`: several estimators on the same rewards;
- `autopsy`: the arithmetic of one group;
- `uncertainty`: how far each advantage may be from the true one, and how much of a step is noise;
- `simulate`: bias and variance against a truth that is known.
"""

from __future__ import annotations

from analysis.stats.autopsy import Autopsy, autopsy
from analysis.stats.comparison import AS_TRAINED, Comparison, compare
from analysis.stats.recomputation import Reduction, gradient_weights, kish_size, recompute
from analysis.stats.simulation import Simulation, simulate
from analysis.stats.uncertainty import Uncertainty, uncertainty

__all__ = [
    "AS_TRAINED",
    "Autopsy",
    "Comparison",
    "Reduction",
    "Simulation",
    "Uncertainty",
    "autopsy",
    "compare",
    "gradient_weights",
    "kish_size",
    "recompute",
    "simulate",
    "uncertainty",
]
