"""Policy lag: how old the data was, what that did to it, and what other scheduling would have done.

One module per question, gathered here:

- `lag`: by group, session, token and rollout, in flight and in queue, against bounds and weight versions;
- `off_policy`: importance ratios, KL, chi-square, effective sample size and truncation from stored logprobs;
- `whatif`: recorded arrivals through the bridge's scheduler with another async level, bound or early stop.
"""

from __future__ import annotations

from analysis.stats.lag import Lag, lag, version_numbers
from analysis.stats.off_policy import OffPolicy, off_policy, ratio_statistics
from analysis.stats.whatif import WhatIf, whatif

__all__ = [
    "Lag",
    "OffPolicy",
    "WhatIf",
    "lag",
    "off_policy",
    "ratio_statistics",
    "version_numbers",
    "whatif",
]
