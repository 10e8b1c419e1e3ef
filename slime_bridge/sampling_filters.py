"""A filter for ``--dynamic-sampling-filter-path`` that looks at what will be trained on.

Slime's own ``check_reward_nonzero_std`` looks at all samples of a group. A session that failed stands among
them with reward 0, as a failed sample does in Slime's rollout: seven correct answers and one agent that
crashed have a spread, are kept, and give no advantage to anybody, because the crash is no trajectory to learn
from or to compare with. The filter here compares those that the advantages compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slime_bridge import _slime
from slime_bridge.advantages import SPREAD_FLOOR, group_spreads
from slime_bridge.config import resolve_reward_settings
from slime_bridge.reward_post_process import reward_batch
from slime_bridge.sample_view import reward_value

__all__ = ["check_trained_reward_nonzero_std"]


def check_trained_reward_nonzero_std(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """Keep a group whose valid trajectories differ in reward.

    Parameters
    ----------
    args
        Trainer arguments; the reward's key is read.
    samples
        All samples of one group. A trajectory is valid if it did not fail and has a trainable token and a
        finite reward; its reward is the mean over its trainable traces, as for the advantages.
    kwargs
        Ignored: Slime may hand over more.

    Returns
    -------
    DynamicFilterOutput
        Slime's. Kept if the standard deviation over the valid trajectories is at least 1e-6, which takes two
        of them. The reason is ``zero_std_<reward>`` as Slime's filter gives it, or ``no_valid_trajectory``.

    Raises
    ------
    ConfigError
        If a reward is a mapping without the configured key.
    """
    key = resolve_reward_settings(args).reward_key
    batch = reward_batch(samples, [reward_value(sample, key) for sample in samples])
    grouping = batch.grouping
    means = grouping.trajectory_means(batch.reward)
    keep = bool((group_spreads(grouping, means) >= SPREAD_FLOOR).any())
    reason = None
    if not keep:
        valid = means[grouping.valid]
        reason = f"zero_std_{round(float(np.mean(valid)), 1)}" if len(valid) else "no_valid_trajectory"
    return _slime.dynamic_filter_output_class()(keep=keep, reason=reason)
