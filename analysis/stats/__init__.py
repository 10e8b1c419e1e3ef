"""Statistics over the frames of a run: pure functions of NumPy and pandas, no files, no pictures.

Every function takes a loaded run or a mapping of frames, changes neither, and gives frames with nullable
dtypes in which missing is missing::

    from analysis import stats

    stats.compare(run, ["loo", "grpo"]).summary

========== ===============================================================================================
advantages `recompute`, `compare`, `autopsy`, `uncertainty`, `simulate`
rejections `ledger`, `replay`, `contamination`, `survivorship`, `waste`, `zero_signal`, `prompt_history`
policy lag `lag`, `off_policy`, `whatif`
fidelity   `audit`, `reconcile`
time       `timing`, `timeline`
reward     `rewards`
========== ===============================================================================================

`analysis.stats.advantages`, `.rejections`, `.staleness`, `.fidelity` and `.timing` gather the same functions
with the classes of their results and their constants. What they share is in modules of its own: `.columns`
(frames as arrays), `.frames` (the tables of a run, and which rows belong together), `.sessions`, `.batches`
(what an estimator sees), `.token_tables`, `.configuration` (settings that the journal holds), `.numbers`.
"""

from __future__ import annotations

from analysis.stats.advantages import autopsy, compare, recompute, simulate, uncertainty
from analysis.stats.fidelity import audit, reconcile
from analysis.stats.rejections import (
    all_correct,
    all_wrong,
    constant_rewards,
    contamination,
    ledger,
    prompt_history,
    replay,
    survivorship,
    waste,
    zero_signal,
)
from analysis.stats.staleness import lag, off_policy, whatif
from analysis.stats.timing import timeline, timing
from analysis.stats.training import rewards

__all__ = [
    "all_correct",
    "all_wrong",
    "audit",
    "autopsy",
    "compare",
    "constant_rewards",
    "contamination",
    "lag",
    "ledger",
    "off_policy",
    "prompt_history",
    "recompute",
    "reconcile",
    "replay",
    "rewards",
    "simulate",
    "survivorship",
    "timeline",
    "timing",
    "uncertainty",
    "waste",
    "whatif",
    "zero_signal",
]
