"""Frames for the figures of `analysis.plots.trust`, small enough to check by eye."""

from __future__ import annotations

import numpy as np
import pandas as pd


def contamination() -> pd.DataFrame:
    """Five causes: two certain, one suspected, the task's own, and one that never came up."""
    return pd.DataFrame(
        {
            "cause": ["timeout", "error", "sandbox", "task", "lost_calls"],
            "verdict": ["certain", "certain", "suspected", "no", "suspected"],
            "sessions": [12, 9, 4, 31, 0],
            "counted": [3, 0, 4, 31, 0],
            "share_of_zeros": [12 / 56, 9 / 56, 4 / 56, 31 / 56, 0.0],
        }
    ).convert_dtypes()


def reconciliation() -> pd.DataFrame:
    """Metrics of several sizes that agree, two that do not, and one that was not emitted."""
    emitted = np.array([0.0, 0.25, 0.8, 3.0, 16.0, 128.0, 2000.0, 45.0, 0.5])
    recomputed = emitted.copy()
    recomputed[7:] = (60.0, 0.1)
    names = ["a", "b", "c", "d", "e", "f", "g", "rollout/raw_reward", "polar/failed_share"]
    frame = pd.DataFrame(
        {
            "name": [f"polar/{name}" if len(name) == 1 else name for name in names],
            "emitted": emitted,
            "recomputed": recomputed,
            "status": ["equal"] * 7 + ["differs"] * 2,
        }
    )
    more = pd.DataFrame(
        {"name": ["polar/x"], "emitted": [np.nan], "recomputed": [2.0], "status": ["not emitted"]}
    )
    return pd.concat([frame, more], ignore_index=True).convert_dtypes()


def simulation() -> pd.DataFrame:
    """Two estimators on the same tasks: one is true to all, the other favours the ends."""
    value = np.linspace(0.05, 0.95, 16)
    spread = np.sqrt(value * (1 - value))
    parts = [
        pd.DataFrame({"estimator": "loo", "value": value, "share": 1 + 0.05 * np.sin(7 * value)}),
        pd.DataFrame({"estimator": "grpo", "value": value, "share": 0.4 / spread}),
    ]
    return pd.concat(parts, ignore_index=True).convert_dtypes()
