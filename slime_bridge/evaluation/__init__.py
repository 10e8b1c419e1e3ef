"""Evaluation over Polar: every prompt of every dataset once, with results that failures cannot improve."""

from slime_bridge.evaluation.run import (
    SessionSlots,
    run_evaluation,
)

__all__ = [
    "SessionSlots",
    "run_evaluation",
]
