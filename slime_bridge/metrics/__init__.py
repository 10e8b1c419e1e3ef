"""From groups and counts to the numbers that the trainer logs."""

from slime_bridge.metrics.aggregation import (
    CATALOGUE,
    SUCCESS_REWARD,
    DecisionWindow,
    Direction,
    GroupFacts,
    Metric,
    SessionFacts,
    find_metric,
    mean,
    pass_at_k,
    render_catalogue,
    rollout_metrics,
    undocumented,
)

__all__ = [
    "CATALOGUE",
    "DecisionWindow",
    "Direction",
    "GroupFacts",
    "Metric",
    "SUCCESS_REWARD",
    "SessionFacts",
    "find_metric",
    "mean",
    "pass_at_k",
    "render_catalogue",
    "rollout_metrics",
    "undocumented",
]
